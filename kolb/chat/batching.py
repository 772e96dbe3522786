"""Examples to one flat batch: no padding in the model, a shared prompt computed once.

All tokens of a micro-batch stand behind each other, [T]. Examples with equal prompts share one copy of it.
Attention is the only place where sequences matter; it works on blocks:

* a causal block is R whole sequences (or shared prompts) of similar length, padded to the longest: pads lie
  to the right of every real token, so the causal mask already hides them;
* a shared block is the continuations of one prompt: each sees the prompt and itself.

Only what is needed is computed: a continuation stops before its last weighted target, since nothing is
predicted from that token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kolb.types import Example, Ids

BUCKET_FILL = 0.7
"""Sequences shorter than this share of a block's longest start a block of their own."""


@dataclass(frozen=True)
class Stretch:
    """One stretch of flat tokens [start, start + length); ``prompt`` is the stretch it continues."""

    start: int
    length: int
    prompt: Stretch | None = None


@dataclass(frozen=True)
class Block:
    """``index`` [R, L] are flat positions, padded on the right with the row's first; ``prompt`` [P] too."""

    index: Tensor
    lengths: tuple[int, ...]
    prompt: Tensor | None = None


@dataclass(frozen=True)
class FlatBatch:
    """``ids``, ``positions`` [T]; ``blocks`` as above; ``order`` [T] finds each flat token in the blocks'
    concatenated outputs. ``source`` [N] is the flat token from which each of the N targets is predicted;
    ``targets`` [N] their ids; ``example`` and ``offset`` [N] say where they belong."""

    ids: Tensor
    positions: Tensor
    blocks: tuple[Block, ...]
    order: Tensor
    source: Tensor
    targets: Tensor
    example: np.ndarray
    offset: np.ndarray
    longest: int
    """One more than the highest position."""


def weighted_targets(example: Example) -> np.ndarray:
    """Offsets [n] of the targets that have weight in some stream."""
    mask = np.zeros(len(example.target_ids), bool)
    for weights in example.weights.values():
        mask |= weights != 0
    return np.flatnonzero(mask)


def _needed(example: Example) -> int:
    """How many target tokens must be fed to the model: all before the last weighted one."""
    offsets = weighted_targets(example)
    return int(offsets[-1]) if len(offsets) else 0


def micro_batches(examples: Sequence[Example], max_tokens: int) -> Iterator[list[int]]:
    """Indices of ``examples`` in cuts of at most ``max_tokens`` computed tokens (one example at least).

    Examples with equal prompts are kept together, so that a prompt is seldom computed twice.
    """
    order: dict[bytes, list[int]] = {}
    for i, example in enumerate(examples):
        order.setdefault(example.prompt_ids.tobytes(), []).append(i)
    batch: list[int] = []
    size = 0
    for members in order.values():
        fresh = True
        for i in members:
            cost = _needed(examples[i]) + (len(examples[i].prompt_ids) if fresh else 0)
            if batch and size + cost > max_tokens:
                yield batch
                batch, size = [], 0
                cost = _needed(examples[i]) + len(examples[i].prompt_ids)
            batch.append(i)
            size += cost
            fresh = False
    if batch:
        yield batch


def pack(examples: Sequence[Example], device: torch.device | str = "cpu") -> FlatBatch:
    """Lays ``examples`` out flat. An empty prompt is a ValueError: nothing predicts its first target."""
    layout = _Layout()
    by_prompt: dict[bytes, list[int]] = {}
    for i, example in enumerate(examples):
        if len(example.prompt_ids) == 0:
            raise ValueError(
                "an Example needs at least one prompt token, from which its first target is predicted"
            )
        by_prompt.setdefault(example.prompt_ids.tobytes(), []).append(i)
    for members in by_prompt.values():
        layout.add_group(examples, members)
    return layout.finish(device)


def pack_prompts(
    prompts: Sequence[Ids], device: torch.device | str = "cpu"
) -> tuple[FlatBatch, list[Stretch]]:
    """Whole prompts without targets (for a prefill), and where each of them lies."""
    layout = _Layout()
    places = [layout.place(p, 0) for p in prompts]
    layout.whole.extend(places)
    return layout.finish(device), places


