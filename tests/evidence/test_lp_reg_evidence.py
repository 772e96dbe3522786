"""The plan of the Lp-Reg evidence: its quantities by numbers, its arms as recipes, its bases."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from evidence_toys import fabricate, toy_evidence, toy_experiment, toy_quantity

from evidence.lp_reg import (
    BUDGET,
    EVIDENCE,
    OFF_POLICY_EXPERIMENT,
    ON_POLICY_EXPERIMENT,
    is_above,
    lowest,
    tokens_to,
)
from evidence.main import base_jobs, main
from evidence.plan import Arm, Base, Experiment, placed
from evidence.run import base_job, run_all, training_job
from evidence.write import Page
from kolb import recipe as recipes
from kolb.errors import RunDirectoryError
from kolb.stage import Stage


@pytest.mark.parametrize(
    ("curve", "tokens"),
    [
        ([(0, 0.2), (1000, 0.4), (3000, 0.8)], 2000.0),
        ([(0, 0.2), (1000, 0.6), (3000, 0.5)], 1000.0),
        ([(0, 0.7), (1000, 0.1)], 0.0),
        ([(0, 0.2), (4000, 0.5), (5040, 0.59)], 5000.0),
        ([(0, 0.2), (4000, 0.5), (5100, 0.601)], 5000.0),
        ([(500, 0.6), (1000, 0.6)], 500.0),
    ],
)
def test_tokens_to_a_level_are_read_between_evaluations_and_end_at_the_budget(
    curve: list[tuple[int, float]], tokens: float
) -> None:
    assert tokens_to(0.6, 5000)(curve) == pytest.approx(tokens)


def test_a_word_survives_where_its_share_is_above_the_level_at_that_point() -> None:
    falling, back = [(0, 0.05), (20, 0.01), (40, 0.0)], [(0, 0.05), (10, 0.0), (30, 0.04)]
    assert [is_above(0.01, at)(falling) for at in (0, 19, 20, 40, 99)] == [1, 1, 0, 0, 0]
    assert [is_above(0.01, at)(back) for at in (10, 14, 16)] == [0, 0, 1]
    assert (lowest(falling), lowest(back)) == (0.0, 0.0)


# -------------------------------------------------------------------------------------------- plan

SPARK = (OFF_POLICY_EXPERIMENT, ON_POLICY_EXPERIMENT)


def test_lp_reg_weighs_in_erl_as_its_own_losses_do(tmp_path: Path) -> None:
    for experiment in EVIDENCE.experiments[2:]:
        plain, with_term = (stage_of(experiment, arm, 0, tmp_path) for arm in experiment.arms)
        assert len(with_term.all_terms) == len(plain.all_terms) + 1
        assert {t.normalisation for t in with_term.all_terms} == {"sequence-mean-token-sum"}


def stage_of(experiment: Experiment, arm: Arm, seed: int, root: Path) -> Stage:
    made = recipes.load(experiment.recipe, placed(experiment.sets(arm, seed), root))
    return made.stages[-1]


def test_the_seeds_are_spread_over_the_three_bases_alike_in_every_arm(tmp_path: Path) -> None:
    for experiment, fewest in ((OFF_POLICY_EXPERIMENT, 5), (ON_POLICY_EXPERIMENT, 2)):
        for arm in experiment.arms[:3:2]:
            sets = [placed(experiment.sets(arm, seed), tmp_path) for seed in experiment.seeds]
            bases = Counter(t.split("=", 1)[1] for s in sets for t in s if ".base=" in t)
            assert set(bases) == {f"{tmp_path}/bases/{name}/model" for name in "abc"}
            assert min(bases.values()) == fewest
    assert len(OFF_POLICY_EXPERIMENT.seeds) == 16


def test_the_budget_of_the_quantities_is_that_of_the_recipe(tmp_path: Path) -> None:
    for experiment in SPARK:
        stage = stage_of(experiment, experiment.arms[0], 0, tmp_path)
        assert stage.token_budget == BUDGET
        assert stage.evaluation is not None
        assert (stage.evaluation.episodes, stage.evaluation.split) == (0, "test")


def test_off_policy_takes_eight_updates_of_a_batch_and_on_policy_one(tmp_path: Path) -> None:
    off = stage_of(OFF_POLICY_EXPERIMENT, OFF_POLICY_EXPERIMENT.arms[0], 0, tmp_path)
    on = stage_of(ON_POLICY_EXPERIMENT, ON_POLICY_EXPERIMENT.arms[0], 0, tmp_path)
    assert (off.updates_per_step, off.learning_rate) == (8, None)
    assert (on.updates_per_step, on.learning_rate) == (1, 1e-3)
    assert off.tasks_per_step * off.method.group_size == 256


def test_the_claims_have_their_published_names() -> None:
    ids = [claim.id for experiment in EVIDENCE.experiments for claim in experiment.claims]
    assert len(set(ids)) == len(ids)
    assert {
        "lp_reg_spark_off_policy_tokens",
        "lp_reg_spark_off_policy_survival",
        "lp_reg_spark_on_policy",
        "lp_reg_spark_off_policy_tokens_lp_reg_no_filter",
        "erl_lp_reg_sokoban",
        "erl_lp_reg_frozenlake",
    } <= set(ids)
    for experiment in SPARK:
        main_claim = experiment.quantities[0].claims[0]
        assert (main_claim.better, main_claim.worse) == ("lp_reg", "grpo")


def test_every_arm_is_a_recipe_of_its_own(tmp_path: Path) -> None:
    for experiment in EVIDENCE.experiments:
        stages = [stage_of(experiment, arm, 0, tmp_path) for arm in experiment.arms]
        assert len({repr((s.method, s.all_terms)) for s in stages}) == len(experiment.arms)


# ------------------------------------------------------------------------------------------- bases

BASE = replace(
    EVIDENCE.bases[1],
    sets=(
        *EVIDENCE.bases[1].sets,
        *("stages.first.steps=1", "stages.second.steps=1", "stages.first.warmup_steps=0"),
        *("stages.first.tasks_per_step=8", "stages.second.tasks_per_step=8"),
        "environments.spark.dev_tasks=24",
    ),
)


@pytest.mark.slow
def test_a_base_is_built_by_a_process_measured_and_refused_once_its_recipe_is_another(
    tmp_path: Path,
) -> None:
    job = base_job(BASE, tmp_path)
    assert job is not None
    assert job.label == "bases/b"
    assert [is_good for _, is_good in run_all([job], 1)] == [True], job.tail()
    assert base_job(BASE, tmp_path) is None
    other = replace(BASE, sets=(*BASE.sets, "stages.second.steps=2"))
    with pytest.raises(RunDirectoryError, match=r"bases/b/run is a run of another recipe than"):
        base_job(other, tmp_path)
    arm = OFF_POLICY_EXPERIMENT.arms[0]
    training = training_job(OFF_POLICY_EXPERIMENT, arm, 1, tmp_path)
    assert training is not None
    assert training.weights == (tmp_path / "bases/b/model/model.safetensors",)
    page = Page.of(replace(EVIDENCE, bases=(BASE,)), tmp_path)
    text = "\n".join(page.of_bases())
    assert "| base | changes to its recipe | filler | junk | recheck | wait |" in text
    assert "| b | `environments.spark.accuracy=0.3` `environments.spark.seed=1`" in text


def test_only_the_bases_that_the_runs_start_from_are_built(tmp_path: Path) -> None:
    def labels(*seeds: int) -> list[str]:
        arm = OFF_POLICY_EXPERIMENT.arms[0]
        cells = [(OFF_POLICY_EXPERIMENT, arm, seed) for seed in seeds]
        return [job.label for job in base_jobs(EVIDENCE, cells, tmp_path)]

    assert labels(0, 3) == ["bases/a"]
    assert labels(4, 2) == ["bases/b", "bases/c"]


def test_no_run_starts_where_its_base_could_not_be_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Base("x", "evidence.no_such_module", Path("x.toml"), ())
    arms = (Arm("new", ("policies.agent.base={bases}/x/model",)), Arm("old_way"))
    evidence = replace(toy_evidence(tmp_path, toy_experiment(arms=arms)), bases=(broken,))
    assert main(evidence, ["--runs", str(tmp_path / "runs"), "--seeds", "0"]) == 1
    assert "FAILED: bases/x, whose log" in capsys.readouterr().out
    assert not (tmp_path / "runs/toy").exists()


# -------------------------------------------------------------------------------------------- page


def test_an_experiment_may_compare_several_quantities_each_with_its_claims(tmp_path: Path) -> None:
    lower = toy_quantity(
        metric="tokens to 0.5", read=tokens_to(0.5, 1000), higher_is_better=False, axis="success"
    )
    end = toy_quantity(metric="success at the end", claims=())
    rare = toy_quantity(metric="lowest share", curve="score/wait", read=lowest, claims=())
    experiment = toy_experiment(quantities=(lower, end, rare))
    for arm, at_the_end in zip(experiment.arms, (0.9, 0.3), strict=True):
        for seed in experiment.seeds:
            curve = ((0, 0.1), (500, at_the_end), (1000 + seed, at_the_end))
            fabricate(experiment.folder(tmp_path, arm, seed), curve, also="score/wait")
    page = Page.of(toy_evidence(tmp_path, experiment), tmp_path)
    [claim] = page.numbers()["claims"]
    assert claim["metric"] == "tokens to 0.5"
    assert claim["arms"] == {"new": [250.0] * 5, "old_way": [1000.0] * 5}
    assert (claim["expected"], claim["holds"]) == ("new < old_way", True)
    assert [p.name for p in page.write(tmp_path / "docs")] == [
        "toy.md",
        "toy.json",
        "toy.png",
        "toy_score_wait.png",
    ]
    text = (tmp_path / "docs/toy.md").read_text()
    assert (
        "| old way | 1k (1k to 1k) | 1k 1k 1k 1k 1k | 0.10 | 1k | 2 | 4 | +750 (+750 to +750; +750 to +750) |"
        in text
    )
    assert (
        "Measured: success at the end.\n\n| arm | mean (95%) | each seed | minus new: bootstrap; t |"
        in text
    )
    assert "| new | 0.100 (0.100 to 0.100) | 0.10 0.10 0.10 0.10 0.10 |  |" in text
    assert "| ours: toy, tokens to 0.5 | 250 | 1k |" in text
    assert "![Curves of toy: success](toy.png)" in text
