"""GRPO's numbers: advantages, what becomes an example, and which terms its options make."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from kolb.errors import RecipeError
from kolb.methods.grpo import DAPO, DR_GRPO, METHOD, Grpo
from kolb.terms.base import coefficients
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


def lengths(*given: tuple[float | None, int]) -> Group:
    """One attempt for each (reward, length)."""
    return Group(Task("t"), tuple(episode(i, r, length=n) for i, (r, n) in enumerate(given)))


PUNISHING = Grpo(scale_by_std=False, overlong_limit=8, overlong_buffer=4)


def test_the_overlong_punishment_is_added_to_the_reward_before_the_advantages() -> None:
    update = PUNISHING.credit([lengths((1.0, 4), (1.0, 6), (0.0, 8), (0.0, 9))], None)
    # Rewards 1, 1 - 0.5, 0 - 1, 0 - 1: their mean is -0.125.
    assert [a[0] for a in advantages_of(update)] == [1.125, 0.625, -0.875, -0.875]
    assert update.metrics["overlong/share"] == 0.75


def test_the_punishment_is_a_score_beside_the_reward_and_leaves_the_outcome_alone() -> None:
    update = PUNISHING.credit([lengths((1.0, 4), (1.0, 6))], None)
    [scored] = update.groups
    assert [e.outcome for e in scored.episodes] == [1.0, 1.0]
    assert [dict(e.trajectories[0].scores) for e in scored.episodes] == [
        {"reward": 1.0, "overlong": 0.0},
        {"reward": 1.0, "overlong": -0.5},
    ]
    assert [e.trajectories[0].reward for e in scored.episodes] == [1.0, 0.5]
    assert update.metrics["reward/mean"] == update.metrics["success/mean"] == 1.0


def test_only_sampled_tokens_count_towards_the_length() -> None:
    two_turns = episode(0, 1.0, length=3)
    (said,) = two_turns.trajectories
    (turn,) = said.turns
    heard = replace(turn, context_ids=np.arange(50, dtype=np.int32), starts_segment=False)
    two_turns = replace(two_turns, trajectories=(replace(said, turns=(turn, heard)),))
    [scored] = PUNISHING.credit([Group(Task("t"), (two_turns, episode(1, 0.0)))], None).groups
    assert scored.episodes[0].trajectories[0].scores["overlong"] == -0.5  # six tokens


def test_an_abstaining_reward_and_a_broken_group_stay_unpunished() -> None:
    broken = Group(Task("b"), (episode(0, 1.0, length=9), episode(1, None, status=Status.TIMEOUT)))
    update = PUNISHING.credit([lengths((1.0, 9), (None, 9), (0.0, 2)), broken], None)
    assert [a[0] for a in advantages_of(update)] == [0.0, 0.0]  # 1 - 1, abstained, 0
    assert "overlong" not in update.groups[0].episodes[1].trajectories[0].scores
    assert update.metrics["overlong/share"] == 0.5


def test_where_every_group_broke_no_share_is_given() -> None:
    broken = Group(Task("b"), (episode(0, None, status=Status.TIMEOUT),))
    assert "overlong/share" not in PUNISHING.credit([broken], None).metrics


def test_without_a_limit_groups_stay_as_they_were_collected() -> None:
    given = lengths((1.0, 9), (0.0, 9))
    update = METHOD.credit([given], None)
    assert update.groups[0] is given
    assert "overlong/share" not in update.metrics


def test_dapo_is_clip_higher_over_all_tokens_with_the_papers_lengths() -> None:
    (only,) = DAPO.terms
    assert only == PolicyGradient(clip_low=0.2, clip_high=0.28, normalisation="token-mean")
    assert (DAPO.group_size, DAPO.overlong_limit, DAPO.overlong_buffer) == (16, 20480, 4096)
    update = DAPO.credit([lengths((1.0, 18432), (1.0, 16384))], None)
    assert [round(a[0], 4) for a in advantages_of(update)] == [-0.7071, 0.7071]


def test_dr_grpo_divides_by_neither_deviation_nor_length() -> None:
    assert DR_GRPO.advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]
    (only,) = DR_GRPO.terms
    groups = [lengths((1.0, 2), (0.0, 5))]
    given = coefficients(only, DR_GRPO.credit(groups, None).examples)
    each = np.float32(1 / 384000)
    assert [c.tolist() for c in given] == [[each] * 2, [each] * 5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_size": 1},
        {"ddof": 2},
        {"overlong_limit": 8},
        {"overlong_limit": 8, "overlong_buffer": 9},
        {"overlong_limit": -8, "overlong_buffer": 4},
        {"overlong_limit": 0, "overlong_buffer": 4},
    ],
)
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
