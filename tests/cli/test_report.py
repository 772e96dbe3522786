"""The closing lines of a run: before and after, and what is left out of them."""

from typing import Any

from kolb.report import before_and_after, broken, curves


def stage(name: str, **evaluation: Any) -> dict[str, Any]:
    spec = {"split": "test", "episodes": 20, "every": 0, "at_start": False, **evaluation}
    roles = {"solver": "agent"}
    return {"name": name, "environment": "lake", "evaluation": spec, "sampling": {}, "roles": roles}


def line(name: str, area: str, mean: float, success: float, **more: Any) -> dict[str, Any]:
    values = {"mean": mean, "success": success, "low": mean - 0.1, "high": mean + 0.1}
    return {"step": 1, "stage": name, **{f"{area}/{k}": v for k, v in values.items()}, **more}


def test_a_stage_without_a_first_evaluation_goes_on_from_the_end_of_the_one_before() -> None:
    lines = [line("imitate", "eval", 0.25, 0.25), line("explore", "eval", 0.5, 0.5)]
    assert list(before_and_after(lines, {"stages": [stage("imitate"), stage("explore")]})) == [
        "imitate: success on test 0.25 (0.15 to 0.35) at the end",
        "explore: success on test 0.25 (0.15 to 0.35) before, 0.50 (0.40 to 0.60) after",
    ]


def test_an_evaluation_of_other_tasks_is_no_before() -> None:
    lines = [line("imitate", "eval", 0.25, 0.25), line("explore", "eval", 0.5, 0.5)]
    recipe = {"stages": [stage("imitate", episodes=10), stage("explore", every=5)]}
    assert list(before_and_after(lines, recipe))[1].endswith("0.50 (0.40 to 0.60) at the end")


def test_partial_credit_is_an_outcome_and_no_success() -> None:
    (said,) = before_and_after([line("rl", "eval", 0.32, 0.14)], {"stages": [stage("rl")]})
    assert said == "rl: outcome on test 0.32 (0.22 to 0.42) at the end"


def test_broken_episodes_are_named_beside_the_numbers_that_lack_them() -> None:
    errors = {"eval/episodes": 20, "eval/errors/environment": 3, "eval/errors/deadline": 1}
    lines = [line("rl", "eval", 0.5, 0.5, **errors, **{"errors/reward": 45, "errors/sampler": 0})]
    said = list(before_and_after(lines, {"stages": [stage("rl")]}))
    assert said[0].endswith("0.50 (0.40 to 0.60) at the end")
    assert said[1:] == ["rl: 4 of 20 episodes broke and are left out of the last number"]
    assert list(broken(lines)) == [
        "45 episodes broke in training; their groups were left out (kolb view says why)"
    ]
    assert list(broken([{"errors/reward": 0}])) == []


def test_both_curves_show_the_mean_outcome() -> None:
    sampled = {"tokens/sampled": 9, "success/mean": 0.0}
    lines = [
        {"step": 1, "reward/mean": 0.3, "eval/mean": 0.2, "eval/success": 0.1, **sampled},
        {"step": 2, "reward/mean": 0.4, "eval/mean": 0.3, "eval/success": 0.1, **sampled},
    ]
    assert curves(lines) == {
        "outcome in training": [(1, 0.3), (2, 0.4)],
        "outcome in evaluation": [(1, 0.2), (2, 0.3)],
    }


def test_training_shows_a_model_without_tokens_and_no_expert() -> None:
    untold = [{"step": step, "reward/mean": 0.5, "tokens/sampled": 0} for step in (1, 2)]
    assert curves(untold) == {"outcome in training": [(1, 0.5), (2, 0.5)]}
    assert curves([{**line, "loss/cross_entropy": 1.0} for line in untold]) == {}
