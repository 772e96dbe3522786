"""The loop from end to end, on the scripted engine."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_toys import Coach, Guess, Poisoned, StoppedError, StopsAfter, engine, guess, recipe

from kolb.engines.scripted import Scripted
from kolb.errors import (
    CapabilityError,
    NonFiniteError,
    RecipeError,
    RunDirectoryError,
    TooManyFailuresError,
)
from kolb.loop import run, run_async
from kolb.methods.grpo import Grpo
from kolb.methods.imitation import Imitation
from kolb.runs.directory import RunDirectory
from kolb.stage import CheckpointSpec, Evaluation, Limits, Recipe
from kolb.terms.kl import KLToReference
from kolb.types import SamplingParams


def metrics_of(path: Path) -> list[dict[str, Any]]:
    """Every metrics line without its timings."""
    lines = RunDirectory.open(path).metrics()
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


# ------------------------------------------------------------------------------------ one GRPO run


def test_grpo_takes_one_optimiser_step_per_step_and_writes_everything_down(tmp_path: Path) -> None:
    fake = engine()
    result = run(recipe(steps=3), tmp_path / "run", engine=fake)
    assert result.steps == 3
    assert fake.learners["agent"].version == 3
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.steps() == [1, 2, 3]
    assert [len(g.episodes) for g in directory.episodes(2)] == [4, 4, 4, 4]
    versions = {
        t.completion.version
        for g in directory.episodes(3)
        for e in g.episodes
        for t in e.trajectory("solver").turns
    }
    assert versions == {2}
    line = directory.metrics()[-1]
    assert line["updates/agent"] == 1
    assert line["kl/sampler_learner"] == 0
    assert line["tokens/sampled"] == line["tokens/agent"]
    assert line["groups/total"] == 4
    assert {"loss/policy_gradient", "grad_norm/agent", "lr", "time/collect_s"} <= line.keys()


def test_sampled_tokens_are_counted_by_policy_and_equal_those_on_record(tmp_path: Path) -> None:
    run(recipe(steps=1), tmp_path / "run", engine=engine())
    directory = RunDirectory.open(tmp_path / "run")
    recorded = sum(
        t.sampled_tokens for g in directory.episodes(1) for e in g.episodes for t in e.trajectories
    )
    assert directory.metrics()[0]["tokens/agent"] == recorded > 0


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    fakes = [engine() for _ in range(3)]
    first = recipe()
    for i, r in enumerate((first, first, replace(first, seed=1))):
        run(r, tmp_path / str(i), engine=fakes[i])
    digests = [fake.learners["agent"].digest for fake in fakes]
    assert digests[0] == digests[1] != digests[2]
    assert metrics_of(tmp_path / "0") == metrics_of(tmp_path / "1") != metrics_of(tmp_path / "2")


def test_the_number_of_concurrent_episodes_changes_nothing(tmp_path: Path) -> None:
    fakes = [engine(), engine()]
    for fake, seats in zip(fakes, (1, 256), strict=True):
        limits = Limits(max_concurrent=seats)
        run(recipe(limits=limits), tmp_path / str(seats), engine=fake)
    assert fakes[0].learners["agent"].digest == fakes[1].learners["agent"].digest


def test_every_task_is_met_once_per_epoch_in_an_order_that_changes(tmp_path: Path) -> None:
    run(recipe(steps=8), tmp_path / "run", engine=engine())
    directory = RunDirectory.open(tmp_path / "run")
    met = [g.task.id for step in directory.steps() for g in directory.episodes(step)]
    assert sorted(met[:16]) == sorted(met[16:]) == sorted(f"train-{i}" for i in range(16))
    assert met[:16] != met[16:]


# ------------------------------------------------------------------------------ many calls, two roles


def coach_recipe(**changes: Any) -> Recipe:
    return recipe(Coach(), roles={"player": "small", "coach": "large"}, **changes)


def test_a_method_with_many_calls_two_policies_and_a_sibling_group_runs_unchanged(
    tmp_path: Path,
) -> None:
    fake = engine()
    result = run(coach_recipe(steps=4), tmp_path / "run", engine=fake)
    assert {name: learner.version for name, learner in fake.learners.items()} == {
        "small": 4,
        "large": 4,
    }
    for name, learner in fake.learners.items():
        assert {e.policy for batch in learner.batches for e in batch} == {name}
    directory = RunDirectory.open(tmp_path / "run")
    groups = directory.episodes(1)
    assert [(g.kind, len(g.episodes)) for g in groups] == [("attempt", 3)] * 4 + [
        ("forecast", 2)
    ] * 4
    episode = groups[0].episodes[0]
    names = [(t.role, t.name, t.policy) for t in episode.trajectories]
    assert names == [
        ("player", "first", "small"),
        ("coach", "", "large"),
        ("player", "second", "small"),
    ]
    line = directory.metrics()[-1]
    assert {"loss/policy_gradient/small", "loss/policy_gradient/large", "lr/small"} <= line.keys()
    assert line["tokens/sampled"] == line["tokens/small"] + line["tokens/large"]
    assert result.library.version == 4
    assert [e.text for e in result.library.experiences][-1] == "4 steps seen"


def test_the_second_attempt_sees_the_reflection_in_place_of_the_system_prompt(
    tmp_path: Path,
) -> None:
    run(coach_recipe(steps=1), tmp_path / "run", engine=engine())
    episode = RunDirectory.open(tmp_path / "run").episodes(1)[0].episodes[0]
    first, second = episode.trajectory("player", "first"), episode.trajectory("player", "second")
    advice = episode.trajectory("coach").text
    assert first.turns[0].messages[0]["content"] == "Guess a word."
    assert second.turns[0].messages[0] == {"role": "system", "content": advice}
    assert second.turns[0].messages[1] == first.turns[0].messages[1]


def test_a_policy_that_does_not_learn_keeps_its_weights_while_the_other_moves(
    tmp_path: Path,
) -> None:
    fake = engine()
    run(coach_recipe(steps=2, learn=("small",)), tmp_path / "run", engine=fake)
    assert list(fake.learners) == ["small"]
    episode = RunDirectory.open(tmp_path / "run").episodes(2)[0].episodes[0]
    assert [t.learns for t in episode.trajectories] == [True, False, True]


# --------------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize("killed_after", [1, 2, 3, 4, 5])
def test_stopped_anywhere_and_resumed_equals_never_stopped(
    tmp_path: Path, killed_after: int
) -> None:
    base = replace(coach_recipe(steps=6, updates_per_step=2), checkpoints=CheckpointSpec(every=2))
    whole, halves = engine(), engine()
    expected = run(base, tmp_path / "whole", engine=whole)
    with pytest.raises(StoppedError):
        run(base, tmp_path / "halves", engine=halves, observer=StopsAfter(killed_after))
    result = run(base, tmp_path / "halves", engine=halves, resume=True)
    for name in ("small", "large"):
        assert whole.learners[name].state == halves.learners[name].state
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "halves")
    assert result.library == expected.library
    for step in range(1, 7):
        name = f"episodes/{step:06d}.jsonl.gz"
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes()


def test_n_steps_and_n_more_equal_2n_steps(tmp_path: Path) -> None:
    whole, halves = engine(), engine()
    run(coach_recipe(steps=6), tmp_path / "whole", engine=whole)
    run(coach_recipe(steps=3), tmp_path / "halves", engine=halves)
    run(coach_recipe(steps=6), tmp_path / "halves", engine=halves, resume=True)
    assert whole.learners["small"].state == halves.learners["small"].state
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "halves")


def test_resuming_a_finished_run_says_so_and_changes_nothing(tmp_path: Path) -> None:
    run(recipe(steps=2), tmp_path / "run", engine=engine())
    before = metrics_of(tmp_path / "run")
    listener = StopsAfter(-1)
    result = run(recipe(steps=2), tmp_path / "run", engine=engine(), resume=True, observer=listener)
    assert result.was_finished
    assert result.steps == 2
    assert "the run is finished" in listener.notes[0]
    assert metrics_of(tmp_path / "run") == before


def test_stages_follow_each_other_and_a_resumed_run_goes_on_in_the_second(tmp_path: Path) -> None:
    first = recipe(Imitation(), steps=2)
    second = recipe(steps=2)
    stages = (first.stages[0], replace(second.stages[0], name="rl"))
    both = replace(first, stages=stages, checkpoints=CheckpointSpec(every=1))
    whole, halves = engine(), engine()
    run(both, tmp_path / "whole", engine=whole)
    with pytest.raises(StoppedError):
        run(both, tmp_path / "halves", engine=halves, observer=StopsAfter(3))
    run(both, tmp_path / "halves", engine=halves, resume=True)
    assert [line["stage"] for line in metrics_of(tmp_path / "halves")] == ["toy", "toy", "rl", "rl"]
    assert whole.learners["agent"].state == halves.learners["agent"].state


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    run(recipe(steps=1), tmp_path / "run", engine=engine())
    other = recipe(steps=2)
    renamed = replace(other, stages=(replace(other.stages[0], name="other"),))
    with pytest.raises(RunDirectoryError, match="stage 'toy'"):
        run(renamed, tmp_path / "run", engine=engine(), resume=True)


# ---------------------------------------------------------------------------------------- failures


def test_a_broken_group_is_dropped_whole_counted_and_never_trained_on(tmp_path: Path) -> None:
    fake = engine()
    source = Guess("raises", troubled=1, size=4)
    run(recipe(source=source, steps=1), tmp_path / "run", engine=fake)
    line = metrics_of(tmp_path / "run")[0]
    assert line["groups/dropped"] == 1
    assert line["errors/environment"] == 4
    trained = {e.sequence.split("/")[0] for batch in fake.learners["agent"].batches for e in batch}
    assert "train-0" not in trained
    assert trained
    (broken,) = [g for g in RunDirectory.open(tmp_path / "run").episodes(1) if not g.usable]
    assert broken.episodes[0].failure is not None
    assert "ZeroDivisionError: the world is broken" in broken.episodes[0].failure.traceback


def test_the_first_breakage_is_told_once_and_counted_for_a_method_without_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = StopsAfter(-1)
    bare = recipe(source=Guess("raises", troubled=1, size=4), steps=2)
    method = type(bare.stages[0].method)
    credit = method.credit

    def silent(self: Any, groups: Any, state: Any) -> Any:
        return replace(credit(self, groups, state), groups=(), metrics={})

    monkeypatch.setattr(method, "credit", silent)
    run(bare, tmp_path / "run", engine=engine(), observer=heard)
    assert [line["errors/environment"] for line in metrics_of(tmp_path / "run")] == [4, 4]
    told = [note for note in heard.notes if "broke" in note]
    assert len(told) == 1
    assert told[0].startswith("step 1: an episode broke and is left out: task 'train-0', index 0")
    assert "ZeroDivisionError: the world is broken" in told[0]
    assert told[0] in (tmp_path / "run" / "log.txt").read_text()


def test_too_many_failures_stop_the_run_with_the_first_traceback_and_it_can_go_on(
    tmp_path: Path,
) -> None:
    source = Guess("raises", troubled=3, size=4)
    with pytest.raises(
        TooManyFailuresError, match=r"75% .*\n\n[^$]*ZeroDivisionError: the world"
    ) as caught:
        run(recipe(source=source, steps=1), tmp_path / "run", engine=engine())
    said = str(caught.value)
    files = [line for line in said.splitlines() if line.startswith("  File ")]
    assert len(files) == 1
    assert "loop_toys.py" in files[0]
    assert f"The whole traceback is in {tmp_path / 'run' / 'log.txt'}." in said
    whole = (tmp_path / "run" / "log.txt").read_text()
    assert "kolb/boundary.py" in whole
    assert "During handling" not in whole
    result = run(
        recipe(source=Guess(size=4), steps=1), tmp_path / "run", engine=engine(), resume=True
    )
    assert result.steps == 1


def test_dead_groups_take_no_step_and_are_explained_in_words(tmp_path: Path) -> None:
    fake = engine(lambda messages, seed: "red")
    source = Guess(size=4)
    listener = StopsAfter(-1)
    run(recipe(source=source, steps=3), tmp_path / "run", engine=fake, observer=listener)
    assert fake.learners["agent"].version == 0
    assert metrics_of(tmp_path / "run")[0]["groups/dead"] == 4
    assert "all rewards are equal" in listener.notes[0]
    assert "What helps" not in listener.notes[1]
    assert "What helps" in listener.notes[2]
    assert "(3 steps in a row)" in (tmp_path / "run" / "log.txt").read_text()


def test_an_update_that_is_not_finite_is_skipped_dumped_and_counted_and_three_end_the_run(
    tmp_path: Path,
) -> None:
    fake = engine()
    with pytest.raises(NonFiniteError, match="3 updates in a row"):
        run(recipe(Poisoned(group_size=4, after=2), steps=9), tmp_path / "run", engine=fake)
    assert fake.learners["agent"].version == 2
    assert [line["updates/skipped"] for line in metrics_of(tmp_path / "run")] == [0, 0, 1, 1]
    dumps = sorted(p.name for p in (tmp_path / "run" / "bad_batches").iterdir())
    assert dumps == [f"00000{step}-agent-0.npz" for step in (3, 4, 5)]
    with np.load(tmp_path / "run" / "bad_batches" / dumps[0]) as dump:
        assert np.isnan(dump["0/advantages"]).any()
        assert json.loads(str(dump["about"]))["error"].startswith("the loss is nan")


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("changes", "provides", "said"),
    [
        ({}, {"sample", "tokens", "logprobs"}, "'train'.*leave the stage's `learn` empty"),
        ({}, {"sample", "train"}, "'logprobs'"),
        (
            {"terms": (KLToReference(),)},
            {"sample", "tokens", "logprobs", "train", "full_ft"},
            "'base'",
        ),
        ({"sampling": SamplingParams(top_p=0.9)}, None, "top_p = 0.9"),
        ({"sampling": SamplingParams(top_k=5)}, None, "top_k = 5"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_before_any_policy_is_opened(
    tmp_path: Path, changes: dict[str, Any], provides: set[str] | None, said: str
) -> None:
    options = {} if provides is None else {"provides": frozenset(provides)}
    fake = engine(**options)
    with pytest.raises(CapabilityError, match=said):
        run(recipe(**changes), tmp_path / "run", engine=fake)
    assert not fake.learners
    assert not (tmp_path / "run").exists()


def test_two_learning_policies_need_an_engine_with_several(tmp_path: Path) -> None:
    fake = engine()
    fake = engine(provides=fake.provides - {"policies"})
    with pytest.raises(CapabilityError, match="several named policies"):
        run(coach_recipe(), tmp_path / "run", engine=fake)


def test_a_split_that_cannot_fill_a_step_is_refused(tmp_path: Path) -> None:
    fake = engine()
    with pytest.raises(RecipeError, match="has 3 tasks, fewer than tasks_per_step = 4"):
        run(recipe(source=Guess(size=3)), tmp_path / "run", engine=fake)
    assert not fake.learners
    assert not (tmp_path / "run").exists()


def test_in_a_running_event_loop_the_other_entry_is_named(tmp_path: Path) -> None:
    async def notebook() -> int:
        with pytest.raises(RecipeError, match="await run_async"):
            run(recipe(steps=1), tmp_path / "run", engine=engine())
        return (await run_async(recipe(steps=1), tmp_path / "run", engine=engine())).steps

    assert asyncio.run(notebook()) == 1


def test_a_method_state_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    class Odd(Grpo):
        def credit(self, groups: Any, state: Any) -> Any:
            return replace(super().credit(groups, state), state={"when": {1, 2}})

    with pytest.raises(RecipeError, match="JSON cannot hold"):
        run(recipe(Odd(group_size=4)), tmp_path / "run", engine=engine())


# ------------------------------------------------------------------------------------ evaluation


def test_evaluation_runs_at_the_start_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    spec = Evaluation(every=2, episodes=8, samples=2, at_start=True)
    result = run(recipe(steps=3, evaluation=spec), tmp_path / "run", engine=engine())
    assert [step for step, _ in result.evaluations] == [0, 2, 3]
    lines = metrics_of(tmp_path / "run")
    assert [line.get("eval/episodes") for line in lines] == [None, 16, 16]
    assert lines[0]["eval_start/mean"] == lines[2]["eval/mean"], "the seed fixes tasks and sampling"


def test_the_engine_is_loaded_by_name_and_its_options_are_checked(tmp_path: Path) -> None:
    named = replace(
        recipe(steps=1), engine="scripted", engine_options={"answer": "loop_toys.guess"}
    )
    assert run(named, tmp_path / "run").steps == 1
    wrong = replace(named, engine_options={"answre": "x"})
    with pytest.raises(RecipeError, match="answre"):
        run(wrong, tmp_path / "other")


def test_the_public_fake_is_what_the_recipe_name_loads() -> None:
    from kolb import plugins

    assert plugins.load("scripted", "kolb.engines", "ENGINE") is Scripted
    assert guess([], 5) == guess([], 5)


class Forgetful(Grpo):
    def credit(self, groups: Any, state: Any) -> Any:
        super().credit(groups, state)


class Unpacked(Grpo):
    async def collect(self, tasks: Any, world: Any) -> Any:
        return [e for g in await super().collect(tasks, world) for e in g.episodes]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Forgetful(group_size=2), r"credit\(\) of method 'grpo' gave None; it must return a kolb"),
        (Unpacked(group_size=2), r"collect\(\) of method 'grpo' gave a list of Episode; it must"),
    ],
)
def test_what_a_method_gives_is_checked_in_words(tmp_path: Path, method: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        run(recipe(method=method, steps=1), tmp_path / "run", engine=engine())
