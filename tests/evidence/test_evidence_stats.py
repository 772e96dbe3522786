"""The statistics of evidence, by numbers worked out elsewhere."""

import math

import pytest

from evidence.stats import T_975, bootstrap_interval, difference, holds, t_interval


def test_the_t_interval_of_five_values_is_that_of_a_textbook() -> None:
    # mean 3, s = sqrt(2.5), t(4) = 2.776445: 3 +- 2.776445 * sqrt(2.5 / 5)
    assert t_interval([1, 2, 3, 4, 5]) == pytest.approx((1.036757, 4.963243), abs=1e-6)


def test_the_table_of_t_solves_the_integral_of_its_density() -> None:
    for df in (1, 2, 4, 9, 20):
        scale = math.gamma((df + 1) / 2) / math.sqrt(df * math.pi) / math.gamma(df / 2)
        upper, steps = T_975[df - 1], 20_000
        width = upper / steps
        inside = sum(
            scale * (1 + ((i + 0.5) * width) ** 2 / df) ** (-(df + 1) / 2) * width
            for i in range(steps)
        )
        assert 0.5 + inside == pytest.approx(0.975, abs=1e-6)


@pytest.mark.parametrize("count", [0, 1, 22])
def test_an_interval_over_too_few_or_too_many_seeds_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"over {count} seeds"):
        t_interval([0.5] * count)


def test_the_bootstrap_of_two_values_reaches_from_one_to_the_other() -> None:
    # A resample of two holds only the lower value in a quarter of all cases: both ends are met.
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.3, 0.3, 0.3]) == pytest.approx((0.3, 0.3))


def test_the_bootstrap_is_near_the_normal_interval_where_there_are_many_values() -> None:
    values = [i / 100 for i in range(100)]  # mean 0.495, population deviation 0.288661
    slack = 1.959964 * 0.288661 / 10
    assert bootstrap_interval(values) == pytest.approx((0.495 - slack, 0.495 + slack), abs=0.003)
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_over_five_seeds_the_bootstrap_is_narrower_than_t() -> None:
    d = difference([0.9, 0.8, 0.7, 0.9, 0.8], [0.1, 0.3, 0.2, 0.1, 0.0])
    assert d.values == pytest.approx((0.8, 0.5, 0.5, 0.8, 0.8))
    assert d.mean == pytest.approx(0.68)
    assert d.t == pytest.approx((0.475981, 0.884019), abs=1e-5)  # s = 0.164317
    assert d.t[0] < d.bootstrap[0] < d.mean < d.bootstrap[1] < d.t[1]


def test_a_difference_is_paired_seed_by_seed() -> None:
    # Seeds differ by far more than arms do; seed by seed the gain is always 0.1.
    worse = [0.0, 0.2, 0.4, 0.6, 0.8]
    better = [w + 0.1 for w in worse]
    assert holds(better, worse, higher_is_better=True)
    assert difference(better, worse).bootstrap == pytest.approx((0.1, 0.1))


def test_a_claim_holds_only_on_the_expected_side_and_away_from_zero() -> None:
    high, low, mixed = [0.9] * 5, [0.1] * 5, [0.0, 0.2, 0.0, 0.2, 0.1]
    assert holds(high, low, higher_is_better=True)
    assert not holds(low, high, higher_is_better=True)
    assert holds(low, high, higher_is_better=False)
    assert not holds(low, mixed, higher_is_better=True)
    assert not holds(low, low, higher_is_better=True)
