"""What the embedded base model is taught: an endless, seeded corpus of short chats about the grid games.

Four kinds, in the words of ``grid_cells``, over random boards and random symbols:

    act       the rules are in the system prompt; the answer is an expert's
    guess     nothing is known; the answer acts well on a random belief about the symbols, which is nearly always wrong
    reflect   a belief and the last turn of a failed attempt; the answer is the rules, between <prompt> tags
    retry     acting with the last turn of a failed attempt in the system prompt

and four kinds of drill: ``plan``, and ``where``, ``what`` and ``beside`` of ``grid_drills``.

So the model can act once it is told the rules, as an instructed model does, acts weakly when it is not, and can
tell the rules from a failure. A share ``mistakes`` of the reflections has two symbols exchanged, so that there
is something to choose from.

Held out, for those who want to measure: one symbol assignment in ten (``is_held_out``), and every board that
``grid_boards.split_of`` calls ``dev`` or ``test`` or that is listed in ``held_out_boards.txt`` (the ERL paper's
test boards). No chat is played on one of these boards, and no rules in a chat, true or mistaken, are one of
these assignments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import overload

import numpy as np

from kolb.envs import grid_cells
from kolb.envs.base import SPLITS
from kolb.envs.grid_beliefs import random_belief, reply_on_belief
from kolb.envs.grid_boards import draw_board, split_of
from kolb.envs.grid_cells import LETTERS
from kolb.envs.grid_drills import ASKED, DRILLS, some
from kolb.envs.grid_games import (
    ACTIONS,
    GAMES,
    Cell,
    Game,
    Rows,
    State,
    best_actions,
    rows_at,
    what_happened,
)
from kolb.envs.grid_prompts import SYMBOLS, random_symbols
from kolb.errors import RecipeError, at_least, nearest
from kolb.types import Environment, Message, Task, derive_seed

SHARES: Mapping[str, float] = {
    "act": 0.25,
    "guess": 0.06,
    "reflect": 0.15,
    "retry": 0.06,
    "where": 0.03,
    "what": 0.1,
    "beside": 0.1,
    "plan": 0.25,
}
KINDS = tuple(SHARES)
ASK_RULES = "which symbol is what ?"
"""The reflector's system prompt."""
ASK_PLAN = "what to do ?"
LARGEST = 9


class LessonSource:
    """A corpus of ``count`` chats per split, drawn from ``seed``; ``shares`` are of kinds of lessons."""

    count: int
    shares: Mapping[str, float]
    seed: int

    def check(self, kinds: Sequence[str]) -> None:
        """RecipeError where one of the shares is of no lesson, or nothing can be drawn."""
        for kind in self.shares:
            if kind not in kinds:
                raise RecipeError(f"shares: no lesson {kind!r}{nearest(kind, kinds)}")
        at_least(0, **{f"shares.{kind}": share for kind, share in self.shares.items()})
        if not sum(self.shares.values()):
            raise RecipeError(f"shares: nothing is drawn; give some of {', '.join(kinds)} a share")
        at_least(1, count=self.count)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise RecipeError(f"no split {split!r}{nearest(split, SPLITS)}")
        return LessonTasks(split, self.count, self.seed)

    def environment(self, task: Task) -> Environment:
        raise RecipeError(
            f"{task.id}: lessons can be imitated and no more; to act, use = 'grid_text'"
        )


@dataclass(frozen=True)
class GridLessons(LessonSource):
    """``count`` chats per split, each made when it is asked for. ``shares`` are of ``KINDS`` (one that is not named
    is not drawn); ``sokoban`` is the share of that game; ``sizes`` are drawn uniformly from each game's table."""

    count: int = 1_000_000
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    sokoban: float = 0.5
    frozenlake_sizes: tuple[int, ...] = (4,)
    sokoban_sizes: tuple[int, ...] = (6,)
    mistakes: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        self.check(KINDS)
        for name in ("sokoban", "mistakes"):
            if not 0 <= getattr(self, name) <= 1:
                raise RecipeError(f"{name} = {getattr(self, name)}: expected a share, 0 to 1")
        for name, least in (("frozenlake_sizes", 2), ("sokoban_sizes", 4)):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < least or max(sizes) > LARGEST:
                raise RecipeError(f"{name} = {list(sizes)}: expected sizes of {least} to {LARGEST}")

    def demonstration(self, task: Task) -> list[Message]:
        return Lesson(self, np.random.default_rng(task.seed)).chat()


ENVIRONMENT = GridLessons


