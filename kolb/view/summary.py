"""A run on one screen: stages, curve, newest metrics, failures and the end of the log."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kolb.runs.directory import RunDirectory
from kolb.runs.plots import plot_text, sparkline
from kolb.types import Status
from kolb.view.render import excerpt, number, safe

CURVES = ("reward/mean", "eval/mean")
LOG_LINES = 5


def print_summary(run: RunDirectory, out: Console) -> None:
    """Prints all of it; says so where a run has no step yet."""
    lines = run.metrics()
    out.print(_heading(run), soft_wrap=True)
    if not lines:
        out.print("no step is recorded yet")
    else:
        out.print(_stages(run, lines))
        _print_curve(out, lines)
        out.print(_newest_metrics(lines))
    out.print("\n", _failures(run), sep="")
    for line in _log_tail(run):
        out.print(safe(line, "dim"), soft_wrap=True)


def _heading(run: RunDirectory) -> Text:
    env, recipe = run.environment(), run.recipe()
    versions = env.get("versions", {})
    told = [f"{name} {versions[name]}" for name in ("kolb", "torch") if versions.get(name)]
    if env.get("commit"):
        told.append(f"commit {env['commit'][:10]}")
    name = str(recipe.get("name", run.name))
    rest = ", ".join([f"started {env.get('created', '?')}", *told])
    return Text.assemble(safe(name, "bold"), safe(f"  {run.path}\n"), safe(rest, "dim"))


def _stages(run: RunDirectory, lines: Sequence[dict[str, Any]]) -> Table:
    planned = {s.get("name"): s for s in run.recipe().get("stages", []) if isinstance(s, dict)}
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("stage", "method", "steps", "from → to", ""):
        table.add_column(name)
    for stage in dict.fromkeys([*planned, *(line["stage"] for line in lines)]):
        mine = [line for line in lines if line["stage"] == stage]
        name, values = _course(mine)
        done = len({line["step"] for line in mine if line["step"] > 0})
        plan = planned.get(stage, {})
        change = f"{name} {number(values[0])} → {number(values[-1])}" if values else "-"
        steps = f"{done}/{plan['steps']}" if "steps" in plan else str(done)
        table.add_row(safe(stage), safe(_method(plan)), steps, change, sparkline(values, width=24))
    return table


def _course(lines: Sequence[dict[str, Any]]) -> tuple[str, list[float]]:
    """What tells how a stage went: the reward of what was sampled (an expert's says nothing about the
    agent), else the evaluations, else the first loss."""
    losses = sorted({name for line in lines for name in line if name.startswith("loss/")})
    measures = {
        "reward": ["reward/mean"],
        "eval": ["eval_start/mean", "eval/mean"],
        "loss": losses[:1],
    }
    for title, names in measures.items():
        values = [v for ln in lines for n in names if (v := _of_the_agent(ln, n)) is not None]
        if values:
            return title, values
    return "", []


def _of_the_agent(line: dict[str, Any], name: str) -> float | None:
    is_given = name == "reward/mean" and line.get("tokens/sampled") == 0
    return None if is_given else line.get(name)


def _method(plan: dict[str, Any]) -> str:
    method = plan.get("method", "-")
    return str(method.get("use", "-")) if isinstance(method, dict) else str(method)


def _print_curve(out: Console, lines: Sequence[dict[str, Any]]) -> None:
    known = {name for line in lines for name in line if _of_the_agent(line, name) is not None}
    names = [name for name in CURVES if name in known] or sorted(
        n for n in known if n[:5] == "loss/"
    )[:1]
    series = {
        name: [(ln["step"], v) for ln in lines if (v := _of_the_agent(ln, name)) is not None]
        for name in names
    }
    if any(len(points) > 1 for points in series.values()):
        width = max(20, min(60, out.width - 14))
        plot = plot_text(series, width, 8, ascii_only=not out.encoding.startswith("utf"))
        out.print("\n", safe(plot), "\n", sep="")


def _newest_metrics(lines: Sequence[dict[str, Any]]) -> Table:
    merged: dict[str, Any] = {}
    for line in lines:
        if line["step"] == lines[-1]["step"]:
            merged |= line
    numbers = sorted((k, v) for k, v in merged.items() if k not in ("step", "stage"))
    table = Table(
        box=None, pad_edge=False, show_header=False, title_justify="left", title_style="bold"
    )
    table.title = f"metrics of step {merged['step']}"
    cells = [(safe(name), number(value), "  ") for name, value in numbers]
    half = -(-len(cells) // 2)
    for left, right in itertools.zip_longest(cells[:half], cells[half:], fillvalue=()):
        table.add_row(*left, *right)
    return table


def _failures(run: RunDirectory) -> Text:
    counts: Counter[str] = Counter()
    total, newest = 0, None
    for step in run.episode_steps():
        for position, entry in enumerate(run.episode_index(step)):
            broken = [i for i, s in enumerate(entry["statuses"]) if not Status(s).is_usable]
            counts.update(entry["statuses"][i] for i in broken)
            total += len(entry["statuses"])
            newest = (step, position, broken[-1]) if broken else newest
    if newest is None:
        return Text(f"{total} episodes recorded, none broken", style="green" if total else "dim")
    step, group, episode = newest
    failure = run.group(step, group).episodes[episode].failure
    words = ", ".join(f"{n} {status}" for status, n in counts.items())
    text = Text(f"{counts.total()} of {total} episodes broke: {words}\n", style="red")
    text.append(f"the newest is step {step}, group {group}, episode {episode}")
    return text.append(": ").append_text(excerpt(failure.message, 100)) if failure else text


def _log_tail(run: RunDirectory) -> list[str]:
    path = run.path / "log.txt"
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
