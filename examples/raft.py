"""RAFT: Reward rAnked FineTuning (rejection sampling). Dong et al., arXiv:2304.06767.

A whole method in one file, as an example of the first door (CONTRIBUTING.md). In a recipe:
``method = "examples/raft.py"``.

Followed: the three steps of its algorithm. Sample K answers to each prompt, keep the one with the highest
reward, fine-tune on what was kept. In the next step the new weights sample.

Words: prompt = Task; answer = Trajectory; the K answers to one prompt = Group.

Differences: the paper's reward model ranks any answers, so there the best of K is always kept. Our rewards
are absolute, so a best answer that earned no more than ``above`` is a failure and is not imitated. One
optimiser step per round by default, where the paper fine-tunes for several (``epochs`` in a recipe).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kolb.credit.examples import to_examples
from kolb.credit.group_stats import group_metrics
from kolb.errors import RecipeError
from kolb.terms.cross_entropy import CrossEntropy
from kolb.types import Episode, Group, Task, Trajectory, Update, World


@dataclass(frozen=True)
class Raft:
    group_size: int = 8
    """K, answers per prompt."""
    above: float = 0.0
    """What the best answer must have earned more than."""

    name: ClassVar[str] = "raft"
    roles: ClassVar[tuple[str, ...]] = ("solver",)
    needs: ClassVar[frozenset[str]] = frozenset({"sample", "tokens", "train"})
    terms: ClassVar[tuple[Any, ...]] = (CrossEntropy(),)

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise RecipeError(
                f"raft: group_size = {self.group_size}; there must be an answer to keep"
            )

    def best(self, group: Group) -> Trajectory | None:
        """The answer with the highest reward, the first among equals; None where none is above ``above``."""
        answers = [episode.trajectory("solver") for episode in group.episodes]
        good = [a for a in answers if a.reward is not None and a.reward > self.above]
        return max(good, key=lambda a: a.reward or 0.0, default=None)

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        """K answers to each prompt."""

        async def attempt(task: Task, index: int) -> Episode:
            return await world.play(task, role="solver", index=index)

        return await world.groups(tasks, self.group_size, attempt)

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        """The best answer of each group becomes a target; groups with a broken episode are left out."""
        kept = [(g.task.id, best) for g in groups if g.usable and (best := self.best(g))]
        examples = [
            example
            for task_id, best in kept
            for example in to_examples(best, stream="imitation", sequence=task_id)
        ]
        metrics = group_metrics(groups)
        metrics["raft/kept"] = len(kept)
        return Update(tuple(examples), groups=tuple(groups), state=state, metrics=metrics)


METHOD = Raft()
