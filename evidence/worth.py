"""The controlled task of the evidence for Training-Free GRPO: what one attempt cannot tell and several can.

Of twelve letters a hidden half is worth more: that is the world, and ``seed`` names it. A task offers three letters (or
another number), one of them of the better half, and the agent says one:

    offer F C A  ->  F

It earns ``(richness + worth) / 10``. ``worth`` is 1 for the good letter, else 0. ``richness``, a whole number from 0 to 9, is
drawn for each task and hidden. So one reward says next to nothing: only 0 (surely a bad letter) and 1 (surely the
good one) tell, in one attempt of ten. Two attempts at one task that differ in reward tell all, whatever the
richness is: a baseline of the task's own is why GRPO has groups. Without rewards nothing can be told.

The score ``success`` is whether the good letter was said. With ``richest = 0`` it is also the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from kolb.envs.base import SPLITS, Replayable, hashed_split
from kolb.errors import RecipeError, at_least, nearest
from kolb.methods.tf_grpo import METHOD
from kolb.models.notes.prompts import NOTES as KNOWN
from kolb.types import Environment, Message, StepResult, Task, derive_seed

LETTERS = tuple("ABCDEFGHIJKL")
MOST_OFFERED = 1 + len(LETTERS) // 2
"""With one good letter among them."""

NOTES = replace(
    METHOD,
    prompts=replace(
        KNOWN,
        comparison="compare attempts : what is better ?",
        tips="compare attempts : what is better ?",
    ),
    summarises=False,
    lessons_per_group=2,
    note_tokens=320,
)
"""The method with the prompts of the embedded model ``notes``, from which ``evidence.worth_base`` starts. An attempt is short
enough to be compared as it is."""


@dataclass(frozen=True)
class Offer:
    """One task: the letters in the order shown, the good one among them, and how rich it is."""

    letters: tuple[str, ...]
    good: str
    richness: int
    scale: int = 10

    @property
    def text(self) -> str:
        return " ".join(("offer", *self.letters))

    def reward(self, letter: str) -> float:
        return (self.richness + (letter == self.good)) / self.scale


@lru_cache(maxsize=4096)
def good_letters(seed: int, split: str) -> frozenset[str]:
    """The better half in world ``seed``. The halves are divided among the splits, by a hash: agents learn in
    those of ``test``, and no model is taught with them."""
    rng = Random(derive_seed("worth", seed))
    while True:
        good = frozenset(rng.sample(LETTERS, len(LETTERS) // 2))
        if hashed_split("worth", *sorted(good)) == split:
            return good


def offer_split(letters: Sequence[str]) -> str:
    """A third of all sets of letters each: in a tenth of them some good letter might be missing."""
    return SPLITS[derive_seed("offer", *sorted(letters)) % len(SPLITS)]


def draw_offer(rng: Random, good: frozenset[str], *, size: int, richest: int) -> Offer:
    """One letter of ``good`` among ``size``, in any order."""
    right = rng.choice(sorted(good))
    others = rng.sample(sorted(set(LETTERS) - good), size - 1)
    letters = tuple(rng.sample([right, *others], size))
    return Offer(letters, right, rng.randint(0, richest), richest + 1)


@dataclass(frozen=True)
class Worth:
    """Sets of letters are divided among the splits, so none of ``test`` is ever offered where notes are taken."""

    offered: int = 3
    richest: int = 9
    train_tasks: int = 600
    dev_tasks: int = 200
    test_tasks: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, train=self.train_tasks, dev=self.dev_tasks, test=self.test_tasks)
        at_least(0, richest=self.richest)
        if not 2 <= self.offered <= MOST_OFFERED:
            raise RecipeError(f"offered = {self.offered}: expected 2 to {MOST_OFFERED} letters")

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise RecipeError(f"no split {split!r}{nearest(split, SPLITS)}")
        count = getattr(self, f"{split}_tasks")
        return [
            Task(f"{split}-{i}", seed=derive_seed(self.seed, split, i), tags={"split": split})
            for i in range(count)
        ]

    def offer(self, task: Task) -> Offer:
        """Drawn from the task's seed."""
        rng, good = Random(task.seed), good_letters(self.seed, "test")
        while True:
            offer = draw_offer(rng, good, size=self.offered, richest=self.richest)
            if offer_split(offer.letters) == task.tags["split"]:
                return offer

    def environment(self, task: Task) -> Environment:
        return Replayable(lambda: WorthWorld(self.offer(task)))

    def gold(self, task: Task) -> str:
        return self.offer(task).good


ENVIRONMENT = Worth


class WorthWorld:
    """One offer and one letter. Whatever else is said is worth no more than a bad letter."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "user", "content": self._offer.text},)

    async def step(self, message: str) -> StepResult:
        said = message.strip()
        return StepResult(
            reward=self._offer.reward(said),
            terminated=True,
            scores={"success": float(said == self._offer.good)},
        )
