"""What a finished run says at its end: before and after, the curve, some episodes, where to go from here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from kolb.credit.group_stats import BOUNDARIES, SUCCESS_AT
from kolb.errors import RecipeError
from kolb.loop import Result
from kolb.runs.directory import RunDirectory
from kolb.runs.plots import plot_png, plot_text
from kolb.types import Episode, Group
from kolb.view.render import episode_view, safe
from kolb.view.usage import usage_lines, usage_of

MAX_CHARS = 600
LAST_TURNS = 2
SEARCHED_STEPS = 20
CURVES = {"reward/mean": "outcome in training", "eval/mean": "outcome in evaluation"}

Line = Mapping[str, Any]


def print_report(result: Result, *, quiet: bool = False, out: Console | None = None) -> None:
    """Prints the report of the run in ``result``; ``quiet`` leaves out curve, episodes and advice."""
    out = out or Console(highlight=False)
    run = RunDirectory.open(result.directory)
    lines = run.metrics()
    usage = usage_lines(usage_of(lines), usage_of(lines, "role"))
    facts = [*before_and_after(lines, run.recipe()), *broken(lines), *usage]
    for text in [*facts, f"run: {run.path}"]:
        out.print(safe(text), soft_wrap=True)
    if quiet:
        return
    print_curve(run, lines, out)
    for title, episode in [*chosen_episodes(groups_of(result, run)), *experience(run)]:
        out.print(safe(f"\n{title}", "bold"))
        out.print(episode_view(episode, max_chars=MAX_CHARS, last_turns=LAST_TURNS))
    out.print(
        safe("\nnext, for example:\n" + "\n".join(f"  {c}" for c in commands(run))), soft_wrap=True
    )


# ----------------------------------------------------------------------------------------- the numbers


def before_and_after(lines: Sequence[Line], recipe: Mapping[str, Any]) -> Iterator[str]:
    """One line per stage that was evaluated, and one more where something broke. A stage that was not evaluated at its start goes on from
    the end of the one before, where that was measured in the same way."""
    ended: tuple[Mapping[str, Any], str] | None = None
    for stage in recipe["stages"]:
        mine = [line for line in lines if line.get("stage") == stage["name"]]
        before = [i for line in mine if (i := interval(line, "eval_start"))]
        after = [line for line in mine if interval(line, "eval")]
        if not after:
            ended = None
            continue
        if not before and ended is not None and is_measured_alike(ended[0], stage):
            before = [ended[1]]
        last = interval(after[-1], "eval")
        ended = stage, last
        what = f"{stage['name']}: {measured(mine)} on {stage['evaluation']['split']}"
        numbers = f"{before[0]} before, {last} after" if before else f"{last} at the end"
        yield f"{what} {numbers}"
        if count := broken_in(after[-1], "eval/errors/"):
            total = after[-1]["eval/episodes"]
            yield f"{stage['name']}: {count} of {total} episodes broke and are left out of the last number"


def measured(lines: Sequence[Line]) -> str:
    """``success`` where every outcome is 0 or 1, so that its mean is the share of successes."""
    pairs = [
        (line.get(f"{area}/mean"), line.get(f"{area}/success"))
        for line in lines
        for area in ("eval_start", "eval")
    ]
    return "success" if all(mean == success for mean, success in pairs) else "outcome"


def is_measured_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two stages evaluate the same policies on the same tasks with the same sampling."""

    def how(stage: Mapping[str, Any]) -> list[Any]:
        spec = {k: v for k, v in stage["evaluation"].items() if k not in ("every", "at_start")}
        return [spec, *(stage.get(key) for key in ("environment", "sampling", "history", "roles"))]

    return how(one) == how(other)


def broken(lines: Sequence[Line]) -> Iterator[str]:
    """What broke in training, where anything did."""
    count = sum(broken_in(line, "errors/") for line in lines)
    if count:
        yield f"{count} episodes broke in training; their groups were left out (kolb view says why)"


def broken_in(line: Line, area: str) -> int:
    return round(sum(line.get(f"{area}{name}") or 0 for name in BOUNDARIES))


def interval(line: Line, area: str) -> str:
    """``0.71 (0.62 to 0.80)``: the mean with its 95% interval; empty where it was not measured."""
    mean, low, high = (line.get(f"{area}/{name}") for name in ("mean", "low", "high"))
    return (
        ""
        if mean is None or low is None or high is None
        else f"{mean:.2f} ({low:.2f} to {high:.2f})"
    )


