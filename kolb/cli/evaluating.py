"""``kolb eval``: the evaluator of the loop, on a run's checkpoint or a recipe's first weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kolb.cli.opened import Source, opened_samplers, read_source, usages
from kolb.evaluate import EvaluationResult, evaluate
from kolb.runs.files import plain, write_atomic
from kolb.stage import Evaluation
from kolb.view.usage import usage_lines

SCHEMA = 1


def evaluate_source(
    name: str,
    changes: Mapping[str, Any],
    *,
    checkpoint: int | None = None,
    stage: str = "",
    sets: Sequence[str] = (),
) -> EvaluationResult:
    """Evaluates and prints. ``changes`` replace fields of the stage's own Evaluation.

    For a run the result is also written to ``eval-STEP-NUMBER.json`` in its folder.
    """
    source = read_source(name, checkpoint=checkpoint, sets=sets)
    chosen = source.stage(stage)
    spec = replace(chosen.evaluation or Evaluation(), **changes)
    with opened_samplers(source, chosen) as samplers:
        result = asyncio.run(evaluate(chosen, spec, samplers, source.library, step=source.step))
    print(in_words(result, spec))
    for line in usage_lines(usages(samplers)):
        print(line)
    if source.run is not None:
        print(f"written to {write(source, chosen.name, spec, result)}")
    return result


def in_words(result: EvaluationResult, spec: Evaluation) -> str:
    """A few lines: the mean with its interval, pass@k, what broke."""
    count = sum(result.statuses.values())
    lines = [
        f"{len(result.outcomes)} tasks of split {result.split!r}, {count} episodes, seed {spec.seed}"
    ]
    if result.mean is None or result.interval is None or result.success is None:
        lines.append("no episode has an outcome: see the statuses")
    else:
        low, high = result.interval
        lines.append(f"mean outcome  {result.mean:.3f}  (95% interval {low:.3f} to {high:.3f})")
        lines.append(f"success       {result.success:.1%}")
    lines += [f"pass@{k:<8} {value:.1%}" for k, value in result.pass_at.items() if k > 1]
    statuses = ", ".join(f"{number} {status}" for status, number in sorted(result.statuses.items()))
    return "\n".join([*lines, f"statuses      {statuses}"])


def write(source: Source, stage: str, spec: Evaluation, result: EvaluationResult) -> Path:
    """The result with all that it takes to repeat it, under the first free name."""
    assert source.run is not None
    number = 1
    while (path := source.run.path / f"eval-{source.step:06d}-{number}.json").exists():
        number += 1
    content = {
        "schema": SCHEMA,
        "step": source.step,
        "stage": stage,
        "evaluation": asdict(spec),
        "metrics": result.metrics(),
        "statuses": dict(result.statuses),
        "outcomes": result.outcomes,
    }
    write_atomic(path, json.dumps(plain(content), indent=2).encode() + b"\n")
    return path
