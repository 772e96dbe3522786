"""An entropy bonus: pay for staying undecided (A3C, arXiv:1602.01783, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kolb.errors import RecipeError
from kolb.terms.base import TermResult, TokenStats


@dataclass(frozen=True)
class Entropy:
    """``-coefficient * entropy`` (nats) on every token of the stream: a bonus for staying undecided."""

    coefficient: float = 0.001
    stream: str = "policy"
    normalisation: str = "token-mean"
    constant: float = 1.0
    name: str = "entropy"
    needs: ClassVar[frozenset[str]] = frozenset({"stats:entropy"})

    def __call__(self, stats: TokenStats) -> TermResult:
        if stats.entropy is None:
            raise RecipeError(f"{self.name} needs 'stats:entropy', and the engine gave no entropy")
        loss = -self.coefficient * (stats.coefficients * stats.entropy).sum()
        return TermResult(loss)


TERM = Entropy