# ------------------------------------------------------------------------------------------- the curve


def curves(lines: Sequence[Line]) -> dict[str, list[tuple[float, float | None]]]:
    """What CURVES names, by step; an evaluation before a stage stands at the step before.

    Steps that learnt from what nobody sampled are left out of training: an expert's success is not the agent's.
    A step without tokens and without a loss is the agent's own, of a model that gives no tokens.
    """
    series: dict[str, list[tuple[float, float | None]]] = {}
    for metric, title in CURVES.items():
        is_evaluation = metric.startswith("eval/")
        mine = [line for line in lines if is_evaluation or _is_sampled(line)]
        points = [(line["step"], line[metric]) for line in mine if metric in line]
        if is_evaluation:
            start = "eval_start/" + metric.removeprefix("eval/")
            points += [(line["step"] - 1, line[start]) for line in lines if start in line]
        if len(points) > 1:
            series[title] = sorted(points)
    return series


def _is_sampled(line: Line) -> bool:
    return bool(line.get("tokens/sampled")) or not any(key.startswith("loss/") for key in line)


def print_curve(run: RunDirectory, lines: Sequence[Line], out: Console) -> None:
    series = curves(lines)
    if not series:
        return
    width = max(20, min(60, out.width - 14))
    plot = plot_text(series, width, 10, ascii_only=not out.encoding.startswith("utf"))
    out.print(safe(f"\n{plot}\n"), soft_wrap=True)
    try:
        out.print(
            safe(f"the same as a picture: {plot_png(series, run.path / 'curve.png', run.name)}"),
            soft_wrap=True,
        )
    except RecipeError as error:
        out.print(safe(f"no picture: {error}", "dim"), soft_wrap=True)


# ---------------------------------------------------------------------------------------- the episodes


def groups_of(result: Result, run: RunDirectory) -> Sequence[Group]:
    """The last evaluation's groups, or else those of the last step on disk."""
    if result.evaluations:
        return result.evaluations[-1][1].groups
    steps = run.episode_steps()
    return run.episodes(steps[-1]) if steps else ()


def chosen_episodes(groups: Sequence[Group]) -> Iterator[tuple[str, Episode]]:
    """The first failed and the first solved episode, where there are such."""
    episodes = [
        e for g in groups for e in g.episodes if e.status.is_usable and e.outcome is not None
    ]
    for title, is_solved in (("a failed episode", False), ("a solved episode", True)):
        fitting = [e for e in episodes if ((e.outcome or 0.0) >= SUCCESS_AT) == is_solved]
        if fitting:
            yield f"{title}: task {fitting[0].task_id}", fitting[0]


def experience(run: RunDirectory) -> Iterator[tuple[str, Episode]]:
    """The earliest failure that something later in the same episode made good (a second attempt, say),
    without what was only told again. It gives up at a failure with nothing behind it: such a method does not
    try again, and its episodes need not all be read."""
    for step in run.episode_steps()[:SEARCHED_STEPS]:
        episodes = [(g, e) for g, group in enumerate(run.episodes(step)) for e in group.episodes]
        for g, e in episodes:
            if not e.status.is_usable or (e.outcome or 0.0) >= SUCCESS_AT:
                continue
            if len(e.trajectories) < 2:
                return
            sampled = tuple(t for t in e.trajectories if t.sampled_tokens)
            if max((t.reward or 0.0 for t in sampled), default=0.0) >= SUCCESS_AT:
                where = f"step {step}, group {g}, episode {e.index}"
                yield f"a failure and what came of it: {where}", replace(e, trajectories=sampled)
                return


def commands(run: RunDirectory) -> list[str]:
    found = [
        f"kolb view {run.path}                 # browse every step and episode",
        f"kolb play {run.path}                 # watch the agent",
        f"kolb eval {run.path} --samples 4     # measure again, with pass@4",
    ]
    if run.numbered("memory"):
        found.append(f"kolb library show {run.path}         # what was learnt, in words, and why")
    if run.numbered("checkpoints") and any(stage["learn"] for stage in run.recipe()["stages"]):
        found.append(f"kolb export {run.path} ./my-model    # a Hugging Face folder")
    return found
