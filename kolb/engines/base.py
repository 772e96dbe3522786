"""The engine boundary: who owns weights, who samples from them, and what each engine can do.

The verbs are Tinker's (sum losses, named policies, sample / forward_backward / optim_step / publish),
the types are ours. Ragged numpy arrays cross the boundary; engines pack. An engine module names its
class in ``ENGINE``; the class is built from the recipe's ``[engine]`` options.

Three logprobs have fixed names and are all under the sampling temperature and the full support:
``sampler_logprobs`` (whoever sampled), ``old_logprobs`` (the learner before the update), and the current
ones, which exist only inside ``forward_backward``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kolb.errors import RecipeError, at_least
from kolb.types import Completion, Example, Floats, Ids, Message, MinP, SamplingParams

CAPABILITIES: Mapping[str, str] = {
    "sample": "gives completions",
    "logprobs": "gives the logprob of every sampled token",
    "tokens": "takes and gives token ids (a chat endpoint does not)",
    "score": "gives the logprobs of given tokens",
    "train": "updates weights",
    "full_ft": "trains all weights",
    "lora": "trains low-rank adapters",
    "policies": "trains several named policies",
    "stats:entropy": "forward and losses may ask for the entropy of the distribution",
    "stats:minp": "forward may ask for max logprob and the log-mass that min-p keeps",
    "stats:proxy_kl": "losses may ask for the KL from the remembered policy under min-p, over all tokens",
    "base": "can evaluate the initial weights beside the trained ones (reference policy)",
}
"""Every word that an engine may put in ``provides`` and a method or term in ``needs``."""


@dataclass(frozen=True)
class ModelSpec:
    """What a policy starts from: a folder, a hub name or an embedded name (``base``), or a config to
    build with random weights (``build``: keys of the transformers config, ``model_type`` among them)."""

    base: str = ""
    build: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    """Folder or hub name of the tokenizer; the base's own when empty."""
    template: str = ""
    """``plain``, or a file with a chat template in Jinja; the tokenizer's own when empty."""
    seed: int = 0


@dataclass(frozen=True)
class LoraSpec:
    """A low-rank adapter (arXiv:2106.09685). ``targets``: ``all-linear`` or module names."""

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        at_least(1, rank=self.rank)


