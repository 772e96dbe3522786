"""Hidden states to logprobs and statistics in one chunked pass, without an [N, V] tensor.

The forward keeps only numbers per token (log-normaliser, entropy); the backward computes the logits of a
chunk again, which costs one more matrix product and saves N x V floats. Everything after the logits is
float32, whatever the model computes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CPU_CHUNK_BYTES = 32 * 2**20
GPU_CHUNK_BYTES = 512 * 2**20
"""Logits of one chunk stay below this: about what a CPU's caches hold, enough work for a GPU."""


@dataclass(frozen=True)
class HeadStats:
    """Per target [N]: ``logprobs`` and ``entropy`` carry gradients; ``max_logprob`` and ``minp_logmass``
    (log of the mass of the tokens with p >= kappa * max p) are detached. None where not asked for."""

    logprobs: Tensor
    entropy: Tensor | None = None
    max_logprob: Tensor | None = None
    minp_logmass: Tensor | None = None


def token_stats(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    minp: float | None = None,
) -> HeadStats:
    """``hidden`` [N, D] and the output matrix [V, D] to HeadStats for ``targets`` [N].

    ``minp`` is kappa (arXiv:2510.03222, eq. 5, with p >= tau as in its released code).
    """
    logprobs, h, top, mass = _Head.apply(
        hidden, weight, bias, targets, 1.0 / temperature, entropy, minp
    )  # type: ignore[misc]
    return HeadStats(
        logprobs,
        entropy=h if entropy else None,
        max_logprob=None if minp is None else top,
        minp_logmass=None if minp is None else mass,
    )


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        inverse_t: float,
        want_entropy: bool,
        minp: float | None,
    ) -> tuple[Tensor, ...]:
        n = len(targets)
        new = lambda size: hidden.new_empty(size, dtype=torch.float32)  # noqa: E731
        logprobs, lse = new(n), new(n)
        entropy = new(n if want_entropy else 0)
        top, mass = (new(n if minp is not None else 0) for _ in range(2))
        for part in _chunks(n, weight):
            z = _logits(hidden[part], weight, bias, inverse_t)
            lse[part] = z.logsumexp(-1)
            logprobs[part] = z.gather(1, targets[part, None])[:, 0] - lse[part]
            if want_entropy:
                z_mean = (torch.softmax(z, -1) * z).sum(-1)
                entropy[part] = lse[part] - z_mean
            if minp is not None:
                highest = z.max(-1).values
                top[part] = highest - lse[part]
                mass[part] = _kept_mass(z, highest, minp) - lse[part]
        ctx.save_for_backward(hidden, weight, bias, targets, lse, entropy)
        ctx.inverse_t = inverse_t
        ctx.mark_non_differentiable(top, mass)
        ctx.set_materialize_grads(False)  # an entropy that is only looked at costs no backward
        return logprobs, entropy, top, mass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        hidden, weight, bias, targets, lse, entropy = ctx.saved_tensors
        g_logprob, g_entropy = gradients[:2]
        wants_weight = ctx.needs_input_grad[1]
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight) if wants_weight else None
        d_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for part in _chunks(len(targets), weight):
            logp = _logits(hidden[part], weight, bias, ctx.inverse_t).sub_(lse[part, None])
            p = logp.exp()
            if g_logprob is None:
                dz = torch.zeros_like(p)
            else:
                g = g_logprob[part, None].float()
                dz = (-g * p).scatter_add_(1, targets[part, None], g)
            if g_entropy is not None:
                dz -= g_entropy[part, None] * p * (logp + entropy[part, None])
            dz = dz.mul_(ctx.inverse_t).to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[part] = dz @ weight.to(dz.dtype)
            if d_weight is not None:
                d_weight.addmm_(dz.t().to(weight.dtype), hidden[part].to(weight.dtype))
            if d_bias is not None:
                d_bias += dz.sum(0)
        return d_hidden, d_weight, d_bias, None, None, None, None


def _chunks(n: int, weight: Tensor) -> list[slice]:
    budget = CPU_CHUNK_BYTES if weight.device.type == "cpu" else GPU_CHUNK_BYTES
    size = max(16, budget // (4 * weight.shape[0]))
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, inverse_t: float) -> Tensor:
    z = hidden @ weight.to(hidden.dtype).t()
    if bias is not None:
        z = z + bias
    z = z.float()
    return z if inverse_t == 1.0 else z * inverse_t


def _kept_mass(z: Tensor, highest: Tensor, kappa: float) -> Tensor:
    """Log-sum-exp of the logits within ln(kappa) of the highest; the highest is always kept."""
    threshold = highest + (math.log(kappa) if kappa > 0 else -math.inf)
    # Equality counts as kept; the slack keeps rounding from deciding it (one part in a million).
    kept = z >= threshold[:, None] - 1e-6
    return torch.where(kept, z, z.new_tensor(-math.inf)).logsumexp(-1)
