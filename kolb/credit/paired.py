"""Two measurements on the same tasks: the difference, task by task, and how sure it is. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Interval = tuple[float, float]
Outcomes = Mapping[str, Sequence[float | None]]
"""By task; None where an episode broke or its grader abstained."""

RESAMPLES = 10_000
CHUNK = 100
"""Resamples at once, so that memory stays small however many tasks there are."""


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """The 95% percentile bootstrap interval of the mean: 10,000 resamples, always the same ones.

    Over a handful of values it is too narrow. That of ``kolb.evaluate`` is for shares of successes and treats
    nothing but 0s as one; here 0 may be a difference.
    """
    array = np.asarray(values, np.float64)
    rng = np.random.default_rng(0)
    means = [
        array[rng.integers(0, len(array), (CHUNK, len(array)))].mean(axis=1)
        for _ in range(RESAMPLES // CHUNK)
    ]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class Paired:
    """``differences`` of the mean outcomes, by task; ``left_out`` are tasks without an outcome on either side."""

    differences: Mapping[str, float]
    left_out: tuple[str, ...]
    mean: float
    interval: Interval

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        low, high = self.interval
        return low > 0 or high < 0

    def count(self, sign: int) -> int:
        """Tasks on which the first side is better (1), worse (-1) or equal (0)."""
        return sum((d > 0) - (d < 0) == sign for d in self.differences.values())


def paired(one: Outcomes, other: Outcomes) -> Paired | None:
    """``one`` minus ``other``, over the tasks that have an outcome on both sides; None where there is none.

    >>> paired({"a": [1, 0], "b": [1, None]}, {"a": [0, 0], "b": [1, 1]}).differences
    {'a': 0.5, 'b': 0.0}
    """
    means = [
        {t: m for t, row in side.items() if (m := mean_of(row)) is not None}
        for side in (one, other)
    ]
    both = [t for t in means[0] if t in means[1]]
    if not both:
        return None
    differences = {t: means[0][t] - means[1][t] for t in both}
    left_out = tuple(t for t in {**one, **other} if t not in differences)
    values = list(differences.values())
    return Paired(differences, left_out, statistics.fmean(values), bootstrap_interval(values))


def mean_of(row: Sequence[float | None]) -> float | None:
    known = [o for o in row if o is not None]
    return statistics.fmean(known) if known else None
