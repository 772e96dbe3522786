"""Where tasks come from and how a world is built: the one door for environments.

An environment module names a class in ``ENVIRONMENT``. It is a frozen dataclass whose fields are the
options a recipe may set; ``tasks(split)`` lists its Tasks and ``environment(task)`` builds the single-use
world of one of them. That is all: no registry, no base class to inherit from.

    @dataclass(frozen=True)
    class Guess:
        high: int = 10
        def tasks(self, split): return [Task(id=f"{split}-{i}", seed=i) for i in range(100)]
        def environment(self, task): return GuessWorld(task, self.high)

    ENVIRONMENT = Guess

Optional further methods: ``expert(task)`` gives the agent messages of a solution, one per turn;
``demonstration(task)`` gives a whole chat; ``gold(task)`` a message that must score the full reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kolb.types import Environment, Task

SPLITS = ("train", "dev", "test")


@runtime_checkable
class EnvironmentSource(Protocol):
    """A family of worlds. ``tasks`` is deterministic: the same split lists the same tasks in the same order.

    ``train`` may be learnt from, ``dev`` is for choosing, ``test`` is for reporting; they share no task.
    """

    def tasks(self, split: str) -> Sequence[Task]: ...
    def environment(self, task: Task) -> Environment: ...
