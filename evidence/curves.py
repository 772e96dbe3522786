"""Learning curves as a picture: the mean of each arm, its seeds thin behind it, against sampled tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence.measure import Measured, short
from evidence.plan import Curve, Experiment, Quantity, in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_TOGETHER = 6
"""Arms that are drawn into one frame; more of them get one each, with the reference arm's mean in grey."""
COLUMNS = 5


def draw(
    experiment: Experiment,
    quantity: Quantity,
    arms: Mapping[str, Sequence[Measured]],
    path: Path,
) -> Path:
    """Writes ``path``, a PNG of the curves that ``quantity`` is read from."""
    curves = {name: [run.curves[quantity.curve] for run in runs] for name, runs in arms.items()}
    figure, frames = framed(len(arms))
    if len(arms) > MOST_TOGETHER:
        for axes in frames:
            axes.plot(*mean_curve(curves[experiment.reference]), color="0.6", linewidth=2)
    for number, (name, axes) in enumerate(zip(curves, frames, strict=True)):
        draw_arm(axes, in_words(name), curves[name], f"C{number}")
    figure.suptitle(experiment.name, fontsize="medium")
    figure.supxlabel("tokens sampled in training", fontsize="medium")
    figure.supylabel(quantity.axis or quantity.metric, fontsize="medium")
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})
    return path


def framed(arms: int) -> tuple[Figure, list[Any]]:
    """A figure, and the frame of each arm."""
    from matplotlib.figure import Figure

    if arms <= MOST_TOGETHER:
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        return figure, [figure.subplots()] * arms
    rows = math.ceil(arms / COLUMNS)
    figure = Figure(figsize=(12, 0.5 + 2.3 * rows), layout="constrained")
    frames = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True).flat)
    for unused in frames[arms:]:
        unused.remove()
    return figure, frames[:arms]


def draw_arm(axes: Any, label: str, curves: Sequence[Curve], color: str) -> None:
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), color=color, alpha=0.25, linewidth=0.8)
    axes.plot(*mean_curve(curves), color=color, linewidth=2, label=label)
    axes.xaxis.set_major_formatter(lambda x, _: short(max(x, 0)))
    axes.grid(alpha=0.3)
    axes.legend()


def pictured(e: Experiment) -> dict[str, Quantity]:
    """A picture's file name for each curve, with the first quantity that is read from it."""
    first: dict[str, Quantity] = {}
    for q in (q for q in e.quantities if not q.extra):
        first.setdefault(q.curve, q)
    main = e.quantities[0].curve
    return {
        f"{e.name}.png" if name == main else f"{e.name}_{name.replace('/', '_')}.png": q
        for name, q in first.items()
    }


def mean_curve(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """The mean of the seeds' curves, each drawn straight between its evaluations, as far as all of them go."""
    first = max(curve[0][0] for curve in curves)
    last = min(curve[-1][0] for curve in curves)
    every = sorted({x for curve in curves for x, _ in curve if first <= x <= last})
    drawn = [np.interp(every, [x for x, _ in c], [y for _, y in c]) for c in curves]
    return [float(x) for x in every], [float(y) for y in np.mean(drawn, axis=0)]
