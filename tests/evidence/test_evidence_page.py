"""What the evidence command writes, from made-up runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from evidence_toys import (
    fabricate,
    fabricate_all,
    fabricate_extra,
    toy_evidence,
    toy_experiment,
    toy_quantity,
)

from evidence.cells import number
from evidence.curves import framed, mean_curve
from evidence.measure import measure
from evidence.plan import Arm, Claim, ExtraSet
from evidence.write import Page
from kolb.errors import KolbError, RecipeError, RunDirectoryError

GOOD = (0.9, 0.8, 0.7, 0.9, 0.8)
BAD = (0.1, 0.3, 0.2, 0.1, 0.0)


def page_of(tmp_path: Path, new=GOOD, old=BAD, **changes) -> Page:
    experiment = toy_experiment(**changes)
    fabricate_all(experiment, tmp_path / "runs", {"new": new, "old_way": old, "third": old})
    return Page.of(toy_evidence(tmp_path, experiment), tmp_path / "runs")


def test_the_numbers_have_one_value_per_seed_in_the_same_order_in_every_arm(tmp_path: Path) -> None:
    assert page_of(tmp_path).numbers() == {
        "commit": "abc123",
        "command": "make evidence-toy",
        "machine": "2 cores, Testix",
        "claims": [
            {
                "id": "toy",
                "metric": "success, new tasks",
                "budget": "1k generated tokens",
                "higher_is_better": True,
                "arms": {"new": list(GOOD), "old_way": list(BAD)},
                "tokens": {"new": [1000, 1001, 1002, 1003, 1004], "old_way": [1000, 1001, 1002, 1003, 1004]},
                "expected": "new > old_way",
                "holds": True,
            }
        ],
    }  # fmt: skip


def test_a_false_claim_stays_in_the_file_and_stands_under_what_did_not_reproduce(
    tmp_path: Path,
) -> None:
    page = page_of(tmp_path, new=BAD, old=GOOD)
    [claim] = page.numbers()["claims"]
    assert claim["holds"] is False
    text = "\n".join(page.lines())
    section = text.split("## What did not reproduce")[1]
    assert "- `toy`: expected new > old_way;" in section
    assert "A note by hand." in section
    assert "**does not hold**; the arms' own intervals do not touch" in text


def test_lower_is_better_turns_the_expectation_round(tmp_path: Path) -> None:
    lower = (toy_quantity(higher_is_better=False),)
    [claim] = page_of(tmp_path, new=BAD, old=GOOD, quantities=lower).numbers()["claims"]
    assert (claim["expected"], claim["holds"]) == ("new < old_way", True)


def test_the_main_claim_shows_every_arm_and_the_others_their_two(tmp_path: Path) -> None:
    arms = (Arm("new"), Arm("old_way"), Arm("third"))
    claims = (Claim("toy", "new", "old_way"), Claim("toy_third", "new", "third"))
    quantities = (toy_quantity(claims=claims),)
    main, second = page_of(tmp_path, arms=arms, quantities=quantities).numbers()["claims"]
    assert list(main["arms"]) == ["new", "old_way", "third"]
    assert list(second["arms"]) == list(second["tokens"]) == ["new", "third"]


def test_the_page_shows_every_arm_with_its_interval_seeds_cost_and_difference(
    tmp_path: Path,
) -> None:
    text = "\n".join(page_of(tmp_path).lines())
    new, old = (line for line in text.splitlines() if line.count("|") == 10 and "0." in line)
    # Two evaluated steps of 3 s with 1 s of evaluation each: 4 s. Half way to 0.7 is 0.4: later take-off.
    assert new == (
        "| new | 0.820 (0.716 to 0.924) | 0.90 0.80 0.70 0.90 0.80 | 0.10 | 1k | 2 | 4 | 500 1k 1k 503 1k |  |"
    )
    assert old.startswith("| old way | 0.140 (-0.002 to 0.282) | 0.10 0.30 0.20 0.10 0.00 |")
    assert "| never never never never never | -0.680 (" in old
    assert old.endswith("; -0.884 to -0.476) |")
    assert "| paper: big model | 0.90 | 0.25 |\n| ours: toy | 0.82 | 0.14 |" in text
    assert "20 tasks of split `test`, 2 attempts each. Budget: 1k generated tokens." in text
    assert "Commit abc123; 2 cores, Testix; runs of 2026-01-02 to 2026-01-02." in text


def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    once, again = page.write(tmp_path / "a"), page.write(tmp_path / "b")
    assert [p.name for p in once] == ["toy.md", "toy.json", "toy.png"]
    assert [p.read_bytes() for p in once] == [p.read_bytes() for p in again]
    assert json.loads((tmp_path / "a/toy.json").read_text()) == page.numbers()
    assert once[2].read_bytes()[:4] == b"\x89PNG"


def test_a_run_that_was_cut_short_is_missing_and_counts_nowhere(tmp_path: Path) -> None:
    experiment = toy_experiment()
    fabricate(experiment.folder(tmp_path, Arm("new"), 0), ((0, 0.1), (999, 0.9)))
    fabricate(experiment.folder(tmp_path, Arm("new"), 1), ((0, 0.1), (1000, 0.9)))
    (experiment.folder(tmp_path, Arm("new"), 1) / "checkpoints/000001").rmdir()
    fabricate(experiment.folder(tmp_path, Arm("new"), 2), ((0, 0.1), (1000, 0.7)))
    page = Page.of(toy_evidence(tmp_path, experiment), tmp_path)
    assert [r.value(toy_quantity()) for r in page.results["toy"]["new"]] == [0.7]
    assert len(page.missing) == 9
    assert {"toy/new/seed-0", "toy/new/seed-1"} <= set(page.missing)


def test_arms_with_different_budgets_cannot_be_compared(tmp_path: Path) -> None:
    experiment = toy_experiment()
    for arm, budget in (("new", 1000), ("old_way", 900)):
        itself = toy_quantity(claims=(Claim("toy", arm, arm),))
        one = replace(experiment, arms=(Arm(arm),), quantities=(itself,))
        fabricate_all(one, tmp_path, {arm: GOOD}, budget=budget)
    with pytest.raises(KolbError, match="different budgets"):
        Page.of(toy_evidence(tmp_path, experiment), tmp_path).numbers()


def test_a_run_that_ended_by_its_steps_before_its_tokens_cannot_be_compared(tmp_path: Path) -> None:
    experiment = toy_experiment()
    fabricate_all(experiment, tmp_path, {"new": GOOD, "old_way": BAD}, budget=5000, steps=2)
    page = Page.of(toy_evidence(tmp_path, experiment), tmp_path)
    assert not page.missing
    with pytest.raises(RunDirectoryError, match="ended by its 2 steps at 1000 of 5000 tokens"):
        page.numbers()


def test_a_last_evaluation_that_was_not_finite_is_not_replaced_by_the_one_before(
    tmp_path: Path,
) -> None:
    experiment = toy_experiment()
    path = experiment.folder(tmp_path, Arm("new"), 0)
    fabricate(path, ((0, 0.1), (500, 0.9), (1000, float("nan"))))
    with pytest.raises(RunDirectoryError, match="no eval/success at its end"):
        measure(experiment, Arm("new"), 0, tmp_path)


def test_a_run_without_an_evaluation_at_its_end_is_refused(tmp_path: Path) -> None:
    experiment = toy_experiment(quantities=(toy_quantity(curve="mean"),))
    fabricate(experiment.folder(tmp_path, Arm("new"), 0), ((0, 0.1), (1000, 0.9)))
    with pytest.raises(RunDirectoryError, match="no eval/mean at its end"):
        measure(experiment, Arm("new"), 0, tmp_path)


def test_a_further_evaluation_is_divided_by_its_tag(tmp_path: Path) -> None:
    extra = ExtraSet("more", "More tasks", (), tag="size")
    experiment = toy_experiment(extras=(extra,))
    fabricate_all(experiment, tmp_path, {"new": GOOD, "old_way": BAD})
    outcomes = {"7-a": [1.0, 0.0], "7-b": [1.0, None], "10-a": [0.5, 0.0], "10-b": [None, None]}
    fabricate_extra(experiment, tmp_path, extra, outcomes)
    run = measure(experiment, Arm("new"), 0, tmp_path)
    assert run is not None
    assert run.extras == {"more": {"": 0.5, "7": 0.75, "10": 0.0}}
    text = "\n".join(Page.of(toy_evidence(tmp_path, experiment), tmp_path).lines())
    assert "| arm | all (95%) | size 7 | size 10 |" in text
    assert "| new | 0.500 (0.500 to 0.500) | 0.75 | 0.00 |" in text


def test_a_further_evaluation_that_was_not_made_is_said_to_be_missing(tmp_path: Path) -> None:
    page = page_of(tmp_path, extras=(ExtraSet("more", "More tasks", (), needs="a.jsonl"),))
    said = (
        "### More tasks\n\nNot measured in every run; it needs a.jsonl in the folder `KOLB_DATA`.\n"
    )
    assert said in "\n".join(page.lines())


@pytest.mark.parametrize("change", [{"sets": ("a=1",)}, {"samples": 4}, {"tag": "size"}])
def test_a_further_evaluation_that_was_asked_for_otherwise_does_not_count(
    tmp_path: Path, change: dict
) -> None:
    extra = ExtraSet("more", "More tasks", ())
    experiment = toy_experiment(extras=(extra,))
    fabricate_all(experiment, tmp_path, {"new": GOOD, "old_way": BAD})
    fabricate_extra(experiment, tmp_path, extra, {"1-a": [1.0]})
    now = replace(experiment, extras=(replace(extra, **change),))
    runs = [measure(e, Arm("new"), 0, tmp_path) for e in (experiment, now)]
    assert [run.extras for run in runs if run] == [{"more": {"": 1.0, "1": 1.0}}, {}]


def test_a_further_evaluation_in_which_everything_broke_is_an_error(tmp_path: Path) -> None:
    extra = ExtraSet("more", "More tasks", ())
    experiment = toy_experiment(extras=(extra,))
    fabricate_all(experiment, tmp_path, {"new": GOOD, "old_way": BAD})
    fabricate_extra(experiment, tmp_path, extra, {"1-a": [None, None]})
    with pytest.raises(RunDirectoryError, match="every episode of a further evaluation broke"):
        measure(experiment, Arm("new"), 0, tmp_path)


def test_the_mean_curve_is_drawn_between_evaluations_as_far_as_all_seeds_go(tmp_path: Path) -> None:
    experiment = toy_experiment()
    fabricate(experiment.folder(tmp_path, Arm("new"), 0), ((0, 0.0), (500, 0.5), (1000, 1.0)))
    fabricate(experiment.folder(tmp_path, Arm("new"), 1), ((0, 0.0), (1500, 0.6)))
    runs = [r for seed in (0, 1) if (r := measure(experiment, Arm("new"), seed, tmp_path))]
    xs, ys = mean_curve([run.curves["success"] for run in runs])
    assert xs == [0, 500, 1000]
    assert ys == pytest.approx([0.0, (0.5 + 0.2) / 2, (1.0 + 0.4) / 2])


def test_up_to_six_arms_share_a_frame_and_more_have_one_each() -> None:
    _, few = framed(6)
    assert len(few) == 6
    assert len({id(axes) for axes in few}) == 1
    figure, many = framed(7)
    assert len({id(axes) for axes in many}) == 7
    assert figure.axes == many, "what is left of the grid is taken away"


def test_small_numbers_keep_three_digits_and_large_ones_are_shortened() -> None:
    said = [number(v) for v in (0.0, 0.017, -0.05, 0.5, 99.994, 100.0, 31_250.0)]
    assert said == ["0.00", "0.017", "-0.050", "0.50", "99.99", "100", "31.2k"]
    assert number(5_200.0, sign="+") == "+5.2k"
    assert number(-5_200.0, sign="+") == "-5.2k"


def test_fewer_than_five_seeds_more_than_21_and_unknown_arms_are_refused() -> None:
    with pytest.raises(RecipeError, match="4 seeds"):
        toy_experiment(seeds=(0, 1, 2, 3))
    with pytest.raises(
        RecipeError,
        match="22 seeds; expected at least one claim about the first quantity, which a curve gives, and 5 to 21 seeds",
    ):
        toy_experiment(seeds=tuple(range(22)))
    with pytest.raises(RecipeError, match="did you mean 'old_way'"):
        toy_experiment(quantities=(toy_quantity(claims=(Claim("toy", "new", "odl_way"),)),))
