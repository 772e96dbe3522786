"""A world whose rewards the tests write down, and a scripted agent that earns them. No weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kolb.engines.base import ModelSpec
from kolb.engines.scripted import Scripted
from kolb.memory.library import ExperienceLibrary
from kolb.methods.erl import Erl
from kolb.stage import Limits, Stage
from kolb.types import Example, Group, Message, StepResult, Task, Update, derive_seed
from kolb.world import LiveWorld

BARE = "Play with words. Answer in one line."
Worths = Mapping[str, Sequence[float | None]]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class TwoLooks:
    """Two messages; the second one says itself what it is worth: ``worth 0.5``, or ``worth None``."""

    def __init__(self, task: Task) -> None:
        self.task, self.steps = task, 0

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "system", "content": BARE}, user(f"First look at {self.task.id}."))

    async def step(self, message: str) -> StepResult:
        self.steps += 1
        if self.steps == 1:
            look = user(f"Second look at {self.task.id}.")
            return StepResult((look,), reward=None, feedback="It goes on.")
        worth = message.split()[-1]
        reward = None if worth == "None" else float(worth)
        return StepResult(
            (user("The end."),), reward, terminated=True, feedback=f"It was worth {worth}."
        )

    async def fork(self) -> TwoLooks:
        copy = TwoLooks(self.task)
        copy.steps = self.steps
        return copy

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Looks:
    size: int = 4

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", seed=i) for i in range(self.size)]

    def environment(self, task: Task) -> TwoLooks:
        return TwoLooks(task)


def rules(task: str, index: int) -> str:
    """What the scripted reflector puts between its tags."""
    return f"The rules of {task}, try {index}."


@dataclass
class Actor:
    """Earns ``first`` and ``second`` (by task, then by rollout), and reflects; whoever speaks is known by the
    seed that the world gives. ``reflections`` replace the reflector's words. ``heard`` is every prompt, in order."""

    first: Worths
    second: Worths = field(default_factory=dict)
    reflections: Mapping[tuple[str, int], str] = field(default_factory=dict)
    live: LiveWorld | None = None
    heard: dict[tuple[str, str, int], list[list[Message]]] = field(default_factory=dict)

    def __call__(self, messages: Sequence[Message], seed: int) -> str:
        name, task, index = self._speaker(seed)
        self.heard.setdefault((name, task, index), []).append(list(messages))
        if name == "reflect":
            usual = f"Let me see.\n<prompt>\n{rules(task, index)}\n</prompt>\nDone."
            return self.reflections.get((task, index), usual)
        if messages[-1]["content"].startswith("First"):
            return f"{name} {index} looks"
        worths = self.first if name == "first" else self.second
        return f"{name} {index}, worth {worths[task][index]}"

    def _speaker(self, seed: int) -> tuple[str, str, int]:
        assert self.live is not None
        for task in self.live.stage.source.tasks("train"):
            for index in range(len(self.first.get(task.id, ()))):
                for name, role in (
                    ("first", "solver"),
                    ("reflect", "reflector"),
                    ("second", "solver"),
                ):
                    own = self.live.seed_of(task, index, role, name)
                    if seed in (derive_seed(own, 0), derive_seed(own, 1)):
                        return name, task.id, index
        raise AssertionError("nobody has this seed")


@dataclass
class Played:
    actor: Actor
    groups: list[Group]
    update: Update
    live: LiveWorld

    @property
    def advantages(self) -> dict[str, list[float]]:
        """By task and segment, rounded."""
        found: dict[str, list[float]] = {}
        for example in self.update.examples:
            task, _, segment = example.sequence.split("/")
            assert example.advantages is not None
            worth = example.advantages[example.weights["policy"] > 0]
            assert (worth == worth[0]).all()
            found.setdefault(f"{task} {segment}", []).append(round(float(worth[0]), 4))
        return found

    def row(self, segment: str, index: int = 0, task: str = "train-0") -> Example:
        return next(e for e in self.update.examples if e.sequence == f"{task}/{index}/{segment}")

    @property
    def library(self) -> ExperienceLibrary:
        assert isinstance(self.live.library, ExperienceLibrary)
        return self.live.library.apply(self.update.edits)


def played(
    method: Erl,
    first: Worths | Sequence[float | None],
    second: Worths | Sequence[float | None] = (),
    *,
    reflections: Mapping[tuple[str, int], str] = {},
    library: ExperienceLibrary = ExperienceLibrary(),
    step: int = 1,
    **stage: Any,
) -> Played:
    """One step of ``method``: as many tasks as ``first`` has (one where it is a plain list), and as many
    cycles of each as that has rewards."""
    first = first if isinstance(first, Mapping) else {"train-0": first}
    second = second if isinstance(second, Mapping) else {"train-0": second}
    method = replace(method, group_size=len(next(iter(first.values()))))
    actor = Actor(first, second, reflections)
    roles = {"solver": "agent", "reflector": "agent"}
    limits = Limits(environment_timeout_s=5.0, retries=0)
    only = Stage("rl", method, Looks(), 3, roles, ("agent",), limits=limits, **stage)
    sampler = Scripted(actor).open_sampler(ModelSpec())
    live = LiveWorld(only, {"agent": sampler}, library, 7, step, only.sampling)
    actor.live = live
    tasks = [t for t in only.source.tasks("train") if t.id in first]
    groups = asyncio.run(method.collect(tasks, live))
    return Played(actor, groups, method.credit(groups, None), live)


def text(ids: Any) -> str:
    return "".join(map(chr, ids))
