"""The rows that are being sampled, as two ways to compute their next logits.

``FastRows`` keeps shared prompts and suffixes apart (``decode``), refills at any time, and parks the keys
and values of finished rows, so that the next turn of a conversation costs only its new tokens. ``PlainRows``
is for architectures without a fast path: transformers' own cache, rows of equal length, one batch at a time.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kolb.chat.batching import pack_prompts
from kolb.engines.local.attention import FlatPlan
from kolb.engines.local.decode import KV, Context, DecodePlan, Prompt
from kolb.engines.local.model import LocalModel
from kolb.types import Ids


@dataclass(eq=False)
class Parked:
    """A finished row: its prompt, its suffix's keys and values, and how many suffix tokens they cover."""

    prompt: Prompt
    suffix: KV
    length: int

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for pair in self.suffix for t in pair)


@dataclass
class Parking:
    """Finished rows by the tokens they cover, oldest out first. Where nothing was resumed after ``TRIAL`` rows
    (single-turn tasks), nothing more is parked until the sampler rests. What is parked decides how the next
    turn is computed, and so its last bits: nothing that a resumed run would not know may enter here."""

    budget: int
    rows: OrderedDict[bytes, Parked] = field(default_factory=OrderedDict)
    used: int = 0
    tried: int = 0
    resumed: int = 0

    TRIAL = 256

    @property
    def is_open(self) -> bool:
        return self.resumed > 0 or self.tried < self.TRIAL

    def put(self, tokens: bytes, row: Parked) -> None:
        self.tried += 1
        if (same := self.rows.pop(tokens, None)) is not None:
            self.used -= same.nbytes
        self.used += row.nbytes
        self.rows[tokens] = row
        while self.used > self.budget and self.rows:
            self.used -= self.rows.popitem(last=False)[1].nbytes

    def take(self, ids: Ids) -> Parked | None:
        """The parked row that covers the longest beginning of ``ids``, at least one token short of all."""
        for size in sorted({len(key) for key in self.rows}, reverse=True):
            if size < ids.nbytes and (row := self.rows.pop(ids[: size // 4].tobytes(), None)):
                self.used -= row.nbytes
                self.resumed += 1
                return row
        return None

    def rest(self) -> None:
        """The sampler has nothing to do: the next tasks may be of another kind, and are tried anew."""
        self.tried = self.resumed = 0

    def clear(self) -> None:
        self.rows.clear()
        self.used = 0
        self.rest()


class FastRows:
    """Rows on the fast path. Row numbers shift as in ``Context.drop``: the last takes the dropped one's."""

    def __init__(self, model: LocalModel, parking: Parking, max_prefill_tokens: int) -> None:
        self.model, self.parking, self.max_prefill_tokens = model, parking, max_prefill_tokens
        self.context = Context()
        self.prompts: dict[bytes, Prompt] = {}

    @property
    def count(self) -> int:
        return self.context.rows

    def can_take(self, waiting: Sequence[Ids], room: int) -> int:
        """How many of the ``waiting`` prompts, from the first, can be admitted now."""
        return min(room, len(waiting))

    def admit(self, prompts: Sequence[Ids], rooms: Sequence[int]) -> tuple[list[int], Tensor]:
        """Adds rows for ``prompts``; gives their order as they now stand and their logits [n, V]."""
        resumed, fresh = [], []
        for i, ids in enumerate(prompts):
            parked = self.parking.take(ids)
            (fresh if parked is None else resumed).append((i, parked))
        logits = []
        if fresh:
            logits.append(
                self._prefill([prompts[i] for i, _ in fresh], [rooms[i] for i, _ in fresh])
            )
        if resumed:
            logits.append(
                self._resume([(prompts[i], rooms[i], parked) for i, parked in resumed if parked])
            )
        return [i for i, _ in fresh + resumed], torch.cat(logits)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Feeds every row its last token; logits [rows, V]."""
        device = self.model.device
        return self._extend(
            0, self.count, torch.tensor(tokens, device=device)[:, None], [1] * self.count
        )

    def drop(self, row: int, tokens: bytes | None) -> None:
        """Takes a row out, parked under the ``tokens`` that its keys cover unless None."""
        if tokens is not None and self.parking.is_open:
            length = self.context.lengths[row]
            self.parking.put(
                tokens,
                Parked(
                    self.context.row_prompt[row], self.context.suffixes.read(row, length), length
                ),
            )
        self.context.drop(row)

    def rest(self) -> None:
        """Nothing is waiting: prompts and buffers that no row uses any more are let go."""
        self.prompts.clear()
        self.context = Context()
        self.parking.rest()

    def _prefill(self, prompts: Sequence[Ids], rooms: Sequence[int]) -> Tensor:
        known: dict[bytes, Tensor] = {}
        new: dict[bytes, Ids] = {}
        for ids in prompts:
            new.setdefault(ids.tobytes(), ids)
        for part in _cut(list(new.values()), self.max_prefill_tokens):
            known.update(self._prefill_some(part))
        for ids, room in zip(prompts, rooms, strict=True):
            self.context.add(self.prompts[ids.tobytes()], None, 0, room)
        return torch.stack([known[ids.tobytes()] for ids in prompts])

    def _prefill_some(self, prompts: Sequence[Ids]) -> dict[bytes, Tensor]:
        """Keys and values of distinct prompts in one flat forward; the logits after each."""
        batch, places = pack_prompts(prompts, self.model.device)
        plan = FlatPlan(batch, capture=True)
        hidden = self.model.hidden(batch.ids[None], batch.positions[None], plan)[0]
        logits = self.model.logits(
            hidden[torch.tensor([p.start + p.length - 1 for p in places], device=hidden.device)]
        )
        layers = [plan.kept[i] for i in sorted(plan.kept)]
        for ids, place in zip(prompts, places, strict=True):
            span = slice(place.start, place.start + place.length)
            kv = [(k[:, span].clone(), v[:, span].clone()) for k, v in layers]
            self.prompts[ids.tobytes()] = Prompt(ids.tobytes(), place.length, kv)
        return {ids.tobytes(): row for ids, row in zip(prompts, logits, strict=True)}

    def _resume(self, rows: Sequence[tuple[Ids, int, Parked]]) -> Tensor:
        low = self.count
        chunks = []
        for ids, room, parked in rows:
            self.context.add(parked.prompt, parked.suffix, parked.length, parked.length + room)
            chunks.append(ids[parked.prompt.length + parked.length :])
        counts = [len(c) for c in chunks]
        tokens = np.zeros((len(rows), max(counts)), np.int64)
        for row, chunk in zip(tokens, chunks, strict=True):
            row[: len(chunk)] = chunk
        return self._extend(
            low, self.count, torch.as_tensor(tokens, device=self.model.device), counts
        )

    def _extend(self, low: int, high: int, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """Feeds ``tokens`` [B, N] (padded on the right) to the rows low..high; logits after each row's last."""
        plan = DecodePlan(self.context, low, high, counts, self.model.device)
        positions = (plan.prompt_lengths + plan.starts)[:, None] + plan.step
        hidden = self.model.hidden(tokens, positions, plan)
        for row, count in zip(range(low, high), counts, strict=True):
            self.context.lengths[row] += count
        last = (
            hidden[:, 0]
            if plan.width == 1
            else hidden[torch.arange(high - low), torch.as_tensor(counts) - 1]
        )
        return self.model.logits(last)


class PlainRows:
    """Rows on transformers' own cache: equal prompt lengths, no refill before all have ended."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        names = inspect.signature(model.hf.forward).parameters
        self.keyword = "cache" if "cache" in names else "past_key_values"
        self.cache: object = None
        self.alive: list[int] = []
        self.width = 0
        self.length = 0

    @property
    def count(self) -> int:
        return len(self.alive)

    def can_take(self, waiting: Sequence[Ids], room: int) -> int:
        if self.alive or not waiting:
            return 0
        same = [len(ids) == len(waiting[0]) for ids in waiting[:room]]
        return same.index(False) if False in same else len(same)

    def admit(self, prompts: Sequence[Ids], rooms: Sequence[int]) -> tuple[list[int], Tensor]:
        self.width, self.length, self.cache = len(prompts), 0, None
        self.alive = list(range(self.width))
        return list(self.alive), self._forward(torch.as_tensor(np.stack(prompts).astype(np.int64)))

    def step(self, tokens: Sequence[int]) -> Tensor:
        fed = torch.zeros(
            self.width, 1, dtype=torch.long
        )  # ended rows are fed anything: rows do not mix
        fed[torch.tensor(self.alive), 0] = torch.tensor(tokens)
        return self._forward(fed)[torch.tensor(self.alive, device=self.model.device)]

    def drop(self, row: int, tokens: bytes | None) -> None:
        self.alive[row] = self.alive[-1]
        self.alive.pop()

    def rest(self) -> None:
        self.cache, self.alive = None, []

    def _forward(self, ids: Tensor) -> Tensor:
        ids = ids.to(self.model.device)
        position = torch.arange(self.length, self.length + ids.shape[1], device=ids.device)[
            None
        ].expand_as(ids)
        mask = torch.ones(
            ids.shape[0], self.length + ids.shape[1], dtype=torch.long, device=ids.device
        )
        with self.model.plain_attention(), self.model.autocast():
            out = self.model.hf(
                input_ids=ids,
                position_ids=position,
                attention_mask=mask,
                use_cache=True,
                **{self.keyword: self.cache},
            )
        self.cache = getattr(out, self.keyword)
        self.length += ids.shape[1]
        return out.logits[:, -1].float()


def _cut(prompts: Sequence[Ids], max_tokens: int) -> list[list[Ids]]:
    parts: list[list[Ids]] = []
    size = max_tokens
    for ids in prompts:
        if size + len(ids) > max_tokens:
            parts.append([])
            size = 0
        parts[-1].append(ids)
        size += len(ids)
    return parts
