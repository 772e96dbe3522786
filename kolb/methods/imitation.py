"""Imitation: supervised learning on demonstrations (behaviour cloning, SFT).

Not one paper: Pomerleau's ALVINN (1988) is the first, and every method here that starts from an instructed
model starts from this. The loss is the cross-entropy of the assistant's tokens, as in InstructGPT
(arXiv:2203.02155, section 3.4); tokens of prompts, tools and environments are context and carry no loss.

Words: demonstration = Trajectory whose completions are ``given``. It comes from the environment source:
a whole chat (a file of OpenAI messages), or an expert's actions played through the environment.

Omitted: packing tricks and loss on prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kolb.credit.examples import to_examples
from kolb.credit.group_stats import group_metrics
from kolb.terms.cross_entropy import CrossEntropy
from kolb.types import Calls, Episode, Example, Group, Task, Update, World


@dataclass(frozen=True)
class Imitation:
    normalisation: str = "token-mean"
    """``sequence-mean``: a short demonstration counts as much as a long one."""

    name: ClassVar[str] = "imitation"
    roles: ClassVar[tuple[str, ...]] = ("solver",)
    needs: ClassVar[frozenset[str]] = frozenset({"tokens", "train"})
    needs_expert: ClassVar[bool] = True

    @property
    def terms(self) -> tuple[Any, ...]:
        return (CrossEntropy(normalisation=self.normalisation),)

    def calls(self, tasks: int, step: int) -> dict[str, Calls]:
        """Nobody is asked: the expert has spoken."""
        return {}

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        """One demonstration of every task."""

        async def demonstration(task: Task, index: int) -> Episode:
            return await world.demonstrate(task, role="solver", index=index)

        return await world.groups(tasks, 1, demonstration, kind="demonstration")

    def is_dead(self, group: Group) -> bool:
        """Never: a demonstration is compared with nothing."""
        return False

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        """Every assistant token is a target of weight 1, whatever the demonstration earned."""
        examples: list[Example] = []
        for group in groups:
            if group.usable:
                demonstration = group.episodes[0].trajectory("solver")
                examples += to_examples(demonstration, stream="imitation", sequence=group.task.id)
        metrics = group_metrics(groups)
        del metrics["groups/dead"]  # One demonstration is compared with nothing.
        return Update(tuple(examples), groups=tuple(groups), state=state, metrics=metrics)


METHOD = Imitation()
