"""A stage that ends when its policies have said enough: tokens in place of steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from loop_toys import Guess, StoppedError, StopsAfter, engine, guess, recipe

from kolb.errors import RecipeError
from kolb.loop import run
from kolb.runs.directory import RunDirectory
from kolb.stage import CheckpointSpec, Evaluation, Recipe

STEPS = 9
BUDGET = 500
"""Between the tokens of 3 and of 4 steps: see the first test."""


def budgeted(budget: int = BUDGET, **stage: Any) -> Recipe:
    spec = Evaluation(at_start=True, episodes=3)
    return recipe(steps=STEPS, token_budget=budget, evaluation=spec, **stage)


def lines_of(path: Path) -> list[dict[str, Any]]:
    lines = RunDirectory.open(path).metrics()
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def bytes_of(path: Path) -> dict[str, bytes]:
    """Every file of the run's checkpoints and episodes."""
    files = [f for folder in ("checkpoints", "episodes") for f in (path / folder).rglob("*")]
    return {str(f.relative_to(path)): f.read_bytes() for f in files if f.is_file()}


def test_the_stage_ends_after_the_first_step_that_reaches_its_budget(tmp_path: Path) -> None:
    run(budgeted(0), tmp_path / "unbounded", engine=engine())
    every = lines_of(tmp_path / "unbounded")
    totals = list(accumulate(line["tokens/sampled"] for line in every))
    assert [line["tokens/stage"] for line in every] == totals
    assert len(totals) == STEPS
    assert totals[2] < BUDGET < totals[3]

    run(budgeted(), tmp_path / "bounded", engine=engine())
    bounded = lines_of(tmp_path / "bounded")
    assert [line["tokens/stage"] for line in bounded] == totals[:4]


def test_reaching_the_budget_exactly_is_enough(tmp_path: Path) -> None:
    run(budgeted(0), tmp_path / "unbounded", engine=engine())
    reached = lines_of(tmp_path / "unbounded")[1]["tokens/stage"]
    for budget, steps in ((reached - 1, 2), (reached, 2), (reached + 1, 3)):
        run(budgeted(budget), tmp_path / str(budget), engine=engine())
        assert len(lines_of(tmp_path / str(budget))) == steps


def test_steps_end_it_where_the_budget_is_not_reached(tmp_path: Path) -> None:
    watcher = StopsAfter()
    run(budgeted(10**9), tmp_path / "run", engine=engine(), observer=watcher)
    assert len(lines_of(tmp_path / "run")) == STEPS
    assert not [note for note in watcher.notes if "token_budget" in note]


def test_the_end_by_budget_is_evaluated_saved_and_told(tmp_path: Path) -> None:
    watcher = StopsAfter()
    made = replace(budgeted(), checkpoints=CheckpointSpec(every=0))
    run(made, tmp_path / "run", engine=engine(), observer=watcher)
    lines = lines_of(tmp_path / "run")
    assert ["eval/mean" in line for line in lines] == [False, False, False, True]
    assert RunDirectory.open(tmp_path / "run").numbered("checkpoints") == [4]
    spent = lines[-1]["tokens/stage"]
    assert watcher.notes == [
        f"stage 'toy' ends with step 4 of 9: {spent} tokens were sampled in it (token_budget = 500)"
    ]


def test_tokens_of_evaluations_do_not_count_and_those_of_broken_tries_do(tmp_path: Path) -> None:
    plain, mended = Guess(), Guess("raises", troubled=16, mends_after=1)
    for name, source in (("plain", plain), ("mended", mended)):
        made = recipe(source=source, steps=1, evaluation=Evaluation(at_start=True, episodes=16))
        run(made, tmp_path / name, engine=engine())
    [line] = lines_of(tmp_path / "plain")
    recorded = sum(
        t.sampled_tokens
        for g in RunDirectory.open(tmp_path / "plain").episodes(1)
        for e in g.episodes
        for t in e.trajectories
    )
    assert line["eval/tokens"] > 0
    assert line["tokens/stage"] == recorded
    # Evaluation met the 16 test tasks first; of each training task the first world breaks at its first step.
    assert lines_of(tmp_path / "mended")[0]["tokens/stage"] > recorded


@pytest.mark.parametrize("killed_after", [1, 2, 3, 4])
def test_killed_anywhere_and_resumed_it_ends_with_the_same_bytes(
    tmp_path: Path, killed_after: int
) -> None:
    made = replace(budgeted(), checkpoints=CheckpointSpec(every=2, keep=0))
    run(made, tmp_path / "whole", engine=engine())
    with pytest.raises(StoppedError):
        run(made, tmp_path / "halves", engine=engine(), observer=StopsAfter(killed_after))
    run(made, tmp_path / "halves", engine=engine(), resume=True)
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "halves")
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "halves")


def test_a_run_that_spent_its_budget_is_finished(tmp_path: Path) -> None:
    run(budgeted(), tmp_path / "run", engine=engine())
    result = run(budgeted(), tmp_path / "run", engine=engine(), resume=True)
    assert result.was_finished
    assert len(lines_of(tmp_path / "run")) == 4


def test_the_next_stage_counts_from_zero(tmp_path: Path) -> None:
    made = budgeted()
    second = replace(made.stages[0], name="more", token_budget=0, steps=1)
    run(replace(made, stages=(*made.stages, second)), tmp_path / "run", engine=engine())
    lines = lines_of(tmp_path / "run")
    assert [line["stage"] for line in lines] == ["toy"] * 4 + ["more"]
    assert lines[-1]["tokens/stage"] == lines[-1]["tokens/sampled"]


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(RecipeError, match="token_budget"):
        budgeted(-1)


def test_the_rate_of_a_schedule_follows_steps_and_not_tokens(tmp_path: Path) -> None:
    for name, budget in (("free", 0), ("bounded", BUDGET)):
        run(budgeted(budget, schedule="linear"), tmp_path / name, engine=engine(guess))
    free, bounded = lines_of(tmp_path / "free"), lines_of(tmp_path / "bounded")
    assert [line["lr"] for line in bounded] == [line["lr"] for line in free[:4]]
    assert bounded[-1]["lr"] > free[-1]["lr"] > 0
