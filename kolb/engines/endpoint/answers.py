"""Bodies of requests and answers, in OpenAI's form and the forms that servers make of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kolb.engines.endpoint.faults import Fault, shown
from kolb.engines.endpoint.spending import Tokens
from kolb.errors import RecipeError, SamplerError
from kolb.types import Message, SamplingParams

SEEDS = 2**31
"""Seeds are sent modulo this: servers hold them in 32 bits, and one of them takes the largest for "random"."""

REASONING = ("reasoning_content", "reasoning")
"""Where servers put what a model thought before it answered (vLLM and DeepSeek; OpenRouter)."""


@dataclass(frozen=True)
class Answer:
    """One choice of an answer. ``tokens`` is None where the server does not count.

    ``finish_reason``: ``stop`` or ``length``. ``logprobs`` of the sampled tokens, where they were asked for.
    """

    text: str
    reasoning: str = ""
    finish_reason: str = "stop"
    tokens: Tokens | None = None
    logprobs: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def answer_from_json(data: Mapping[str, Any]) -> Answer:
    """The inverse of ``to_json``; TypeError or KeyError for anything else."""
    tokens = data["tokens"]
    return Answer(
        **{
            **data,
            "tokens": None if tokens is None else Tokens(**tokens),
            "logprobs": tuple(data["logprobs"]),
        }
    )


@dataclass(frozen=True)
class Form:
    """How a server wants its requests: which of the two APIs, and what is left out, added or renamed."""

    api: str = "chat"
    max_tokens_field: str = "max_tokens"
    omit: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False

    def body(
        self, model: str, prompt: str | Sequence[Message], params: SamplingParams
    ) -> dict[str, Any]:
        """The body of one request for one completion. ``prompt`` is messages for chat, else text.

        temperature and top_p are always said: servers have defaults of their own for them.
        """
        given = {"messages": list(prompt)} if self.api == "chat" else {"prompt": prompt}
        body: dict[str, Any] = {
            "model": model,
            **given,
            self.max_tokens_field: params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": params.seed % SEEDS,
        }
        if params.top_k:
            body["top_k"] = params.top_k
        if params.stop:
            body["stop"] = list(params.stop)
        if self.asks_logprobs(params):
            body["logprobs"] = True if self.api == "chat" else 1  # 0 is none to llama.cpp
        return {k: v for k, v in body.items() if k not in self.omit} | dict(self.extra)

    def asks_logprobs(self, params: SamplingParams) -> bool:
        """Servers give logprobs at temperature 1, and so ours are: where we sample at 1, and where greedily."""
        return self.logprobs and params.temperature in (0.0, 1.0)

    def read(self, body: Any, *, wants_logprobs: bool) -> Answer:
        """The Answer in the JSON ``body`` of a reply with status 200. Raises Fault for anything else."""
        choice = _choice(body)
        text, reasoning = _said(choice, self.api)
        reason = choice.get("finish_reason")
        if reason == "content_filter":
            raise Fault("filtered", "the endpoint filtered the answer", final=SamplerError)
        if reason == "error":
            raise Fault("server_error", "the endpoint broke off while it answered")
        # vLLM says here which stop string ended the text that it does not show.
        stop = choice.get("stop_reason")
        if isinstance(stop, str) and reason == "stop" and not text.endswith(stop):
            text += stop
        logprobs = _logprobs(choice) if wants_logprobs else ()
        finish = "length" if reason == "length" else "stop"
        return Answer(text, reasoning, finish, _tokens(body.get("usage")), logprobs)


def _choice(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise Fault("malformed", f"the answer is a JSON {type(body).__name__}")
    choices = body.get("choices")
    if not choices and body.get("error"):
        raise Fault("server_error", f"status 200 with an error: {shown(str(body['error']))}")
    if not choices:
        raise Fault("empty", "the answer has no choices")
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise Fault("malformed", "the answer's choices are no list of objects")
    return choices[0]


def _said(choice: Mapping[str, Any], api: str) -> tuple[str, str]:
    """Text and reasoning of a choice."""
    if api == "completions":
        if isinstance(choice.get("text"), str):
            return choice["text"], ""
        raise Fault("malformed", "the choice has no text")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Fault("malformed", "the choice has no message")
    thoughts = [message[name] for name in REASONING if isinstance(message.get(name), str)]
    reasoning = thoughts[0] if thoughts else ""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not content and message.get("tool_calls"):
        raise Fault(
            "refused",
            "the endpoint answered with a tool call, and no tools were shown to the model; switch its tool parser off",
            final=SamplerError,
        )
    if content is None:
        content = message.get("refusal") or ("" if reasoning or "content" in message else None)
    if not isinstance(content, str):
        raise Fault("malformed", "the message has no content")
    return content, reasoning


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...]:
    found = choice.get("logprobs")
    if isinstance(found, dict) and isinstance(found.get("content"), list):
        values = [t.get("logprob") if isinstance(t, dict) else None for t in found["content"]]
    elif isinstance(found, dict) and isinstance(found.get("token_logprobs"), list):
        values = found["token_logprobs"]
    else:
        values = [None]
    numbers = [min(float(v), 0.0) for v in values if isinstance(v, int | float) and v == v]
    if len(numbers) < len(values):
        raise Fault(
            "refused",
            "no logprobs came with the answer although they were asked for; set logprobs = false under [engine], or "
            "take an endpoint that gives them",
            final=RecipeError,
        )
    return tuple(numbers)


def _tokens(usage: Any) -> Tokens | None:
    """The server's counts; None where prompt or completion is not counted."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = (_count(usage.get(k)) for k in ("prompt_tokens", "completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    cached = _count(cached if cached is not None else usage.get("prompt_cache_hit_tokens"))
    return Tokens(prompt, min(cached or 0, prompt), completion)


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None
