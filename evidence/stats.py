"""Means over seeds, with intervals; paired differences between two arms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kolb.credit.paired import Interval, bootstrap_interval

T_975 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
"""Student's t at 0.975, for 1 to 20 degrees of freedom (Student 1908)."""

MOST_VALUES = len(T_975) + 1


def t_interval(values: Sequence[float]) -> Interval:
    """The 95% interval of the mean, as Student's t gives it. It is not cut at 0 or 1.

    >>> [round(x, 4) for x in t_interval([0.8, 0.7, 0.9])]
    [0.5516, 1.0484]
    """
    if not 2 <= len(values) <= MOST_VALUES:
        raise ValueError(
            f"an interval over {len(values)} seeds; expected 2 to {MOST_VALUES} of them"
        )
    mean = statistics.fmean(values)
    slack = T_975[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return mean - slack, mean + slack


@dataclass(frozen=True)
class Difference:
    """How far one arm is above another, seed by seed."""

    values: tuple[float, ...]
    mean: float
    bootstrap: Interval
    t: Interval


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """``one`` minus ``other``; both have one value per seed, in the same order."""
    values = tuple(a - b for a, b in zip(one, other, strict=True))
    return Difference(
        values, statistics.fmean(values), bootstrap_interval(values), t_interval(values)
    )


def holds(better: Sequence[float], worse: Sequence[float], *, higher_is_better: bool) -> bool:
    """Whether the bootstrap interval of the paired difference excludes 0, on the expected side."""
    low, high = difference(better, worse).bootstrap
    return low > 0 if higher_is_better else high < 0
