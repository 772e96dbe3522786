"""The controlled task of the evidence for Training-Free GRPO: what one attempt cannot tell and several can.

At each of four places one letter of twelve is worth more than the others: that is the world, and ``seed`` names it. A task
offers three letters (or another number) at a place, the good one among them, and the agent says one:

    offer goal F C A  ->  F

It earns ``(richness + worth) / 10``. ``worth`` is 1 for the good letter, else 0. ``richness``, a whole number from 0 to 9, is
drawn for each task and hidden. So one reward says next to nothing: only 0 (surely a bad letter) and 1 (surely the
good one) tell, in one attempt of ten. Two attempts at one task that differ in reward tell all, whatever the
richness is: a baseline of the task's own is why GRPO has groups. Without rewards nothing can be told.

The score ``success`` is whether the good letter was said. With ``richest = 0`` it is also the reward. The places have the
names that the embedded model ``notes`` knows; they mean nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from evidence.drawn import DrawnTasks
from kolb.envs.base import SPLITS, Replayable
from kolb.envs.grid_cells import LETTERS
from kolb.envs.grid_lessons import is_held_out
from kolb.errors import RecipeError, at_least
from kolb.models.notes.attempts import GAME, ROLES
from kolb.models.notes.prompts import NOTES as KNOWN
from kolb.models.notes.prompts import TOLD
from kolb.types import Environment, Message, StepResult, Task, derive_seed

PLACES = ROLES

NOTES = replace(
    TOLD,
    prompts=replace(
        KNOWN, comparison="compare attempts : what is better ?", tips="compare attempts : what is better ?"
    ),
    summarises=False,
    lessons_per_group=1,
    note_tokens=200,
)  # fmt: skip
"""The method with the prompts of the embedded model ``notes``, from which ``evidence.worth_base`` starts. An attempt is short
enough to be compared as it is."""


@dataclass(frozen=True)
class Offer:
    """One task: the place, the letters in the order shown, the good one among them, and how rich it is."""

    place: str
    letters: tuple[str, ...]
    good: str
    richness: int
    scale: int = 10

    @property
    def text(self) -> str:
        return " ".join(("offer", self.place, *self.letters))

    def reward(self, letter: str) -> float:
        return (self.richness + (letter == self.good)) / self.scale


@lru_cache(maxsize=4096)
def good_letters(seed: int, *, held_out: bool) -> Mapping[str, str]:
    """The good letter of each place in world ``seed``. Agents learn in held-out worlds: the model was taught with no such
    assignment of letters, neither here nor as ``notes``."""
    rng = Random(derive_seed("worth", seed))
    while True:
        good = dict(zip(PLACES, rng.sample(LETTERS, len(PLACES)), strict=True))
        if is_held_out(GAME, good) == held_out:
            return good


def offer_split(place: str, letters: Sequence[str]) -> str:
    """A third of all sets of letters at a place each."""
    return SPLITS[derive_seed("offer", place, *sorted(letters)) % len(SPLITS)]


def draw_offer(rng: Random, good: Mapping[str, str], *, size: int, richest: int) -> Offer:
    """Any place, with its good letter among ``size``, in any order."""
    place = rng.choice(PLACES)
    others = rng.sample([x for x in LETTERS if x != good[place]], size - 1)
    letters = tuple(rng.sample([good[place], *others], size))
    return Offer(place, letters, good[place], rng.randint(0, richest), richest + 1)


@dataclass(frozen=True)
class Worth(DrawnTasks):
    """Sets of letters are divided among the splits, so none of ``test`` is ever offered where notes are taken."""

    offered: int = 3
    richest: int = 9
    train_tasks: int = 600
    dev_tasks: int = 200
    test_tasks: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_counts()
        at_least(0, richest=self.richest)
        if not 2 <= self.offered <= len(LETTERS):
            raise RecipeError(f"offered = {self.offered}: expected 2 to {len(LETTERS)} letters")

    def offer(self, task: Task) -> Offer:
        """Drawn from the task's seed."""
        rng, good = Random(task.seed), good_letters(self.seed, held_out=True)
        while True:
            offer = draw_offer(rng, good, size=self.offered, richest=self.richest)
            if offer_split(offer.place, offer.letters) == task.tags["split"]:
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
