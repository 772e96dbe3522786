"""Keys and values while sampling: a prompt once per group, a suffix per row, no gaps.

A row's context is a shared prompt and its own suffix. Attention runs on both parts apart and joins them by
their log-normalisers, so a prompt's keys are read once for all rows that continue it. The rows of the batch
are the first ``rows`` of each buffer; a row that ends is replaced by the last one, so nothing is copied but
that row. A prompt's slot is freed the same way when its last row has gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

KV = list[tuple[Tensor, Tensor]]
"""Per layer keys and values [Hkv, L, D]."""


@dataclass(eq=False)
class Prompt:
    """One prompt's keys and values, and the logits [V] that follow it."""

    length: int
    kv: KV
    logits: Tensor


class Buffers:
    """Per layer one tensor pair [rows, Hkv, columns, D] that grows by doubling in either direction."""

    def __init__(self) -> None:
        self.layers: list[list[Tensor]] = []

    def reserve(self, like: KV, rows: int, columns: int) -> None:
        if not self.layers:
            self.layers = [
                [
                    k.new_zeros(0, k.shape[0], 0, k.shape[2]),
                    v.new_zeros(0, v.shape[0], 0, v.shape[2]),
                ]
                for k, v in like
            ]
        have_rows, _, have_columns, _ = self.layers[0][0].shape
        if rows <= have_rows and columns <= have_columns:
            return
        rows = max(have_rows, rows if rows <= have_rows else max(rows, 2 * have_rows))
        columns = max(
            have_columns, columns if columns <= have_columns else max(columns, 2 * have_columns)
        )
        for pair in self.layers:
            for i, old in enumerate(pair):
                new = old.new_zeros(rows, old.shape[1], columns, old.shape[3])
                new[:have_rows, :, :have_columns] = old
                pair[i] = new

    def write(self, row: int, kv: KV) -> None:
        for pair, new in zip(self.layers, kv, strict=True):
            for buffer, values in zip(pair, new, strict=True):
                buffer[row, :, : values.shape[1]] = values

    def read(self, row: int, length: int) -> KV:
        return [(k[row, :, :length].clone(), v[row, :, :length].clone()) for k, v in self.layers]

    def move(self, source: int, target: int) -> None:
        for pair in self.layers:
            for buffer in pair:
                buffer[target] = buffer[source]


class Context:
    """The rows being sampled: their prompts' slots, their suffixes, and how far each has come."""

    def __init__(self) -> None:
        self.suffixes, self.prompts = Buffers(), Buffers()
        self.slots: list[Prompt] = []
        self.row_prompt: list[Prompt] = []
        self.lengths: list[int] = []
        self._grouping: dict[tuple[int, int], _Grouping] = {}

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def add(self, prompt: Prompt, suffix: KV | None, length: int, room: int) -> int:
        """A new last row; ``room`` is how long its suffix may become. Gives its number."""
        if prompt not in self.slots:
            self.prompts.reserve(prompt.kv, len(self.slots) + 1, prompt.length)
            self.prompts.write(len(self.slots), prompt.kv)
            self.slots.append(prompt)
        self.suffixes.reserve(prompt.kv, self.rows + 1, max(length + 1, min(room, 32)))
        if suffix is not None:
            self.suffixes.write(self.rows, suffix)
        self.row_prompt.append(prompt)
        self.lengths.append(length)
        self._grouping.clear()
        return self.rows - 1

    def drop(self, row: int) -> None:
        """Takes a row out; the last row takes its number."""
        last, prompt = self.rows - 1, self.row_prompt[row]
        if row != last:
            self.suffixes.move(last, row)
            self.row_prompt[row], self.lengths[row] = self.row_prompt[last], self.lengths[last]
        self.row_prompt.pop()
        self.lengths.pop()
        if prompt not in self.row_prompt:
            slot, last_slot = self.slots.index(prompt), len(self.slots) - 1
            if slot != last_slot:
                self.prompts.move(last_slot, slot)
                self.slots[slot] = self.slots[last_slot]
            self.slots.pop()
        self._grouping.clear()

    def grouping(self, low: int, high: int, device: torch.device) -> _Grouping:
        """Which of the rows low..high continue which prompt; kept until a row comes or goes."""
        if (low, high) not in self._grouping:
            self._grouping[low, high] = _Grouping(self, low, high, device)
        return self._grouping[low, high]


class _Grouping:
    """Rows [B] gathered by prompt: ``gather`` [P, G] row numbers (padded), ``scatter`` [B] where each went."""

    def __init__(self, context: Context, low: int, high: int, device: torch.device) -> None:
        members: dict[int, list[int]] = {}
        number = {id(p): s for s, p in enumerate(context.slots)}
        for row in range(low, high):
            members.setdefault(number[id(context.row_prompt[row])], []).append(row - low)
        members = dict(sorted(members.items()))  # in slot order the buffers are read without a copy
        widest = max(map(len, members.values()))
        gather = np.zeros((len(members), widest), np.int64)
        scatter = np.zeros(high - low, np.int64)
        for p, rows in enumerate(members.values()):
            gather[p, : len(rows)] = rows
            scatter[rows] = p * widest + np.arange(len(rows))
        lengths = [context.slots[s].length for s in members]
        self.longest = max(lengths)
        # One row per prompt is not enough: slots and rows move apart when others leave.
        self.is_identity = list(members.values()) == [[row] for row in range(high - low)]
        self.gather = torch.as_tensor(gather, device=device)
        self.scatter = torch.as_tensor(scatter, device=device)
        self.slots = (
            None
            if list(members) == list(range(len(context.slots)))
            else torch.as_tensor(list(members), device=device)
        )
        self.lengths = torch.as_tensor(lengths, device=device)
        self.is_ragged = min(lengths) < self.longest


