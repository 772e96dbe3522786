"""GSPO: one ratio for a whole answer. Group Sequence Policy Optimization, arXiv:2507.18071."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kolb.terms.base import TermResult, TokenStats
from kolb.terms.policy_gradient import (
    check_clip,
    check_importance,
    clipped,
    has_no_advantage,
    limited,
    weighed,
)
from kolb.types import Example


@dataclass(frozen=True)
class Gspo:
    """``max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high))`` with ``s = exp(mean over tokens of (current - old))``.

    Equations 5 and 7, in the form per token (13 and 14): the value is that of ``s``, the gradient of each token goes
    through its own logprob. The mean is over the weighted tokens of one example, that is one segment of a trajectory;
    a conversation that only grows is one. Takes the place of a method's surrogate.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    """The paper's, section 5.1."""
    importance_cap: float | None = 2.0
    stream: str = "policy"
    normalisation: str = "sequence-mean"
    constant: float = 1.0
    name: str = "policy_gradient"
    needs: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def __post_init__(self) -> None:
        check_clip("gspo", self.clip_low, self.clip_high)
        check_importance("gspo", self.importance_cap)

    def is_idle(self, example: Example) -> bool:
        return has_no_advantage(example)

    def __call__(self, stats: TokenStats) -> TermResult:
        log_ratio = stats.logprobs - stats.old_logprobs
        counts = (stats.coefficients != 0).to(log_ratio.dtype)
        size = int(stats.example.max()) + 1 if len(stats.example) else 0
        zeros = torch.zeros(size, dtype=log_ratio.dtype, device=log_ratio.device)
        total = zeros.index_add(0, stats.example, log_ratio.detach() * counts)
        number = zeros.index_add(0, stats.example, counts).clamp(min=1.0)
        mean = (total / number)[stats.example]
        ratio = limited(mean + stats.logprobs - stats.logprobs.detach()).exp()
        loss = clipped(stats.advantages, ratio, self.clip_low, self.clip_high)
        is_clipped = loss != -stats.advantages * ratio
        return weighed(stats, ratio, loss, self.importance_cap, {"clip/share": is_clipped})


TERM = Gspo
