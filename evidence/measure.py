"""What a finished run shows: its learning curve, its end, its cost, and its further evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence.plan import Arm, Experiment, ExtraSet
from kolb.errors import RunDirectoryError
from kolb.evaluate import share_solved
from kolb.runs.directory import RunDirectory

TAKE_OFF = 0.5


@dataclass(frozen=True)
class Measured:
    """``curve``: (tokens sampled in training, value) of each evaluation. ``seconds`` are without evaluations.

    ``extras``: success by set, then by tag value; ``""`` is the whole set.
    """

    curve: tuple[tuple[int, float], ...]
    tokens: int
    seconds: float
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    extras: Mapping[str, Mapping[str, float]]

    @property
    def final(self) -> float:
        return self.curve[-1][1]

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

    @property
    def take_off(self) -> int | None:
        """Tokens at the first evaluation of at least ``TAKE_OFF``."""
        return next((tokens for tokens, value in self.curve if value >= TAKE_OFF), None)


def short(count: float) -> str:
    """
    >>> short(250_000), short(2_000_000), short(999)
    ('250k', '2M', '999')
    """
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if count >= unit:
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
        curve=curve_of(lines, experiment.quantity, path),
        tokens=lines[-1]["tokens/stage"],
        seconds=sum(line["time/step_s"] - line.get("time/evaluate_s", 0.0) for line in lines),
        recipe=recipe,
        environment=run.environment(),
        extras={name: by_tag(content, path) for name, content in kept.items() if content},
    )


def curve_of(
    lines: list[dict[str, Any]], quantity: str, path: Path
) -> tuple[tuple[int, float], ...]:
    """(tokens sampled in training, value) of every evaluation of a stage, that before its first step included."""
    start = lines[0].get(f"eval_start/{quantity}")
    points = [(0, start)] if start is not None else []
    points += [
        (line["tokens/stage"], value)
        for line in lines
        if (value := line.get(f"eval/{quantity}")) is not None
    ]
    if lines[-1].get(f"eval/{quantity}") is None:
        raise RunDirectoryError(
            f"{path} has no eval/{quantity} at its end; its last stage needs a [stages.evaluation]"
        )
    return tuple(points)


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
