"""A World in which answers are given beforehand: what the method asks there is what it asks in a run."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from kolb.memory.library import ExperienceLibrary
from kolb.types import Completion, EpisodeMaker, Group, Message, Task, Trajectory, Turn

T = TypeVar("T")
EMPTY = ExperienceLibrary()
ANSWERS: Mapping[tuple[str, str], str] = {}


class Desk:
    """``asked`` holds the last question of each name (``summary``, ``lessons``, ``proposals``, ``plan-1``).

    ``answers`` are by name and task; anything else is answered by an empty list.
    """

    def __init__(
        self,
        library: ExperienceLibrary = EMPTY,
        answers: Mapping[tuple[str, str], str] = ANSWERS,
    ) -> None:
        self.step = 0
        self.library = library
        self.answers = answers
        self.asked: dict[str, list[Message]] = {}

    async def groups(
        self, tasks: Sequence[Task], size: int, make: EpisodeMaker, *, kind: str = "attempt"
    ) -> list[Group]:
        return [Group(t, tuple([await make(t, i) for i in range(size)]), kind) for t in tasks]

    async def ask(
        self, role: str, messages: Sequence[Message], *, task: Task, name: str = "", **options: Any
    ) -> Trajectory:
        self.asked[name] = list(messages)
        said = Completion(self.answers.get((name, task.id), "[]"))
        return Trajectory(role, turns=(Turn(tuple(messages), said),), name=name)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that waits for nothing returns, without an event loop.

    Raises RuntimeError where it waits after all.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("this waits for something, and cannot be done at once")
