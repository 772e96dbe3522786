"""Learning curves as a picture: the mean of each arm, its seeds thin behind it, against sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from evidence.measure import Measured, short
from evidence.plan import Experiment, in_words


def draw(
    experiment: Experiment,
    arms: Mapping[str, Sequence[Measured]],
    path: Path,
) -> Path:
    """Writes ``path``, a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, runs) in enumerate(arms.items()):
        color = f"C{number}"
        for run in runs:
            axes.plot(*zip(*run.curve, strict=True), color=color, alpha=0.25, linewidth=0.8)
        axes.plot(*mean_curve(runs), color=color, linewidth=2, label=in_words(name))
    axes.set(title=experiment.name, xlabel="tokens sampled in training", ylabel=experiment.metric)
    axes.xaxis.set_major_formatter(lambda x, _: short(max(x, 0)))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})
    return path


def mean_curve(runs: Sequence[Measured]) -> tuple[list[float], list[float]]:
    """The mean of the seeds' curves, each drawn straight between its evaluations, as far as all of them go."""
    first = max(run.curve[0][0] for run in runs)
    last = min(run.curve[-1][0] for run in runs)
    every = sorted({x for run in runs for x, _ in run.curve if first <= x <= last})
    curves = [np.interp(every, [x for x, _ in r.curve], [y for _, y in r.curve]) for r in runs]
    return [float(x) for x in every], [float(y) for y in np.mean(curves, axis=0)]
