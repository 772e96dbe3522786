"""Any OpenAI-compatible endpoint as an engine that samples: vLLM, llama.cpp's server, Ollama, hosted APIs.

A policy's ``base`` is the model's name there. Messages go out, text comes back, so nothing is trained; everything
can be measured, watched, and taught in words. What is asked is bounded, tried again, paid for within a
budget, and remembered if the recipe says so (``kolb.engines.endpoint``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.engines.endpoint.answers import Answer, Form
from kolb.engines.endpoint.cache import RequestCache
from kolb.engines.endpoint.client import Endpoint, Request
from kolb.engines.endpoint.faults import Patience
from kolb.engines.endpoint.keys import check_base_url, read_key
from kolb.engines.endpoint.prompts import PromptTemplate
from kolb.engines.endpoint.spending import Budget, Prices, Tokens
from kolb.errors import CapabilityError, RecipeError, SamplerError, at_least, nearest
from kolb.types import NO_FLOATS, Completion, Message, SamplingParams

APIS = ("chat", "completions")
CACHES = ("off", "on", "read-only")


@dataclass
class OpenAICompat:
    """Options of ``[engine]``."""

    base_url: str = "http://localhost:8000/v1"
    api: str = "chat"
    """``chat``, or ``completions``: text by the policy's ``template``."""
    api_key_env: str = ""
    """The environment variable with the key; empty: OPENAI_API_KEY for https, none for http."""
    max_requests: int = 32
    """At a time."""
    timeout_s: float = 300.0
    """For one try of one request."""
    retries: int = 6
    """Further tries of a request."""
    longest_wait_s: float = 120.0
    """Between two tries; a server that asks for more has given its answer."""
    max_tokens_field: str = "max_tokens"
    """``max_completion_tokens`` for models that want it."""
    omit: tuple[str, ...] = ()
    """Fields that the server does not take: ``["seed"]``."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request: ``{ top_k = 0 }``."""
    logprobs: bool = False
    """Ask for the logprobs of sampled tokens."""
    prices: Mapping[str, Prices] = field(default_factory=dict)
    """By model."""
    max_cost: float = 0.0
    """Of everything, in the currency of the prices; 0: no limit."""
    max_total_tokens: int = 0
    """Of prompts and completions together; 0: no limit."""
    cache: str = "off"
    """``on`` answers what was asked before from disk, ``read-only`` adds nothing to it."""
    cache_folder: str = "~/.cache/kolb/requests"

    def __post_init__(self) -> None:
        for name, known in (("api", APIS), ("cache", CACHES)):
            value = getattr(self, name)
            if value not in known:
                raise RecipeError(f"engine: {name} = {value!r}{nearest(value, known)}")
        check_base_url(self.base_url)
        at_least(1, max_requests=self.max_requests)
        at_least(0.001, timeout_s=self.timeout_s)
        at_least(0, retries=self.retries, longest_wait_s=self.longest_wait_s)
        at_least(0, max_cost=self.max_cost, max_total_tokens=self.max_total_tokens)
        if self.max_tokens_field in self.omit:
            raise RecipeError(
                f"engine: omit holds {self.max_tokens_field!r}, which bounds the cost"
            )
        self._budget = Budget(self.max_cost, self.max_total_tokens)
        self._endpoint: Endpoint | None = None

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"sample", "logprobs"} if self.logprobs else {"sample"})

    def keep_books(self, path: Path) -> None:
        """Counts what was spent before according to ``path``, and writes down there what is spent."""
        self._budget.keep_books(path)

    def price(self, model: str, prompt: float, completion: float) -> float | None:
        """What so many tokens of ``model`` cost, nothing of them cached; None without its prices."""
        prices = self.prices.get(model)
        return prices.cost(Tokens(round(prompt), 0, round(completion))) if prices else None

    def open_sampler(self, model: ModelSpec) -> EndpointSampler:
        """Sends nothing yet. RecipeError where the key, the price or the template is missing."""
        if not model.base or model.build or model.tokenizer:
            raise RecipeError(
                f"engine 'openai_compat': a policy has a base (the model's name at {self.base_url}), and neither build "
                "nor tokenizer"
            )
        if self.max_cost and model.base not in self.prices:
            raise RecipeError(
                f"engine: max_cost = {self.max_cost:g} needs the price of {model.base!r} per million tokens: "
                f'[engine.prices."{model.base}"] with input and output{nearest(model.base, self.prices)}'
            )
        if self._endpoint is None:
            self._endpoint = self._connect()
        return EndpointSampler(
            self._endpoint, model.base, self._template(model), self.prices.get(model.base)
        )

    def open_policy(
        self,
        name: str,
        model: ModelSpec,
        *,
        lora: LoraSpec | None = None,
        optimizer: OptimizerSpec = OptimizerSpec(),
        keep_base: bool = False,
    ) -> Any:
        # A recipe that wants to train is refused before this; it stands here for callers from Python.
        raise CapabilityError(f"policy {name!r}: an endpoint only samples; train on torch_local")

    def close(self) -> None:
        """Nothing is open between requests."""

    def _connect(self) -> Endpoint:
        return Endpoint(
            base_url=self.base_url,
            form=Form(self.api, self.max_tokens_field, self.omit, self.extra, self.logprobs),
            key=read_key(self.base_url, self.api_key_env),
            patience=Patience(self.retries, self.longest_wait_s),
            budget=self._budget,
            cache=RequestCache(Path(self.cache_folder).expanduser(), self.cache),
            timeout_s=self.timeout_s,
            max_requests=self.max_requests,
        )

    def _template(self, model: ModelSpec) -> PromptTemplate | None:
        if self.api == "completions":
            return PromptTemplate(model.template or "plain")
        if model.template:
            raise RecipeError(
                f"template = {model.template!r}: the chat API applies the server's own template; remove it, or set "
                'api = "completions" under [engine]'
            )
        return None


