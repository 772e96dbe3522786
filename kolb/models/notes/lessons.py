"""What the embedded model ``notes`` is taught: an endless, seeded corpus of short chats, one for each of the calls that
Training-Free GRPO makes (arXiv:2510.08191; ``kolb.methods.tf_grpo``), about FrozenLake in the words of ``grid_cells``.

    act        a library of some of the rules, in any order; the answer acts well on what they say, and guesses the rest
    summary    an attempt; the answer is a report of what it shows (``attempts``)
    compare    reports on several attempts; the answer is the lessons that most of them support
    propose    a library and lessons; the answer is an operation for each lesson
    plan       a library and the proposals of several comparisons; the answer is one operation for each role, by majority
    plain      what the model ``grids`` was taught, so that it is not forgotten

Every prompt is built by the method itself, so that use and teaching cannot differ. A share of what is stated is mistaken,
as what the model says itself will be.

Held out, as in ``grid_lessons``: assignments of symbols and boards. No chat starts on a held-out board, and no four
rules that are stated in one place, true or mistaken, are a held-out assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from kolb.envs import grid_cells
from kolb.envs.grid_beliefs import random_belief, reply_on_belief
from kolb.envs.grid_cells import LETTERS
from kolb.envs.grid_games import Cell, Game
from kolb.envs.grid_lessons import LARGEST, GridLessons, Lesson, LessonSource
from kolb.envs.grid_text import GridWorld
from kolb.errors import RecipeError
from kolb.methods.tf_grpo import TfGrpo
from kolb.methods.tf_grpo_prompts import Attempt
from kolb.models.notes.attempts import (
    LAKE,
    ROLES,
    played,
    report_text,
    shown_with_results,
    shown_without_results,
)
from kolb.models.notes.desk import Desk, at_once
from kolb.models.notes.editing import (
    lessons_text,
    library_of,
    list_text,
    majority,
    may_be_shown,
    planned,
    proposed,
)
from kolb.models.notes.prompts import TIPS, TOLD, UNTOLD
from kolb.types import Completion, Message, Task, Trajectory, Turn

SHARES: Mapping[str, float] = {
    "act": 0.18,
    "summary": 0.18,
    "compare": 0.18,
    "propose": 0.16,
    "plan": 0.22,
    "plain": 0.08,
}
KINDS = tuple(SHARES)
PLAIN: Mapping[str, float] = {"act": 0.4, "plan": 0.3, "where": 0.15, "beside": 0.15}
LAKE_TASK = Task("lake")
OPENED = Trajectory("solver", turns=(Turn((), Completion("")),))
T = TypeVar("T")

MOST_ATTEMPTS = 5
MOST_COMPARISONS = 5
"""That one plan is made from."""


@dataclass(frozen=True)
class NoteLessons(LessonSource):
    """``count`` chats per split, each made when it is asked for. ``shares`` are of ``KINDS`` (one that is not named is
    not drawn); ``sizes`` of boards are drawn uniformly; ``untold`` is the share of summaries and comparisons without
    results."""

    count: int = 1_000_000
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    sizes: tuple[int, ...] = (4, 4, 4, 4, 4, 3, 5, 6)
    untold: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        self.check(KINDS)
        if not self.sizes or min(self.sizes) < 2 or max(self.sizes) > LARGEST:
            raise RecipeError(f"sizes = {list(self.sizes)}: expected sizes of 2 to {LARGEST}")
        if not 0 <= self.untold <= 1:
            raise RecipeError(f"untold = {self.untold}: expected a share, 0 to 1")

    def demonstration(self, task: Task) -> list[Message]:
        return NoteLesson(self, np.random.default_rng(task.seed)).chat()


ENVIRONMENT = NoteLessons


class NoteLesson:
    """One chat, drawn from ``rng``."""

    def __init__(self, options: NoteLessons, rng: np.random.Generator) -> None:
        self.options = options
        self.rng = rng
        boards = GridLessons(shares=PLAIN, sokoban=0.0, frozenlake_sizes=options.sizes)
        self.lake = Lesson(boards, rng)
        self.symbols = self.lake.symbols
        self.truth = {role: self.symbols[role] for role in ROLES}

    def chat(self) -> list[Message]:
        shares = np.array([self.options.shares.get(kind, 0.0) for kind in KINDS])
        kind = KINDS[int(self.rng.choice(len(KINDS), p=shares / shares.sum()))]
        while (chat := getattr(self, kind)()) is None:
            pass
        return chat

    def plain(self) -> list[Message]:
        return self.lake.chat()

    def act(self) -> list[Message]:
        game, state = self.lake.position()
        known = self.known()
        opening = at_once(GridWorld(LAKE, game, self.symbols).reset())
        if known:
            opening = TOLD.place_library(opening, library_of(self.rng, known).render())
        shown = grid_cells.shown_cells(game, state, self.symbols)
        belief = random_belief(self.rng, shown, known)
        return answered(opening, reply_on_belief(self.rng, shown, belief))

    def summary(self) -> list[Message]:
        game, _ = self.lake.position()
        trajectory, moves = played(self.rng, game, self.symbols, self.known())
        method = self.method()
        if method is TOLD:
            attempt = Attempt(0, trajectory, trajectory.reward)
            cells = shown_with_results(game, moves)
        else:
            attempt = Attempt(0, trajectory, None)
            cells = shown_without_results(moves)
        desk: Any = Desk()
        at_once(method.summaries([(LAKE_TASK, [attempt])], desk))
        return answered(desk.asked["summary"], report_text(cells, self.symbols))

    def compare(self) -> list[Message] | None:
        """With no attempt at all the answer is a guess, as a tip is that rests on nothing."""
        count = int(self.rng.integers(0, MOST_ATTEMPTS + 1))
        if not count:
            desk: Any = Desk()
            at_once(TIPS.comparisons([(LAKE_TASK, [])], desk))
            return answered(desk.asked["lessons"], lessons_text(self.lake.draw_symbols()))
        method = self.method()
        game, _ = self.lake.position()
        mistakes = self.some_of((0.0, 0.0, 0.1, 0.3))
        claims = [self.claim(method, mistakes) for _ in range(count)]
        found = majority([rules for rules, _ in claims], self.truth)
        if not may_be_shown(found):
            return None
        attempts = [self.attempt(game, n, *claim) for n, claim in enumerate(claims)]
        desk: Any = Desk()
        at_once(method.comparisons([(LAKE_TASK, attempts)], desk))
        return answered(desk.asked["lessons"], lessons_text(found))

    def propose(self) -> list[Message]:
        library = library_of(self.rng, self.known())
        lessons = self.partly(self.some_of((0.0, 0.3)))
        desk: Any = Desk(library, {("lessons", LAKE_TASK.id): lessons_text(lessons)})
        attempt = Attempt(0, OPENED, 0.0, summary=".")
        at_once(TOLD.comparisons([(LAKE_TASK, [attempt])], desk))
        return answered(desk.asked["proposals"], list_text(proposed(library, lessons)))

    def plan(self) -> list[Message] | None:
        library = library_of(self.rng, self.known())
        mistakes = self.some_of((0.0, 0.15, 0.4))
        tasks = [Task(f"lake-{n}") for n in range(int(self.rng.integers(1, MOST_COMPARISONS + 1)))]
        answers: dict[tuple[str, str], str] = {}
        for task in tasks:
            lessons = self.partly(mistakes)
            answers["lessons", task.id] = lessons_text(lessons)
            answers["proposals", task.id] = list_text(proposed(library, lessons))
        desk: Any = Desk(library, answers)
        kept = [(task, [Attempt(0, OPENED, 0.0, summary=".")]) for task in tasks]
        groups = at_once(TOLD.comparisons(kept, desk))
        operations, rules = planned(library, TOLD.rules.proposals(groups)[0])
        if not operations or not may_be_shown(rules):
            return None
        at_once(TOLD.reconciliation(groups, desk))
        return answered(desk.asked["plan-1"], list_text(operations))

    # ---------------------------------------------------------------------------- parts

    def method(self) -> TfGrpo:
        return UNTOLD if self.rng.random() < self.options.untold else TOLD

    def known(self) -> dict[str, str]:
        """What a library says: the truth about all roles, some or none; now and then another assignment's."""
        draw = self.rng.random()
        if draw < 0.12:
            return {}
        share = 1.0 if draw < 0.47 else 0.55
        truth = self.lake.draw_symbols() if self.rng.random() < 0.1 else self.truth
        known = {role: truth[role] for role in ROLES if self.rng.random() < share}
        return self.mistaken(known, 0.25) if self.rng.random() < 0.2 else known

    def partly(self, mistakes: float) -> dict[str, str]:
        """Some of the rules, one at least."""
        while not (found := {r: self.truth[r] for r in ROLES if self.rng.random() < 0.75}):
            pass
        return self.mistaken(found, mistakes)

    def mistaken(self, rules: Mapping[str, str], share: float) -> dict[str, str]:
        """``rules``, a share of them with the symbol of another role or any other."""
        while True:
            found = {r: self.other(s) if self.rng.random() < share else s for r, s in rules.items()}
            if may_be_shown(found):
                return found

    def other(self, symbol: str) -> str:
        letters = list(self.truth.values()) if self.rng.random() < 0.6 else list(LETTERS)
        return self.some_of([s for s in letters if s != symbol])

    def claim(self, method: TfGrpo, mistakes: float) -> tuple[dict[str, str], float | None]:
        """What a report on an attempt says, and the attempt's reward."""
        if method is UNTOLD:
            shares, reward = {"agent": 0.85, "frozen": 0.85}, None
        else:
            reward = float(self.rng.random() < 0.4)
            lost = 0.0 if reward else 0.7
            shares = {"agent": 0.97, "goal": 0.97, "hole": lost, "frozen": 0.75}
        shown = {r: self.truth[r] for r, share in shares.items() if self.rng.random() < share}
        return self.mistaken(shown, mistakes), reward

    def attempt(
        self, game: Game, index: int, rules: Mapping[str, str], reward: float | None
    ) -> Attempt:
        """An attempt whose report says what ``rules`` say; only the report and the first board will be looked at."""
        cells = {role: self.cell(game) for role in rules}
        heard = at_once(GridWorld(LAKE, game, self.symbols).reset())
        trajectory = Trajectory("solver", turns=(Turn(heard, Completion("")),))
        return Attempt(index, trajectory, reward, report_text(cells, rules))

    def cell(self, game: Game) -> Cell:
        row, column = self.rng.integers(len(game.rows), size=2)
        return int(row), int(column)

    def some_of(self, values: Sequence[T]) -> T:
        return values[int(self.rng.integers(len(values)))]


def answered(asked: Sequence[Message], answer: str) -> list[Message]:
    return [*asked, {"role": "assistant", "content": answer}]
