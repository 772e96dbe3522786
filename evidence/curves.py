"""Learning curves as a picture: the mean of each arm, its seeds thin behind it, against sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from evidence.measure import Measured, short
from evidence.plan import Curve, Experiment, Quantity, in_words


def draw(
    experiment: Experiment,
    quantity: Quantity,
    arms: Mapping[str, Sequence[Measured]],
    path: Path,
) -> Path:
    """Writes ``path``, a PNG of the curves that ``quantity`` is read from."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, runs) in enumerate(arms.items()):
        color = f"C{number}"
        curves = [run.curves[quantity.curve] for run in runs]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=color, alpha=0.25, linewidth=0.8)
        axes.plot(*mean_curve(curves), color=color, linewidth=2, label=in_words(name))
    axes.set(
        title=experiment.name,
        xlabel="tokens sampled in training",
        ylabel=quantity.axis or quantity.metric,
    )
    axes.xaxis.set_major_formatter(lambda x, _: short(max(x, 0)))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})
    return path


def pictured(e: Experiment) -> dict[str, Quantity]:
    """A picture's file name for each curve, with the first quantity that is read from it."""
    first: dict[str, Quantity] = {}
    for q in e.quantities:
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