ENGINE = OpenAICompat


@dataclass
class EndpointSampler:
    """Implements ``kolb.engines.base.Sampler`` for a model behind an endpoint: messages in, text out.

    ``usage``: numbers so far, by name (docs/guide/metrics.md), of all its seats. Each policy has a sampler of its own,
    and each role that it plays a seat.
    """

    endpoint: Endpoint
    model: str
    prompts: PromptTemplate | None
    prices: Prices | None
    version: int = 0
    template: None = None
    seats: dict[str, EndpointSampler] = field(init=False, default_factory=dict)
    own_usage: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        names = ("requests", "retries", "cache_hits")
        tokens = ("prompt_tokens", "cached_tokens", "completion_tokens")
        priced = ("cost",) if self.prices else ()
        self.own_usage = dict.fromkeys((*names, *tokens, *priced), 0)

    @property
    def usage(self) -> dict[str, float]:
        total = dict(self.own_usage)
        for seat in self.seats.values():
            for name, value in seat.usage.items():
                total[name] = total.get(name, 0) + value
        return total

    def seat(self, role: str) -> EndpointSampler:
        """The same policy as ``role`` asks it, counted by itself."""
        if role not in self.seats:
            self.seats[role] = replace(self)
        return self.seats[role]

    def rest(self) -> None:
        """Nothing is kept between answers but what the request cache holds, which changes none of them."""

    async def sample(
        self, prompt: Sequence[Message], params: SamplingParams, n: int = 1
    ) -> list[Completion]:
        """``n`` requests with consecutive seeds. Where one fails the others are cancelled."""
        seeds = range(params.seed, params.seed + n)
        if n == 1:
            return [await self._one(prompt, params, params.seed)]
        first: BaseException | None = None
        jobs: list[asyncio.Task[Completion]] = []
        try:
            async with asyncio.TaskGroup() as running:
                jobs = [running.create_task(self._one(prompt, params, seed)) for seed in seeds]
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        if first is not None:
            raise first  # Out here it keeps its own cause.
        return [job.result() for job in jobs]

    async def score(self, tokens: Any, start: int = 1) -> Any:
        raise SamplerError("an endpoint gives no logprobs of given tokens; use torch_local")

    async def _one(
        self, prompt: Sequence[Message], params: SamplingParams, seed: int
    ) -> Completion:
        form = self.endpoint.form
        asked = prompt if self.prompts is None else self.prompts.render(prompt)
        body = form.body(self.model, asked, replace(params, seed=seed))
        wants = form.asks_logprobs(params)
        request = Request(body, seed, params.max_tokens, self.prices, wants)
        return self._completion(await self.endpoint.ask(request, self.own_usage))

    def _completion(self, answer: Answer) -> Completion:
        return Completion(
            answer.text,
            logprobs=np.array(answer.logprobs, np.float32) if answer.logprobs else NO_FLOATS,
            stop_reason=answer.finish_reason,
            version=self.version,
            token_count=answer.tokens.completion if answer.tokens else 0,
            reasoning=answer.reasoning,
        )
