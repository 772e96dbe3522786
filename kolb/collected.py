"""What one step has collected, and which of it is worth learning from.

With ``Stage.refill`` a step samples as in DAPO (arXiv:2503.14476, section 3.2, equation 11): a task whose
attempts all came out alike teaches nothing, so it is thrown away, and further tasks are sampled in its place.
verl stops with an error where its limit of batches is met; here the step goes on with what it has.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from kolb.credit.group_stats import failure_metrics, is_dead
from kolb.order import TaskOrder
from kolb.stage import Stage
from kolb.types import Group, Task


class Collected:
    """The groups of one step, batch by batch. Without ``refill`` there is one batch, and all of it is kept.

    A task is kept or thrown away with all of its groups. It can be told apart if any of them is usable and
    not dead. What is dead the method may say itself (``is_dead(group)``); else it is that all outcomes are
    equal, whatever else a reward is made of: the paper's filter looks at correctness only.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._is_dead = getattr(stage.method, "is_dead", is_dead)
        self._tasks: dict[str, int] = {}  # the batch in which each task was met
        self._told_apart: set[str] = set()
        self.groups: list[Group] = []
        self.refilled = 0
        """Further batches so far."""

    def batches(self, order: TaskOrder, number: int) -> Iterator[list[Task]]:
        """The tasks to collect next: batch ``number`` of ``order``, and those after it while there is need.
        Call ``add`` between two of them.

        No step meets a task twice, as seeds come from step and task: at the turn of an epoch a further batch
        is without those that were met. Where that is all of it there are no more batches in this step.
        """
        for further in range(self._stage.refill + 1):
            if further and len(self._told_apart) >= self._stage.tasks_per_step:
                return
            tasks = [t for t in order.of(number + further) if t.id not in self._tasks]
            if not tasks:
                return
            self.refilled = further
            self._meet(tasks)
            yield tasks

    def add(self, groups: Sequence[Group]) -> None:
        self.groups += groups
        self._meet([group.task for group in groups])  # a method may make tasks of its own
        alive = (g for g in groups if g.usable and not self._is_dead(g))
        self._told_apart |= {group.task.id for group in alive}

    def _meet(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._tasks.setdefault(task.id, self.refilled)

    @property
    def kept(self) -> list[Group]:
        """What there is to learn from: the groups of the first ``tasks_per_step`` tasks that can be told
        apart. Where there is none, those of the first batch: the step is as it would be without ``refill``."""
        if not self._stage.refill:
            return self.groups
        kept = self._kept_tasks()
        return [group for group in self.groups if group.task.id in kept]

    @property
    def thrown_away(self) -> list[Group]:
        """The other groups; they were sampled, and count in tokens, errors and failures."""
        if not self._stage.refill:
            return []
        kept = self._kept_tasks()
        return [group for group in self.groups if group.task.id not in kept]

    def metrics(self) -> dict[str, float]:
        """Over all that was sampled; none without ``refill``, where the method's own say it all."""
        if not self._stage.refill:
            return {}
        metrics: dict[str, float] = {
            "groups/refilled": self.refilled,
            "groups/thrown_away": len(self.thrown_away),
            **failure_metrics(self.groups),
        }
        first = [g for g in self.groups if g.usable and g.kind == self.groups[0].kind]
        if outcomes := [outcome for group in first for outcome in group.outcomes]:
            metrics["reward/sampled"] = statistics.fmean(outcomes)
        return metrics

    def _kept_tasks(self) -> set[str]:
        apart = [task for task in self._tasks if task in self._told_apart]
        first = [task for task, batch in self._tasks.items() if batch == 0]
        return set(apart[: self._stage.tasks_per_step] or first)
