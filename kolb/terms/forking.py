"""80/20: only the tokens at which the policy is most undecided learn. Wang et al., arXiv:2506.01939."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from kolb.errors import RecipeError
from kolb.terms.base import TermResult, TokenStats
from kolb.terms.policy_gradient import (
    check_clip,
    check_importance,
    clipped,
    ratio_of,
    weighed,
)
from kolb.terms.selection import check_scope, highest, joined, marks_of, placed
from kolb.types import Example, Floats


@dataclass(frozen=True)
class ForkingTokens:
    """The clipped surrogate on the ``share`` of tokens with the highest entropy; means are over those.

    ``scope`` as in ``kolb.terms.selection``: by the entropies of the policy before the first update, or, as in released
    code, by the current ones within a micro-batch. At least one token is chosen. Takes the place of a method's
    surrogate.
    """

    share: float = 0.2
    scope: Literal["batch", "micro"] = "batch"
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
        if not 0 < self.share <= 1:
            raise RecipeError(f"forking: share = {self.share}; expected more than 0, at most 1")
        if self.scope == "micro" and self.normalisation not in ("", "token-mean"):
            raise RecipeError(
                "forking: scope = 'micro' is a mean over the chosen tokens: normalisation = 'token-mean'"
            )
        check_clip("forking", self.clip_low, self.clip_high)
        check_importance("forking", self.importance_cap)
        check_scope("forking", self.scope)

    @property
    def only(self) -> str:
        return f"{self.name}/chosen"

    @property
    def before(self) -> dict[str, bool]:
        return {"entropy": True} if self.scope == "batch" else {}

    def mark(
        self, examples: Sequence[Example], logprobs: Sequence[Floats]
    ) -> list[dict[str, Floats]]:
        if self.scope != "batch":
            return [{} for _ in examples]
        entropies = joined([e.extras["old_entropy"] for e in examples], examples, self.stream)
        return marks_of(self.only, self._choose(entropies), examples, self.stream)

    def _choose(self, entropies: Tensor) -> Tensor:
        return highest(entropies, max(1, int(len(entropies) * self.share)))

    def __call__(self, stats: TokenStats) -> TermResult:
        ratio = ratio_of(stats)
        loss = clipped(stats.advantages, ratio, self.clip_low, self.clip_high)
        means = {"clip/share": loss != -stats.advantages * ratio}
        coefficients = self._coefficients(stats)
        return weighed(stats, ratio, loss, self.importance_cap, means, coefficients)

    def _coefficients(self, stats: TokenStats) -> Tensor:
        """Those of the chosen tokens; in a micro-batch they share what belongs to all of its tokens."""
        if self.scope == "batch":
            return stats.coefficients
        if stats.entropy is None:
            raise RecipeError("forking needs 'stats:entropy', and the engine gave no entropy")
        counts = stats.coefficients != 0
        chosen = placed(self._choose(stats.entropy.detach()[counts]), counts)
        kept = stats.coefficients * chosen
        return kept * (stats.coefficients.sum() / kept.sum()) if len(kept) else kept


TERM = ForkingTokens
