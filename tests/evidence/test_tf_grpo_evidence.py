"""The plan of the Training-Free GRPO evidence: equal attempts, frozen models, worlds and bases; and what its page adds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from evidence_toys import fabricate_all, fabricate_extra, toy_evidence, toy_experiment, toy_quantity

from evidence.main import base_jobs
from evidence.measure import by_role, measure
from evidence.plan import Arm, Claim, Experiment, ExtraSet, Quantity, placed
from evidence.run import filled
from evidence.tf_grpo import EVIDENCE, LAKE_EXPERIMENT, OFFERS_EXPERIMENT
from evidence.write import Page
from kolb import recipe as recipes
from kolb.errors import RecipeError
from kolb.loop import run
from kolb.overrides import apply_sets
from kolb.runs.directory import RunDirectory
from kolb.stage import Recipe

ROOT = Path(__file__).parents[2]
BOTH = (LAKE_EXPERIMENT, OFFERS_EXPERIMENT)


def recipe_of(e: Experiment, arm: Arm, seed: int = 0) -> Recipe:
    return recipes.load(e.recipe, placed(e.sets(arm, seed), Path("runs")))


# -------------------------------------------------------------------------------------------- plan


@pytest.mark.parametrize(("e", "attempts"), [(LAKE_EXPERIMENT, 80), (OFFERS_EXPERIMENT, 150)])
def test_every_arm_makes_as_many_attempts_but_for_tips_which_make_none(
    e: Experiment, attempts: int
) -> None:
    assert e.budget == f"{attempts} attempts, in `tips` none"
    for arm in e.arms:
        [stage] = recipe_of(e, arm).stages
        size = getattr(stage.method, "group_size")  # noqa: B009  (a Method need not have one)
        expected = 0 if arm.name == "tips" else attempts
        assert stage.steps * stage.tasks_per_step * size == expected, arm.name
        assert stage.evaluation is not None
        assert stage.evaluation.at_start
        assert stage.steps % stage.evaluation.every == 0


def test_no_policy_learns_in_any_arm_and_the_first_arm_changes_nothing() -> None:
    for e in BOTH:
        assert all(s.learn == () for arm in e.arms for s in recipe_of(e, arm).stages)
        assert e.arms[0] == Arm("full")


def test_the_claims_by_name() -> None:
    assert [c.id for c in LAKE_EXPERIMENT.claims] == [
        *("tf_grpo_success", "tf_grpo_tips", "tf_grpo_g1", "tf_grpo_no_gt", "tf_grpo_no_gate"),
        *("tf_grpo_transfer_size", "tf_grpo_transfer_model"),
    ]
    assert {c.id.replace("_worth", "") for c in OFFERS_EXPERIMENT.claims} == {
        *(c.id for c in LAKE_EXPERIMENT.claims), "tf_grpo_vote",
    }  # fmt: skip
    assert {c.better for e in BOTH for c in e.claims} == {"full"}


def test_each_seed_is_a_world_of_its_own_and_the_same_in_every_arm() -> None:
    for e in BOTH:
        worlds = [
            {json.dumps(recipe_of(e, arm, seed).resolved["environments"]) for arm in e.arms}
            for seed in e.seeds[:3]
        ]
        assert [len(w) for w in worlds] == [1, 1, 1]
        assert len(set().union(*worlds)) == 3


def test_the_other_models_differ_in_their_seeds_alone_and_are_built_for_the_evaluations(
    tmp_path: Path,
) -> None:
    cells = [(e, e.arms[0], 0) for e in BOTH]
    built = [job.label for job in base_jobs(EVIDENCE, cells, tmp_path)]
    assert built == ["bases/other_notes", "bases/worth", "bases/other_worth"]
    assert base_jobs(EVIDENCE, [], tmp_path) == []
    _, one, other, guessing = (
        recipes.load(b.recipe, placed(b.sets, tmp_path)).resolved for b in EVIDENCE.bases
    )
    assert (one["seed"], other["seed"], guessing["seed"]) == (0, 1, 0)
    assert one["stages"] == other["stages"] == guessing["stages"]
    assert one["environments"]["worth"] | {"guesses": True} == guessing["environments"]["worth"]
    for e in BOTH:
        for extra in e.extras:
            recipe = recipe_of(e, e.arms[0])
            changed = apply_sets(recipe.resolved, filled(extra, (tmp_path, Path("data"))))
            before = recipe.resolved["policies"]["agent"]["base"]
            is_other = "other" in recipes.parse(changed).resolved["policies"]["agent"]["base"]
            assert is_other == (extra.name == "model"), before


def test_without_a_library_the_agent_is_the_one_that_begins_to_learn(tmp_path: Path) -> None:
    smoke = ROOT / "recipes/smoke/tf_grpo_guess.toml"
    none = next(arm for arm in LAKE_EXPERIMENT.arms if arm.name == "none")
    starts = [
        run(recipes.load(smoke, ("stages.notes.steps=2", *sets)), tmp_path / name).evaluations
        for name, sets in (("full", ()), ("none", none.sets))
    ]
    (full, _), (without, at_its_end) = [
        [dict(result.outcomes) for _, result in (found[0], found[-1])] for found in starts
    ]
    assert full == without == at_its_end
    library = RunDirectory.open(tmp_path / "none").library()
    assert library is None


# -------------------------------------------------------------------------------------------- page

SIZE = ExtraSet("size", "Larger tasks", ())
ELSEWHERE = Quantity("success elsewhere", (Claim("toy_size", "new", "old_way"),), extra="size")
GOOD, BAD = (0.9, 0.8, 0.7, 0.9, 0.8), (0.1, 0.3, 0.2, 0.1, 0.0)


def carried(tmp_path: Path, **changes: object) -> Experiment:
    given = {"extras": (SIZE,), "quantities": (toy_quantity(), ELSEWHERE)}
    e = toy_experiment(**{**given, **changes})
    fabricate_all(e, tmp_path, {"new": GOOD, "old_way": BAD})
    return e


def test_a_claim_about_a_further_evaluation_is_a_claim_as_any(tmp_path: Path) -> None:
    e = carried(tmp_path)
    fabricate_extra(e, tmp_path, SIZE, {"a-1": [1.0, 0.0], "a-2": [1.0]})
    page = Page.of(toy_evidence(tmp_path, e), tmp_path)
    assert page.missing == ()
    claim = page.numbers()["claims"][1]
    assert (claim["id"], claim["metric"], claim["holds"]) == (
        "toy_size", "success elsewhere", False,
    )  # fmt: skip
    assert claim["arms"] == {"new": [0.75] * 5, "old_way": [0.75] * 5}
    text = "\n".join(page.lines())
    assert "Measured: success elsewhere.\n" in text
    assert "### Larger tasks" not in text, "it is shown once"
    assert [p.name for p in page.write(tmp_path / "docs")] == ["toy.md", "toy.json", "toy.png"]


def test_while_a_claimed_evaluation_is_missing_no_page_is_written(tmp_path: Path) -> None:
    page = Page.of(toy_evidence(tmp_path, carried(tmp_path)), tmp_path)
    assert len(page.missing) == 10
    assert page.missing[0] == "toy/new/seed-0/size"


def test_a_quantity_names_an_evaluation_that_there_is_and_the_main_one_is_a_curve() -> None:
    with pytest.raises(RecipeError, match="a quantity names extra 'size'"):
        toy_experiment(quantities=(toy_quantity(), ELSEWHERE))
    with pytest.raises(RecipeError, match="the first quantity, which a curve gives"):
        toy_experiment(quantities=(ELSEWHERE,), extras=(SIZE,))


def test_arms_of_different_lengths_are_compared_where_the_plan_says_by_what(
    tmp_path: Path,
) -> None:
    e = carried(tmp_path, quantities=(toy_quantity(),), budget="80 attempts")
    page = Page.of(toy_evidence(tmp_path, replace(e, budget="80 attempts")), tmp_path)
    assert page.numbers()["claims"][0]["budget"] == "80 attempts"


def test_the_size_of_the_library_is_a_curve_that_begins_empty(tmp_path: Path) -> None:
    done = run(recipes.load(ROOT / "recipes/smoke/tf_grpo_guess.toml"), tmp_path / "toy/new/seed-0")
    sizes = Quantity("lessons", curve="library/size")
    e = toy_experiment(quantities=(toy_quantity(), sizes), tells_roles=True)
    found = measure(e, Arm("new"), 0, tmp_path)
    assert found is not None
    assert [value for _, value in found.curves["library/size"]] == [0, 1, 1, 1]
    lines = RunDirectory.open(done.directory).metrics()
    assert sum(found.roles.values()) == lines[-1]["tokens/stage"] == 0, "an endpoint counts none"
    assert set(found.roles) == {"solver", "summarizer", "comparer", "editor"}
    assert by_role(RunDirectory.open(done.directory), []) == {}


def test_the_page_tells_what_each_role_sampled_and_which_weights_did(tmp_path: Path) -> None:
    e = carried(tmp_path, quantities=(toy_quantity(),))
    page = Page.of(toy_evidence(tmp_path, e), tmp_path)
    told = [
        replace(r, roles={"solver": 1500 * n, "editor": 20}, weights="ab" * 32,
                recipe={**r.recipe, "stages": [{**r.stage, "learn": []}]})
        for n, r in enumerate(page.results["toy"]["new"])
    ]  # fmt: skip
    frozen = replace(page, results={"toy": {"new": told, "old_way": told}})
    text = "\n".join(frozen.lines())
    assert "| arm | editor | solver |\n|---|---|---|\n| new | 20 | 3k |" in text
    assert "sampled from, the same before each run began and when" in text
    assert "`abababababababab…`" in text
