"""A small world, agents and methods for the tests of the loop. No weights anywhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from kolb.credit.advantages import centre
from kolb.credit.examples import to_examples
from kolb.credit.group_stats import group_metrics
from kolb.engines.base import ModelSpec
from kolb.engines.scripted import Scripted
from kolb.errors import RewardError
from kolb.methods.grpo import Grpo
from kolb.stage import Limits, PolicySpec, Recipe, Stage
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import Edit, Episode, Group, Message, StepResult, Task, Update, World, derive_seed

WORDS = ("red", "green", "blue", "gold")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class GuessWorld:
    """Two guesses at a word; the second step ends it. Reward 1 for the right word, whenever it comes."""

    def __init__(self, task: Task, trouble: str, log: list[str]) -> None:
        self.task, self.trouble, self.log = task, trouble, log
        self.steps = 0

    async def reset(self) -> tuple[Message, ...]:
        self.log.append("open")
        return ({"role": "system", "content": "Guess a word."}, user(f"Guess {self.task.id}."))

    async def step(self, message: str) -> Any:
        self.steps += 1
        match self.trouble:
            case "raises":
                raise ZeroDivisionError("the world is broken")
            case "hangs":
                time.sleep(30)
            case "spins":
                while True:
                    pass
            case "stubborn":
                while True:
                    try:
                        time.sleep(30)
                    except Exception:
                        continue
            case "grader":
                raise RewardError("correct() of grader.py raised KeyError: 'answer'")
            case "waits":
                await asyncio.sleep(30)
            case "swallows":
                while True:
                    try:
                        await asyncio.sleep(30)
                    except asyncio.CancelledError:
                        continue
            case "text":
                return "correct!"
            case "none":
                return None
            case "nan":
                return StepResult(reward=float("nan"), terminated=True)
            case "reward text":
                return StepResult(reward="1.0", terminated=True)  # type: ignore[arg-type]
            case "flag":
                return StepResult(reward=1.0, terminated="yes")  # type: ignore[arg-type]
            case "silent":
                return StepResult(reward=0.0)
            case "abstains":
                return StepResult(reward=None, terminated=True)
        right = message == self.task.answer
        return StepResult(
            (user("Right." if right else "Wrong, again."),),
            reward=float(right),
            terminated=right or self.steps >= 2,
            feedback="right" if right else "wrong",
        )

    async def fork(self) -> GuessWorld:
        copy = GuessWorld(self.task, self.trouble, self.log)
        copy.steps = self.steps
        return copy

    async def close(self) -> None:
        self.log.append("close")


@dataclass(frozen=True)
class Guess:
    """``trouble`` is what goes wrong, in tasks whose number is below ``troubled``, until each of them was
    built ``mends_after`` times (0: never)."""

    trouble: str = ""
    troubled: int = 0
    mends_after: int = 0
    size: int = 16
    log: list[str] = field(default_factory=list, compare=False)
    built: dict[str, int] = field(default_factory=dict, compare=False)

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(f"{split}-{i}", answer=WORDS[i % 4], seed=i, data={"number": i})
            for i in range(self.size)
        ]

    def environment(self, task: Task) -> GuessWorld:
        self.built[task.id] = self.built.get(task.id, 0) + 1
        is_mended = self.mends_after and self.built[task.id] > self.mends_after
        is_troubled = task.data["number"] < self.troubled and not is_mended
        return GuessWorld(task, self.trouble if is_troubled else "", self.log)

    def expert(self, task: Task) -> list[str]:
        return [task.answer]


def guess(messages: Sequence[Message], seed: int) -> str:
    """Any of the four words, by the seed."""
    return WORDS[derive_seed(seed) % 4]


def recipe(
    method: Any = Grpo(group_size=4), source: Any = None, *, steps: int = 3, **stage: Any
) -> Recipe:
    """A recipe of one stage on the guessing world; one policy plays every role and learns."""
    roles = stage.pop("roles", {role: "agent" for role in method.roles})
    learn = stage.pop("learn", tuple(sorted(set(roles.values()))))
    stage = {"tasks_per_step": 4, "limits": Limits(environment_timeout_s=0.3), **stage}
    only = Stage("toy", method, Guess() if source is None else source, steps, roles, learn, **stage)
    return Recipe(
        "toy", {p: PolicySpec(ModelSpec(base="none")) for p in set(roles.values())}, (only,)
    )


def engine(answer: Any = guess, **options: Any) -> Scripted:
    return Scripted(answer, **options)


@dataclass(frozen=True)
class Coach:
    """A toy with everything at once: the player attempts, the coach reflects on what happened, the player
    attempts again with the reflection as its system prompt; beside it a sibling group of forecasts by the
    player; two policies, both learning; edits and a state that grows."""

    group_size: int = 3
    name: ClassVar[str] = "coach"
    roles: ClassVar[tuple[str, ...]] = ("player", "coach")
    needs: ClassVar[frozenset[str]] = frozenset({"sample", "tokens", "logprobs", "train"})

    @property
    def terms(self) -> tuple[Any, ...]:
        return (PolicyGradient(),)

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        async def attempt(task: Task, index: int) -> Episode:
            first = await world.play(task, role="player", index=index, name="first")
            told = [user(f"{first.trajectory('player').text}. How to do better?")]
            advice = await world.ask("coach", told, task=task, index=index)
            second = await world.play(
                task, role="player", index=index, system=advice.text, name="second"
            )
            gain = (second.outcome or 0.0) - (first.outcome or 0.0)
            advice = replace(advice, scores={"reward": gain})
            trajectories = (*first.trajectories, advice, *second.trajectories)
            return replace(second, trajectories=trajectories)

        async def forecast(task: Task, index: int) -> Episode:
            said = await world.ask(
                "player", [user("How often?")], task=task, index=index, name="forecast"
            )
            return Episode(task.id, index, (said,), outcome=float(len(said.text)))

        attempts = await world.groups(tasks, self.group_size, attempt)
        return attempts + await world.groups(tasks, 2, forecast, kind="forecast")

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        examples = []
        attempts = [g for g in groups if g.kind == "attempt" and g.usable]
        for group in attempts:
            for role, name in (("player", "first"), ("coach", ""), ("player", "second")):
                trajectories = [e.trajectory(role, name) for e in group.episodes]
                for t, a in zip(
                    trajectories, centre([t.reward for t in trajectories]), strict=True
                ):
                    examples += to_examples(t, advantage=a)
        seen = [*(state or {"seen": []})["seen"], len(examples)]
        edits = [Edit("add", f"{len(seen)} steps seen", sources=(groups[0].task.id,))]
        return Update(
            tuple(examples), tuple(edits), tuple(groups), {"seen": seen}, group_metrics(attempts)
        )


@dataclass(frozen=True)
class Poisoned(Grpo):
    """A toy whose advantages are NaN from stage step ``after`` on."""

    after: int = 0
    name: ClassVar[str] = "poisoned"

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        update = super().credit(groups, None)
        count = state or 0
        if count < self.after:
            return replace(update, state=count + 1)
        bad = [replace(e, advantages=np.full_like(e.advantages, np.nan)) for e in update.examples]
        return replace(update, examples=tuple(bad), state=count + 1)


# -------------------------------------------------------------------------------- observers


class StoppedError(Exception):
    """Thrown by an observer: the run dies between two steps."""


class StopsAfter:
    """Keeps the notes; kills the run after step ``step`` (-1: never)."""

    def __init__(self, step: int = -1) -> None:
        self.last = step
        self.notes: list[str] = []

    def step(self, stage: str, step: int, metrics: Any) -> None:
        if step == self.last:
            raise StoppedError

    def activity(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)
