"""Words over a run as tables of plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kolb.view.words import WordBin

TOP = 8
"""Unlikely words of each bin that get a row."""


def number(value: float | None) -> str:
    """Three digits that count.

    >>> number(0.04567), number(1234.5), number(0.0000123), number(None)
    ('0.0457', '1234', '1.2e-05', '-')
    """
    if value is None:
        return "-"
    if 0 < value < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """``rows`` in columns, the first ``left`` of them flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _head(bins: Sequence[WordBin], indent: int) -> list[list[str]]:
    pad = [""] * indent
    return [
        ["steps", *pad, *(b.title for b in bins)],
        ["completions", *pad, *(str(b.completions) for b in bins)],
        ["tokens", *pad, *(str(b.tokens) for b in bins)],
    ]


def word_table(bins: Sequence[WordBin], words: Sequence[str]) -> str:
    """For each word four lines: occurrences, per 1000 sampled tokens, mean and lowest probability."""
    rows = _head(bins, 1)
    for word in words:
        tallies = [b.tallies[word] for b in bins]
        rows += [
            [word, "count", *(str(t.count) for t in tallies)],
            ["", "per 1000 tokens", *(number(b.per_thousand(word)) for b in bins)],
            ["", "mean p", *(number(t.mean) for t in tallies)],
            ["", "lowest p", *(number(t.lowest if t.known else None) for t in tallies)],
        ]
    return aligned(rows, left=2)


def unlikely_table(bins: Sequence[WordBin]) -> str:
    """How often words were sampled as unlikely tokens: the most frequent of each bin, by their sum."""
    sums = sum((b.unlikely for b in bins), start=type(bins[0].unlikely)())
    shown = {word for b in bins for word, _ in b.unlikely.most_common(TOP)}
    rows = _head(bins, 0)
    for word in sorted(shown, key=lambda w: (-sums[w], w)):
        rows.append([word, *(str(b.unlikely[word]) for b in bins)])
    return aligned(rows)


Cloud = np.ndarray
"""float64 [N, 2]: the probability of a token and the entropy, in nats, of the distribution it came from."""


def cloud_table(clouds: Mapping[str, Cloud], others: Cloud) -> str:
    """For each word its probabilities and entropies (mean, 10% to 90%), and the mean entropy of the other
    tokens that are at most as probable as the word is on average."""
    rows = [
        [
            "word",
            "occurrences",
            "mean p",
            "10%",
            "90%",
            "entropy",
            "10%",
            "90%",
            "others",
            "entropy",
        ]
    ]
    for word, cloud in clouds.items():
        if not len(cloud):
            rows.append([word, "0", *["-"] * 8])
            continue
        below = others[others[:, 0] <= cloud[:, 0].mean()]
        entropy = float(below[:, 1].mean()) if len(below) else None
        spread = [text for column in cloud.T for text in _spread(column)]
        rows.append([word, str(len(cloud)), *spread, str(len(below)), number(entropy)])
    rows.append(
        ["all others", str(len(others)), *(t for c in others.T for t in _spread(c)), "", ""]
    )
    return aligned(rows)


def _spread(values: np.ndarray) -> list[str]:
    if not len(values):
        return ["-"] * 3
    return [number(float(v)) for v in (values.mean(), *np.quantile(values, (0.1, 0.9)))]
