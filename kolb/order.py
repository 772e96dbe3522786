"""Which tasks a step gets."""

from __future__ import annotations

from random import Random

from kolb.errors import RecipeError
from kolb.stage import Stage
from kolb.types import Task, derive_seed


class TaskOrder:
    """The tasks of each step of a stage: a new seeded order of all tasks in every epoch.

    What is left of an epoch and does not fill a step is left out, so that no step meets a task twice.
    The cursor is the step itself: there is nothing to save. Raises RecipeError for a split that cannot
    fill a step, or that has two tasks of one id.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self._tasks = list(stage.source.tasks(stage.split))
        self._size = stage.tasks_per_step
        self._seed = derive_seed(seed, stage.name, "order")
        self._epoch = -1
        self._order: list[int] = []
        where = f"stage {stage.name!r}: split {stage.split!r}"
        if len(self._tasks) < self._size:
            raise RecipeError(
                f"{where} has {len(self._tasks)} tasks, fewer than tasks_per_step = {self._size}; "
                "lower tasks_per_step, or give it more tasks"
            )
        if len({task.id for task in self._tasks}) < len(self._tasks):
            raise RecipeError(
                f"{where} has tasks of one id; seeds come from ids, so each needs its own"
            )

    def of(self, step: int) -> list[Task]:
        """The tasks of the stage's step number ``step``, counted from 0."""
        epoch, place = divmod(step, len(self._tasks) // self._size)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._tasks)))
            Random(derive_seed(self._seed, epoch)).shuffle(self._order)
        chosen = self._order[place * self._size : (place + 1) * self._size]
        return [self._tasks[i] for i in chosen]
