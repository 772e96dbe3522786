"""One task under test: guarded calls, messages that may do something, and a place to report what was seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kolb.boundary import (
    checked_environment,
    checked_messages,
    checked_step,
    guarded_call,
    place_of,
)
from kolb.envs.base import EnvironmentSource, shorten
from kolb.errors import EnvironmentFailure, KolbError, RecipeError
from kolb.types import Environment, Message, StepResult, Task

ROLES = ("system", "user", "assistant", "tool")
LONGEST = 40
"""Messages in a plan: as many as the checker plays in one episode, the expert's aside."""


@dataclass(frozen=True)
class Problem:
    """One breach: which rule, on which task (empty: the source itself), what was seen and what was expected.
    ``is_note``: nothing is wrong, but whoever wrote the environment may want to know."""

    name: str
    task: str
    seen: str
    expected: str = ""
    is_note: bool = False

    def __str__(self) -> str:
        where = f" (task {self.task})" if self.task else ""
        expected = f"; expected {self.expected}" if self.expected else ""
        return f"{self.name}{where}: {self.seen}{expected}"


@dataclass
class Probe:
    """One task under test, and what was found. Every call outside is guarded and checked for types."""

    source: EnvironmentSource
    task: Task
    rng: np.random.Generator
    timeout_s: float
    problems: list[Problem] = field(default_factory=list)
    live: list[Environment] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)
    """Where the user's code raised so far: one fault that breaks many rules is reported once."""

    def report(self, name: str, seen: str, expected: str) -> None:
        self.problems.append(Problem(name, self.task.id, seen, expected))

    def note(self, name: str, seen: str) -> None:
        self.problems.append(Problem(name, self.task.id, seen, is_note=True))

    def report_error(self, name: str, error: KolbError, seen: str, expected: str) -> None:
        """Reports an error of the user's code, unless the same line has raised before."""
        fault = place_of(error) or str(error)
        if fault not in self.faults:
            self.report(name, seen, expected)
        self.faults.add(fault)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        what = getattr(function, "__name__", "call")
        return await guarded_call(function, *arguments, what=what, seconds=self.timeout_s)

    async def new(self) -> Environment:
        environment = await self.call(self.source.environment, self.task)
        self.live.append(checked_environment(environment))
        return self.live[-1]

    async def fork(self, environment: Environment) -> Environment:
        self.live.append(await self.call(environment.fork))
        return self.live[-1]

    async def close_all(self) -> None:
        while self.live:
            try:
                await self.call(self.live.pop().close)
            except KolbError as error:
                expected = "close to return, whatever happened before"
                self.report_error("close", error, str(error), expected)

    async def opened(self) -> tuple[Environment, tuple[Message, ...]]:
        environment = await self.new()
        opening = checked_messages(await self.call(environment.reset), "reset()")
        return environment, opening

    async def step(self, environment: Environment, message: str) -> StepResult:
        return checked_step(await self.call(environment.step, message), "step()")

    async def optional(self, name: str) -> Any:
        """What ``source.expert(task)`` and the like give; None where there is none."""
        function = getattr(self.source, name, None)
        if function is None:
            return None
        try:
            return await self.call(function, self.task)
        except RecipeError:
            return None

    async def expert(self) -> list[str] | None:
        """The expert's messages; None where there is no expert."""
        messages = await self.optional("expert")
        if messages is None:
            return None
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise EnvironmentFailure(
                f"expert(task) gave {shorten(messages, 60)}, not a list of messages"
            )
        return [str(message) for message in messages]

    async def play(self, environment: Environment, messages: Sequence[str]) -> list[StepResult]:
        """Results until the messages or the episode end."""
        results: list[StepResult] = []
        for message in messages:
            results.append(await self.step(environment, message))
            if is_over(results[-1]):
                break
        return results

    async def plan(self, opening: Sequence[Message]) -> list[str]:
        """Messages that may do something: the expert's in another order, and words of the prompt."""
        expert = await self.expert() or []
        words = re.findall(r"\w+", " ".join(str(m.get("content") or "") for m in opening)) or ["x"]
        pool = [*expert, *words, *(f"```{word}```" for word in words)]
        picks = self.rng.integers(len(pool), size=LONGEST)
        plan = [pool[i] for i in picks]
        for at in range(0, LONGEST, 2):
            if expert:
                plan[at] = expert[int(self.rng.integers(len(expert)))]
        return plan


def is_over(result: StepResult) -> bool:
    return result.terminated or result.truncated


def is_well_formed(message: Message) -> bool:
    content = message.get("content")
    has_text = isinstance(content, str) or (content is None and bool(message.get("tool_calls")))
    return message.get("role") in ROLES and (has_text or isinstance(content, list))


def seen_in(results: Sequence[StepResult]) -> list[Any]:
    return [(r.observation, r.reward, r.terminated, r.truncated, r.feedback) for r in results]


def compare(
    probe: Probe, name: str, first: Sequence[Any], second: Sequence[Any], expected: str
) -> None:
    """Reports the first place where two records differ."""
    for number, (one, other) in enumerate(zip(first, second, strict=False), start=1):
        if one != other:
            probe.report(name, f"at step {number} {shorten(one)} and {shorten(other)}", expected)
            return
    if len(first) != len(second):
        probe.report(name, f"episodes of {len(first)} and {len(second)} steps", expected)
