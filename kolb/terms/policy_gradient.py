"""The policy gradient with a clipped ratio: PPO's surrogate as GRPO and its relatives use it.

What other surrogates share with it is here, too: the limited ratio, the correction for the sampler, and the
numbers that tell how far an update has gone. A surrogate that is to stand in its place has its ``name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kolb.errors import RecipeError, at_least
from kolb.terms.base import TermResult, TokenStats, max_of, mean_of, mean_of_all
from kolb.terms.kl import k3
from kolb.types import Example

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: beyond it a ratio says only that something is wrong, and float32 is near its end."""

RARE = 0.1
"""Tokens that were less likely than this are counted as rare (``tokens/rare``)."""


@dataclass(frozen=True)
class PolicyGradient:
    """``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))`` per token, ``r = exp(current - old)``.

    PPO's clipped surrogate (arXiv:1707.06347, equation 7); two different bounds are Clip-Higher
    (arXiv:2503.14476, section 3.1). A ratio is never below 0, so ``clip_low=1`` leaves that side open;
    ``clip_high=inf`` leaves the other. ``dual_clip`` = c (0 or None: none) caps the loss of a token with A < 0 at ``-A c``
    (arXiv:1912.09729), so that one token that became much likelier cannot own the step.

    ``importance_cap`` multiplies each token by ``min(exp(old - sampler), cap)``, a constant, where the
    weights that sampled are not quite the weights that learn; 0 or None leaves that out.

    At ``r = 1`` the gradient is the plain policy gradient, ``-A`` times the gradient of the logprob.
    Metrics: ``clip/share`` of tokens whose loss a clip changed, and those of ``drift``.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    importance_cap: float | None = 2.0
    stream: str = "policy"
    normalisation: str = "token-mean"
    constant: float = 1.0
    name: str = "policy_gradient"
    needs: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def __post_init__(self) -> None:
        for what in ("clip_low", "clip_high"):
            if not getattr(self, what) >= 0:
                raise RecipeError(
                    f"{self.name}: {what} = {getattr(self, what)}; it must be 0 or more"
                )
        if self.dual_clip and not self.dual_clip >= 1:
            raise RecipeError(
                f"{self.name}: dual_clip = {self.dual_clip}; it must be 1 or more, or 0 for none"
            )
        check_importance(self.name, self.importance_cap)

    def is_idle(self, example: Example) -> bool:
        return has_no_advantage(example)

    def __call__(self, stats: TokenStats) -> TermResult:
        ratio = ratio_of(stats)
        plain = -stats.advantages * ratio
        loss = self._clip(ratio, stats)
        return weighed(stats, ratio, loss, self.importance_cap, {"clip/share": loss != plain})

    def _clip(self, ratio: Tensor, stats: TokenStats) -> Tensor:
        loss = clipped(stats.advantages, ratio, self.clip_low, self.clip_high)
        if self.dual_clip:
            ceiling = -stats.advantages * self.dual_clip
            loss = loss.minimum(ceiling).where(stats.advantages < 0, loss)
        return loss


# ------------------------------------------------------------------------- what surrogates share


def has_no_advantage(example: Example) -> bool:
    """Without an advantage nothing is pushed: the loss is 0 whatever the weights are."""
    return example.advantages is None or not np.any(example.advantages)


def check_importance(name: str, cap: float | None) -> None:
    if cap and not cap >= 1:
        raise RecipeError(
            f"{name}: importance_cap = {cap}; it must be 1 or more, so that tokens whose logprobs agree keep "
            "their weight of 1, or 0 for no importance weight"
        )


def check_clip(name: str, clip_low: float, clip_high: float) -> None:
    at_least(0, **{f"{name}: clip_low": clip_low, f"{name}: clip_high": clip_high})


def ratio_of(stats: TokenStats) -> Tensor:
    """``exp(current - old)`` [T], with the gradient of the current logprobs."""
    return limited(stats.logprobs - stats.old_logprobs).exp()


def clipped(advantages: Tensor, ratio: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))`` [T]."""
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return (-advantages * ratio).maximum(-advantages * bounded)


def importance_of(stats: TokenStats, cap: float | None) -> Tensor:
    """``min(exp(old - sampler), cap)`` [T], a constant; 1 without a cap."""
    if not cap:
        return stats.old_logprobs.new_ones(stats.old_logprobs.shape)
    return limited(stats.old_logprobs - stats.sampler_logprobs).exp().clamp(max=cap)


def weighed(
    stats: TokenStats,
    ratio: Tensor,
    loss: Tensor,
    importance_cap: float | None,
    means: Mapping[str, Tensor],
    coefficients: Tensor | None = None,
) -> TermResult:
    """What a surrogate returns, from the loss of each token [T]: the sum, with importance weights and with
    ``coefficients`` in place of those of ``stats``; the metrics of ``drift``; and ``means`` over the tokens that count."""
    importance = importance_of(stats, importance_cap)
    metrics = drift(stats, ratio, importance)
    metrics |= {name: mean_of(values, stats) for name, values in means.items()}
    given = stats.coefficients if coefficients is None else coefficients
    return TermResult((given * importance * loss).sum(), metrics)


def drift(stats: TokenStats, ratio: Tensor, importance: Tensor) -> dict[str, tuple[float, float]]:
    """Metrics over all tokens of the stream: ``ratio/mean``, ``importance/mean``, ``tokens/rare`` (the share that
    the policy before the update held for less likely than ``RARE``), and ``kl/sampler_learner``, the k3 estimate of
    KL(sampler || learner before the update), with its largest token."""
    apart = k3(stats.sampler_logprobs, stats.old_logprobs)
    return {
        "ratio/mean": mean_of_all(ratio),
        "importance/mean": mean_of_all(importance),
        "tokens/rare": mean_of_all(stats.old_logprobs.exp() < RARE),
        "kl/sampler_learner": mean_of_all(apart),
        "kl/sampler_learner/max": max_of(apart, stats),
    }


def limited(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


TERM = PolicyGradient
