"""Attention that knows which tokens belong together, plugged into transformers' attention interface.

Every model that dispatches through ``ALL_ATTENTION_FUNCTIONS`` calls ``attend`` when its implementation
is set to ``kolb``. What happens then is up to the active plan: ``FlatPlan`` for training, scoring and
prefill, ``kolb.engines.local.decode.DecodePlan`` for sampling. Without a plan it is transformers' own sdpa.
Since ``kolb`` has no mask function, transformers builds no mask: the plans make the few they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kolb.chat.batching import Block, FlatBatch

IMPLEMENTATION = "kolb"


class Plan(Protocol):
    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """[B, H, T, D] queries and [B, Hkv, T, D] keys, values to [B, T, H, D]."""
        ...


_active: list[Plan] = []


@contextmanager
def use_plan(plan: Plan) -> Iterator[None]:
    """``plan`` answers every attention call inside, the recomputation of checkpointed layers included."""
    _active.append(plan)
    try:
        yield
    finally:
        _active.pop()


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface. Refuses what the plans do not know (soft caps, sinks)."""
    if not _active:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    for unknown in ("softcap", "s_aux", "head_mask"):
        if kwargs.get(unknown) is not None:
            raise ValueError(f"attention with {unknown} has no fast path")
    if attention_mask is not None:
        raise ValueError("attention with a mask of the model's own has no fast path")
    scale = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    layer = int(module.layer_idx)
    if query.dtype is not value.dtype:  # under autocast, rotary positions come out in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    return _active[-1].attend(layer, query, key, value, scale, kwargs.get("sliding_window")), None


def register() -> None:
    """Makes ``attn_implementation="kolb"`` known to transformers. Safe to call again."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, attend)


class FlatPlan:
    """Attention over a FlatBatch; with ``capture`` it also keeps each layer's keys and values [Hkv, T, D]."""

    def __init__(self, batch: FlatBatch, *, capture: bool = False) -> None:
        self.batch = batch
        self.capture = capture
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        if self.capture:
            self.kept[layer] = (key[0], value[0])
        repeat = query.shape[1] // key.shape[1]
        q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))  # [T, H, D]
        if window is not None and window >= self.batch.longest:
            window = None
        outputs = [
            self._block(i, block, q, k, v, repeat, scale, window).flatten(0, 1)
            for i, block in enumerate(self.batch.blocks)
        ]
        return torch.cat(outputs)[self.batch.order][None]

    def _block(
        self,
        i: int,
        block: Block,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        repeat: int,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """One block's output [R, L, H, D]."""
        bq, bk, bv = (t[block.index].transpose(1, 2) for t in (q, k, v))  # [R, H, L, D]
        if block.prompt is not None:
            rows = len(block.lengths)
            bk, bv = (
                torch.cat([t[block.prompt].transpose(0, 1).expand(rows, -1, -1, -1), own], dim=2)
                for t, own in ((k, bk), (v, bv))
            )
        shares = (
            repeat > 1 and q.device.type == "cpu"
        )  # a GPU's kernels with a mask know no shared key heads
        if repeat > 1 and not shares:
            bk, bv = bk.repeat_interleave(repeat, 1), bv.repeat_interleave(repeat, 1)
        mask = self._mask(i, block, window, q.device)
        out = scaled_dot_product_attention(
            bq, bk, bv, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=shares
        )
        return out.transpose(1, 2)

    def _mask(
        self, i: int, block: Block, window: int | None, device: torch.device
    ) -> Tensor | None:
        """True where a query may look: [L, P + L]. None where plain causality says it all."""
        if block.prompt is None and window is None:
            return None
        if (i, window) not in self._masks:
            length = block.index.shape[1]
            before = 0 if block.prompt is None else len(block.prompt)
            query = torch.arange(length, device=device)[:, None] + before
            key = torch.arange(before + length, device=device)[None]
            mask = key <= query
            if window is not None:
                mask &= key > query - window
            self._masks[i, window] = mask
        return self._masks[i, window]
