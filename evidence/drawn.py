"""Tasks of a controlled task: so many of each split, each drawn from a seed of its own."""

from __future__ import annotations

from collections.abc import Sequence

from kolb.envs.base import SPLITS
from kolb.errors import RecipeError, at_least, nearest
from kolb.types import Task, derive_seed


class DrawnTasks:
    """For a frozen dataclass with these options; a task's tag ``split`` says which one it is of."""

    train_tasks: int
    dev_tasks: int
    test_tasks: int
    seed: int

    def check_counts(self) -> None:
        """RecipeError where a split would be empty."""
        at_least(1, train=self.train_tasks, dev=self.dev_tasks, test=self.test_tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise RecipeError(f"no split {split!r}{nearest(split, SPLITS)}")
        return [
            Task(f"{split}-{i}", seed=derive_seed(self.seed, split, i), tags={"split": split})
            for i in range(getattr(self, f"{split}_tasks"))
        ]
