"""Concurrent requests to one dynamic batch: admit, step, draw, hand back, refill.

Everything runs in the caller's event loop. Between two steps the loop is given the chance to let every
coroutine that just heard back speak again, so rows of finished turns are refilled at once, and the same
program always forms the same batches.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kolb.chat.templates import ChatTemplate
from kolb.engines.base import as_ids
from kolb.engines.local.model import LocalModel
from kolb.engines.local.rows import FastRows, Parking, PlainRows, probe
from kolb.errors import KolbError, SamplerError, StaleSamplerError
from kolb.types import Completion, Example, Floats, Ids, Message, SamplingParams

TURNS_OF_THE_LOOP = 6
"""How often the event loop runs between steps after a row has ended: enough for a woken episode to hear its
environment, release a place to the next one, and ask again."""

STOP_TAIL_SLACK = 8
"""Stop strings are looked for in the text of as many last tokens as the longest has bytes, and these more."""


@dataclass(eq=False)
class Request:
    ids: Ids
    params: SamplingParams
    uniforms: np.ndarray
    future: asyncio.Future[Completion] | concurrent.futures.Future[Completion]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def covered(self) -> bytes:
        """The tokens whose keys are in the cache: all but the last one drawn."""
        return self.ids.tobytes() + np.asarray(self.tokens[:-1], np.int32).tobytes()


class Decoder:
    """Samples from one policy version. ``adapter`` is chosen before each forward."""

    def __init__(
        self,
        model: LocalModel,
        adapter: str | None,
        parking: Parking,
        max_rows: int,
        max_prefill_tokens: int,
    ) -> None:
        self.model, self.adapter, self.max_rows, self.parking = model, adapter, max_rows, parking
        fast = model.samples_fast(probe)
        self.rows = FastRows(model, parking, max_prefill_tokens) if fast else PlainRows(model)
        self.check: Callable[[], None] = lambda: None
        """Raises when the weights are no longer those that this decoder samples from."""
        self.waiting: list[Request] = []
        self.arriving: list[Request] = []
        self.active: list[Request] = []
        self._pump_task: asyncio.Task[None] | None = None

    async def complete(self, ids: Ids, params: SamplingParams, seed: int) -> Completion:
        """A prompt that fills the context window gives an empty completion that was cut by length."""
        if len(ids) >= self.model.context_length:
            return Completion("", stop_reason="length")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self.waiting.append(self._request(ids, params, seed, future))
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = loop.create_task(self._pump())
        return await future

    @torch.inference_mode()
    def complete_now(self, ids: Ids, params: SamplingParams, seed: int) -> Completion:
        """The same without an event loop, for one request of an idle decoder."""
        future: concurrent.futures.Future[Completion] = concurrent.futures.Future()
        self.waiting.append(self._request(ids, params, seed, future))
        while not future.done():
            self._advance()
        self.rows.rest()
        return future.result()

    def _request(self, ids: Ids, params: SamplingParams, seed: int, future: Any) -> Request:
        if len(ids) == 0:
            raise SamplerError("an empty prompt: there is nothing to sample from")
        room = self.model.context_length - len(ids)
        uniforms = np.random.Generator(np.random.Philox(seed)).random(min(params.max_tokens, room))
        return Request(ids, params, uniforms, future)

    async def _pump(self) -> None:
        ended = True
        try:
            while self.waiting or self.active:
                for _ in range(TURNS_OF_THE_LOOP if ended else 1):
                    await asyncio.sleep(0)
                with torch.inference_mode():
                    ended = self._advance()
            self.rows.rest()
        except Exception as error:  # the boundary: every waiting caller must hear of it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Tells every caller, and starts again from nothing."""
        for request in (*self.waiting, *self.arriving, *self.active):
            if not request.future.done():
                failure: Exception = error
                if not isinstance(error, KolbError):
                    failure = SamplerError(f"sampling failed: {error!r}")
                    failure.__cause__ = error
                request.future.set_exception(failure)
        self.waiting, self.arriving, self.active = [], [], []
        self.rows.rest()

    def _advance(self) -> bool:
        """Admits who waits and gives every row one token; True when some row ended."""
        self.check()
        self.model.use(self.adapter)
        self._forget_cancelled()
        finished = False
        if self.active:
            logits = self.rows.step([r.tokens[-1] for r in self.active])
            finished = self._draw(list(range(len(self.active))), logits)
        room = self.max_rows - self.rows.count
        n = self.rows.can_take([r.ids for r in self.waiting[:room]], room)
        if n:
            self.arriving, self.waiting = self.waiting[:n], self.waiting[n:]
            order, logits = self.rows.admit(
                [r.ids for r in self.arriving], [len(r.uniforms) for r in self.arriving]
            )
            first = len(self.active)
            self.active += [self.arriving[i] for i in order]
            self.arriving = []
            finished |= self._draw(list(range(first, len(self.active))), logits)
        return finished

    def _draw(self, numbers: Sequence[int], logits: Tensor) -> bool:
        requests = [self.active[i] for i in numbers]
        tokens, logprobs = draw(
            logits,
            [r.params for r in requests],
            [float(r.uniforms[len(r.tokens)]) for r in requests],
        )
        ended = []
        for number, request, token, logprob in zip(
            numbers, requests, tokens, logprobs, strict=True
        ):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            if reason := self._stop_reason(request):
                request.future.set_result(self._completion(request, reason))
                ended.append(number)
        for number in reversed(ended):  # from the last, so that the numbers before stay true
            self._drop(number)
        return bool(ended)

    def _drop(self, number: int, park: bool = True) -> None:
        request = self.active[number]
        self.rows.drop(number, request.covered if park else None)
        self.active[number] = self.active[-1]
        self.active.pop()

    def _forget_cancelled(self) -> None:
        self.waiting = [r for r in self.waiting if not r.future.done()]
        for number in reversed([i for i, r in enumerate(self.active) if r.future.done()]):
            self._drop(number, park=False)

    def _stop_reason(self, request: Request) -> str:
        if request.tokens[-1] in self.model.template.end_ids:
            return "stop"
        if request.params.stop:
            size = max(len(s.encode()) for s in request.params.stop) + STOP_TAIL_SLACK
            tail = self.model.template.decode(request.tokens[-size:])
            if any(s in tail for s in request.params.stop):
                return "stop"
        return "length" if len(request.tokens) >= len(request.uniforms) else ""

    def _completion(self, request: Request, reason: str) -> Completion:
        return Completion(
            text=self.model.template.decode(request.tokens),
            token_ids=as_ids(request.tokens),
            logprobs=np.asarray(request.logprobs, np.float32),
            stop_reason=reason,
        )


