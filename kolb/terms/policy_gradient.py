"""The policy gradient with a clipped ratio: PPO's surrogate as GRPO and its relatives use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kolb.errors import RecipeError
from kolb.terms.base import TermResult, TokenStats, max_of, mean_of
from kolb.terms.kl import k3
from kolb.types import Example

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: beyond it a ratio says only that something is wrong, and float32 is near its end."""


@dataclass(frozen=True)
class PolicyGradient:
    """``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))`` per token, ``r = exp(current - old)``.

    PPO's clipped surrogate (arXiv:1707.06347, equation 7); two different bounds are Clip-Higher
    (arXiv:2503.14476, section 3.1). A ratio is never below 0, so ``clip_low=1`` leaves that side open;
    ``clip_high=inf`` leaves the other. ``dual_clip`` = c (0 or None: none) caps the loss of a token with A < 0 at ``-A c``
    (arXiv:1912.09729), so that one token that became much likelier cannot own the step. Tokens with
    ``extras["unclipped"]`` above 0 keep ``-A r``, untouched by any clip.

    ``importance_cap`` multiplies each token by ``min(exp(old - sampler), cap)``, a constant, where the
    weights that sampled are not quite the weights that learn; 0 or None leaves that out.

    At ``r = 1`` the gradient is the plain policy gradient, ``-A`` times the gradient of the logprob.
    Metrics: ``clip/share`` of tokens whose loss a clip changed, ``ratio/mean``, ``importance/mean``, and
    ``kl/sampler_learner``, the k3 estimate of KL(sampler || learner before the update), with its
    largest token.
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
        if self.importance_cap and not self.importance_cap >= 1:
            raise RecipeError(
                f"{self.name}: importance_cap = {self.importance_cap}; it must be 1 or more, so that "
                "tokens whose logprobs agree keep their weight of 1, or 0 for no importance weight"
            )

    def is_idle(self, example: Example) -> bool:
        """Without an advantage nothing is pushed: the loss is 0 whatever the weights are."""
        return example.advantages is None or not np.any(example.advantages)

    def __call__(self, stats: TokenStats) -> TermResult:
        ratio = _limited(stats.logprobs - stats.old_logprobs).exp()
        plain = -stats.advantages * ratio
        clipped = self._clip(plain, ratio, stats)
        importance = self._importance(stats)
        drift = k3(stats.sampler_logprobs, stats.old_logprobs)
        metrics = {
            "clip/share": mean_of(clipped != plain, stats),
            "ratio/mean": mean_of(ratio, stats),
            "importance/mean": mean_of(importance, stats),
            "kl/sampler_learner": mean_of(drift, stats),
            "kl/sampler_learner/max": max_of(drift, stats),
        }
        return TermResult((stats.coefficients * importance * clipped).sum(), metrics)

    def _clip(self, plain: Tensor, ratio: Tensor, stats: TokenStats) -> Tensor:
        bounded = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        loss = torch.maximum(plain, -stats.advantages * bounded)
        if self.dual_clip:
            ceiling = -stats.advantages * self.dual_clip
            loss = torch.where(stats.advantages < 0, torch.minimum(loss, ceiling), loss)
        unclipped = stats.extras.get("unclipped")
        return loss if unclipped is None else torch.where(unclipped > 0, plain, loss)

    def _importance(self, stats: TokenStats) -> Tensor:
        if not self.importance_cap:
            return torch.ones_like(stats.old_logprobs)
        difference = _limited(stats.old_logprobs - stats.sampler_logprobs)
        return difference.exp().clamp(max=self.importance_cap)


def _limited(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


TERM = PolicyGradient
