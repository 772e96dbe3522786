"""Requests to one endpoint: bounded, in time, tried again where that may help, paid for and counted.

Nothing stays open between bursts of requests: the HTTP client lives as long as somebody uses it. So an engine
works in one event loop after another, and a request that is cancelled takes its connection with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from kolb.engines.endpoint.answers import Answer, Form
from kolb.engines.endpoint.cache import RequestCache
from kolb.engines.endpoint.faults import Fault, Patience, of_status
from kolb.engines.endpoint.keys import Key
from kolb.engines.endpoint.spending import Budget, Charge, Prices, Tokens, charge_for
from kolb.errors import DeadlineError, KolbError, RecipeError, SamplerError

sleep = asyncio.sleep

CONNECT_S = 10.0
FIRST_TRIES = 3
"""Of a server that nobody has reached yet: most likely it is not there."""
FRAME_TOKENS = 256
"""Room in the worst case for what a chat template adds to the messages."""

PATHS = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True)
class Request:
    """One completion to ask for. ``seed`` tells samples of one prompt apart, also where it is not sent."""

    body: Mapping[str, Any]
    seed: int
    max_tokens: int
    prices: Prices | None = None
    wants_logprobs: bool = False

    @property
    def worst(self) -> Charge:
        """No tokenizer makes more tokens than there are bytes."""
        prompt = len(json.dumps(self.body, ensure_ascii=False).encode(errors="replace"))
        return charge_for(Tokens(prompt + FRAME_TOKENS, 0, self.max_tokens), self.prices)


@dataclass
class _Open:
    client: httpx.AsyncClient
    seats: asyncio.Semaphore
    users: int = 0


@dataclass
class Endpoint:
    """A server. ``key`` goes into the header of each request and nowhere else."""

    base_url: str
    form: Form
    key: Key
    patience: Patience
    budget: Budget
    cache: RequestCache
    timeout_s: float
    max_requests: int
    _was_reached: bool = field(default=False, init=False, repr=False)
    _open: _Open | None = field(default=None, init=False, repr=False)

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + PATHS[self.form.api]

    async def ask(self, request: Request, usage: dict[str, float]) -> Answer:
        """The answer, from the cache or the server. ``usage`` counts what it took.

        Raises SamplerError or DeadlineError where it could not be had, RecipeError where no request like it
        ever will, BudgetSpentError where it might cost too much.
        """
        known = {"url": self.url, "body": request.body, "seed": request.seed}
        answer = self.cache.get(known)
        if answer is not None:
            usage["cache_hits"] += 1
            return answer
        async with self._seat() as client:
            answer = await self._try(client, request, usage)
        self.cache.put(known, answer)
        return answer

    @asynccontextmanager
    async def _seat(self) -> AsyncIterator[httpx.AsyncClient]:
        """The HTTP client, for at most ``max_requests`` at a time; closed when the last one leaves."""
        if self._open is None:
            self._open = _Open(self._new_client(), asyncio.Semaphore(self.max_requests))
        mine = self._open
        mine.users += 1
        try:
            async with mine.seats:
                yield mine.client
        finally:
            mine.users -= 1
            if not mine.users:
                self._open = None
                await mine.client.aclose()

    def _new_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={"Content-Type": "application/json", **self.key.headers},
            timeout=httpx.Timeout(
                self.timeout_s, connect=min(CONNECT_S, self.timeout_s), pool=None
            ),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=self.max_requests),
            trust_env=not self.key.is_for_this_machine,  # no proxy between a machine and itself
        )

    async def _try(
        self, client: httpx.AsyncClient, request: Request, usage: dict[str, float]
    ) -> Answer:
        random = Random(request.seed)
        tries = 0
        while True:
            tries += 1
            try:
                answer = await self._pay(client, request, usage)
                self._was_reached = True
                return answer
            except Fault as fault:
                usage[fault.kind] = usage.get(fault.kind, 0) + 1
                self._was_reached |= fault.kind != "connection" or fault.may_cost
                wait = self.patience.wait_s(tries, fault.asked_s, random)
                if not self._was_reached and (wait is None or tries >= FIRST_TRIES):
                    raise self._nobody_there(fault) from fault
                if fault.final or wait is None:
                    raise self._error(fault, tries) from fault
            usage["retries"] += 1
            await sleep(wait)

    async def _pay(
        self, client: httpx.AsyncClient, request: Request, usage: dict[str, float]
    ) -> Answer:
        """One try, booked: what the server counted, the worst case where it did not or the try was cut, and
        nothing where it gave an error instead."""
        async with self.budget.room_for(request.worst) as bill:
            usage["requests"] += 1
            try:
                answer = await self._send(client, request)
                if answer.tokens is not None:
                    bill.charge = charge_for(answer.tokens, request.prices)
                    usage["prompt_tokens"] += answer.tokens.prompt
                    usage["cached_tokens"] += answer.tokens.cached
                    usage["completion_tokens"] += answer.tokens.completion
            except Fault as fault:
                if not fault.may_cost:
                    bill.charge = Charge()
                raise
            finally:
                if bill.charge is None:
                    usage["unmetered"] = usage.get("unmetered", 0) + 1
                if request.prices is not None:
                    usage["cost"] += (bill.charge or request.worst).cost
        if answer.finish_reason == "length":
            usage["cut"] = usage.get("cut", 0) + 1
        return answer

    async def _send(self, client: httpx.AsyncClient, request: Request) -> Answer:
        content = json.dumps(request.body).encode()
        try:
            async with asyncio.timeout(self.timeout_s):
                reply = await client.post(self.url, content=content)
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise Fault(
                "timeout", f"no answer within {self.timeout_s:g} s", may_cost=True
            ) from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise Fault("connection", f"no connection ({error})") from error
        except httpx.RequestError as error:
            is_cut = "incomplete" in str(error) or "complete message body" in str(error)
            kind = "truncated" if is_cut else "connection"
            words = self.key.scrubbed(f"{type(error).__name__}: {error}")
            raise Fault(kind, f"the connection broke: {words}", may_cost=True) from error
        said = self.key.scrubbed(reply.content.decode(errors="replace"))
        if reply.status_code != 200:
            raise of_status(reply.status_code, said, reply.headers, self._hints(request))
        try:
            body = json.loads(said)
        except (ValueError, RecursionError) as error:
            raise Fault("malformed", "the answer is not JSON", may_cost=True) from error
        try:
            return self.form.read(body, wants_logprobs=request.wants_logprobs)
        except Fault as fault:
            fault.may_cost = True  # whatever it is, it was sampled
            raise

    # ------------------------------------------------------------------------------------- in words

    def _hints(self, request: Request) -> dict[str, str]:
        return {
            "key": self.key.hint,
            "address": (
                f"Is base_url = {self.base_url!r} right (most end in /v1), does it offer the model "
                f"{request.body.get('model')!r}, and has it {PATHS[self.form.api]} (api = {self.form.api!r})?"
            ),
            "request": (
                f"It was asked with {', '.join(request.body)}. Leave out what it does not take by omit = [...] under "
                "[engine]; models that want max_completion_tokens: max_tokens_field"
            ),
            "context": (
                f"The prompt and max_tokens = {request.max_tokens} do not fit into the model's context: lower "
                'max_tokens, shorten the prompt, use history = "last", or serve the model with a longer context'
            ),
        }

    def _nobody_there(self, fault: Fault) -> RecipeError:
        return RecipeError(
            f"{self.url}: {fault}. Nothing was ever heard from there: is the server running (a large model takes minutes "
            f"to load), and is base_url = {self.base_url!r} its address?"
        )

    def _error(self, fault: Fault, tries: int) -> KolbError:
        said = f"{self.url}: {fault}"
        if fault.final is not None:
            return fault.final(said)
        if fault.asked_s is not None and fault.asked_s > self.patience.longest_wait_s:
            return SamplerError(
                f"{said}; it asks to wait {fault.asked_s:g} s, more than longest_wait_s = "
                f"{self.patience.longest_wait_s:g} under [engine]"
            )
        words = f"{said}; {tries} tries (retries = {self.patience.retries} under [engine])"
        if fault.kind == "timeout":
            return DeadlineError(f"{words}; raise timeout_s or lower max_requests")
        return SamplerError(words)
