"""A world whose rewards the tests write down, and a scripted model that plays every role of Training-Free GRPO."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from kolb.engines.base import ModelSpec
from kolb.engines.scripted import Scripted
from kolb.errors import SamplerError
from kolb.memory.library import ExperienceLibrary
from kolb.methods.tf_grpo import TfGrpo
from kolb.stage import Limits, Stage
from kolb.types import Edit, Group, Message, StepResult, Task, Update, derive_seed
from kolb.world import LiveWorld

BARE = "Play with words."
Worths = Mapping[str, Sequence[float | None]]
Key = tuple[str, str, int]
"""Who speaks: the name of the call, the task, the index."""


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class OneWord:
    """One message, which ends in what it is worth: ``worth 0.5``, or ``worth None``, times ``scale``."""

    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "system", "content": BARE}, user(f"Say a word about {self.task.id}."))

    async def step(self, message: str) -> StepResult:
        worth = self.task.data["worths"].get(message, None)
        feedback = f"{self.task.data['feedback']} {worth}"
        return StepResult((user("The end."),), worth, terminated=True, feedback=feedback)

    async def fork(self) -> OneWord:
        return OneWord(self.task)

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Words:
    """Attempt ``index`` at a task says ``word INDEX``, and earns the task's reward of that number. ``answer`` is that of
    every task, or a table by task."""

    worths: Worths
    answer: Any = None
    feedback: str = "It was worth"

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(
                name,
                answer=self.answer[name] if isinstance(self.answer, Mapping) else self.answer,
                data={
                    "worths": {f"word {i}": w for i, w in enumerate(row)},
                    "feedback": self.feedback,
                },
            )
            for name, row in self.worths.items()
        ]

    def environment(self, task: Task) -> OneWord:
        return OneWord(task)


def as_json(*operations: Any, prose: str = "I thought about it.") -> str:
    return f"{prose}\n```json\n{json.dumps(list(operations))}\n```"


def add(text: str, **more: Any) -> dict[str, Any]:
    return {"operation": "ADD", "id": None, "content": text, **more}


def update(id: str, text: str | None, **more: Any) -> dict[str, Any]:
    return {"operation": "UPDATE", "id": id, "content": text, **more}


def delete(id: str, text: str | None = None, **more: Any) -> dict[str, Any]:
    return {"operation": "DELETE", "id": id, "content": text, **more}


CALLS = (
    *(("", "solver"), ("before", "solver"), ("after", "solver")),
    *(("summary", "summarizer"), ("lessons", "comparer")),
    *(("proposals", "comparer"), ("proposals-again", "comparer")),
    *(("proposals", "editor"), ("proposals-again", "editor")),
    *(("plan-1", "editor"), ("plan-2", "editor"), ("plan-3", "editor")),
)


@dataclass
class Model:
    """Plays every role; whoever speaks is known by the seed that the world gives.

    ``said`` replaces what it says, by (call, task) or by call alone: a text, or an exception to raise. By default
    each group adds the lesson ``Lesson of TASK.`` and the plan adds what was proposed. ``heard`` is every prompt.
    """

    said: Mapping[Any, Any] = field(default_factory=dict)
    lag: Callable[[], float] = lambda: 0.0
    live: LiveWorld | None = None
    heard: dict[Key, list[Message]] = field(default_factory=dict)

    async def __call__(self, messages: Sequence[Message], seed: int) -> str:
        name, task, index = key = self._speaker(seed)
        await asyncio.sleep(self.lag())
        self.heard[key] = list(messages)
        for known in (key, (name, task), name):
            if known in self.said:
                said = self.said[known]
                said = said(messages) if callable(said) else said
                if isinstance(said, Exception):
                    raise said
                return said
        if name.startswith("plan"):
            new = messages[-1]["content"].partition("<new>\n")[2].partition("\n</new>")[0]
            rows = [line.partition(") ")[::2] for line in new.splitlines() if ") " in line]
            return as_json(*(add(text, **{"from": [int(n[1:])]}) for n, text in rows))
        return {
            "summary": f"Summary {index}.",
            "lessons": f"<Experiences>\n1. Lesson of {task}.\n</Experiences>",
            "proposals": as_json(add(f"Lesson of {task}.")),
            "proposals-again": as_json(add(f"Second thought of {task}.")),
        }.get(name, f"word {index}")

    def _speaker(self, seed: int) -> Key:
        assert self.live is not None
        for task in self.live.stage.source.tasks("train"):
            for index in range(len(task.data["worths"])):
                for name, role in CALLS:
                    if seed == derive_seed(self.live.seed_of(task, index, role, name), 0):
                        return name, task.id, index
        raise AssertionError("nobody has this seed")

    def prompts(self, call: str | None = None) -> list[str]:
        """Every message that was heard, or those of one call, as one text each."""
        return [
            "\n\n".join(str(m["content"]) for m in messages)
            for (name, _, _), messages in sorted(self.heard.items())
            if call is None or name == call
        ]

    def count(self, call: str) -> int:
        return sum(name == call for name, _, _ in self.heard)


@dataclass
class Played:
    model: Model
    groups: list[Group]
    update: Update
    live: LiveWorld

    @property
    def library(self) -> ExperienceLibrary:
        assert isinstance(self.live.library, ExperienceLibrary)
        return self.live.library.apply(self.update.edits)

    @property
    def texts(self) -> list[str]:
        return [e.text for e in self.library.experiences]

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.update.metrics


def library_of(*texts: str) -> ExperienceLibrary:
    return ExperienceLibrary().apply([Edit("add", t, sources=(f"{t}@0",)) for t in texts])


def played(
    method: TfGrpo,
    worths: Worths | Sequence[float | None],
    said: Mapping[Any, Any] | None = None,
    *,
    library: ExperienceLibrary = ExperienceLibrary(),
    step: int = 1,
    shuffle: int | None = None,
    **world: Any,
) -> Played:
    """One step of ``method`` on an endpoint that gives only text: as many tasks as ``worths`` has (one, ``t``, where
    it is a plain list) and as many attempts at each as that has rewards, or none where the method makes none. ``shuffle`` delays answers at random."""
    worths = worths if isinstance(worths, Mapping) else {"t": worths}
    if method.group_size:
        method = replace(method, group_size=len(next(iter(worths.values()))))
    lag = Random(shuffle).random if shuffle is not None else None
    model = Model(said or {}, (lambda: lag() / 100) if lag else (lambda: 0.0))
    roles = dict.fromkeys(method.roles, "agent")
    limits = Limits(environment_timeout_s=5.0, retries=0, max_failure_share=1.0)
    only = Stage("notes", method, Words(worths, **world), 3, roles, limits=limits)
    sampler = Scripted(model, gives_tokens=False).open_sampler(ModelSpec())
    assert sampler.template is None
    live = LiveWorld(only, {"agent": sampler}, library, 7, step, only.sampling)
    model.live = live
    groups = asyncio.run(method.collect(only.source.tasks("train"), live))
    return Played(model, groups, method.credit(groups, None), live)


FAILURE = SamplerError("the endpoint is down")