@dataclass(frozen=True)
class LessonTasks(Sequence[Task]):
    """Tasks that are made when they are looked at: a million of them take no room."""

    split: str
    length: int
    seed: int

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.length))]
        if not -self.length <= index < self.length:
            raise IndexError(index)
        index %= self.length
        return Task(f"lesson-{self.split}-{index}", seed=derive_seed(self.seed, self.split, index))


# ------------------------------------------------------------------------------------------ hold-out


def is_held_out(game: str, symbols: Mapping[str, str]) -> bool:
    """One assignment in ten, at random, and the ERL paper's own."""
    letters = [symbols[role] for role in grid_cells.ROLES[game]]
    if letters == [SYMBOLS[game][role] for role in grid_cells.ROLES[game]]:
        return True
    return derive_seed("symbols held out", game, *letters) % 10 == 0


def held_out_symbols(game: str, seeds: Iterable[int]) -> dict[str, str]:
    """The first held-out assignment among those that ``seeds`` draw."""
    drawn = (random_symbols(game, seed, LETTERS) for seed in seeds)
    return next(symbols for symbols in drawn if is_held_out(game, symbols))


def is_board_held_out(rows: Rows) -> bool:
    return split_of(rows) != "train" or str(derive_seed("board", *rows)) in _listed()


@cache
def _listed() -> frozenset[str]:
    file = Path(__file__).with_name("held_out_boards.txt")
    return frozenset(file.read_text(encoding="utf-8").split())


# ------------------------------------------------------------------------------------------ one chat


