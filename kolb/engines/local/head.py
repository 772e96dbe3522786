"""Hidden states to logprobs and statistics in one chunked pass, without an [N, V] tensor.

The forward keeps only numbers per token (log-normaliser, entropy); the backward computes the logits of a
chunk again, which costs one more matrix product and saves N x V floats. Everything after the logits is
float32, whatever the model computes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kolb.types import MinP

CPU_CHUNK_BYTES = 32 * 2**20
GPU_CHUNK_BYTES = 512 * 2**20
"""Logits of one chunk stay below this: about what a CPU's caches hold, enough work for a GPU."""


@dataclass(frozen=True)
class HeadStats:
    """Per target [N]: ``logprobs`` and ``entropy`` carry gradients; ``max_logprob`` and ``minp_logmass``
    (log of the mass of the tokens that min-p keeps) are detached. None where not asked for.
    ``proxy_kl`` carries a gradient and is computed apart, by ``proxy_kl``."""

    logprobs: Tensor
    entropy: Tensor | None = None
    max_logprob: Tensor | None = None
    minp_logmass: Tensor | None = None
    proxy_kl: Tensor | None = None


@dataclass(frozen=True)
class Distributions:
    """Where N next-token distributions come from: hidden states [N, D] and the output layer with its matrix [V, D];
    without ``weight`` the states are the logits [N, V]."""

    states: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None

    def detached(self) -> Distributions:
        weight, bias = (None if t is None else t.detach() for t in (self.weight, self.bias))
        return Distributions(self.states.detach(), weight, bias)

    def logp(self, part: slice, inverse_t: float) -> Tensor:
        """Logprobs [n, V] of all tokens."""
        if self.weight is None:
            return torch.log_softmax(self.states[part].float() * inverse_t, -1)
        return torch.log_softmax(_logits(self.states[part], self.weight, self.bias, inverse_t), -1)


def stats_of(
    found: Distributions,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    minp: MinP | None = None,
) -> HeadStats:
    """HeadStats for ``targets`` [N]."""
    if found.weight is None:
        return _stats_by_definition(
            found.logp(slice(None), 1 / temperature), targets, entropy, minp
        )
    logprobs, h, top, mass = _Head.apply(
        found.states, found.weight, found.bias, targets, 1.0 / temperature, entropy, minp
    )  # type: ignore[misc]
    return HeadStats(
        logprobs,
        entropy=h if entropy else None,
        max_logprob=None if minp is None else top,
        minp_logmass=None if minp is None else mass,
    )


def _stats_by_definition(
    logp: Tensor, targets: Tensor, entropy: bool, minp: MinP | None
) -> HeadStats:
    """The same from logprobs [N, V]: the reference for the fused head."""
    detached = logp.detach()
    return HeadStats(
        logprobs=logp.gather(1, targets[:, None])[:, 0],
        entropy=-(logp.exp() * logp).sum(-1) if entropy else None,
        max_logprob=None if minp is None else detached.max(-1).values,
        minp_logmass=None if minp is None else kept(detached, minp)[0],
    )


def proxy_kl(current: Distributions, old: Distributions, minp: MinP, temperature: float) -> Tensor:
    """KL(proxy || current) [N], over all tokens, the proxy being ``old`` under ``minp`` and renormalised.

    arXiv:2510.03222, equations 5 and 6. The gradient of the logits is ``current - proxy``. Chunks are computed
    again in the backward, so no [N, V] tensor is kept.
    """
    width = len(current.states[0]) if current.weight is None else len(current.weight)

    def one(part: slice) -> Tensor:
        with torch.no_grad():
            logq = old.logp(part, 1.0 / temperature)
            mass, mask = kept(logq, minp)
            logq = logq - mass[:, None]
            q = torch.where(mask, logq.exp(), torch.zeros_like(logq))
            negative_entropy = torch.where(mask, q * logq, torch.zeros_like(q)).sum(-1)
        expected = torch.where(mask, q * current.logp(part, 1.0 / temperature), torch.zeros_like(q))
        return negative_entropy - expected.sum(-1)

    parts = [
        checkpoint(one, part, use_reentrant=False)
        for part in _chunks(len(current.states), width, current.states.device)
    ]
    return torch.cat(cast(list[Tensor], parts)) if parts else current.states.new_zeros(0)


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
        minp: MinP | None,
    ) -> tuple[Tensor, ...]:
        n = len(targets)
        new = lambda size: hidden.new_empty(size, dtype=torch.float32)  # noqa: E731
        logprobs, lse = new(n), new(n)
        entropy = new(n if want_entropy else 0)
        top, mass = (new(n if minp is not None else 0) for _ in range(2))
        for part in _chunks(n, len(weight), weight.device):
            z = _logits(hidden[part], weight, bias, inverse_t)
            lse[part] = z.logsumexp(-1)
            logprobs[part] = z.gather(1, targets[part, None])[:, 0] - lse[part]
            if want_entropy:
                z_mean = (torch.softmax(z, -1) * z).sum(-1)
                entropy[part] = lse[part] - z_mean
            if minp is not None:
                highest = z.max(-1).values
                top[part] = highest - lse[part]
                mass[part] = kept(z - lse[part, None], minp)[0]
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
        for part in _chunks(len(targets), len(weight), weight.device):
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


def _chunks(n: int, width: int, device: torch.device) -> list[slice]:
    budget = CPU_CHUNK_BYTES if device.type == "cpu" else GPU_CHUNK_BYTES
    size = max(16, budget // (4 * width))
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, inverse_t: float) -> Tensor:
    z = hidden @ weight.to(hidden.dtype).t()
    if bias is not None:
        z = z + bias
    z = z.float()
    return z if inverse_t == 1.0 else z * inverse_t


def kept(logp: Tensor, minp: MinP) -> tuple[Tensor, Tensor]:
    """The log-mass [N] of the tokens that ``minp`` keeps of ``logp`` [N, V], and which those are."""
    mask = minp.keeps(logp, logp.max(-1, keepdim=True).values)
    return torch.where(mask, logp, logp.new_tensor(-torch.inf)).logsumexp(-1), mask
