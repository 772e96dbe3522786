"""Clip-Cov: a few of the tokens that cost much entropy feel no gradient. Cui et al., arXiv:2505.22617, section 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from kolb.errors import at_least
from kolb.terms.base import TermResult, TokenStats
from kolb.terms.policy_gradient import (
    check_clip,
    check_importance,
    clipped,
    ratio_of,
    weighed,
)
from kolb.terms.selection import covariance, joined, marks_of, worths
from kolb.types import Example, Floats, derive_seed


@dataclass(frozen=True)
class ClipCov:
    """The clipped surrogate, 0 on ``int(share * N)`` random tokens with a covariance between ``lowest`` and ``highest``.

    The covariance is that of ``kl_cov``. The tokens are drawn once from all N of a batch of episodes,
    from a seed that the batch gives (the released code draws from each micro-batch). The released range is so wide
    that it never clips a ratio below 2. Takes the place of a method's surrogate.
    """

    share: float = 2e-4
    lowest: float = 1.0
    highest: float = 5.0
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
        at_least(0, **{"clip_cov: share": self.share})
        check_clip("clip_cov", self.clip_low, self.clip_high)
        check_importance("clip_cov", self.importance_cap)

    def mark(
        self, examples: Sequence[Example], logprobs: Sequence[Floats]
    ) -> list[dict[str, Floats]]:
        chances = joined(logprobs, examples, self.stream)
        scores = covariance(joined(worths(examples), examples, self.stream), chances)
        able = np.flatnonzero(((scores > self.lowest) & (scores < self.highest)).numpy())
        count = min(int(len(scores) * self.share), len(able))
        seed = derive_seed("clip_cov", len(scores), *(int(e.target_ids.sum()) for e in examples))
        chosen = torch.zeros(len(scores), dtype=torch.bool)
        chosen[np.random.default_rng(seed).choice(able, count, replace=False)] = True
        return marks_of(f"{self.name}/dropped", chosen, examples, self.stream)

    def __call__(self, stats: TokenStats) -> TermResult:
        ratio = ratio_of(stats)
        loss = clipped(stats.advantages, ratio, self.clip_low, self.clip_high)
        dropped = stats.extras[f"{self.name}/dropped"] != 0
        means = {"clip/share": loss != -stats.advantages * ratio, "clip_cov/share": dropped}
        kept = torch.where(dropped, torch.zeros_like(loss), loss)
        return weighed(stats, ratio, kept, self.importance_cap, means)


TERM = ClipCov
