"""Lp-Reg: low-probability tokens that are not noise are kept from vanishing. arXiv:2510.03222.

RLVR punishes failed answers as a whole, and with them rare, useful tokens ("wait", "however") that stand mostly in
failures. The paper filters the policy that generated the batch by min-p and renormalises what is left (equation 5,
the *proxy*), and holds the current policy close to it on tokens that are rare, kept by the filter, and about to be
pushed down (equation 6).

Where paper and released code differ, each is an option; ``PAPER`` and ``OFFICIAL`` set them all, the default
is the code's loss (which made the paper's numbers) with a gate over the whole batch:

    option        paper                                     code
    kl_mode       full: KL(proxy || current), all tokens     k3 of the sampled token
    gate_scope    batch: a quantile of the batch             micro: the lowest of a micro-batch
    gate_pool     all: of all sampled tokens                 negatives: of those with A < 0
    noise_gate    proxy_positive: the filter keeps it        below_proxy: and it is less likely than in the proxy
    strict        p > tau is kept                            p >= tau
    kl_clamp      none                                       10, where the pull ends, too

The surrogate beside it is the method's own. The paper's is nearly unclipped: see ``kolb.methods.lp_reg``.

Differences: in ``batch`` scope the quantile is taken once, of the policy before the first update, and a token is rare
while it is at or below it then or now: later updates may gate more than ``rho``, and equal probabilities are gated
together. The quantile is of tokens that were sampled where they stand, so ERL's distilled rows are not in it. With a
fixed ``tau`` the likeliest token is always kept (the code spreads such a position over the whole vocabulary).
Logits are divided by the sampling temperature before the filter (the code filters before). Left out: a gate for
positive advantages and proxies from other policies, which the released scripts switch off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kolb.errors import RecipeError, at_least, nearest
from kolb.terms.base import TermResult, TokenStats, mean_of
from kolb.terms.kl import k1
from kolb.terms.policy_gradient import limited
from kolb.terms.selection import SCOPES, highest, joined, placed, worths
from kolb.types import Example, Floats, MinP

KNOWN: Mapping[str, Sequence[str]] = {
    "kl_mode": ("k3", "full", "k1"),
    "gate_scope": SCOPES,
    "gate_pool": ("negatives", "all"),
    "noise_gate": ("below_proxy", "proxy_positive"),
}
NOTHING = -1e9
"""A threshold in nats that no logprob is below."""


@dataclass(frozen=True)
class LpReg:
    """``beta * coefficient * distance`` on the gated tokens; numbers are of the paper's main runs, section 5.1.

    ``kl_mode`` is the distance to the proxy: ``k3`` as in ``kolb.terms.kl``, whose gradient is ``1 - proxy / current``;
    ``full``, over all tokens, with the gradient ``current - proxy`` of the logits; ``k1``, which has the constant gradient 1
    and so pushes down what it should protect: as in the code's list, for comparison.

    Metrics, per token of the stream unless said otherwise: ``NAME/negative`` (share with A < 0), ``NAME/rare`` (share
    of negatives at or below the threshold), ``NAME/noise`` (share of negatives that are rare and that the filter drops),
    ``NAME/gated`` (share of negatives that are gated), ``NAME/threshold`` (the probability below which a token is rare),
    ``NAME/kept_mass`` (mean of what the filter keeps) and ``NAME/kl`` (mean distance of the gated tokens).
    """

    beta: float = 1.0
    rho: float = 0.01
    """The share that counts as rare; the paper's 32B model has 0.005."""
    kappa: float = 0.02
    """Min-p: what has at least this share of the likeliest token's probability is no noise. 0: nothing is."""
    tau: float | None = None
    """A fixed probability in place of min-p's; the paper's ablation has 0.02."""
    kl_mode: Literal["k3", "full", "k1"] = "k3"
    gate_scope: Literal["batch", "micro"] = "batch"
    gate_pool: Literal["negatives", "all"] = "negatives"
    noise_gate: Literal["below_proxy", "proxy_positive"] = "below_proxy"
    strict: bool = False
    kl_clamp: float | None = 10.0
    """Of k3 and k1; None or 0: none."""
    stream: str = "policy"
    normalisation: str = ""
    """Empty: the surrogate's; the paper and the code take the mean over all tokens."""
    constant: float = 1.0
    name: str = "lp_reg"

    def __post_init__(self) -> None:
        for what, known in KNOWN.items():
            if getattr(self, what) not in known:
                value = getattr(self, what)
                raise RecipeError(f"{self.name}: {what} = {value!r}{nearest(value, known)}")
        at_least(
            0, **{f"{self.name}: beta": self.beta, f"{self.name}: kl_clamp": self.kl_clamp or 0}
        )
        for what in ("rho", "kappa", "tau"):
            if not 0 <= (getattr(self, what) or 0) <= 1:
                raise RecipeError(f"{self.name}: {what} = {getattr(self, what)}; expected 0 to 1")

    @property
    def is_off(self) -> bool:
        return not self.beta or not self.rho

    @property
    def needs(self) -> frozenset[str]:
        if self.is_off:
            return frozenset()
        return frozenset({"stats:minp"} | ({"stats:proxy_kl"} if self.kl_mode == "full" else set()))

    @property
    def reads(self) -> frozenset[str]:
        return frozenset() if self.is_off else frozenset({"advantages", "old_max_logprob"})

    @property
    def minp(self) -> MinP:
        return MinP(self.kappa, self.tau, self.strict)

    @property
    def before(self) -> Mapping[str, Any]:
        if self.is_off:
            return {}
        remembers = {"remember": True} if self.kl_mode == "full" else {}
        return {"minp": self.minp, **remembers}

    @property
    def ranks_all(self) -> bool:
        """A quantile of all tokens is one of dead groups, too."""
        return self.gate_pool == "all" and self.gate_scope == "batch" and not self.is_off

    def is_idle(self, example: Example) -> bool:
        """Nothing is gated where nothing is pushed down."""
        return self.is_off or example.advantages is None or not bool((example.advantages < 0).any())

    def mark(
        self, examples: Sequence[Example], logprobs: Sequence[Floats]
    ) -> list[dict[str, Floats]]:
        """The threshold of the whole batch: the highest logprob that is among its ``rho`` lowest, before the first update."""
        if self.is_off or self.gate_scope == "micro":
            return [{} for _ in examples]
        is_sampled = [e.sampler_logprobs is not None for e in examples]
        in_pool = [is_sampled[i] or not any(is_sampled) for i in range(len(examples))]
        chosen = list(compress(examples, in_pool))
        pool = joined(list(compress(logprobs, in_pool)), chosen, self.stream)
        if self.gate_pool == "negatives":
            pool = pool[joined(worths(chosen), chosen, self.stream) < 0]
        threshold = lowest(pool, math.floor(len(pool) * self.rho))
        return [
            {self._threshold_name: np.full(len(e.target_ids), threshold, np.float32)}
            for e in examples
        ]

    @property
    def _threshold_name(self) -> str:
        return f"{self.name}/threshold"

    def __call__(self, stats: TokenStats) -> TermResult:
        if self.is_off:
            return TermResult(stats.logprobs.sum() * 0.0)
        # Their own pass gave these three, so they fit together to the last bit.
        before, mass = stats.extras["old_logprobs"], stats.extras["old_minp_logmass"]
        proxy, is_kept = before - mass, self.minp.keeps(before, stats.extras["old_max_logprob"])
        now = stats.logprobs.detach()
        negative = (stats.coefficients != 0) & (stats.advantages < 0)
        rare = negative & self._is_rare(now, negative, stats)
        gated = rare & is_kept
        if self.noise_gate == "below_proxy":
            gated = gated & (now < proxy - MinP.SLACK)
        distance = self._distance(stats, proxy, gated)
        loss = self.beta * (stats.coefficients * distance).sum()
        return TermResult(
            loss,
            self._metrics(stats, negative, rare, is_kept, gated)
            | {f"{self.name}/kl": (float(distance.detach().double().sum()), float(gated.sum()))},
        )

    def _is_rare(self, now: Tensor, negative: Tensor, stats: TokenStats) -> Tensor:
        if self.gate_scope == "batch":
            lower = torch.minimum(now, stats.extras["old_logprobs"])
            return lower <= stats.extras[self._threshold_name]
        pool = negative if self.gate_pool == "negatives" else stats.coefficients != 0
        count = max(1, math.floor(int(pool.sum()) * self.rho))
        # The code gates nothing where that is one token.
        return placed(highest(-now[pool], count if count > 1 else 0), pool)

    def _distance(self, stats: TokenStats, proxy: Tensor, gated: Tensor) -> Tensor:
        """[T], 0 where nothing is gated, with a gradient where something is."""
        if self.kl_mode == "full":
            if stats.proxy_kl is None:
                raise RecipeError(f"{self.name} needs 'stats:proxy_kl', and the engine gave none")
            return torch.where(gated, stats.proxy_kl, torch.zeros_like(stats.proxy_kl))
        # Tokens that are not gated stand at the proxy, where every estimate is 0: no infinity times 0.
        logprobs = torch.where(gated, stats.logprobs, proxy)
        if self.kl_mode == "k1":
            distance = k1(logprobs, proxy)
        else:
            # Without a clamp the pull ends at 20 nats, where exp does.
            up = limited(proxy - logprobs)
            distance = torch.expm1(up) - up
        return distance.clamp(-self.kl_clamp, self.kl_clamp) if self.kl_clamp else distance

    def _metrics(
        self, stats: TokenStats, negative: Tensor, rare: Tensor, is_kept: Tensor, gated: Tensor
    ) -> dict[str, tuple[float, float]]:
        among = float(negative.sum())
        counted = {"rare": rare, "noise": rare & ~is_kept, "gated": gated}
        metrics = {f"{self.name}/{what}": (float(m.sum()), among) for what, m in counted.items()}
        if self.gate_scope == "batch":
            metrics[self._threshold_name] = mean_of(stats.extras[self._threshold_name].exp(), stats)
        return metrics | {
            f"{self.name}/negative": mean_of(negative, stats),
            f"{self.name}/kept_mass": mean_of(stats.extras["old_minp_logmass"].exp(), stats),
        }

    def remark(self, metrics: Mapping[str, float]) -> str:
        """What is wrong with a step whose negative tokens were all left alone; empty where nothing is."""
        if metrics.get(f"{self.name}/gated", 1.0) > 0:
            return ""
        rare, noise = metrics[f"{self.name}/rare"], metrics[f"{self.name}/noise"]
        if rare and noise == rare:
            why = "the filter calls all rare tokens with A < 0 noise; try a larger rho or a smaller kappa"
        elif rare:
            why = "the rare tokens with A < 0 that are no noise are as likely as in the proxy, or likelier"
        elif self.gate_scope == "micro":
            why = f'rho = {self.rho} of each micro-batch is less than two tokens; gate_scope = "batch" counts over all'
        elif metrics[self._threshold_name] > 0:
            why = f"all tokens among the rarest {self.rho:.2%} have A >= 0"
        else:
            why = f"rho = {self.rho} of the pool is less than one token"
        return f"{self.name} gated nothing: {why}"


def lowest(values: Tensor, count: int) -> float:
    """The largest of the ``count`` lowest of ``values``; below everything where ``count`` is 0."""
    return float(values.kthvalue(count).values) if count else NOTHING


TERM = LpReg
PAPER = LpReg(
    kl_mode="full", gate_pool="all", noise_gate="proxy_positive", strict=True, kl_clamp=None
)
OFFICIAL = LpReg(gate_scope="micro")
