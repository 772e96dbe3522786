"""What a page says of the finished runs beside its quantities: tokens by role, frozen weights, further evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from evidence.cells import header, line, with_interval
from evidence.measure import Measured, short
from evidence.plan import ExtraSet, in_words

Arms = Mapping[str, Sequence[Measured]]
"""The finished runs of each arm, in the order of the seeds."""

SHOWN = 16
"""Digits of a digest."""


def roles(arms: Arms) -> Iterator[str]:
    """What each role sampled in training, where the experiment tells it."""
    names = sorted({role for runs in arms.values() for run in runs for role in run.roles})
    if not names:
        return
    yield "Tokens that each role sampled in training, mean over seeds:\n"
    yield from header("arm", *names)
    for arm, runs in arms.items():
        means = (fmean(run.roles.get(name, 0) for run in runs) for name in names)
        yield line(in_words(arm), *map(short, means))
    yield ""


def weights(arms: Arms) -> Iterator[str]:
    """Where no policy learns: which weights sampled."""
    runs = [run for row in arms.values() for run in row]
    digests = sorted({run.weights for run in runs})
    if not all(digests) or any(run.stage["learn"] for run in runs):
        return
    told = ", ".join(f"`{digest[:SHOWN]}…`" for digest in digests)
    yield "No policy learns: no run has an optimiser, and no checkpoint holds weights. SHA-256 of the weight files that the runs"
    yield f"sampled from, the same before each run began and when this page was written: {told}.\n"


def by_extra(extra: ExtraSet, arms: Arms) -> Iterator[str]:
    """Success of each arm in a further evaluation, whole and by its tag."""
    yield f"### {extra.title}\n"
    if any(extra.name not in run.extras for runs in arms.values() for run in runs):
        where = f"; it needs {extra.needs} in the folder `KOLB_DATA`" if extra.needs else ""
        yield f"Not measured in every run{where}.\n"
        return
    first = next(iter(arms.values()))[0].extras[extra.name]
    yield from header("arm", "all (95%)", *(f"{extra.tag} {v}" for v in first if v))
    for name, runs in arms.items():
        rows = [run.extras[extra.name] for run in runs]
        parts = (f"{fmean(row[v] for row in rows):.2f}" for v in first if v)
        yield line(in_words(name), with_interval([row[""] for row in rows]), *parts)
    yield ""
