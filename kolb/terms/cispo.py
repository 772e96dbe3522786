"""CISPO: the weight of a token is clipped, its gradient never. MiniMax-M1, arXiv:2506.13585, section 3.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kolb.terms.base import TermResult, TokenStats
from kolb.terms.policy_gradient import (
    check_clip,
    check_importance,
    has_no_advantage,
    ratio_of,
    weighed,
)
from kolb.types import Example


@dataclass(frozen=True)
class Cispo:
    """``-A clip(r, 1 - clip_low, 1 + clip_high) logprob``, the clipped ratio being a constant (equations 4 and 5).

    The paper sets no lower bound (``clip_low = 1``) and tunes the upper one without giving its value; it averages over
    all tokens. Takes the place of a method's surrogate.
    """

    clip_low: float = 1.0
    clip_high: float = 1.0
    importance_cap: float | None = 2.0
    stream: str = "policy"
    normalisation: str = ""
    constant: float = 1.0
    name: str = "policy_gradient"
    needs: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def __post_init__(self) -> None:
        check_clip("cispo", self.clip_low, self.clip_high)
        check_importance("cispo", self.importance_cap)

    def is_idle(self, example: Example) -> bool:
        return has_no_advantage(example)

    def __call__(self, stats: TokenStats) -> TermResult:
        ratio = ratio_of(stats).detach()
        weight = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        loss = -stats.advantages * weight * stats.logprobs
        return weighed(stats, ratio, loss, self.importance_cap, {"clip/share": weight != ratio})


TERM = Cispo
