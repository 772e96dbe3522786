"""What a run will ask of its policies, estimated before it asks for anything.

Counts come from the method (``calls``), sizes from the openings of a few tasks. Much is open until the run is made: how
many groups teach, how many turns an attempt takes, how long answers and lessons are. ``likely`` takes half of what is
open, ``most`` all of it; tries that fail and are made again are in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from kolb.guarded import guarded_environment
from kolb.stage import Recipe, Stage
from kolb.types import Calls, Message

BYTES_PER_TOKEN = 4
"""Of English prose with the tokenizers of today, about."""

MEASURED = 5
"""Openings that are looked at, from the top of the split."""

SHARES = {"likely": 0.5, "most": 1.0}


@dataclass(frozen=True)
class Amount:
    """Requests and tokens; not whole numbers, as they are means."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def __mul__(self, times: float) -> Amount:
        return Amount(
            self.requests * times, self.prompt_tokens * times, self.completion_tokens * times
        )


@dataclass
class Estimate:
    """Amounts by role and policy. ``silent`` are the methods that do not say how often they ask."""

    likely: dict[tuple[str, str], Amount] = field(default_factory=dict)
    most: dict[tuple[str, str], Amount] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    def add(self, role: str, policy: str, amounts: Mapping[str, Amount]) -> None:
        for name, amount in amounts.items():
            sums: dict[tuple[str, str], Amount] = getattr(self, name)
            sums[role, policy] = sums.get((role, policy), Amount()) + amount


@dataclass(frozen=True)
class Sizes:
    """Of a stage's prompts and answers: tokens of an ``opening`` and of what an environment ``says`` afterwards
    (taken to be the last message of its opening), the turns of an attempt and the tokens of an answer at most."""

    opening: float
    says: float
    turns: int
    max_tokens: int
    keeps_all: bool

    def attempt(self, calls: Calls, share: float) -> Amount:
        """One attempt: with ``history = "all"`` each turn is shown everything before it."""
        turns, answer = self.turns_of(share), share * self.max_tokens
        prompt = turns * (self.opening + calls.instructions + share * calls.lessons)
        if self.keeps_all:
            prompt += (answer + self.says) * turns * (turns - 1) / 2
        return Amount(turns, prompt, turns * answer)

    def answer(self, calls: Calls, share: float) -> Amount:
        """One answer of another role, about the attempts and answers that it is shown."""
        answer = share * (calls.max_tokens or self.max_tokens)
        turns = self.turns_of(share)
        text = turns * share * self.max_tokens + (turns - 1) * self.says
        shown = self.opening + calls.attempts * text + calls.answers * answer
        return Amount(1, calls.instructions + share * calls.lessons + shown, answer)

    def turns_of(self, share: float) -> float:
        return 1 + share * (self.turns - 1)


async def estimate(recipe: Recipe) -> Estimate:
    """Of all stages of ``recipe`` with their evaluations. Opens environments and asks no policy anything; a failure
    of an environment raises as it would in the run (EnvironmentFailure, DeadlineError)."""
    found = Estimate()
    for stage in recipe.stages:
        if not hasattr(stage.method, "calls"):
            found.silent.append(stage.method.name)
            continue
        sizes = await measured(stage)
        for role, calls in asked(stage):
            is_attempt = role == stage.method.roles[0]
            of = sizes.attempt if is_attempt else sizes.answer
            amounts = {
                name: of(calls, share) * (calls.least + share * (calls.most - calls.least))
                for name, share in SHARES.items()
            }
            found.add(role, stage.roles[role], amounts)
    return found


def asked(stage: Stage) -> Iterator[tuple[str, Calls]]:
    """The calls of every step, and of the evaluations, by role."""
    method: Any = stage.method
    for step in range(1, stage.steps + 1):
        for role, calls in method.calls(stage.tasks_per_step, step).items():
            yield role, replace(calls, most=calls.most * (1 + stage.refill))
    spec = stage.evaluation
    if spec is None:
        return
    tasks = len(stage.source.tasks(spec.split))
    attempts = spec.samples * (min(spec.episodes, tasks) or tasks)
    for step in evaluations(stage):
        shown = method.calls(stage.tasks_per_step, step + 1).get(method.roles[0], Calls(0, 0))
        yield method.roles[0], replace(shown, least=attempts, most=attempts)


def evaluations(stage: Stage) -> list[int]:
    """The steps after which the stage is evaluated; 0 is its start."""
    assert stage.evaluation is not None
    every = stage.evaluation.every
    due = {step for step in range(1, stage.steps) if every and step % every == 0}
    return sorted({*due, stage.steps, *((0,) if stage.evaluation.at_start else ())})


async def measured(stage: Stage) -> Sizes:
    """The sizes of a stage, from the openings of its first tasks."""
    openings: list[tuple[Message, ...]] = []
    for task in list(stage.source.tasks(stage.split))[:MEASURED]:
        seconds = stage.limits.environment_timeout_s
        async with guarded_environment(stage.source, task, seconds) as environment:
            openings.append(tuple(await environment.reset()))
    turns = getattr(stage.source, "max_steps", 0) or stage.limits.max_turns
    return Sizes(
        opening=fmean(sum(map(tokens_of, opening)) for opening in openings),
        says=fmean(tokens_of(opening[-1]) if opening else 0 for opening in openings),
        turns=min(turns, stage.limits.max_turns),
        max_tokens=stage.sampling.max_tokens,
        keeps_all=stage.history == "all",
    )


def tokens_of(message: Message) -> float:
    return len(str(message.get("content") or "").encode()) / BYTES_PER_TOKEN
