"""What the steps so far took from endpoints, in a few words for the live view."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping


class Spent:
    """Adds up ``usage/POLICY/NAME`` and ``role/ROLE/NAME`` (docs/guide/metrics.md) step by step."""

    def __init__(self) -> None:
        self._all: dict[str, float] = defaultdict(float)
        self._roles: dict[str, dict[str, float]] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            area, _, rest = key.partition("/")
            who, _, name = rest.rpartition("/")
            if not who or not math.isfinite(value):
                continue
            if area == "usage":
                self._all[name] += value
            elif area == "role":
                self._roles.setdefault(who, defaultdict(float))[name] += value

    @property
    def words(self) -> str:
        """``18.1k tokens, cost 0.0042 (solver 12.3k, 0.0030; editor 5.8k, 0.0012)``; empty where no endpoint was asked."""
        if "requests" not in self._all:
            return ""
        total = [f"{short(tokens(self._all))} tokens", *cost(self._all, "cost ")]
        roles = [
            f"{role} {', '.join([short(tokens(counts)), *cost(counts)])}"
            for role, counts in self._roles.items()
            if tokens(counts)
        ]
        return ", ".join(total) + (f" ({'; '.join(roles)})" if len(roles) > 1 else "")


def tokens(counts: Mapping[str, float]) -> float:
    return counts.get("prompt_tokens", 0) + counts.get("completion_tokens", 0)


def cost(counts: Mapping[str, float], title: str = "") -> list[str]:
    return [f"{title}{counts['cost']:.4f}"] if "cost" in counts else []


def short(count: float) -> str:
    """A number that reads at a glance.

    >>> short(940), short(18_130), short(2_500_000)
    ('940', '18.1k', '2.5M')
    """
    if count < 1000:
        return f"{count:.0f}"
    return f"{count / 1e3:.1f}k" if count < 1e6 else f"{count / 1e6:.1f}M"
