"""Staying close to a reference policy.

``k1``, ``k2`` and ``k3`` estimate KL(current || reference) from one sampled token (Schulman, "Approximating
KL Divergence", 2020). As values k1 and k3 are unbiased and k3 is never negative. As losses they differ:
averaged over tokens of the current policy, the gradient of k2 is that of KL(current || reference), the
gradient of k3 is that of KL(reference || current), and the gradient of k1 is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kolb.errors import RecipeError, nearest
from kolb.terms.base import TermResult, TokenStats, mean_of

if TYPE_CHECKING:
    from torch import Tensor


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """``cur - ref`` per token; gradient 1 with respect to ``logprobs``."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """``(cur - ref)^2 / 2`` per token; gradient ``cur - ref``."""
    return 0.5 * (logprobs - ref_logprobs) ** 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """``exp(ref - cur) - (ref - cur) - 1`` per token, at least 0; gradient ``1 - exp(ref - cur)``."""
    difference = ref_logprobs - logprobs
    # expm1 keeps the digits that exp loses near 0, where the policy spends its time.
    return difference.expm1() - difference


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


@dataclass(frozen=True)
class KLToReference:
    """``coefficient * KL`` to the weights that the policy started from, on every token of the stream."""

    coefficient: float = 0.001
    estimator: str = "k3"
    stream: str = "policy"
    normalisation: str = "token-mean"
    constant: float = 1.0
    name: str = "kl_to_reference"
    needs: ClassVar[frozenset[str]] = frozenset({"base"})
    reads: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise RecipeError(
                f"{self.name}: estimator = {self.estimator!r}{nearest(self.estimator, ESTIMATORS)}"
            )

    def __call__(self, stats: TokenStats) -> TermResult:
        kl = ESTIMATORS[self.estimator](stats.logprobs, stats.extras["ref_logprobs"])
        loss = self.coefficient * (stats.coefficients * kl).sum()
        return TermResult(loss, {"kl/reference": mean_of(kl, stats)})


TERM = KLToReference
