"""The rows that are being sampled, as two ways to compute their next logits.

``FastRows`` keeps shared prompts and suffixes apart (``decode``), refills at any time, and parks the keys
and values of finished rows, so that the next turn of a conversation costs only its new tokens. ``PlainRows``
is for architectures without a fast path: transformers' own cache, rows of equal length, one batch at a time.
"""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from weakref import WeakValueDictionary

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


@dataclass
class Parking:
    """Finished rows by the tokens they cover, oldest out first. Where nothing was resumed after ``TRIAL`` rows
    (single-turn tasks), nothing more is parked until the sampler rests. What is parked decides how the next
    turn is computed, and so its last bits: nothing that a resumed run would not know may enter here."""

    budget: int
    rows: OrderedDict[bytes, Parked] = field(default_factory=OrderedDict)
    used: int = 0
    """Bytes of suffixes, and of each prompt that some parked row needs, once."""
    tried: int = 0
    resumed: int = 0
    _held: Counter[Prompt] = field(default_factory=Counter)

    TRIAL = 256

    @property
    def is_open(self) -> bool:
        return self.resumed > 0 or self.tried < self.TRIAL

    def put(self, tokens: bytes, row: Parked) -> None:
        self.tried += 1
        self._remove(tokens)
        self.rows[tokens] = row
        self._held[row.prompt] += 1
        self.used += nbytes(row.suffix)
        if self._held[row.prompt] == 1:
            self.used += nbytes(row.prompt.kv)
        while self.used > self.budget and self.rows:
            self._remove(next(iter(self.rows)))

    def take(self, ids: Ids) -> Parked | None:
        """The parked row that covers the longest beginning of ``ids``, at least one token short of all."""
        for size in sorted({len(key) for key in self.rows}, reverse=True):
            if size < ids.nbytes and (row := self._remove(ids[: size // 4].tobytes())):
                self.resumed += 1
                return row
        return None

    def _remove(self, tokens: bytes) -> Parked | None:
        if (row := self.rows.pop(tokens, None)) is None:
            return None
        self.used -= nbytes(row.suffix)
        self._held[row.prompt] -= 1
        if not self._held[row.prompt]:
            del self._held[row.prompt]
            self.used -= nbytes(row.prompt.kv)
        return row

    def rest(self) -> None:
        """The sampler has nothing to do: the next tasks may be of another kind, and are tried anew."""
        self.tried = self.resumed = 0

    def clear(self) -> None:
        self.rows.clear()
        self._held.clear()
        self.used = 0
        self.rest()


def nbytes(kv: KV) -> int:
    return sum(t.nbytes for pair in kv for t in pair)


class FastRows:
    """Rows on the fast path. Row numbers shift as in ``Context.drop``: the last takes the dropped one's."""

    def __init__(self, model: LocalModel, parking: Parking, max_prefill_tokens: int) -> None:
        self.model, self.parking, self.max_prefill_tokens = model, parking, max_prefill_tokens
        self.context = Context()
        self.prompts: WeakValueDictionary[bytes, Prompt] = WeakValueDictionary()
        """Every prompt that a row or a parked row still holds: asked again, it is not computed again."""

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
        """Nothing is waiting: the buffers are let go."""
        self.context = Context()
        self.parking.rest()

    def _prefill(self, prompts: Sequence[Ids], rooms: Sequence[int]) -> Tensor:
        known = {ids.tobytes(): self.prompts.get(ids.tobytes()) for ids in prompts}
        new = {ids.tobytes(): ids for ids in prompts if known[ids.tobytes()] is None}
        for part in _cut([(ids, len(ids)) for ids in new.values()], self.max_prefill_tokens):
            known.update(self._prefill_some(part))
        found = [prompt for ids in prompts if (prompt := known[ids.tobytes()]) is not None]
        for prompt, room in zip(found, rooms, strict=True):
            self.context.add(prompt, None, 0, room)
        return torch.stack([prompt.logits for prompt in found])

    def _prefill_some(self, prompts: Sequence[Ids]) -> dict[bytes, Prompt]:
        """Keys, values and the logits that follow, of distinct prompts in one flat forward."""
        batch, places = pack_prompts(prompts, self.model.device)
        plan = FlatPlan(batch, capture=True)
        hidden = self.model.hidden(batch.ids[None], batch.positions[None], plan)[0]
        last = torch.tensor([p.start + p.length - 1 for p in places], device=hidden.device)
        layers = [plan.kept[i] for i in sorted(plan.kept)]
        made: dict[bytes, Prompt] = {}
        for ids, place, logits in zip(
            prompts, places, self.model.logits(hidden[last]), strict=True
        ):
            span = slice(place.start, place.start + place.length)
            kv = [(k[:, span].clone(), v[:, span].clone()) for k, v in layers]
            made[ids.tobytes()] = Prompt(place.length, kv, logits.clone())
        self.prompts.update(made)
        return made

    def _resume(self, rows: Sequence[tuple[Ids, int, Parked]]) -> Tensor:
        logits = []
        fed = [(row, len(row[0]) - row[2].prompt.length - row[2].length) for row in rows]
        for part in _cut(fed, self.max_prefill_tokens):
            logits.append(self._resume_some(part))
        return torch.cat(logits)

    def _resume_some(self, rows: Sequence[tuple[Ids, int, Parked]]) -> Tensor:
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
        # Padding of shorter rows may run over the end of a table of learned positions.
        positions = positions.clamp(max=self.model.context_length - 1)
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
    """Rows on transformers' own cache: equal prompt lengths, no refill before all have ended. A model
    whose forward takes no cache of the common kind is given the whole sequence at every step."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        names = inspect.signature(model.hf.forward).parameters
        self.keyword = next((n for n in ("cache", "past_key_values") if n in names), "")
        self.takes_positions = "position_ids" in names
        self.cache: object = None
        self.alive: list[int] = []
        self.fed = torch.zeros(0, 0, dtype=torch.long)

    @property
    def count(self) -> int:
        return len(self.alive)

    def can_take(self, waiting: Sequence[Ids], room: int) -> int:
        if self.alive or not waiting:
            return 0
        same = [len(ids) == len(waiting[0]) for ids in waiting[:room]]
        return same.index(False) if False in same else len(same)

    def admit(self, prompts: Sequence[Ids], rooms: Sequence[int]) -> tuple[list[int], Tensor]:
        self.cache, self.alive = None, list(range(len(prompts)))
        self.fed = torch.zeros(len(prompts), 0, dtype=torch.long)
        return list(self.alive), self._forward(torch.as_tensor(np.stack(prompts).astype(np.int64)))

    def step(self, tokens: Sequence[int]) -> Tensor:
        # Ended rows are fed anything: rows do not mix.
        new = torch.zeros(len(self.fed), 1, dtype=torch.long)
        new[torch.tensor(self.alive), 0] = torch.tensor(tokens)
        return self._forward(new)[torch.tensor(self.alive, device=self.model.device)]

    def drop(self, row: int, tokens: bytes | None) -> None:
        self.alive[row] = self.alive[-1]
        self.alive.pop()

    def rest(self) -> None:
        self.cache, self.alive = None, []

    def _forward(self, new: Tensor) -> Tensor:
        before = self.fed.shape[1] if self.keyword else 0
        self.fed = torch.cat([self.fed, new], dim=1)
        ids = (new if self.keyword else self.fed).to(self.model.device)
        # Rows of equal length need no mask; a recurrent model takes one only for what it is fed.
        options: dict[str, object] = {"attention_mask": torch.ones_like(ids)} if not before else {}
        if self.takes_positions:
            places = torch.arange(before, self.fed.shape[1], device=ids.device)
            options["position_ids"] = places[None].expand_as(ids)
        if self.keyword:
            options |= {"use_cache": True, self.keyword: self.cache}
        with self.model.plain_attention(), self.model.autocast():
            out = self.model.hf(input_ids=ids, **options)
        if self.keyword:
            self.cache = getattr(out, self.keyword)
        return out.logits[:, -1].float()


@torch.no_grad()
def probe(model: LocalModel) -> str:
    """What is wrong with ``FastRows`` for this model, in words; empty where a shared prompt, a refill, steps
    and a resumed row all give the logprobs of the plain path."""
    from kolb.engines.local.model import PROBE_TOLERANCE, probe_examples

    shared, _, again = probe_examples(model.vocabulary, model.context_length)
    if len(again.target_ids) < 4:
        return ""  # a context too short to probe in
    rows = FastRows(model, Parking(budget=2**30), 2**20)
    seen: list[list[Tensor]] = [[], []]
    try:
        model.use(None)
        _, logits = rows.admit([shared.prompt_ids, again.prompt_ids], [8, 8])
        for step in range(3):
            tokens = [int(shared.target_ids[step]), int(again.target_ids[step])]
            for row, token in enumerate(tokens):
                seen[row].append(torch.log_softmax(logits[row], -1)[token])
            logits = rows.step(tokens)
        covered = np.concatenate([shared.prompt_ids, shared.target_ids[:3]])
        rows.drop(0, covered.tobytes())
        longer = np.concatenate([shared.prompt_ids, shared.target_ids])[: len(covered) + 1]
        _, logits = rows.admit([longer], [8])
        following = np.append(shared.target_ids[:4], shared.target_ids[0]).astype(np.int32)
        seen[0] += [torch.log_softmax(logits[0], -1)[int(following[4])]]
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return str(error).splitlines()[0]
    expected = model.plain_logprobs(
        [
            replace(
                shared, target_ids=following, weights={"p": np.array([1, 1, 1, 0, 1], np.float32)}
            ),
            replace(again, target_ids=again.target_ids[:3], weights={"p": np.ones(3, np.float32)}),
        ]
    )
    difference = float((torch.stack([*seen[0], *seen[1]]) - expected).abs().max())
    return (
        ""
        if difference <= PROBE_TOLERANCE[model.compute]
        else f"logprobs differ by {difference:.2g}"
    )


T = TypeVar("T")


def _cut(items: Sequence[tuple[T, int]], most: int) -> list[list[T]]:
    """The items in order, in parts whose padded size (number times the largest) is at most ``most``."""
    parts: list[list[T]] = []
    widest = 0
    for item, size in items:
        widest = max(widest, size)
        if not parts or (len(parts[-1]) + 1) * widest > most:
            parts.append([])
            widest = size
        parts[-1].append(item)
    return parts
