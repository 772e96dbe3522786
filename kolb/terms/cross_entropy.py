"""Imitation: make given tokens likelier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kolb.terms.base import TermResult, TokenStats, mean_of


@dataclass(frozen=True)
class CrossEntropy:
    """``-coefficient * logprob`` of every token in the stream. Advantages play no part.

    What a trajectory is worth goes into its weights: a weight equal to the reward is reward-weighted
    imitation (RAFT, arXiv:2304.06767). Under ``token-mean`` one long target counts for more than one
    short target; under ``sequence-mean`` they count the same, and a weight that is constant along a
    sequence cancels.
    """

    stream: str = "imitation"
    normalisation: str = "token-mean"
    constant: float = 1.0
    name: str = "cross_entropy"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, stats: TokenStats) -> TermResult:
        nll = -stats.logprobs
        return TermResult(
            (stats.coefficients * nll).sum(), {f"nll/{self.stream}": mean_of(nll, stats)}
        )


TERM = CrossEntropy