def draw(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token per row of ``logits`` [B, V] by inverting the cumulative distribution at ``uniforms`` [B],
    and its logprob under the row's temperature and the full support (temperature 1 where greedy)."""
    temperatures = [p.temperature for p in params]
    if any(t != 1.0 for t in temperatures):
        scale = torch.tensor(
            [1.0 if t == 0 else 1.0 / t for t in temperatures], device=logits.device
        )
        logits = logits * scale[:, None]
    logp = torch.log_softmax(logits, -1)
    restricted = logp
    if not all(p.has_full_support for p in params):
        restricted = torch.stack([_restrict(row, p) for row, p in zip(logp, params, strict=True)])
    total = restricted.double().exp_().cumsum(-1)
    threshold = (
        torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * total[:, -1:]
    )
    tokens = torch.searchsorted(total, threshold, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    if 0.0 in temperatures:
        greedy = torch.tensor([t == 0 for t in temperatures], device=logits.device)
        tokens = torch.where(greedy, logp.argmax(-1), tokens)
    return tokens.tolist(), logp.gather(1, tokens[:, None])[:, 0].tolist()


def _restrict(logp: Tensor, params: SamplingParams) -> Tensor:
    """Top-k, then top-p (the smallest set whose mass reaches p), as logprobs with -inf outside."""
    if params.top_k > 0:
        floor = logp.topk(min(params.top_k, len(logp))).values[-1]
        logp = logp.masked_fill(logp < floor, -torch.inf)
    if params.top_p < 1.0:
        ordered, index = logp.softmax(-1).sort(descending=True, stable=True)
        outside = ordered.cumsum(-1) - ordered >= params.top_p
        logp = logp.index_fill(0, index[outside], -torch.inf)
    return logp


class LocalSampler:
    """A handle on one version of a policy. ``owner.version`` moves on when the policy learns."""

    def __init__(self, decoder: Decoder, owner: Any, version: int) -> None:
        self._decoder, self._owner, self.version = decoder, owner, version
        decoder.check = self._check

    @property
    def template(self) -> ChatTemplate:
        return self._decoder.model.template

    def _check(self) -> None:
        if self._owner is not None and self._owner.version != self.version:
            raise StaleSamplerError(
                f"this sampler is bound to version {self.version}, the weights are at {self._owner.version}; use the one that publish() returned last"
            )

    async def sample(
        self, prompt: Ids | Sequence[Message], params: SamplingParams, n: int = 1
    ) -> list[Completion]:
        self._check()
        ids = as_ids(prompt)  # type: ignore[arg-type]
        seeds = [params.seed + i for i in range(n)]
        if n == 1:
            done = [await self._decoder.complete(ids, params, seeds[0])]
        else:
            done = list(
                await asyncio.gather(*(self._decoder.complete(ids, params, s) for s in seeds))
            )
        return [replace(c, version=self.version) for c in done]

    def rest(self) -> None:
        self._decoder.parking.clear()

    def sample_now(self, prompt: Ids, params: SamplingParams) -> Completion:
        """One completion without an event loop: what publication probes with."""
        return replace(
            self._decoder.complete_now(prompt, params, params.seed), version=self.version
        )

    async def score(self, tokens: Ids, start: int = 1) -> Floats:
        self._check()
        return self.score_now(as_ids(tokens), start)

    @torch.no_grad()
    def score_now(self, tokens: Ids, start: int = 1) -> Floats:
        if not 1 <= start <= len(tokens):
            raise SamplerError(f"score needs 1 <= start <= {len(tokens)}, not {start}")
        example = Example(
            "score",
            tokens[:start],
            tokens[start:],
            {"score": np.ones(len(tokens) - start, np.float32)},
        )
        self._decoder.model.use(self._decoder.adapter)
        if not len(example.target_ids):
            return np.zeros(0, np.float32)
        return self._decoder.model.stats([example])[1].logprobs.float().cpu().numpy()
