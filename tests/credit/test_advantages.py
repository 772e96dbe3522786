"""Advantages against the numbers that the papers and their released code give."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolb.credit.advantages import by_key, centre, leave_one_out, standardise, whiten
from kolb.errors import RewardError

rewards = st.lists(st.floats(-100, 100), min_size=2, max_size=9)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ([1, 1, 0, 0], [0.866, 0.866, -0.866, -0.866]),
        ([1, 0, 0], [1.1547, -0.5774, -0.5774]),
        ([1, 0.5, 0, 0], [1.3056, 0.2611, -0.7833, -0.7833]),
        ([10, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ([0.85, 0.52, 0.52, 0], [1.0745, 0.1352, 0.1352, -1.3449]),
    ],
)
def test_group_advantages_use_the_sample_deviation(group, expected):
    assert standardise(group) == pytest.approx(expected, abs=1e-4)


def test_the_epsilon_of_one_millionth_shows_in_the_seventh_digit():
    a = 0.86602390
    assert standardise([1, 0, 0, 1]) == pytest.approx([a, -a, -a, a], abs=1e-8)


@pytest.mark.parametrize(
    ("correct", "high", "low"), [(1, 2.474867, -0.353552), (4, 0.935413, -0.935413)]
)
def test_eight_attempts_with_some_correct(correct, high, low):
    advantages = standardise([1.0] * correct + [0.0] * (8 - correct))
    assert advantages == pytest.approx([high] * correct + [low] * (8 - correct), abs=1e-6)


def test_population_deviation_divides_by_the_whole_group():
    assert standardise([1, 0], ddof=0, epsilon=0) == [1.0, -1.0]
    assert standardise([1, 0], ddof=1, epsilon=0) == pytest.approx(
        [math.sqrt(0.5), -math.sqrt(0.5)]
    )


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1600304873711048])  # the last: sum of 7 / 7 differs
@pytest.mark.parametrize("fn", [centre, standardise, leave_one_out, whiten])
def test_equal_rewards_are_worth_exactly_nothing(fn, value):
    assert fn([value] * 7) == [0.0] * 7


def test_a_group_of_one_keeps_its_reward_or_gets_zero():
    assert standardise([1.0]) == [1.0]
    assert standardise([0.0]) == [0.0]
    assert standardise([1.0], singleton="zero") == [0.0]
    assert centre([1.0]) == leave_one_out([1.0]) == whiten([1.0]) == [0.0]


def test_whitening_over_all_tokens_of_a_batch():
    # Two answers of two tokens: rewards 1 and 0, minus 0.01 times the log-ratio still to come.
    values = [1 - 0.01 * (0 + 1), 1 - 0.01 * 1, 0 - 0.01 * (0.5 + 0.5), 0 - 0.01 * 0.5]
    assert values == pytest.approx([0.99, 0.99, -0.01, -0.005])
    assert whiten(values) == pytest.approx([0.99999, 0.99999, -1.00501, -0.99498], abs=1e-5)


def test_leave_one_out_compares_with_the_mean_of_the_others():
    assert leave_one_out([3.0, 1.0, 2.0]) == pytest.approx([3 - 1.5, 1 - 2.5, 2 - 2.0])


@given(rewards)
def test_leave_one_out_is_centring_stretched_by_n_over_n_minus_one(group):
    n = len(group)
    stretched = [a * n / (n - 1) for a in centre(group)]
    assert leave_one_out(group) == pytest.approx(stretched, abs=1e-9)


@given(rewards, st.floats(-50, 50))
def test_a_constant_added_to_every_reward_changes_no_advantage(group, shift):
    assert centre([r + shift for r in group]) == pytest.approx(centre(group), abs=1e-9)


def test_abstaining_rewards_stay_none_and_leave_the_statistics_alone():
    one, *zeros = standardise([1, 0, 0, 0])
    assert standardise([1, None, 0, 0, None, 0]) == [one, None, zeros[0], zeros[1], None, zeros[2]]
    assert leave_one_out([2.0, None, 1.0]) == [1.0, None, -1.0]
    assert centre([None, None]) == [None, None]


def test_one_reward_among_abstentions_is_a_group_of_one():
    assert standardise([None, 0.7, None]) == [None, 0.7, None]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fn", [centre, standardise, leave_one_out, whiten])
def test_a_reward_that_is_not_finite_raises(fn, bad):
    with pytest.raises(RewardError, match="finite"):
        fn([1.0, bad, 0.0])


def test_groups_by_key_do_not_see_each_other_and_keep_their_order():
    keys = ["a", "b", "a", "b", "a", "a"]
    before = by_key([1, 5, 0, 9, 0, 0], keys, standardise)
    after = by_key([1, -3, 0, 2, 0, 0], keys, standardise)
    of_a = [i for i, k in enumerate(keys) if k == "a"]
    assert [before[i] for i in of_a] == [after[i] for i in of_a]
    assert [before[i] for i in of_a] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-4)
    assert [before[1], before[3]] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-4)


def test_attempts_reflections_and_retries_are_credited_apart():
    first = [("t", "first", 1.0), ("t", "first", 0.0), ("t", "first", 0.0), ("t", "first", 0.0)]
    later = [("t", kind, r) for kind in ("reflect", "second") for r in (1.0, 0.0, 0.0)]
    rows = [*first, *later]
    advantages = by_key([r[2] for r in rows], [r[:2] for r in rows], standardise)
    retried = [1.1547, -0.5774, -0.5774]
    assert advantages == pytest.approx([1.5, -0.5, -0.5, -0.5, *retried, *retried], abs=1e-4)


def test_keys_must_match_the_values_one_to_one():
    with pytest.raises(ValueError):
        by_key([1.0, 2.0], ["a"], centre)
