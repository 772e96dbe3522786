"""Made-up runs with numbers that the tests write down, and a small plan that looks at them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence.plan import Arm, Claim, Evidence, Experiment, ExtraSet, Quantity
from kolb.runs.directory import RunDirectory

BUDGET = 1000


def toy_quantity(**changes: Any) -> Quantity:
    given = {"metric": "success, new tasks", "claims": (Claim("toy", "new", "old_way"),)}
    return Quantity(**{**given, **changes})


def toy_experiment(recipe: Path = Path("recipes/toy.toml"), **changes: Any) -> Experiment:
    given: dict[str, Any] = {
        "name": "toy",
        "recipe": recipe,
        "about": "A toy.",
        "arms": (Arm("new"), Arm("old_way", ("stages.rl.method.group_size=2",))),
        "quantities": (toy_quantity(),),
    }
    return Experiment(**{**given, **changes})


def toy_evidence(folder: Path, *experiments: Experiment) -> Evidence:
    notes = folder / "toy_notes.md"
    notes.write_text("A note by hand.\n")
    paper = {"big model": {"new": 0.9, "old_way": 0.25}}
    return Evidence("toy", "Toy evidence", "About it.", "table 1", paper, experiments, notes)


def fabricate(
    path: Path,
    curve: Sequence[tuple[int, float]],
    *,
    budget: int = BUDGET,
    steps: int = 99,
    also: str = "success",
) -> None:
    """A finished run: one step per point of ``curve`` after the first, which is before training. The metric
    ``also`` has the same curve as success."""
    evaluation = {"split": "test", "episodes": 20, "samples": 2}
    stages = [{"name": "rl", "steps": steps, "token_budget": budget, "evaluation": evaluation}]
    with RunDirectory.create(path, {"name": "toy", "stages": stages}) as run:
        for step, (tokens, value) in enumerate(curve[1:], 1):
            metrics = {"tokens/stage": tokens, "eval/success": value, "time/step_s": 3.0}
            metrics[f"eval/{also}"] = value
            metrics["time/evaluate_s"] = 1.0
            if step == 1:
                metrics |= {f"eval_start/{name}": curve[0][1] for name in ("success", also)}
            run.record(step, (), metrics, stage="rl")
    run.file("checkpoints", len(curve) - 1).mkdir()
    described = json.loads((path / "env.json").read_text())
    described |= {
        "commit": "abc123",
        "cpus": 2,
        "platform": "Testix",
        "created": "2026-01-02T03:04",
    }
    (path / "env.json").write_text(json.dumps(described))


def fabricate_all(
    experiment: Experiment, root: Path, ends: dict[str, Sequence[float]], **changes: Any
) -> None:
    """Runs that rise from 0.1 over half way to the ends of their arm, seed by seed."""
    for arm in experiment.arms:
        for seed, end in zip(experiment.seeds, ends[arm.name], strict=True):
            curve = ((0, 0.1), (500 + seed, (0.1 + end) / 2), (1000 + seed, end))
            fabricate(experiment.folder(root, arm, seed), curve, **changes)


def fabricate_extra(
    experiment: Experiment, root: Path, extra: ExtraSet, outcomes: dict[str, list[float | None]]
) -> None:
    content = {
        "asked": extra.asked,
        "tags": {task: task.split("-")[0] for task in outcomes},
        "outcomes": outcomes,
    }
    for arm in experiment.arms:
        for seed in experiment.seeds:
            experiment.extra_file(root, arm, seed, extra).write_text(json.dumps(content))