class _Layout:
    def __init__(self) -> None:
        self.ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.total = 0
        self.whole: list[Stretch] = []
        self.shared: list[list[Stretch]] = []
        self.source: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []
        self.example: list[np.ndarray] = []
        self.offset: list[np.ndarray] = []

    def place(self, ids: np.ndarray, position: int, prompt: Stretch | None = None) -> Stretch:
        placed = Stretch(self.total, len(ids), prompt)
        self.ids.append(ids)
        self.positions.append(np.arange(position, position + len(ids)))
        self.total += len(ids)
        return placed

    def add_group(self, examples: Sequence[Example], members: list[int]) -> None:
        """A prompt that several examples continue is placed once; a lone one is one sequence with its prompt."""
        prompt_ids = examples[members[0]].prompt_ids
        n = len(prompt_ids)
        if len(members) == 1:
            i = members[0]
            fed = examples[i].target_ids[: _needed(examples[i])]
            row = self.place(np.concatenate([prompt_ids, fed]), 0)
            self.whole.append(row)
            self.add_targets(examples[i], i, row.start + n - 1, row.start + n)
            return
        prompt = self.place(prompt_ids, 0)
        self.whole.append(prompt)
        rows = []
        for i in members:
            row = self.place(examples[i].target_ids[: _needed(examples[i])], n, prompt)
            if row.length:
                rows.append(row)
            self.add_targets(examples[i], i, prompt.start + n - 1, row.start)
        if rows:
            self.shared.append(rows)

    def add_targets(self, example: Example, i: int, last_prompt: int, first: int) -> None:
        offsets = weighted_targets(example)
        self.source.append(np.where(offsets == 0, last_prompt, first + offsets - 1))
        self.targets.append(example.target_ids[offsets])
        self.example.append(np.full(len(offsets), i))
        self.offset.append(offsets)

    def finish(self, device: torch.device | str) -> FlatBatch:
        def tensor(parts: list[np.ndarray]) -> Tensor:
            joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
            return torch.as_tensor(joined.astype(np.int64), device=device)

        order = np.zeros(self.total, np.int64)
        blocks, done = [], 0
        for rows in [*_buckets(self.whole), *self.shared]:
            longest = max(r.length for r in rows)
            index = np.zeros((len(rows), longest), np.int64)
            for r, row in enumerate(rows):
                index[r] = row.start
                index[r, : row.length] = np.arange(row.start, row.start + row.length)
                order[row.start : row.start + row.length] = (
                    done + r * longest + np.arange(row.length)
                )
            done += index.size
            prompt = rows[0].prompt
            prompt_index = None
            if prompt is not None:
                prompt_index = torch.arange(
                    prompt.start, prompt.start + prompt.length, device=device
                )
            blocks.append(
                Block(
                    torch.as_tensor(index, device=device),
                    tuple(r.length for r in rows),
                    prompt_index,
                )
            )
        return FlatBatch(
            ids=tensor(self.ids),
            positions=tensor(self.positions),
            blocks=tuple(blocks),
            order=torch.as_tensor(order, device=device),
            source=tensor(self.source),
            targets=tensor(self.targets),
            example=np.concatenate(self.example) if self.example else np.zeros(0, np.int64),
            offset=np.concatenate(self.offset) if self.offset else np.zeros(0, np.int64),
            longest=max((int(p[-1]) + 1 for p in self.positions if len(p)), default=0),
        )


def _buckets(rows: Sequence[Stretch]) -> Iterator[list[Stretch]]:
    """Rows of similar length together, the longest first."""
    bucket: list[Stretch] = []
    for row in sorted((r for r in rows if r.length), key=lambda r: -r.length):
        if bucket and row.length < BUCKET_FILL * bucket[0].length:
            yield bucket
            bucket = []
        bucket.append(row)
    if bucket:
        yield bucket


def scatter(batch: FlatBatch, values: Tensor, examples: Sequence[Example]) -> list[np.ndarray]:
    """Per-target values [N] back to one float32 array [len(target_ids)] per example, zero elsewhere."""
    flat = values.detach().float().cpu().numpy()
    out = [np.zeros(len(e.target_ids), np.float32) for e in examples]
    edges = np.flatnonzero(np.diff(batch.example)) + 1  # each example's targets lie together
    for part in np.split(np.arange(len(flat)), edges):
        if len(part):
            out[int(batch.example[part[0]])][batch.offset[part]] = flat[part]
    return out