@dataclass(frozen=True)
class OptimizerSpec:
    """AdamW. ``lr`` here is the peak; the loop's schedule gives the one of each step."""

    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 means no clipping."""

    def __post_init__(self) -> None:
        at_least(
            0,
            lr=self.lr,
            eps=self.eps,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
        )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RecipeError(f"betas = {self.betas}; both are at least 0 and below 1")


@dataclass(frozen=True)
class Stats:
    """Which detached per-token statistics ``forward`` is asked for, beside the logprobs.

    With ``minp`` come ``max_logprob`` (the most likely token's) and ``minp_logmass`` (log of the mass of the
    tokens that it keeps). ``remember``: the learner keeps these weights, until it is told so again, for losses
    that compare whole distributions with them (``TokenStats.proxy_kl``).
    """

    entropy: bool = False
    minp: MinP | None = None
    remember: bool = False


@dataclass
class Report:
    """What one ``forward_backward`` saw. ``metrics`` are name -> (sum, count), or (largest, 1) under a
    name that ends in ``/max``, as in ``kolb.terms.base.TermResult``."""

    losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    tokens: int = 0
    """Tokens that the model computed."""
    targets: int = 0
    """Tokens with weight in some stream."""

    def record(self, metrics: Mapping[str, tuple[float, float]]) -> None:
        for name, (value, count) in metrics.items():
            if not count:
                continue
            have, counted = self.metrics.get(name, (0.0, 0.0))
            if name.endswith("/max"):
                self.metrics[name] = (max(have, value) if counted else value, 1.0)
            else:
                self.metrics[name] = (have + value, counted + count)

    def add(self, other: Report) -> Report:
        for name, loss in other.losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + loss
        self.record(other.metrics)
        self.tokens += other.tokens
        self.targets += other.targets
        return self

    def means(self) -> dict[str, float]:
        """Every metric as its sum over its count."""
        return {name: value / count for name, (value, count) in self.metrics.items()}


class Template(Protocol):
    """Chat messages to tokens, for one tokenizer. Implemented in ``kolb.chat.templates``."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end an assistant turn."""
        ...

    def open(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Any:
        """A growing conversation: a ``kolb.chat.templates.Conversation``."""
        ...

    def transcribe(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Any:
        """A chat that somebody wrote: the same Conversation, its answers given."""
        ...

    def decode(self, ids: Ids | Sequence[int]) -> str: ...


@runtime_checkable
class Sampler(Protocol):
    """A handle bound to one version of one policy.

    ``prompt`` is token ids (int32 [L]) where ``template`` is not None, else messages. ``n`` completions
    take the seeds ``params.seed``, ``params.seed + 1``, ... The same seed gives the same tokens whatever
    else is being sampled at the time. A handle whose weights have moved on raises StaleSamplerError.

    One that costs something may have ``usage``: numbers so far, by name. Each step's metrics then hold what it added.
    With ``seat(role)`` it gives each role a handle of its own to the same policy, whose ``usage`` is that role's alone.
    """

    @property
    def version(self) -> int: ...
    @property
    def template(self) -> Template | None: ...
    async def sample(
        self, prompt: Ids | Sequence[Message], params: SamplingParams, n: int = 1
    ) -> list[Completion]: ...
    def rest(self) -> None:
        """Forget what was cached: what comes next must not depend on it in its last bits. Between steps."""
        ...

    async def score(self, tokens: Ids, start: int = 1) -> Floats:
        """Logprobs (temperature 1) of ``tokens[start:]``, each given all before it; ``start >= 1``."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Owns the weights of one policy. ``version`` counts its optimiser steps."""

    @property
    def version(self) -> int: ...
    @property
    def template(self) -> Template | None: ...
    @property
    def context_length(self) -> int:
        """Tokens of the longest example that the weights can take."""
        ...

    def forward(
        self,
        examples: Sequence[Example],
        *,
        stats: Stats = Stats(),
        temperature: float = 1.0,
        use_base: bool = False,
    ) -> list[dict[str, Floats]]:
        """Per example ``{"logprobs": [N], ...}``, zero where no stream has weight; no gradient.
        ``use_base`` evaluates the weights that the policy started from."""
        ...

    def forward_backward(
        self, examples: Sequence[Example], terms: Sequence[Any], *, temperature: float = 1.0
    ) -> Report:
        """Adds the gradient of the summed terms. Each term's per-token coefficients already hold its
        global denominator, so the result does not depend on how ``examples`` are cut or packed.
        Raises NonFiniteError (and drops all accumulated gradient) when a loss is not finite."""
        ...

    def optim_step(self, lr: float) -> dict[str, float]:
        """Clip, step, zero. Gives ``grad_norm``. Raises NonFiniteError, weights and optimiser untouched."""
        ...

    def publish(self) -> Sampler:
        """A sampler of the current weights, probed: its logprobs must equal the learner's."""
        ...

    def save(self, path: Path) -> None:
        """Weights, optimiser and version into an existing folder."""
        ...

    def load(self, path: Path) -> None: ...

    def export(self, path: Path, *, merge: bool = False) -> None:
        """A plain Hugging Face folder: the full model, or the adapter (merged into it on demand)."""
        ...


class Engine(Protocol):
    """Opens policies and samplers, and says what it can do.

    One that keeps to a budget may have ``keep_books(path)``: it counts what the file says was spent before, and
    writes down there what is spent from now on. One that costs something may have ``price(model, prompt, completion)``:
    what so many tokens cost, None where it does not know.
    """

    @property
    def provides(self) -> frozenset[str]: ...
    def open_policy(
        self,
        name: str,
        model: ModelSpec,
        *,
        lora: LoraSpec | None = None,
        optimizer: OptimizerSpec = OptimizerSpec(),
        keep_base: bool = False,
    ) -> Learner:
        """``keep_base``: some term compares with the initial weights, so they must stay available."""
        ...

    def open_sampler(self, model: ModelSpec) -> Sampler:
        """A frozen model: a teacher, a judge, an endpoint."""
        ...

    def close(self) -> None: ...


def as_ids(values: Sequence[int] | Ids) -> Ids:
    return np.asarray(values, dtype=np.int32)
