"""What runs show as text: numbers, intervals, costs, rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from evidence.measure import Measured, short, values
from evidence.plan import Quantity
from evidence.stats import Interval, difference, t_interval


def number(value: float, *, sign: str = "", digits: int = 2) -> str:
    """
    >>> number(0.25), number(0.004), number(31_250), number(-5_200, sign="+")
    ('0.25', '0.004', '31.2k', '-5.2k')
    """
    if abs(value) < 100:
        is_small = 0 < abs(value) < 0.1
        return f"{value:{sign}.{3 if is_small else digits}f}"
    return (sign if value > 0 else "") + short(value)


def interval(ends: Interval, *, sign: str = "") -> str:
    return " to ".join(number(end, sign=sign, digits=3) for end in ends)


def with_interval(found: Sequence[float]) -> str:
    return f"{number(fmean(found), digits=3)} ({interval(t_interval(found))})"


def compared(one: Sequence[float], other: Sequence[float]) -> str:
    d = difference(one, other)
    means = f"{interval(d.bootstrap, sign='+')}; {interval(d.t, sign='+')}"
    return f"{number(d.mean, sign='+', digits=3)} ({means})"


def mean(q: Quantity, runs: Sequence[Measured]) -> str:
    return number(fmean(values(q, runs)))


def cost(q: Quantity, runs: Sequence[Measured]) -> tuple[str, str, str, str]:
    """What the curve showed before training; tokens, steps and seconds of a run."""
    starts = [value for run in runs if (value := run.before(q)) is not None]
    return (
        f"{fmean(starts):.2f}" if len(starts) == len(runs) else "",
        short(fmean(r.tokens for r in runs)),
        f"{fmean(r.steps for r in runs):.0f}",
        f"{fmean(r.seconds for r in runs):.0f}",
    )


def take_offs(q: Quantity, runs: Sequence[Measured]) -> str:
    found = [run.take_off(q) for run in runs]
    return " ".join("never" if tokens is None else short(tokens) for tokens in found)


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def header(*titles: str) -> list[str]:
    return [line(*titles), f"|{'---|' * len(titles)}"]
