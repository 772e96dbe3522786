"""Numbers, intervals and rows of tables as text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from evidence.measure import short
from evidence.stats import Interval, difference, t_interval


def number(value: float, *, sign: str = "", digits: int = 2) -> str:
    """
    >>> number(0.825), number(31_250), number(-5_200, sign="+")
    ('0.82', '31.2k', '-5.2k')
    """
    if abs(value) < 100:
        return f"{value:{sign}.{digits}f}"
    return (sign if value > 0 else "") + short(value)


def interval(ends: Interval, *, sign: str = "") -> str:
    return " to ".join(number(end, sign=sign, digits=3) for end in ends)


def with_interval(found: Sequence[float]) -> str:
    return f"{number(fmean(found), digits=3)} ({interval(t_interval(found))})"


def compared(one: Sequence[float], other: Sequence[float]) -> str:
    d = difference(one, other)
    means = f"{interval(d.bootstrap, sign='+')}; {interval(d.t, sign='+')}"
    return f"{number(d.mean, sign='+', digits=3)} ({means})"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def header(*titles: str) -> list[str]:
    return [line(*titles), f"|{'---|' * len(titles)}"]
