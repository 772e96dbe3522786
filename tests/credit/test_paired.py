"""A difference is taken task by task, and says when it cannot be seen."""

from __future__ import annotations

import numpy as np
import pytest

from kolb.credit.paired import RESAMPLES, bootstrap_interval, paired


def test_tasks_are_compared_with_themselves_and_broken_attempts_are_no_zeros():
    found = paired(
        {"a": [1.0, 0.0], "b": [1.0, None], "c": [None, None], "d": [0.0, 0.0]},
        {"a": [0.0, 0.0], "b": [1.0, 1.0], "c": [1.0, 1.0], "d": [1.0, 0.0]},
    )
    assert found is not None
    assert found.differences == {"a": 0.5, "b": 0.0, "d": -0.5}
    assert found.left_out == ("c",)
    assert found.mean == 0.0
    assert [found.count(sign) for sign in (1, 0, -1)] == [1, 1, 1]
    assert not found.is_clear


def test_a_gain_on_every_task_is_clear_and_so_is_a_loss():
    better, worse = {t: [1.0] for t in "abcdef"}, {t: [0.0] for t in "abcdef"}
    gain, loss = paired(better, worse), paired(worse, better)
    assert gain is not None
    assert loss is not None
    assert (gain.mean, gain.interval, gain.is_clear) == (1.0, (1.0, 1.0), True)
    assert (loss.mean, loss.interval, loss.is_clear) == (-1.0, (-1.0, -1.0), True)


def test_no_difference_at_all_is_not_clear():
    same = {t: [1.0, 0.0] for t in "abc"}
    found = paired(same, same)
    assert found is not None
    assert (found.interval, found.is_clear) == ((0.0, 0.0), False)


def test_nothing_in_common_is_no_comparison():
    assert paired({"a": [None]}, {"a": [1.0]}) is None
    assert paired({}, {}) is None


@pytest.mark.parametrize("count", [1, 2, 5, 7, 50])
def test_the_interval_does_not_depend_on_how_the_resamples_are_cut(count: int):
    values = np.random.default_rng(count).normal(size=count)
    chosen = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    low, high = np.percentile(values[chosen].mean(axis=1), [2.5, 97.5])
    assert bootstrap_interval(list(values)) == (low, high)
