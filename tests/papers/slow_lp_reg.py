"""Worked numbers of Lp-Reg, and one step's loss over a handful of tokens."""

from __future__ import annotations

import numpy as np
import torch

from kolb.engines.local.head import Distributions
from kolb.terms.base import TokenStats
from kolb.types import Example

P = [0.60, 0.25, 0.10, 0.04, 0.0099, 0.0001]
PROXY = [0.606061, 0.252525, 0.101010, 0.040404, 0.0, 0.0]


def distribution(p: list[float]) -> Distributions:
    """One position whose tokens have the probabilities ``p``."""
    return Distributions(torch.tensor(p).log()[None])


def row(advantage: float, weights: list[float]) -> Example:
    """An Example of as many targets as it has weights."""
    n = len(weights)
    return Example(
        "agent",
        np.zeros(1, np.int32),
        np.arange(n, dtype=np.int32),
        {"policy": np.array(weights, np.float32)},
        np.full(n, advantage, np.float32),
    )


def loss_and_slopes(
    terms,
    now,
    *,
    old,
    advantages,
    kept=0.99,
    threshold=0.0,
    likeliest=0.6,
    coefficients=None,
    **more,
):
    """The summed loss of tokens with probabilities ``now``, and its gradient by each of their logprobs. Every token's
    distribution has ``likeliest`` and keeps ``kept``; the token-mean is over all, unless said otherwise."""
    n = len(now)
    leaf = torch.tensor(np.log(now), dtype=torch.float64).requires_grad_()
    extras = {
        "old_logprobs": np.log(old).tolist(),
        "old_max_logprob": [np.log(likeliest)] * n,
        "old_minp_logmass": [np.log(kept)] * n,
        "lp_reg/threshold": [threshold] * n,
        **more,
    }
    before = torch.tensor(np.log(old), dtype=torch.float64)
    stats = TokenStats(
        logprobs=leaf,
        old_logprobs=before,
        sampler_logprobs=before,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        coefficients=torch.tensor(coefficients or [1.0 / n] * n, dtype=torch.float64),
        example=torch.zeros(n, dtype=torch.long),
        entropy=torch.tensor(extras.pop("entropy", [0.0] * n), dtype=torch.float64),
        extras={k: torch.tensor(v, dtype=torch.float64) for k, v in extras.items()},
    )
    loss = sum(term(stats).loss for term in terms)
    (slopes,) = torch.autograd.grad(loss, leaf)
    return loss.item(), slopes.tolist()
