"""GRPO's numbers: advantages, what becomes an example, and which terms its options make."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from kolb.errors import RecipeError
from kolb.methods.grpo import METHOD, Grpo
from kolb.terms.kl import KLToReference
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import Completion, Episode, Failure, Group, Method, Status, Task, Trajectory, Turn


def episode(
    index: int, reward: float | None, length: int = 2, status: Status = Status.OK
) -> Episode:
    ids = np.arange(length, dtype=np.int32)
    said = Completion("x" * length, ids, -np.ones(length, np.float32))
    turn = Turn((), said, np.array([9], np.int32), starts_segment=True)
    scores = {} if reward is None else {"reward": reward}
    trajectory = Trajectory("solver", "agent", (turn,), scores)
    if not status.is_usable:
        return Episode("t", index, status=status, failure=Failure("environment", "broke"))
    return Episode("t", index, (trajectory,), outcome=reward, status=status)


def group(*rewards: float | None, task: str = "t", **how: Any) -> Group:
    return Group(Task(task), tuple(episode(i, r, **how) for i, r in enumerate(rewards)))


def advantages_of(update: Any) -> list[list[float]]:
    return [[round(float(a), 4) for a in e.advantages] for e in update.examples]


def test_the_advantage_of_every_token_is_the_standardised_reward() -> None:
    update = METHOD.credit([group(1.0, 0.0, 0.0, 0.0)], None)
    assert advantages_of(update) == [[1.5, 1.5]] + [[-0.5, -0.5]] * 3


def test_the_population_deviation_gives_larger_advantages() -> None:
    update = Grpo(ddof=0).credit([group(1.0, 0.0, 0.0, 0.0)], None)
    assert advantages_of(update)[0] == [1.732, 1.732]


def test_without_scaling_it_is_the_distance_to_the_mean() -> None:
    update = Grpo(scale_by_std=False).credit([group(1.0, 0.0, 0.0, 0.0)], None)
    assert advantages_of(update) == [[0.75, 0.75]] + [[-0.25, -0.25]] * 3


def test_groups_are_compared_within_themselves_only() -> None:
    update = Grpo(scale_by_std=False).credit([group(1.0, 0.0), group(5.0, 6.0)], None)
    assert [a[0] for a in advantages_of(update)] == [0.5, -0.5, -0.5, 0.5]


def test_a_dead_group_has_advantages_of_zero_and_is_counted() -> None:
    update = METHOD.credit([group(1.0, 1.0), group(0.0, 0.0), group(1.0, 0.0)], None)
    assert advantages_of(update) == [[0.0, 0.0]] * 4 + [[0.7071, 0.7071], [-0.7071, -0.7071]]
    assert update.metrics["groups/dead"] == 2
    assert update.metrics["groups/total"] == 3


def test_in_a_living_group_a_trajectory_at_the_mean_stays_with_advantage_zero() -> None:
    update = METHOD.credit([group(1.0, 0.5, 0.0)], None)
    assert advantages_of(update) == [[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0]]


def test_a_group_with_a_broken_episode_is_dropped_whole() -> None:
    broken = Group(
        Task("b"), (episode(0, 1.0), episode(1, None, status=Status.TIMEOUT), episode(2, 0.0))
    )
    update = METHOD.credit([broken], None)
    assert update.examples == ()
    assert update.metrics["groups/dropped"] == 1
    assert "reward/mean" not in update.metrics


def test_a_reward_that_abstains_is_in_no_mean_and_gives_no_example() -> None:
    update = METHOD.credit([group(1.0, None, 0.0)], None)
    assert [a[0] for a in advantages_of(update)] == [0.7071, -0.7071]
    assert update.metrics["reward/mean"] == 0.5


def test_one_reward_among_abstentions_is_compared_with_nothing_and_dead() -> None:
    update = METHOD.credit([group(1.0, None)], None)
    assert advantages_of(update) == [[0.0, 0.0]]
    assert update.metrics["groups/dead"] == 1


def test_the_metrics_of_two_groups_by_hand() -> None:
    broken = Group(Task("b"), (episode(0, None, status=Status.REWARD_ERROR),))
    failed = Failure("reward", "nan")
    broken = Group(broken.task, (Episode("b", 0, status=Status.REWARD_ERROR, failure=failed),))
    metrics = METHOD.credit(
        [group(1.0, 0.0, length=3), group(1.0, 1.0, length=5), broken], None
    ).metrics
    assert metrics == {
        "reward/mean": 0.75,
        "reward/std": pytest.approx(0.4330127),
        "success/mean": 0.75,
        "groups/total": 3,
        "groups/dead": 1,
        "groups/dropped": 1,
        "episodes/truncated": 0,
        "episodes/turns": 1.0,
        "episodes/tokens": 4.0,
        "errors/environment": 0,
        "errors/reward": 1,
        "errors/sampler": 0,
        "errors/deadline": 0,
    }


def test_each_trajectory_is_one_sequence_and_the_weights_are_one() -> None:
    update = METHOD.credit([group(1.0, 0.0, task="a"), group(1.0, 0.0, task="b")], None)
    assert len({e.sequence for e in update.examples}) == 4
    assert all(e.weights["policy"].tolist() == [1.0, 1.0] for e in update.examples)
    assert {e.policy for e in update.examples} == {"agent"}


def test_the_state_is_handed_on_untouched() -> None:
    assert METHOD.credit([group(1.0, 0.0)], {"kept": 1}).state == {"kept": 1}


def test_the_options_reach_the_terms() -> None:
    (only,) = METHOD.terms
    assert only == PolicyGradient(
        clip_low=0.2, clip_high=0.2, dual_clip=None, importance_cap=2.0, normalisation="token-mean"
    )
    method = Grpo(
        clip_low=0.1, clip_high=0.28, dual_clip=3.0, kl=0.04, normalisation="constant", constant=512
    )
    surrogate, kl = method.terms
    assert surrogate == PolicyGradient(0.1, 0.28, 3.0, 2.0, normalisation="constant", constant=512)
    assert kl == KLToReference(0.04, normalisation="constant", constant=512)


@pytest.mark.parametrize("wrong", [{"group_size": 1}, {"ddof": 2}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        Grpo(**wrong)


def test_it_is_a_method_whose_fields_are_all_numbers_of_the_paper() -> None:
    assert isinstance(METHOD, Method)
    assert [f.name for f in fields(Grpo)] == [
        "group_size",
        "scale_by_std",
        "ddof",
        "clip_low",
        "clip_high",
        "dual_clip",
        "importance_cap",
        "normalisation",
        "constant",
        "kl",
        "overlong_limit",
        "overlong_buffer",
    ]
