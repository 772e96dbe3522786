"""Small plots: a line of blocks, a plot of characters, a PNG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kolb.errors import RecipeError

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
MARKERS = "•+x*o#"
ASCII_MARKERS = "*+xo#@"

Points = Sequence[tuple[float, float | None]]
"""(x, y) pairs; a y that is None, NaN or infinite is a gap."""


def sparkline(values: Sequence[float | None], *, width: int = 40, ascii_only: bool = False) -> str:
    """One character per value, lowest to highest; a gap is a space. More than ``width`` are averaged.

    >>> sparkline([0, 1, 2, None, 7])
    '▁▂▃ █'
    """
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    shown = _averaged(values, width)
    finite = [v for v in shown if v is not None]
    if not finite:
        return " " * len(shown)
    low, span = min(finite), max(finite) - min(finite)
    top = len(blocks) - 1
    levels = (None if v is None else round((v - low) / span * top) if span else 0 for v in shown)
    return "".join(" " if level is None else blocks[level] for level in levels)


def _averaged(values: Sequence[float | None], width: int) -> list[float | None]:
    count = min(len(values), width)
    edges = [i * len(values) // count for i in range(count + 1)] if count else [0]
    return [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return sum(finite) / len(finite) if finite else None


def plot_text(
    series: Mapping[str, Points], width: int = 60, height: int = 10, *, ascii_only: bool = False
) -> str:
    """All series in one frame of ``width`` x ``height`` characters, axes and legend around it."""
    points = {name: _finite(line) for name, line in series.items()}
    every = [p for line in points.values() for p in line]
    if not every:
        return "(nothing to plot)"
    x_low, x_high = min(x for x, _ in every), max(x for x, _ in every)
    y_low, y_high = min(y for _, y in every), max(y for _, y in every)
    grid = [[" "] * width for _ in range(height)]
    markers = ASCII_MARKERS if ascii_only else MARKERS
    for i, line in enumerate(points.values()):
        columns: dict[int, list[float]] = {}
        for x, y in line:
            columns.setdefault(_cell(x, x_low, x_high, width), []).append(y)
        for column, ys in columns.items():
            row = _cell(sum(ys) / len(ys), y_low, y_high, height)
            grid[height - 1 - row][column] = markers[i % len(markers)]
    names = [f"{markers[i % len(markers)]} {name}" for i, name in enumerate(points)]
    return _framed(grid, (x_low, x_high), (y_low, y_high), "   ".join(names), ascii_only)


def _finite(line: Points) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line if y is not None and math.isfinite(y)]


def _cell(value: float, low: float, high: float, cells: int) -> int:
    return round((value - low) / (high - low) * (cells - 1)) if high > low else 0


def _framed(
    grid: list[list[str]],
    xs: tuple[float, float],
    ys: tuple[float, float],
    legend: str,
    ascii_only: bool,
) -> str:
    wall, corner, floor = ("|", "+", "-") if ascii_only else ("│", "└", "─")
    top, bottom = f"{ys[1]:.4g}", f"{ys[0]:.4g}"
    margin = max(len(top), len(bottom))
    labels = [top, *[""] * (len(grid) - 2), bottom]
    rows = [
        f"{label:>{margin}} {wall}{''.join(row)}".rstrip()
        for label, row in zip(labels, grid, strict=True)
    ]
    width = len(grid[0])
    left, right = f"{xs[0]:g}", f"{xs[1]:g}"
    pad = " " * (margin + 2)
    ticks = pad + left + right.rjust(max(width - len(left), len(right) + 1))
    return "\n".join([*rows, f"{' ' * margin} {corner}{floor * width}", ticks, pad + legend])


def plot_png(
    series: Mapping[str, Points], path: Path | str, title: str = "", ylabel: str = ""
) -> Path:
    """The same as a PNG file, through matplotlib; RecipeError says how to get it when it is missing."""
    figure, axes = _figure(7, 4)
    for name, line in series.items():
        points = _finite(line)
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, marker=".")
    axes.set(title=title, xlabel="step", ylabel=ylabel)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if series:
        axes.legend()
    figure.savefig(path, format="png", dpi=120)
    return Path(path)


def scatter_png(
    clouds: Mapping[str, Points],
    background: Points,
    path: Path | str,
    *,
    title: str = "",
    labels: tuple[str, str],
) -> Path:
    """Named clouds of points over a grey ``background`` as a PNG file; x is logarithmic.

    Small clouds lie on top, so that a large one does not hide them. RecipeError without matplotlib.
    """
    figure, axes = _figure(8, 5.5)
    behind = _finite(background)
    axes.scatter(
        [x for x, _ in behind],
        [y for _, y in behind],
        s=5,
        color="0.75",
        linewidths=0,
        label="others",
    )
    for name, cloud in clouds.items():
        points = _finite(cloud)
        axes.scatter(
            [x for x, _ in points],
            [y for _, y in points],
            s=max(8, 24 - 2 * math.log2(len(points) + 1)),
            alpha=0.6,
            linewidths=0,
            label=f"{name} ({len(points)})",
            zorder=3 + 1 / (1 + len(points)),
        )
    axes.set(title=title, xscale="log", xlabel=labels[0], ylabel=labels[1])
    axes.grid(alpha=0.3)
    legend = axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for handle in legend.legend_handles:
        handle.set_sizes([30])
    figure.savefig(path, format="png", dpi=120)
    return Path(path)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecipeError("a PNG plot needs matplotlib; pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()
