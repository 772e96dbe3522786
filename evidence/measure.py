"""What a finished run shows: its learning curve, its end, its cost, and its further evaluations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence.plan import Arm, Base, Curve, Experiment, ExtraSet, Quantity
from kolb.errors import RunDirectoryError
from kolb.evaluate import share_solved
from kolb.runs.directory import RunDirectory

TAKE_OFF = 0.5
STEP_METRICS = {"library/size": 0.0}
"""Metrics of every step of which there may be a curve, with what they are where a step does not write them."""


@dataclass(frozen=True)
class Measured:
    """``curves`` are by evaluation metric. ``seconds`` are without evaluations.

    ``extras``: success by set, then by tag value; ``""`` is the whole set. ``roles``: tokens that each role sampled
    in training, where the experiment tells them. ``weights``: the digest of the files that it began from.
    """

    curves: Mapping[str, Curve]
    tokens: int
    steps: int
    seconds: float
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    extras: Mapping[str, Mapping[str, float]]
    roles: Mapping[str, int] = field(default_factory=dict)
    weights: str = ""

    def value(self, quantity: Quantity) -> float:
        if quantity.extra:
            return self.extras[quantity.extra][""]
        return quantity.read(self.curves[quantity.curve])

    def has(self, quantity: Quantity) -> bool:
        """Whether the further evaluation that ``quantity`` is read from, if any, was made."""
        return not quantity.extra or quantity.extra in self.extras

    def before(self, quantity: Quantity) -> float | None:
        """What the curve shows before the first step; None where it begins later."""
        tokens, value = self.curves[quantity.curve][0]
        return None if tokens else value

    @property
    def stage(self) -> Mapping[str, Any]:
        return self.recipe["stages"][-1]

    @property
    def budget(self) -> str:
        """``250k generated tokens``: what ended the last stage. RunDirectoryError where its recipe gives a
        number of tokens and it ended before them."""
        tokens, steps = self.stage["token_budget"], self.stage["steps"]
        if self.tokens < tokens:
            raise RunDirectoryError(
                f"a run of {self.recipe['name']} ended by its {steps} steps at {self.tokens} of {tokens} tokens, so arms "
                "cannot be compared at equal tokens; raise steps, or lower token_budget"
            )
        return f"{short(tokens)} generated tokens" if tokens else f"{steps} steps"

    def take_off(self, quantity: Quantity) -> int | None:
        """Tokens at the first evaluation of at least ``TAKE_OFF``."""
        curve = self.curves[quantity.curve]
        return next((tokens for tokens, value in curve if value >= TAKE_OFF), None)


def values(q: Quantity, runs: Sequence[Measured]) -> list[float]:
    """One for each run, in their order."""
    return [run.value(q) for run in runs]


def short(count: float) -> str:
    """
    >>> short(250_000), short(2_000_000), short(999), short(-2500)
    ('250k', '2M', '999', '-2.5k')
    """
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(count) >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.0f}"


def is_finished(run: RunDirectory) -> bool:
    """Whether the last stage has taken its steps or spent its tokens, and was saved at its end."""
    stage = run.recipe()["stages"][-1]
    lines = [line for line in run.metrics() if line["stage"] == stage["name"]]
    if not lines or run.numbered("checkpoints")[-1:] != [lines[-1]["step"]]:
        return False
    budget = stage["token_budget"]
    return len(lines) >= stage["steps"] or 0 < budget <= lines[-1]["tokens/stage"]


def measure(experiment: Experiment, arm: Arm, seed: int, root: Path) -> Measured | None:
    """The run of this arm and seed; None while it is not finished."""
    path = experiment.folder(root, arm, seed)
    if not (path / "env.json").exists() or not is_finished(run := RunDirectory.open(path)):
        return None
    recipe = run.recipe()
    lines = [line for line in run.metrics() if line["stage"] == recipe["stages"][-1]["name"]]
    kept = {
        e.name: read_extra(experiment.extra_file(root, arm, seed, e), e) for e in experiment.extras
    }
    return Measured(
        curves={
            q.curve: curve_of(lines, q.curve, path) for q in experiment.quantities if not q.extra
        },
        tokens=lines[-1]["tokens/stage"],
        steps=len(lines),
        seconds=sum(line["time/step_s"] - line.get("time/evaluate_s", 0.0) for line in lines),
        recipe=recipe,
        environment=run.environment(),
        extras={name: by_tag(content, path) for name, content in kept.items() if content},
        roles=by_role(run, [line["step"] for line in lines]) if experiment.tells_roles else {},
        weights=began.read_text() if (began := path.with_suffix(".weights")).exists() else "",
    )


def by_role(run: RunDirectory, steps: Sequence[int]) -> dict[str, int]:
    """Tokens that each role sampled, in the episodes that are kept on record."""
    found: Counter[str] = Counter()
    for group in (g for step in steps for g in run.stream(step)):
        for trajectory in (t for e in group.episodes for t in e.trajectories):
            found[trajectory.role] += trajectory.sampled_tokens
    return dict(found)


def curve_of(lines: list[dict[str, Any]], metric: str, path: Path) -> Curve:
    """Of a stage's evaluations, that before its first step included, or of a metric of its steps."""
    if metric in STEP_METRICS:
        absent = STEP_METRICS[metric]
        return ((0, absent), *((line["tokens/stage"], line.get(metric, absent)) for line in lines))
    start = lines[0].get(f"eval_start/{metric}")
    points = [(0, start)] if start is not None else []
    points += [
        (line["tokens/stage"], value)
        for line in lines
        if (value := line.get(f"eval/{metric}")) is not None
    ]
    if lines[-1].get(f"eval/{metric}") is None:
        raise RunDirectoryError(
            f"{path} has no eval/{metric} at its end; its last stage needs a [stages.evaluation]"
        )
    return tuple(points)


def is_built(base: Base, root: Path) -> bool:
    return (base.folder(root) / "model").is_dir()


def of_base(base: Base, root: Path) -> dict[str, float]:
    """The last evaluation of a base that is built, by metric: ``score/wait``."""
    last_line = RunDirectory.open(base.folder(root) / "run").metrics()[-1]
    return {n.removeprefix("eval/"): v for n, v in last_line.items() if n.startswith("eval/")}


def read_extra(file: Path, extra: ExtraSet) -> Mapping[str, Any] | None:
    """What ``keep_extra`` wrote; None where there is nothing, or what was asked for was something else."""
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return content if content.get("asked") == extra.asked else None


def by_tag(content: Mapping[str, Any], path: Path) -> dict[str, float]:
    """Success of an extra evaluation over all its tasks, and over those of each tag value."""
    shares = {
        task: share_solved(scored)
        for task, outcomes in content["outcomes"].items()
        if (scored := [o for o in outcomes if o is not None])
    }
    if not shares:
        raise RunDirectoryError(
            f"{path}: every episode of a further evaluation broke; its log beside the folder says why"
        )
    tags: Mapping[str, str] = content["tags"]
    values = sorted({tags[task] for task in shares if task in tags}, key=lambda v: (len(v), v))
    parts = {
        value: [s for task, s in shares.items() if tags.get(task) == value] for value in values
    }
    return {"": fmean(shares.values()), **{value: fmean(part) for value, part in parts.items()}}
