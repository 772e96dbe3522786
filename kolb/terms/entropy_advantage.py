"""Entropy in the advantage: where the policy is undecided, more is at stake. Cheng et al., arXiv:2506.14758."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kolb.errors import RecipeError, at_least
from kolb.terms.base import TermResult, TokenStats
from kolb.terms.policy_gradient import (
    check_clip,
    check_importance,
    clipped,
    has_no_advantage,
    ratio_of,
    weighed,
)
from kolb.types import Example


@dataclass(frozen=True)
class EntropyAdvantage:
    """The clipped surrogate with ``A + min(alpha * H, abs(A) / kappa)``, H being the token's entropy, a constant.

    The bound keeps the sign of A: with ``kappa`` above 1 what was pushed down still is, less so. Takes the place of a
    method's surrogate.
    """

    alpha: float = 0.4
    kappa: float = 2.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    importance_cap: float | None = 2.0
    stream: str = "policy"
    normalisation: str = ""
    constant: float = 1.0
    name: str = "policy_gradient"
    needs: ClassVar[frozenset[str]] = frozenset({"stats:entropy"})
    reads: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def __post_init__(self) -> None:
        at_least(0, **{"entropy_advantage: alpha": self.alpha})
        if not self.kappa > 1:
            raise RecipeError(
                f"entropy_advantage: kappa = {self.kappa}; above 1, so that no advantage changes its sign"
            )
        check_clip("entropy_advantage", self.clip_low, self.clip_high)
        check_importance("entropy_advantage", self.importance_cap)

    def is_idle(self, example: Example) -> bool:
        return has_no_advantage(example)

    def __call__(self, stats: TokenStats) -> TermResult:
        if stats.entropy is None:
            raise RecipeError("entropy_advantage needs 'stats:entropy', and the engine gave none")
        bonus = torch.minimum(
            self.alpha * stats.entropy.detach(), stats.advantages.abs() / self.kappa
        )
        ratio, advantages = ratio_of(stats), stats.advantages + bonus
        loss = clipped(advantages, ratio, self.clip_low, self.clip_high)
        means = {"clip/share": loss != -advantages * ratio, "entropy_advantage/bonus": bonus}
        return weighed(stats, ratio, loss, self.importance_cap, means)


TERM = EntropyAdvantage
