"""What the base models of ``evidence.worth`` are taught: the ideal player's answers to the prompts of the method itself.

A chat of the corpus is recorded from the method's own functions at work in a small stand-in for the World, with a library
and attempts made up at random. So a prompt that is learnt from and a prompt in use cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from evidence.drawn import DrawnTasks
from evidence.worth import NOTES, PLACES, Offer, draw_offer, good_letters
from evidence.worth_notes import answers, draw
from kolb.credit.votes import majority
from kolb.envs.base import Replayable
from kolb.envs.grid_cells import LETTERS
from kolb.memory.library import ExperienceLibrary
from kolb.methods.tf_grpo import Compared, TfGrpo
from kolb.methods.tf_grpo_prompts import Attempt
from kolb.models.notes.desk import Desk, at_once
from kolb.models.notes.editing import MOST_IDS
from kolb.types import (
    Completion,
    Environment,
    Experience,
    Message,
    StepResult,
    Task,
    Trajectory,
    Turn,
    derive_seed,
)

KINDS = {"act": 0.3, "compare": 0.45, "propose": 0.1, "plan": 0.15}
"""Of the corpus."""
MOST_ATTEMPTS, MOST_TASKS, RICHEST = 5, 5, 9
TOLD = 0.6
"""Of the chats in which the agent acts: a note names one of the letters for the place."""
SIZES = (3, 3, 5)
"""Of offers, as often as they stand here."""

TENTHS = tuple(f"{n / 10:g}" for n in range(RICHEST + 2))
REWARDS = tuple(f"{tenth}):" for tenth in TENTHS)
WORDS = (
    *("offer", "better", "more", "less", "nothing", "same", "(its", "answer", "the", "majority's):", "another):"),
    *TENTHS, *REWARDS,
)  # fmt: skip
"""Beside those that the embedded model ``notes`` knows; some of these it knows as well."""

ARMS = (
    *(NOTES,) * 7,
    replace(NOTES, judged_by="nobody"),
    replace(NOTES, judged_by="vote"),
    replace(NOTES, group_size=0),
)
"""How often what is known of the attempts: their rewards, nothing, the majority; and that there are none."""


class IdealDesk(Desk):
    """The ideal player answers, and every question is kept."""

    def __init__(self, library: ExperienceLibrary, rng: Random) -> None:
        super().__init__(library)
        self.rng = rng

    async def ask(
        self, role: str, messages: Sequence[Message], *, task: Task, name: str = "", **options: Any
    ) -> Trajectory:
        self.asked.setdefault(name, list(messages))
        said = Completion(draw(self.rng, answers_to(messages)))
        return Trajectory(role, turns=(Turn(tuple(messages), said),), name=name)


def answers_to(messages: Sequence[Message], *, guesses: bool = False) -> Mapping[str, float]:
    texts = {str(m["role"]): str(m["content"]) for m in messages}
    return answers(texts.get("system", ""), texts["user"], guesses=guesses)


# ------------------------------------------------------------------------------- what is made up


def draw_library(rng: Random, offer: Offer | None = None) -> ExperienceLibrary:
    """Notes on some of the places, right or wrong, in any order and under any ids; mostly one that is of use for ``offer``."""
    places = rng.sample(PLACES, rng.randint(0, len(PLACES)))
    named = dict(zip(places, rng.sample(LETTERS, len(places)), strict=True))
    if offer is not None and rng.random() < TOLD:
        named[offer.place] = rng.choice(offer.letters)
    ids = rng.sample(range(MOST_IDS), len(named))
    rows = zip(ids, named.items(), strict=True)
    notes = [Experience(f"G{id}", f"{place} {x}") for id, (place, x) in rows]
    return ExperienceLibrary(tuple(notes), next_id=MOST_IDS)


def draw_attempts(rng: Random, offer: Offer, method: TfGrpo) -> list[Attempt]:
    """At one task, by agents that know nothing and have their favourites; none where a vote is open."""
    favourites = rng.sample(offer.letters, rng.randint(1, len(offer.letters)))
    letters = rng.choices(favourites, k=rng.choice((MOST_ATTEMPTS, rng.randint(1, MOST_ATTEMPTS))))
    rewards: list[float | None] = [offer.reward(x) for x in letters]
    if method.judged_by == "vote" and None in (rewards := majority(letters)):
        return []
    opening: Message = {"role": "user", "content": offer.text}
    return [
        Attempt(
            i,
            Trajectory("solver", turns=(Turn((opening,), Completion(x)),)),
            None if method.judged_by == "nobody" else reward,
        )
        for i, (x, reward) in enumerate(zip(letters, rewards, strict=True))
    ]


def draw_compared(rng: Random, split: str, method: TfGrpo, tasks: int) -> Compared:
    """``tasks`` tasks of one world of ``split``, each with its attempts."""
    good = good_letters(rng.getrandbits(32), held_out=split == "test")
    found: list[tuple[Task, list[Attempt]]] = []
    while len(found) < tasks:
        offer = draw_offer(rng, good, size=rng.choice(SIZES), richest=RICHEST)
        attempts = draw_attempts(rng, offer, method) if method.group_size else []
        if attempts or not method.group_size:
            found.append((Task(f"offer-{len(found)}"), attempts))
    return found


def draw_asked(rng: Random, split: str, kind: str) -> tuple[Message, ...]:
    """A prompt of ``kind``, as the method writes it."""
    if kind == "act":
        offer = draw_offer(
            rng,
            good_letters(rng.getrandbits(32), held_out=split == "test"),
            size=rng.choice(SIZES),
            richest=RICHEST,
        )
        opening: tuple[Message, ...] = ({"role": "user", "content": offer.text},)
        notes = draw_library(rng, offer).render()
        return NOTES.place_library(opening, notes) if notes else opening
    desk, method = IdealDesk(draw_library(rng), rng), rng.choice(ARMS)
    tasks = rng.randint(1, MOST_TASKS) if kind == "plan" else 1
    world: Any = desk
    groups = at_once(method.comparisons(draw_compared(rng, split, method, tasks), world))
    at_once(method.reconciliation(groups, world))
    calls = {"compare": "lessons", "propose": "proposals", "plan": "plan-1"}
    asked = desk.asked.get(calls[kind])
    return tuple(asked) if asked else draw_asked(rng, split, kind)


# --------------------------------------------------------------------------------------- the corpus


@dataclass(frozen=True)
class Exercise:
    """A prompt, and what may be answered to it, with probabilities."""

    kind: str
    asked: tuple[Message, ...]
    answers: Mapping[str, float]


@dataclass(frozen=True)
class WorthCorpus(DrawnTasks):
    """Chats in worlds of the splits ``train`` and ``dev``. An answer earns 1 where the ideal player might give it, and is
    scored under the name of its kind, too."""

    guesses: bool = False
    """Whether lessons are drawn from the posterior where it is open; else only what is certain is said."""
    train_tasks: int = 60000
    dev_tasks: int = 1000
    test_tasks: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_counts()

    def exercise(self, task: Task) -> Exercise:
        rng = Random(task.seed)
        [kind] = rng.choices(list(KINDS), list(KINDS.values()))
        asked = draw_asked(rng, task.tags["split"], kind)
        return Exercise(kind, asked, answers_to(asked, guesses=self.guesses))

    def environment(self, task: Task) -> Environment:
        return Replayable(lambda: Examination(self.exercise(task)))

    def gold(self, task: Task) -> str:
        return next(iter(self.exercise(task).answers))

    def demonstration(self, task: Task) -> list[Message]:
        exercise = self.exercise(task)
        text = draw(Random(derive_seed(task.seed, "answer")), exercise.answers)
        return [*exercise.asked, {"role": "assistant", "content": text}]


ENVIRONMENT = WorthCorpus


class Examination:
    def __init__(self, exercise: Exercise) -> None:
        self._exercise = exercise

    async def reset(self) -> tuple[Message, ...]:
        return self._exercise.asked

    async def step(self, message: str) -> StepResult:
        is_right = float(" ".join(message.split()) in self._exercise.answers)
        scores = {self._exercise.kind: is_right}
        return StepResult(reward=is_right, terminated=True, scores=scores)
