"""Evaluation: the numbers, and that the loop and a call by hand give the same ones."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from loop_toys import WORDS, Guess, engine, guess, recipe

from kolb.credit.group_stats import group_metrics
from kolb.engines.base import ModelSpec
from kolb.errors import RecipeError, TooManyFailuresError
from kolb.evaluate import (
    EvaluationResult,
    bootstrap_interval,
    choose_tasks,
    evaluate,
    pass_at_k,
    summarise,
)
from kolb.loop import run
from kolb.memory.library import ExperienceLibrary
from kolb.methods.grpo import Grpo
from kolb.stage import Evaluation, Stage
from kolb.types import Episode, Group, Status, Task, Trajectory, World


def test_pass_at_8_of_4_correct_among_32_is_0_70450501() -> None:
    assert pass_at_k(32, 4, 8) == pytest.approx(0.70450501, abs=1e-8)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (6, 0, 2), (4, 4, 1), (6, 3, 6)])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_correct_sample(n: int, c: int, k: int) -> None:
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_refuses_more_than_there_are_samples() -> None:
    with pytest.raises(ValueError, match="needs 0 < k <= samples"):
        pass_at_k(4, 1, 5)


def test_the_bootstrap_interval_of_zeros_and_ones_is_that_of_a_binomial() -> None:
    values = [1.0] * 50 + [0.0] * 50
    low, high = bootstrap_interval(values)
    half = 1.96 * math.sqrt(0.25 / 100)
    assert low == pytest.approx(0.5 - half, abs=0.015)
    assert high == pytest.approx(0.5 + half, abs=0.015)
    assert bootstrap_interval(values) == (low, high)
    assert bootstrap_interval([0.25] * 9) == (0.25, 0.25)


def episode(task: str, index: int, outcome: float | None, status: Status = Status.OK) -> Episode:
    return Episode(task, index, outcome=outcome, status=status)


def test_tasks_weigh_alike_and_broken_or_abstaining_episodes_leave_the_mean() -> None:
    groups = [
        Group(Task("a"), (episode("a", 0, 1.0), episode("a", 1, 0.0))),
        Group(Task("b"), (episode("b", 0, 1.0), episode("b", 1, None, Status.ENV_ERROR))),
        Group(Task("c"), (episode("c", 0, None), episode("c", 1, None))),
    ]
    result = summarise(groups, Evaluation(samples=2))
    assert result.mean == pytest.approx((0.5 + 1.0) / 2)
    assert result.success == pytest.approx(0.75)
    assert result.pass_at == {1: 0.5, 2: 1.0}, "only task a has all of its samples"
    assert result.statuses == {"ok": 5, "env_error": 1}
    assert result.outcomes["b"] == (1.0, None)


def test_no_outcome_at_all_gives_no_mean_and_no_metric_for_it() -> None:
    result = summarise([Group(Task("a"), (episode("a", 0, None),))], Evaluation())
    assert (result.mean, result.interval, result.pass_at) == (None, None, {})
    assert result.metrics() == {"eval/episodes": 1, "eval/tokens": 0}


def test_further_scores_are_averaged_over_the_trajectories_that_have_them() -> None:
    def scored(index: int, **scores: float) -> Episode:
        trajectory = Trajectory("solver", scores={"reward": 1.0, **scores})
        return replace(episode("a", index, 1.0), trajectories=(trajectory,))

    broken = replace(scored(0, brief=9.0), status=Status.ENV_ERROR)
    groups = [
        Group(
            Task("a"), (scored(0, brief=1.0, kind=0.5), scored(1, brief=0.0), scored(2, brief=0.5))
        ),
        Group(Task("b"), (broken,)),
    ]
    wanted = {"score/brief": 0.5, "score/kind": 0.5}
    assert wanted.items() <= group_metrics(groups).items()
    metrics = summarise(groups, Evaluation()).metrics()
    assert {n: v for n, v in metrics.items() if "score/" in n} == {
        f"eval/{name}": value for name, value in wanted.items()
    }


def stage(**changes: Any) -> Stage:
    return recipe(**changes).stages[0]


def by_hand(chosen: Stage, spec: Evaluation, answer: Any = guess) -> EvaluationResult:
    samplers = {"agent": engine(answer).open_sampler(ModelSpec())}
    return asyncio.run(evaluate(chosen, spec, samplers, ExperienceLibrary()))


def test_the_seed_draws_the_tasks_and_all_are_taken_when_there_are_fewer() -> None:
    chosen = [
        [t.id for t in choose_tasks(stage(), Evaluation(episodes=5, seed=s))] for s in (1, 1, 2)
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    numbers = [int(name.split("-")[1]) for name in chosen[0]]
    assert numbers == sorted(numbers)
    for episodes in (0, 16, 99):
        assert len(choose_tasks(stage(), Evaluation(episodes=episodes))) == 16


def test_an_agent_that_knows_half_of_the_words_solves_half_of_the_tasks() -> None:
    def knows_two(messages: Any, seed: int) -> str:
        number = int(messages[1]["content"].rstrip(".").split("-")[1]) % 4
        return WORDS[number] if number < 2 else "no idea"

    result = by_hand(stage(), Evaluation(episodes=0, samples=4), knows_two)
    assert (result.mean, result.success, result.pass_at) == (0.5, 0.5, {1: 0.5, 2: 0.5, 4: 0.5})
    assert result.interval is not None
    assert result.interval[0] < 0.5 < result.interval[1]
    outcomes = [
        statistics.fmean(o for o in row if o is not None) for row in result.outcomes.values()
    ]
    assert outcomes == [1.0, 1.0, 0.0, 0.0] * 4


def test_the_loop_and_a_call_by_hand_give_the_same_numbers(tmp_path: Path) -> None:
    spec = Evaluation(episodes=6, samples=2)
    result = run(recipe(evaluation=spec, steps=1), tmp_path / "run", engine=engine())
    ((_, in_the_loop),) = result.evaluations
    assert replace(in_the_loop, groups=()) == replace(by_hand(stage(), spec), groups=())


def test_evaluation_has_its_own_sampling_and_defaults_to_the_stages_temperature() -> None:
    asked: list[tuple[float, float, int]] = []

    def spy(spec: Evaluation) -> None:
        inner = engine().open_sampler(ModelSpec())

        class Spy:
            version, template = 0, inner.template

            def rest(self) -> None:
                """Nothing is kept between answers."""

            async def sample(self, prompt: Any, params: Any, n: int = 1) -> Any:
                asked.append((params.temperature, params.top_p, params.top_k))
                return await inner.sample(prompt, params, n)

        samplers: Any = {"agent": Spy()}
        asyncio.run(evaluate(stage(), spec, samplers, ExperienceLibrary()))

    spy(Evaluation(episodes=1))
    spy(Evaluation(episodes=1, temperature=0.0, top_p=0.9, top_k=3))
    assert {asked[0], asked[-1]} == {(1.0, 1.0, 0), (0.0, 0.9, 3)}


@dataclass(frozen=True)
class TwoTries(Grpo):
    async def evaluate_episode(self, task: Task, index: int, world: World) -> Episode:
        first = await world.play(task, index=index, name="first")
        second = await world.play(task, index=index, name="second")
        return second if (second.outcome or 0.0) > (first.outcome or 0.0) else first


def test_a_method_may_say_what_an_evaluation_episode_is() -> None:
    spec = Evaluation(episodes=0)
    one, best_of_two = by_hand(stage(), spec), by_hand(stage(method=TwoTries()), spec)
    assert one.mean is not None
    assert best_of_two.mean is not None
    assert best_of_two.mean > one.mean


def test_an_evaluation_that_mostly_breaks_stops_with_the_first_traceback() -> None:
    broken = stage(source=Guess("raises", troubled=16))
    with pytest.raises(TooManyFailuresError, match=r"(?s)100%.*ZeroDivisionError"):
        by_hand(broken, Evaluation(episodes=4))


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(RecipeError, match="no tasks in split 'test'"):
        choose_tasks(stage(source=Guess(size=0)), Evaluation())
