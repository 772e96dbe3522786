"""A public fake engine: it says what a function tells it to, and records what it is taught.

    engine = Scripted(answer=lambda messages, seed: "up" if seed % 2 else "down")

Every part of the engine boundary is there, with tokens that are unicode code points and a chat layout of
its own, so that a method can be tested whole, step by step, without weights. Its logprobs are a fixed
formula of the token and the version; losses are the real terms on those logprobs. Nothing ever improves.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kolb import plugins
from kolb.engines.base import CAPABILITIES, LoraSpec, ModelSpec, OptimizerSpec, Report, Stats
from kolb.engines.scripted_text import ScriptedTemplate, messages_of
from kolb.errors import NonFiniteError, RecipeError, StaleSamplerError
from kolb.types import Completion, Example, Floats, Ids, Message, SamplingParams

Answer = Callable[[Sequence[Message], int], str | Awaitable[str]]


def logprobs_of(ids: Ids, version: int) -> Floats:
    """The fake logprob of each token: between -1 and -2, a little higher with every version."""
    return (-1.0 - (np.asarray(ids) % 16) / 16 + version / 64).astype(np.float32)


@dataclass(frozen=True)
class Scripted:
    """``answer(messages, seed)`` gives the text of each completion, at once or as a coroutine. It may
    raise or wait: that is how failures and delays are injected. A recipe gives it as a dotted path.

    ``context_window`` counts tokens of prompt and completion (0: no limit). ``gives_tokens=False`` makes
    it a chat endpoint: messages in, text out. ``provides`` may be narrowed, to test refusals.
    """

    answer: Answer | str
    context_window: int = 0
    gives_tokens: bool = True
    provides: frozenset[str] = frozenset(CAPABILITIES)
    learners: dict[str, ScriptedLearner] = field(default_factory=dict, compare=False)
    """Every policy that was opened, by name."""

    def __post_init__(self) -> None:
        if isinstance(self.answer, str):
            object.__setattr__(self, "answer", plugins.load(self.answer, "kolb.engines", "answer"))
        object.__setattr__(self, "provides", frozenset(self.provides))
        if not self.gives_tokens:
            needs_tokens = {"logprobs", "tokens", "score"}
            object.__setattr__(self, "provides", self.provides - needs_tokens)

    def open_policy(
        self,
        name: str,
        model: ModelSpec,
        *,
        lora: LoraSpec | None = None,
        optimizer: OptimizerSpec = OptimizerSpec(),
        keep_base: bool = False,
    ) -> ScriptedLearner:
        self.learners[name] = ScriptedLearner(self, name, keep_base=keep_base)
        return self.learners[name]

    def open_sampler(self, model: ModelSpec) -> ScriptedSampler:
        return ScriptedSampler(self)

    def close(self) -> None:
        """Nothing to close."""


ENGINE = Scripted


@dataclass(frozen=True)
class ScriptedSampler:
    """Implements ``kolb.engines.base.Sampler``. Bound to a learner it goes stale with its next step."""

    engine: Scripted
    version: int = 0
    learner: ScriptedLearner | None = None

    @property
    def template(self) -> ScriptedTemplate | None:
        return ScriptedTemplate() if self.engine.gives_tokens else None

    def rest(self) -> None:
        """Nothing is kept between answers."""

    async def sample(
        self, prompt: Ids | Sequence[Message], params: SamplingParams, n: int = 1
    ) -> list[Completion]:
        return [await self._one(prompt, replace(params, seed=params.seed + i)) for i in range(n)]

    async def _one(self, prompt: Ids | Sequence[Message], params: SamplingParams) -> Completion:
        self._check_fresh()
        messages = messages_of(prompt) if isinstance(prompt, np.ndarray) else list(prompt)
        assert callable(self.engine.answer)
        said = self.engine.answer(messages, params.seed)
        text = cut_at_stop(await said if inspect.isawaitable(said) else said, params.stop)
        if not self.engine.gives_tokens:
            return Completion(text, version=self.version)
        return self._tokens(text, len(prompt), params)

    def _tokens(self, text: str, prompt_length: int, params: SamplingParams) -> Completion:
        template = ScriptedTemplate()
        is_stopped = bool(params.stop) and text.endswith(params.stop)
        ids = (
            template.encode(text)
            if is_stopped
            else np.append(template.encode(text), template.end_ids)
        )
        room = params.max_tokens
        if self.engine.context_window:
            room = min(room, max(self.engine.context_window - prompt_length, 0))
        reason = "length" if len(ids) > room else "stop"
        ids = ids[:room].astype(np.int32)
        return Completion(
            template.decode(ids), ids, logprobs_of(ids, self.version), reason, self.version
        )

    async def score(self, tokens: Ids, start: int = 1) -> Floats:
        self._check_fresh()
        return logprobs_of(tokens[start:], self.version)

    def _check_fresh(self) -> None:
        if self.learner is not None and self.learner.version != self.version:
            raise StaleSamplerError(
                f"this sampler has version {self.version} of policy {self.learner.name!r}, which is now "
                f"at {self.learner.version}; use the one that publish() gives"
            )


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """``text`` up to the end of the first stop string in it."""
    ends = [text.index(s) + len(s) for s in stop if s in text]
    return text[: min(ends)] if ends else text


class ScriptedLearner:
    """Implements ``kolb.engines.base.Learner``.

    ``batches`` holds the examples of every ``forward_backward`` since it was opened. Its "weights" are a
    version and a digest of everything that it was ever taught, in order, so that two runs that learnt the
    same from the same have equal weights, and no others do.
    """

    def __init__(self, engine: Scripted, name: str, *, keep_base: bool = False) -> None:
        self.engine = engine
        self.name = name
        self.version = 0
        self.digest = ""
        self.batches: list[list[Example]] = []
        self._keeps_base = keep_base
        self._pending = ""
        self._squared_norm = 0.0

    @property
    def template(self) -> ScriptedTemplate | None:
        return ScriptedTemplate() if self.engine.gives_tokens else None

    @property
    def context_length(self) -> int:
        return self.engine.context_window or 2**31

    def forward(
        self,
        examples: Sequence[Example],
        *,
        stats: Stats = Stats(),
        temperature: float = 1.0,
        use_base: bool = False,
    ) -> list[dict[str, Floats]]:
        if use_base and not self._keeps_base:
            raise RecipeError(
                f"policy {self.name!r} was opened without keep_base, so its base is gone"
            )
        answers = []
        for example in examples:
            mask = np.any([w != 0 for w in example.weights.values()], axis=0)
            numbers = {"logprobs": logprobs_of(example.target_ids, 0 if use_base else self.version)}
            if stats.entropy:
                numbers["entropy"] = np.full(len(mask), 2.0, np.float32)
            if stats.minp is not None:
                numbers["max_logprob"] = np.full(len(mask), -0.5, np.float32)
                numbers["minp_logmass"] = np.full(len(mask), -0.25, np.float32)
            answers.append({k: np.where(mask, v, 0).astype(np.float32) for k, v in numbers.items()})
        return answers

    def forward_backward(
        self, examples: Sequence[Example], terms: Sequence[Any], *, temperature: float = 1.0
    ) -> Report:
        from kolb.engines.scripted_losses import evaluate_terms

        self.batches.append(list(examples))
        logprobs = [numbers["logprobs"] for numbers in self.forward(examples)]
        try:
            report, squared_norm = evaluate_terms(examples, terms, logprobs)
        except NonFiniteError:
            self._forget()
            raise
        self._squared_norm += squared_norm
        self._pending += "".join(map(digest_of, examples)) + "".join(map(repr, terms))
        return report

    def optim_step(self, lr: float) -> dict[str, float]:
        norm = math.sqrt(self._squared_norm)
        pending = self._pending
        self._forget()
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"policy {self.name!r}: the gradient norm is {norm}; nothing was changed"
            )
        self.digest = hashlib.blake2b(f"{self.digest}{pending}{lr!r}".encode()).hexdigest()
        self.version += 1
        return {"grad_norm": norm}

    def _forget(self) -> None:
        self._pending, self._squared_norm = "", 0.0

    def publish(self) -> ScriptedSampler:
        return ScriptedSampler(self.engine, self.version, self)

    @property
    def state(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "digest": self.digest}

    def save(self, path: Path) -> None:
        (path / "scripted.json").write_text(json.dumps(self.state))

    def load(self, path: Path) -> None:
        state = json.loads((path / "scripted.json").read_text())
        self.version, self.digest = state["version"], state["digest"]

    def export(self, path: Path, *, merge: bool = False) -> None:
        """The same small file: there are no weights to give away."""
        path.mkdir(parents=True, exist_ok=True)
        self.save(path)


def digest_of(example: Example) -> str:
    """Every number of an example. Its ``sequence`` is only a name, and stays out."""
    arrays: Mapping[str, Any] = {
        "prompt": example.prompt_ids,
        "target": example.target_ids,
        "advantages": example.advantages,
        "sampler": example.sampler_logprobs,
        "old": example.old_logprobs,
        **{f"weight/{k}": v for k, v in sorted(example.weights.items())},
        **{f"extra/{k}": v for k, v in sorted(example.extras.items())},
    }
    digest = hashlib.blake2b(example.policy.encode())
    for name, array in arrays.items():
        digest.update(
            name.encode() + (b"-" if array is None else np.ascontiguousarray(array).tobytes())
        )
    return digest.hexdigest()