class Lesson:
    """One chat, drawn from ``rng``."""

    def __init__(self, options: GridLessons, rng: np.random.Generator) -> None:
        self.options = options
        self.rng = rng
        self.name = "sokoban" if rng.random() < options.sokoban else "frozenlake"
        self.symbols = self.draw_symbols()

    def chat(self) -> list[Message]:
        shares = np.array([self.options.shares.get(kind, 0.0) for kind in KINDS])
        kind = KINDS[int(self.rng.choice(len(KINDS), p=shares / shares.sum()))]
        drill = DRILLS.get(kind)
        system, user, answer = drill(self.rng, self._cells()) if drill else getattr(self, kind)()
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
            {"role": "assistant", "content": answer},
        ]

    def act(self) -> tuple[str, str, str]:
        game, state = self.position()
        best = self._best_action(game, state)
        return (
            grid_cells.rules_text(self.name, self.symbols),
            grid_cells.board_text(game, state, self.symbols),
            grid_cells.reply_text(game, state, best, self.symbols),
        )

    def guess(self) -> tuple[str, str, str]:
        game, state = self.position()
        board = grid_cells.board_text(game, state, self.symbols)
        return grid_cells.UNKNOWN, board, self._guess(game, state)

    def reflect(self) -> tuple[str, str, str]:
        _, record, seen = self._failed_attempt()
        told, draw = self._told(), self.rng.random()
        belief = grid_cells.UNKNOWN
        if draw > 0.5:
            believed = self.symbols if draw > 0.75 else self._exchanged(self.symbols)
            belief = grid_cells.rules_text(self.name, believed)
        named = {role: told[role] for role in grid_cells.ROLES[self.name]}
        rules = grid_cells.rules_text(self.name, told)
        answer = grid_cells.reflection_text(named, seen, rules)
        return ASK_RULES, f"{belief}\n{record}", answer

    def retry(self) -> tuple[str, str, str]:
        """Acting with the record of a failed attempt in the prompt, as without reflections."""
        game, record, _ = self._failed_attempt()
        state = game.start
        told = self._told()
        board = grid_cells.board_text(game, state, self.symbols)
        answer = grid_cells.reply_text(game, state, self._best_action(game, state), self.symbols)
        if told != self.symbols:
            answer = self._guess(game, state)
        return f"{grid_cells.UNKNOWN}\n{record}", board, answer

    def plan(self) -> tuple[str, str, str]:
        """What to do in each of some positions: on one lake, or in one yard whose board is not shown."""
        return self._plan_lake() if self.name == "frozenlake" else self._plan_yard()

    def _plan_lake(self) -> tuple[str, str, str]:
        game, _ = self.position()
        cells = [(r, c) for r in range(len(game.rows)) for c in range(len(game.rows))]
        free = [(cell,) for cell in cells if game.distance((cell,))]
        free = [state for state in free if not is_board_held_out(rows_at(game, state))]
        positions = some(self.rng, free, ASKED)
        # The agent stands on the goal and looks like it, so that every cell shows what it is.
        rules = grid_cells.rules_text(self.name, self.symbols)
        symbols = {**self.symbols, "agent_on_goal": self.symbols["goal"]}
        shown = grid_cells.shown_cells(game, (game.goal,), symbols)
        said = []
        for state in positions:
            near = grid_cells.beside(shown, state[0])
            cells = grid_cells.places(game, state)
            best = self._best_action(game, state)
            said.append(grid_cells.lake_reply(self.symbols, cells, near, best))
        board = grid_cells.board_text(game, (game.goal,), symbols)
        names = " ".join(grid_cells.cell_name(state[0]) for state in positions)
        return f"{ASK_PLAN} {rules}", f"{board}\n{names}", " ".join(said)

    def _plan_yard(self) -> tuple[str, str, str]:
        sizes = self.options.sokoban_sizes
        size = sizes[int(self.rng.integers(len(sizes)))]
        asked: list[str] = []
        said: list[str] = []
        while len(said) < ASKED:
            rows = draw_board("sokoban", self.rng, (size,))
            game = GAMES["sokoban"](rows)
            if is_board_held_out(rows) or not game.distance(game.start):
                continue
            best = self._best_action(game, game.start)
            said.append(grid_cells.reply_text(game, game.start, best, self.symbols))
            asked.append(" ".join(said[-1].split()[:6]))
        last = grid_cells.cell_name((size - 1, size - 1))
        return f"{ASK_PLAN} {last}", "\n".join(asked), " ".join(said)

    # ---------------------------------------------------------------------------- parts

    def _cells(self) -> list[Cell]:
        """The cells of a board of any size that the options name."""
        sizes = (*self.options.frozenlake_sizes, *self.options.sokoban_sizes)
        size = sizes[int(self.rng.integers(len(sizes)))]
        return [(r, c) for r in range(size) for c in range(size)]

    def draw_symbols(self) -> dict[str, str]:
        while True:
            symbols = random_symbols(self.name, int(self.rng.integers(2**62)), LETTERS)
            if not is_held_out(self.name, symbols):
                return symbols

    def _told(self) -> Mapping[str, str]:
        """The symbols, or now and then a mistake about them."""
        is_wrong = self.rng.random() < self.options.mistakes
        return self._exchanged(self.symbols) if is_wrong else self.symbols

    def _exchanged(self, symbols: Mapping[str, str]) -> dict[str, str]:
        """Two of the roles have changed their symbols."""
        names = grid_cells.ROLES[self.name]
        while True:
            first, second = (names[int(i)] for i in self.rng.permutation(len(names))[:2])
            changed = {**symbols, first: symbols[second], second: symbols[first]}
            if not is_held_out(self.name, changed):
                return changed

    def position(self) -> tuple[Game, State]:
        """A board on which there is a way, and how it looks at its start."""
        sizes = getattr(self.options, f"{self.name}_sizes")
        while True:
            rows = draw_board(self.name, self.rng, sizes)
            if is_board_held_out(rows):
                continue
            game = GAMES[self.name](rows)
            if game.distance(game.start):
                return game, game.start

    def _best_action(self, game: Game, state: State) -> str:
        best = best_actions(game, state)
        return best[int(self.rng.integers(len(best)))]

    def _guess(self, game: Game, state: State) -> str:
        """A reply by somebody who believes in a random meaning of the symbols."""
        shown = grid_cells.shown_cells(game, state, self.symbols)
        believed = random_belief(self.rng, shown, wall=self.symbols.get("wall"))
        return reply_on_belief(self.rng, shown, believed, wall=self.symbols.get("wall"))

    def _failed_attempt(self) -> tuple[Game, str, dict[str, Cell]]:
        """A board, the last turn of random moves there that did not win, and what was seen where."""
        while True:
            game, state = self.position()
            kind, before, record = "moved", state, ""
            for left in range(int(self.rng.integers(4, 9)), 0, -1):
                before, action = state, ACTIONS[int(self.rng.integers(4))]
                state = game.move(before, action)
                kind = what_happened(game, before, action, state)
                outcome = grid_cells.outcome_text(kind, action, state)
                is_over = kind in ("won", "lost") or left == 1
                if is_over:
                    truncated = kind != "lost"
                    outcome = grid_cells.final_text(game, before, outcome, truncated=truncated)
                record = f"{grid_cells.board_text(game, before, self.symbols)}\n{outcome}"
                if is_over:
                    break
            if kind != "won" and not is_board_held_out(rows_at(game, before)):
                seen = grid_cells.places(game, before)
                if self.name == "sokoban":
                    seen["wall"] = (0, 0)  # the first corner always is one
                elif kind == "lost":
                    seen["hole"] = state[0]
                return game, record, seen
