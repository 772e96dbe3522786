"""KL-Cov: a penalty on the tokens that cost the most entropy. Cui et al., arXiv:2505.22617, section 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kolb.errors import at_least
from kolb.terms.base import TermResult, TokenStats
from kolb.terms.policy_gradient import check_importance, ratio_of, weighed
from kolb.terms.selection import check_scope, covariance, highest, joined, marks_of, placed, worths
from kolb.types import Example, Floats

ROUNDING = 1e-4
"""In nats: two passes over the same weights may differ by so much."""


@dataclass(frozen=True)
class KlCov:
    """``-A r`` without a clip, plus ``coefficient * abs(current - old)`` on the ``percent`` of highest covariance.

    The covariance of a token is ``(A - mean A) * (logprob - mean logprob)``; at least one token is chosen.
    The paper has 0.2 % for 7B and 0.02 % for 32B models, and a coefficient of 1. At ``r = 1`` the penalty has no
    gradient: with one update per batch this is the plain policy gradient. ``scope`` as in ``kolb.terms.selection``; the
    released code has ``micro``. Takes the place of a method's surrogate.
    """

    percent: float = 0.2
    coefficient: float = 1.0
    scope: Literal["batch", "micro"] = "batch"
    importance_cap: float | None = 2.0
    stream: str = "policy"
    normalisation: str = ""
    constant: float = 1.0
    name: str = "policy_gradient"
    needs: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def __post_init__(self) -> None:
        at_least(0, **{"kl_cov: percent": self.percent, "kl_cov: coefficient": self.coefficient})
        check_importance("kl_cov", self.importance_cap)
        check_scope("kl_cov", self.scope)

    def mark(
        self, examples: Sequence[Example], logprobs: Sequence[Floats]
    ) -> list[dict[str, Floats]]:
        if self.scope != "batch":
            return [{} for _ in examples]
        scores = covariance(
            joined(worths(examples), examples, self.stream), joined(logprobs, examples, self.stream)
        )
        return marks_of(f"{self.name}/chosen", self._choose(scores), examples, self.stream)

    def _choose(self, scores: Tensor) -> Tensor:
        return highest(scores, max(1, int(len(scores) * self.percent / 100)))

    def __call__(self, stats: TokenStats) -> TermResult:
        ratio = ratio_of(stats)
        apart = (stats.logprobs - stats.old_logprobs).abs()
        # At 0 the gradient is 0; rounding must not make it 1.
        apart = torch.where(apart < ROUNDING, apart.detach(), apart)
        chosen = self._chosen(stats)
        loss = -stats.advantages * ratio + self.coefficient * torch.where(
            chosen, apart, torch.zeros_like(apart)
        )
        return weighed(stats, ratio, loss, self.importance_cap, {"kl_cov/share": chosen})

    def _chosen(self, stats: TokenStats) -> Tensor:
        if self.scope == "batch":
            return stats.extras[f"{self.name}/chosen"] != 0
        counts = stats.coefficients != 0
        scores = covariance(stats.advantages[counts], stats.logprobs.detach()[counts])
        return placed(self._choose(scores), counts)


TERM = KlCov