class DecodePlan:
    """Attention of ``counts`` [B] new tokens (padded to N on the right) of the rows low..high.

    Writes the new keys and values behind each row's suffix; the caller adds ``counts`` to the lengths.
    """

    def __init__(
        self, context: Context, low: int, high: int, counts: Sequence[int], device: torch.device
    ) -> None:
        self.context, self.low, self.high = context, low, high
        starts = context.lengths[low:high]
        self.width = max(counts)
        self.total = max(starts) + self.width
        context.suffixes.reserve(context.row_prompt[low].kv, context.rows, self.total)
        self.starts = torch.as_tensor(starts, device=device)
        self.step = torch.arange(self.width, device=device)
        self.groups = context.grouping(low, high, device)
        self.rows = torch.arange(low, high, device=device)
        self.is_even = self.width == 1 and min(starts) == max(starts)
        self.prompt_lengths = torch.as_tensor(
            [p.length for p in context.row_prompt[low:high]], device=device
        )
        self.reach = int((self.prompt_lengths + self.starts).max()) + self.width
        self._masks: dict[tuple[str, int | None], Tensor | None] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        window = None if window is None or window >= self.reach else window
        keys, values = self._store(layer, key, value)
        b, heads, n, d = query.shape
        kv_heads = key.shape[1]
        # Query heads that share a key head stand behind each other as further queries of it.
        folded = query.reshape(b, kv_heads, (heads // kv_heads) * n, d)
        own, own_lse = _attention(
            folded, keys, values, self._own_mask(window, folded.shape[2], keys), scale
        )
        shared, shared_lse = self._prompt_part(layer, folded, scale, window)
        out = _join(own, own_lse, shared, shared_lse)
        return out.view(b, heads, n, d).transpose(1, 2)

    def _store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        pair = self.context.suffixes.layers[layer]
        column = self.starts[:, None] + self.step
        for buffer, new in zip(pair, (key, value), strict=True):
            if self.is_even:
                buffer[self.low : self.high, :, self.total - 1] = new[:, :, 0]
            else:
                buffer[self.rows[:, None], :, column] = new.transpose(1, 2)
        return tuple(buffer[self.low : self.high, :, : self.total] for buffer in pair)  # type: ignore[return-value]

    def _own_mask(self, window: int | None, queries: int, keys: Tensor) -> Tensor | None:
        """[B, 1, queries, T], zero where a query may look and -inf elsewhere; None where it may look at all."""
        if self.is_even and window is None:
            return None
        if ("own", window) not in self._masks:
            position = (self.starts[:, None] + self.step)[:, :, None]  # [B, N, 1] of the suffix
            column = torch.arange(self.total, device=keys.device)
            hidden = column > position
            if window is not None:
                hidden |= column <= position - window
            mask = _additive(hidden, keys)
            self._masks["own", window] = mask.repeat(1, queries // self.width, 1)[:, None]
        return self._masks["own", window]

    def _prompt_part(
        self, layer: int, folded: Tensor, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        groups, (k, v) = self.groups, self.context.prompts.layers[layer]
        active = len(self.context.slots)
        k, v = (
            t[:active, :, : groups.longest]
            if groups.slots is None
            else t[groups.slots, :, : groups.longest]
            for t in (k, v)
        )
        _, h, n, d = folded.shape
        p, g = groups.gather.shape
        gathered = (
            folded
            if groups.is_identity
            else folded[groups.gather].transpose(1, 2).reshape(p, h, g * n, d)
        )
        out, lse = _attention(gathered, k, v, self._prompt_mask(window, n, k), scale)
        if groups.is_identity:
            return out, lse
        out = out.view(p, h, g, n, d).transpose(1, 2).reshape(p * g, h, n, d)[groups.scatter]
        lse = lse.reshape(p, h, g, n).transpose(1, 2).reshape(p * g, h, n)[groups.scatter]
        return out, lse

    def _prompt_mask(self, window: int | None, queries: int, keys: Tensor) -> Tensor | None:
        """[P, 1, 1 or G * queries, L]: hides the padding of shorter prompts and what the window has passed."""
        groups = self.groups
        if window is None and not groups.is_ragged:
            return None
        if ("prompt", window) not in self._masks:
            column = torch.arange(groups.longest, device=keys.device)
            hidden = (column >= groups.lengths[:, None])[:, None, :]  # [P, 1, L]
            if window is not None:
                position = (self.prompt_lengths + self.starts)[:, None] + self.step  # [B, N]
                position = position.repeat(1, queries // self.width)[groups.gather].flatten(
                    1
                )  # [P, G * queries]
                hidden = hidden | (column <= position[:, :, None] - window)
            self._masks["prompt", window] = _additive(hidden, keys)[:, None]
        return self._masks["prompt", window]


def _additive(hidden: Tensor, like: Tensor) -> Tensor:
    """A large negative number and not -inf: a row may see nothing of one part, and must not become NaN."""
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(
        hidden, -1e9
    )


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Softmax attention with its log-normaliser: [B, H, N, D] and [B, H, N]."""
    if query.device.type == "cpu" and _cpu_flash is not None:
        return _cpu_flash(query, key, value, attn_mask=mask, scale=scale)
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(value.dtype) @ value, lse


_cpu_flash = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""torch's own CPU kernel, the one behind sdpa; asked for by name because sdpa hides the log-normaliser."""


def _join(a: Tensor, a_lse: Tensor, b: Tensor, b_lse: Tensor) -> Tensor:
    """Attention over the union of two key sets from the attention over each."""
    share = torch.sigmoid(b_lse - a_lse)[..., None].to(a.dtype)
    return torch.lerp(a, b, share)
