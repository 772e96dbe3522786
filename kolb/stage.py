"""A Recipe as live objects: what the loop runs. ``kolb.recipe`` builds them from TOML; tests and
notebooks build them by hand. Frozen, checked on construction, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.envs.base import SPLITS, EnvironmentSource
from kolb.errors import RecipeError, at_least, nearest
from kolb.types import Method, SamplingParams

SCHEDULES = ("constant", "linear", "cosine")
HISTORIES = ("all", "last")


@dataclass(frozen=True)
class PolicySpec:
    """A named policy: where its weights come from and how they are trained. ``frozen``: sampled only."""

    model: ModelSpec
    lora: LoraSpec | None = None
    optimizer: OptimizerSpec = OptimizerSpec()
    frozen: bool = False


@dataclass(frozen=True)
class Limits:
    """What the loop tolerates from the world outside.

    An episode that breaks is tried ``retries`` more times in a fresh world, then its group is dropped.
    The run stops when more than ``max_failure_share`` of a step's episodes are broken, and after
    ``max_bad_updates`` updates in a row with a loss or gradient that is not finite.
    """

    environment_timeout_s: float = 60.0
    episode_timeout_s: float = 1800.0
    retries: int = 1
    max_failure_share: float = 0.5
    max_bad_updates: int = 3
    max_concurrent: int = 256
    max_turns: int = 64

    def __post_init__(self) -> None:
        at_least(
            0.001,
            environment_timeout_s=self.environment_timeout_s,
            episode_timeout_s=self.episode_timeout_s,
        )
        at_least(0, retries=self.retries, max_failure_share=self.max_failure_share)
        at_least(
            1,
            max_bad_updates=self.max_bad_updates,
            max_concurrent=self.max_concurrent,
            max_turns=self.max_turns,
        )


@dataclass(frozen=True)
class Evaluation:
    """How evaluation is done, in training and by ``kolb eval`` alike. ``every=0``: only at the end.

    ``episodes`` tasks of ``split`` (0: all of them), ``samples`` attempts each. The seed fixes the tasks
    and the sampling, so that two evaluations of the same weights give the same numbers.
    """

    every: int = 0
    split: str = "test"
    episodes: int = 100
    samples: int = 1
    seed: int = 1
    temperature: float | None = None
    """The stage's own temperature when None."""
    top_p: float = 1.0
    top_k: int = 0
    at_start: bool = False

    def __post_init__(self) -> None:
        at_least(0, every=self.every, episodes=self.episodes)
        at_least(1, samples=self.samples)
        if self.split not in SPLITS:
            raise RecipeError(f"split = {self.split!r}{nearest(self.split, SPLITS)}")


@dataclass(frozen=True)
class Stage:
    """A Method for ``steps`` steps on one environment, with the policies that learn.

    With a ``token_budget`` the stage also ends after the first step at which its policies have sampled that
    many tokens in it, thrown-away tries included and evaluations not (0: ``steps`` alone decides).

    ``roles`` maps each of the method's roles to a policy; ``learn`` lists the policies whose weights move.
    Each step takes ``tasks_per_step`` tasks. With ``refill`` it throws away those whose attempts all came out
    alike, and takes up to so many further batches of ``tasks_per_step`` tasks in their place. The examples
    of a step are cut into ``updates_per_step`` optimiser steps, ``epochs`` times over. ``history``: ``all`` shows a role its whole conversation,
    ``last`` only the system prompt and the newest messages (then every turn is a segment of its own).
    """

    name: str
    method: Method
    source: EnvironmentSource
    steps: int
    roles: Mapping[str, str]
    learn: tuple[str, ...] = ()
    environment: str = ""
    terms: tuple[Any, ...] = ()
    """Further terms beside the method's own."""
    split: str = "train"
    tasks_per_step: int = 8
    refill: int = 0
    """Dynamic sampling (arXiv:2503.14476, section 3.2); 0: every group is kept."""
    updates_per_step: int = 1
    epochs: int = 1
    token_budget: int = 0
    schedule: str = "constant"
    warmup_steps: int = 0
    learning_rate: float | None = None
    """Overrides the optimiser's ``lr`` in this stage."""
    sampling: SamplingParams = SamplingParams()
    history: str = "all"
    limits: Limits = Limits()
    evaluation: Evaluation | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("schedule", self.schedule, SCHEDULES),
            ("history", self.history, HISTORIES),
            ("split", self.split, SPLITS),
        ):
            if value not in known:
                raise RecipeError(f"stage {self.name!r}: {what} = {value!r}{nearest(value, known)}")
        for what in ("steps", "tasks_per_step", "updates_per_step", "epochs"):
            if getattr(self, what) < 1:
                raise RecipeError(
                    f"stage {self.name!r}: {what} must be at least 1, not {getattr(self, what)}"
                )
        if self.refill and not getattr(self.method, "takes_refill", True):
            raise RecipeError(
                f"stage {self.name!r}: refill = {self.refill}, but {self.method.name} draws one conclusion from all "
                "tasks of a step and leaves out those that teach nothing by itself; remove refill, and "
                "raise tasks_per_step where too few are left"
            )
        at_least(
            0,
            refill=self.refill,
            token_budget=self.token_budget,
            warmup_steps=self.warmup_steps,
            learning_rate=self.learning_rate or 0.0,
        )
        for role in self.method.roles:
            if role not in self.roles:
                raise RecipeError(
                    f"stage {self.name!r}: no policy for role {role!r} of {self.method.name}; name one under [stages.roles] (with a single policy it is taken by itself)"
                )

    @cached_property
    def all_terms(self) -> tuple[Any, ...]:
        """The method's terms and the stage's own. One of the stage's with the name of one of the method's takes its
        place: so another surrogate is used inside any method. One that leaves its normalisation open has that of
        the method's first."""
        own, named = self.method.terms, {term.name for term in self.terms}
        terms = (*(t for t in own if t.name not in named), *self.terms)
        if not own or all(term.normalisation for term in terms):
            return terms
        given = {
            "normalisation": own[0].normalisation,
            "constant": getattr(own[0], "constant", 1.0),
        }
        return tuple(t if t.normalisation else replace(t, **given) for t in terms)


@dataclass(frozen=True)
class CheckpointSpec:
    """A checkpoint every ``every`` steps and at the end of each stage; the last ``keep`` stay (0: all)."""

    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        at_least(0, every=self.every, keep=self.keep)


@dataclass(frozen=True)
class Recipe:
    """One experiment: engine, policies, stages. ``resolved`` is the recipe as plain data, defaults
    filled in: it is written to the run directory, and reading it back gives the same Recipe."""

    name: str
    policies: Mapping[str, PolicySpec]
    stages: tuple[Stage, ...]
    engine: str = "torch_local"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    checkpoints: CheckpointSpec = CheckpointSpec()
    trackers: tuple[str, ...] = ()
    record_episodes: bool = True
    library: str = ""
    """The experience library to start from, as ``kolb.libraries`` names one; empty: an empty one."""
    resolved: Mapping[str, Any] = field(default_factory=dict)
