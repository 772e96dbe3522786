"""Which tasks a step gets."""

from __future__ import annotations

from random import Random

from kolb.errors import RecipeError
from kolb.stage import Stage
from kolb.types import Task, derive_seed


class TaskOrder:
    """The tasks of a stage, batch by batch: a new seeded order of all tasks in every epoch.

    A step takes one batch, and with ``refill`` further ones. What is left of an epoch and does not fill a
    batch is left out, so that no batch has a task twice. The number of a batch is all that must be known to
    find it again. Raises RecipeError for a split that cannot fill a step, that has nothing to refill one
    from, or that has two tasks of one id.
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
        if stage.refill and len(self._tasks) == self._size:
            raise RecipeError(
                f"{where} has {self._size} tasks, and each step takes all of them, so refill = {stage.refill} finds "
                "no others; lower tasks_per_step, or remove refill"
            )
        if len({task.id for task in self._tasks}) < len(self._tasks):
            raise RecipeError(
                f"{where} has tasks of one id; seeds come from ids, so each needs its own"
            )

    def of(self, batch: int) -> list[Task]:
        """The tasks of batch number ``batch`` of the stage, counted from 0."""
        epoch, place = divmod(batch, len(self._tasks) // self._size)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._tasks)))
            Random(derive_seed(self._seed, epoch)).shuffle(self._order)
        chosen = self._order[place * self._size : (place + 1) * self._size]
        return [self._tasks[i] for i in chosen]
