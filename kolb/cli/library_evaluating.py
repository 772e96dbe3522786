"""``kolb library eval``: the same tasks and seeds with a library and without it, or with another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kolb.cli.counting import say
from kolb.cli.library_using import with_lessons, write_new
from kolb.cli.opened import Source, opened_samplers, read_source, usages
from kolb.credit.paired import Paired, paired
from kolb.engines.base import Sampler
from kolb.errors import RecipeError
from kolb.evaluate import EvaluationResult, evaluate
from kolb.libraries import NamedLibrary
from kolb.memory.exporting import size
from kolb.memory.library import ExperienceLibrary
from kolb.runs.files import plain
from kolb.stage import Evaluation, Stage
from kolb.types import Status
from kolb.view.usage import usage_lines

SCHEMA = 1
FEW_TASKS = 50


@dataclass(frozen=True)
class Side:
    """One library, what the evaluation under it gave, and what its policies asked of an endpoint meanwhile."""

    name: str
    library: ExperienceLibrary
    result: EvaluationResult
    usage: Mapping[str, Mapping[str, float]]

    @property
    def broken(self) -> int:
        return sum(n for s, n in self.result.statuses.items() if not Status(s).is_usable)

    @property
    def cost(self) -> float | None:
        """None where no policy has a price."""
        costs = [u["cost"] for u in self.usage.values() if "cost" in u]
        return sum(costs) if costs else None


def compare(
    source: str,
    recipe: str,
    against: str = "",
    *,
    changes: Mapping[str, Any],
    opened: Mapping[str, Any],
    to: Path | None = None,
) -> None:
    """Evaluates twice and prints. ``changes`` replace fields of the stage's own Evaluation; ``opened``: stage and
    sets, as for ``kolb eval``. ``to`` is a new file for all numbers as JSON."""
    named = with_lessons(source)
    other = with_lessons(against) if against else None
    played = read_source(recipe or run_of(named, source), sets=opened["sets"])
    stage = played.stage(opened["stage"])
    check_reads(stage)
    if to is not None and to.exists():
        raise RecipeError(f"--to {to}: it is there already; give a new file")
    spec = replace(stage.evaluation or Evaluation(), **changes)
    libraries = {
        other.title if other else "no library": other.library if other else ExperienceLibrary(),
        named.title: named.library,
    }
    if len(libraries) < 2:
        raise RecipeError(f"--against {against}: that is the same library; give another one")
    without, with_ = measured(played, stage, spec, libraries)
    found = paired(with_.result.outcomes, without.result.outcomes)
    say("\n".join(report(without, with_, found, spec)))
    if spec.split == stage.split:
        say(
            f"{spec.split!r} is the split to learn from: other tasks say more about what the lessons are worth."
        )
    if to is not None:
        content = as_data(without, with_, found, spec)
        write_new(to, json.dumps(plain(content), indent=2) + "\n")
        say(f"written to {to}")


def run_of(named: NamedLibrary, source: str) -> str:
    if named.run is None:
        raise RecipeError(
            f"{source} is a file; say on what to try it, as in kolb library eval {source} RECIPE"
        )
    return str(named.run.path)


def check_reads(stage: Stage) -> None:
    """RecipeError for a method that shows the library to no attempt: both sides would be the same."""
    if getattr(stage.method, "places_library", False):
        raise RecipeError(
            f"stage {stage.name!r}: {stage.method.name} does not show the library to the attempts that an evaluation "
            "makes, so there is nothing to compare; give a recipe of tf_grpo or grpo, with the same environment"
        )


def measured(
    played: Source, stage: Stage, spec: Evaluation, libraries: Mapping[str, ExperienceLibrary]
) -> list[Side]:
    sides: list[Side] = []
    with opened_samplers(played, stage) as samplers:
        for name, library in libraries.items():
            before = totals(samplers)
            result = asyncio.run(evaluate(stage, spec, samplers, library, step=played.step))
            usage = {
                p: {k: v - before[p].get(k, 0) for k, v in u.items()}
                for p, u in totals(samplers).items()
            }
            sides.append(Side(name, library, result, usage))
    return sides


def totals(samplers: Mapping[str, Sampler]) -> dict[str, dict[str, float]]:
    return {policy: dict(usage) for policy, usage in usages(samplers).items()}


# ----------------------------------------------------------------------------------------- in words


def report(without: Side, with_: Side, found: Paired | None, spec: Evaluation) -> Iterator[str]:
    """The two sides below each other, the difference, and what may be said about it."""
    tasks = len(with_.result.outcomes)
    yield (
        f"{tasks} tasks of split {spec.split!r}, {spec.samples} attempt{'s' * (spec.samples > 1)} at each, seed "
        f"{spec.seed}: the same tasks and seeds for both\n"
    )
    width = max(len(without.name), len(with_.name))
    names = [f"mean@{spec.samples}", f"pass@{spec.samples}", "tokens sampled", "broken", "cost"]
    yield "  ".join([" " * width, *(f"{n:>14}" for n in names)]).rstrip()
    for side in (without, with_):
        yield "  ".join([f"{side.name:{width}}", *(f"{c:>14}" for c in cells(side, spec))]).rstrip()
    yield f"\n{with_.name} has {size(with_.library)}, which every attempt reads"
    yield from (
        f"{side.name}: {line}" for side in (without, with_) for line in usage_lines(side.usage)
    )
    yield ""
    yield from conclusion(without, with_, found)


def cells(side: Side, spec: Evaluation) -> Iterator[str]:
    mean, passed = side.result.mean, side.result.pass_at.get(spec.samples)
    yield "-" if mean is None else f"{mean:.3f}"
    yield "-" if passed is None else f"{passed:.3f}"
    yield f"{side.result.tokens:,}" if side.result.tokens else "-"
    yield f"{side.broken} of {sum(side.result.statuses.values())}"
    yield "-" if side.cost is None else f"{side.cost:.4f}"


def conclusion(without: Side, with_: Side, found: Paired | None) -> Iterator[str]:
    if found is None:
        yield "Nothing can be said: no task has an outcome on both sides."
        return
    low, high = found.interval
    yield (
        f"difference of the means, task by task: {found.mean:+.3f}  (95% interval {low:+.3f} to {high:+.3f}); better on "
        f"{found.count(1)} tasks, worse on {found.count(-1)}, equal on {found.count(0)}"
    )
    if found.left_out:
        yield f"{len(found.left_out)} tasks are left out: all their attempts broke on a side, or have no outcome"
    if not any(found.differences.values()):
        yield "No difference can be seen: every task came out the same on both sides."
    elif found.is_clear:
        better = with_ if found.mean > 0 else without
        yield f"{better.name} is better on these tasks: the interval does not hold 0."
    else:
        yield "No difference can be seen: the interval holds 0. More tasks or samples would make it narrower."
    if len(found.differences) < FEW_TASKS:
        yield (
            f"With {len(found.differences)} tasks the interval is itself uncertain, and rather too narrow: take "
            f"{FEW_TASKS} or more."
        )


def as_data(without: Side, with_: Side, found: Paired | None, spec: Evaluation) -> dict[str, Any]:
    """All of it as plain data: how it was measured, each side, each task's difference."""
    sides = [
        {
            "library": side.name,
            "version": side.library.version,
            "lessons": len(side.library.experiences),
            "mean": side.result.mean,
            "pass": dict(side.result.pass_at),
            "tokens": side.result.tokens,
            "statuses": dict(side.result.statuses),
            "usage": side.usage,
            "cost": side.cost,
            "outcomes": side.result.outcomes,
        }
        for side in (without, with_)
    ]
    difference = None if found is None else {**asdict(found), "is_clear": found.is_clear}
    return {"schema": SCHEMA, "evaluation": asdict(spec), "sides": sides, "difference": difference}
