"""FrozenLake and Sokoban as text, with hidden or visible rules: the ERL paper's grid worlds.

arXiv:2602.13949, experiments and appendix. The agent sees the whole board after every move, in symbols whose
meaning it may have to find out, and has ``max_steps`` actions. Reward 1 for winning, 0 for everything else.
A reply without a valid action changes nothing and costs a step. The rules are in ``grid_games``, the
boards in ``grid_boards``, every word in ``grid_prompts`` and ``grid_cells``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kolb.envs import grid_cells
from kolb.envs.base import SPLITS, SingleUse
from kolb.envs.grid_boards import (
    FROZEN,
    LONGEST,
    SIZES,
    Board,
    BoardRequest,
    generate,
    read_boards,
    split_of,
)
from kolb.envs.grid_games import GAMES, Game, State, solve, what_happened
from kolb.envs.grid_prompts import (
    LETTERS,
    OUTCOMES,
    RULES,
    STYLES,
    board_text,
    check_symbols,
    expert_reply,
    final_line,
    parse_action,
    random_symbols,
    system_prompt,
    user_turn,
)
from kolb.errors import RecipeError, nearest
from kolb.types import Environment, Message, StepResult, Task, derive_seed


@dataclass(frozen=True)
class GridText:
    """Options of the grid worlds. The defaults are the paper's.

    ``symbols``: a table from thing to symbol (``{agent = "P"}``; the rest stays the paper's), or ``"random"``:
    another assignment for every task, drawn from its seed. ``sizes`` are the sides to draw from (walls
    included; empty: 2 to 9 for FrozenLake, 6 to 8 for Sokoban); ``frozen`` bounds FrozenLake's share of ice.

    ``boards`` reads boards instead of drawing them. A table gives a file per split:
    ``{train = "frozenlake_train.jsonl", test = "frozenlake_test.jsonl"}``. A single file is divided by a
    hash of each board: 1 in 10 for ``test``, 1 in 10 for ``dev``. At most ``train_tasks`` (``dev_tasks``,
    ``test_tasks``) boards are used, from the top. ``max_steps`` counts, whatever cap such a file states.
    """

    game: str = "frozenlake"
    style: str = "paper"
    rules: str = "hidden"
    symbols: str | Mapping[str, str] = field(default_factory=dict)
    max_steps: int = 8
    sizes: tuple[int, ...] = ()
    frozen: tuple[float, float] = FROZEN
    boards: str | Mapping[str, str] = ""
    train_tasks: int = 10_000
    dev_tasks: int = 100
    test_tasks: int = 100
    seed: int = 0
    """Of the boards; not the run's seed, so that every run is tested on the same boards."""

    def __post_init__(self) -> None:
        for what, known in (("game", tuple(GAMES)), ("style", STYLES), ("rules", RULES)):
            if getattr(self, what) not in known:
                value = getattr(self, what)
                raise RecipeError(f"{what} = {value!r}{nearest(str(value), known)}")
        for what in ("max_steps", "train_tasks", "dev_tasks", "test_tasks"):
            if getattr(self, what) < 1:
                raise RecipeError(f"{what} must be at least 1, not {getattr(self, what)}")
        smallest = 2 if self.game == "frozenlake" else 4
        if any(size < smallest for size in self.sizes):
            raise RecipeError(f"sizes: a {self.game} board has a side of at least {smallest}")
        if not 0 < self.frozen[0] <= self.frozen[1] <= 1:
            raise RecipeError(f"frozen = {self.frozen}: expected 0 < low <= high <= 1")
        if isinstance(self.symbols, str):
            if self.symbols != "random":
                raise RecipeError(f"symbols = {self.symbols!r}: expected a table, or 'random'")
        else:
            check_symbols(self.game, self.symbols)
        if isinstance(self.boards, Mapping):
            for split in self.boards:
                if split not in SPLITS:
                    raise RecipeError(f"boards: no split {split!r}{nearest(split, SPLITS)}")

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise RecipeError(f"no split {split!r}{nearest(split, SPLITS)}")
        return [
            Task(f"{self.game}-{split}-{i}", seed=b.seed, tags=b.tags, data={"board": b.rows})
            for i, b in enumerate(self._boards(split))
        ]

    def environment(self, task: Task) -> Environment:
        return SingleUse(
            GridWorld(self, GAMES[self.game](task.data["board"]), self.symbols_of(task))
        )

    def expert(self, task: Task) -> list[str]:
        """Replies that win in the fewest moves, in the form that the prompt asks for."""
        game = GAMES[self.game](task.data["board"])
        actions = solve(game)
        if actions is None:
            raise RecipeError(
                f"task {task.id}: its board cannot be won: {list(task.data['board'])}"
            )
        if self.style == "short":
            return actions
        replies, state = [], game.start
        for action in actions:
            reply = grid_cells.reply_text if self.style == "cells" else expert_reply
            replies.append(reply(game, state, action, self.symbols_of(task)))
            state = game.move(state, action)
        return replies

    def symbols_of(self, task: Task) -> dict[str, str]:
        if isinstance(self.symbols, str):
            letters = grid_cells.LETTERS if self.style == "cells" else LETTERS
            return random_symbols(self.game, derive_seed(task.seed, "symbols"), letters)
        return check_symbols(self.game, self.symbols)

    def _boards(self, split: str) -> tuple[Board, ...]:
        count = {"train": self.train_tasks, "dev": self.dev_tasks, "test": self.test_tasks}[split]
        if not self.boards:
            sizes = tuple(self.sizes) or SIZES[self.game]
            longest = min(LONGEST[self.game], self.max_steps)
            low, high = self.frozen
            return generate(
                BoardRequest(self.game, split, count, sizes, longest, (low, high), self.seed)
            )
        if isinstance(self.boards, str):
            boards = [b for b in read_boards(self.game, self.boards) if split_of(b.rows) == split]
        elif split in self.boards:
            boards = list(read_boards(self.game, self.boards[split]))
        else:
            raise RecipeError(
                f"no boards for split {split!r}: add {split} = 'FILE.jsonl' to boards"
            )
        if not boards:
            raise RecipeError(f"split {split!r} is empty: boards = {self.boards!r} has none for it")
        return tuple(boards[:count])


ENVIRONMENT = GridText


class GridWorld:
    """One attempt at one board. All of its state is immutable or copied by ``fork``."""

    def __init__(self, options: GridText, game: Game, symbols: Mapping[str, str]) -> None:
        self.options = options
        self.game = game
        self.symbols = symbols
        self.state = game.start
        self.actions: list[tuple[str | None, bool]] = []

    async def reset(self) -> tuple[Message, ...]:
        options = self.options
        system = system_prompt(options.game, options.style, options.rules, self.symbols)
        return ({"role": "system", "content": system}, self._turn())

    async def step(self, message: str) -> StepResult:
        before = self.state
        action = parse_action(message, self.options.style)
        if action is not None:
            self.state = self.game.move(before, action)
        self.actions.append((action, self.state != before))
        is_won = self.game.is_won(self.state)
        terminated = is_won or self.game.is_lost(self.state)
        truncated = not terminated and len(self.actions) >= self.options.max_steps
        outcome = self._outcome(action, before)
        return StepResult(
            observation=(self._last() if terminated or truncated else self._turn(),),
            reward=1.0 if is_won else 0.0,
            terminated=terminated,
            truncated=truncated,
            feedback=self._final(outcome, before, truncated)
            if terminated or truncated
            else outcome,
            info=self._info(action, outcome),
        )

    async def fork(self) -> GridWorld:
        twin = copy.copy(self)
        twin.actions = list(self.actions)
        return twin

    def _turn(self) -> Message:
        """The board and, in the paper style, what goes with it."""
        if self.options.style != "paper":
            return self._last()
        step = len(self.actions)
        changed_nothing = bool(self.actions) and not self.actions[-1][1]
        left = self.options.max_steps - step
        return {"role": "user", "content": user_turn(self._board(), step, left, changed_nothing)}

    def _last(self) -> Message:
        """What an ended episode shows: the board, with nothing to answer."""
        header = f"Step {len(self.actions)}\n" if self.options.style == "paper" else ""
        return {"role": "user", "content": header + self._board()}

    def _board(self) -> str:
        return board_text(self.game, self.state, self.symbols, self.options.style)

    def _outcome(self, action: str | None, before: State) -> str:
        kind = what_happened(self.game, before, action, self.state)
        if self.options.style == "cells":
            return grid_cells.outcome_text(kind, action, self.state)
        return OUTCOMES[self.options.game][kind]

    def _final(self, outcome: str, before: State, truncated: bool) -> str:
        if self.options.style == "cells":
            return grid_cells.final_text(self.game, before, outcome, truncated=truncated)
        ending = OUTCOMES[self.options.game]["limit"] if truncated else outcome
        return final_line(self.game, self.state, ending, self.actions)

    def _info(self, action: str | None, outcome: str) -> dict[str, object]:
        info: dict[str, object] = {
            "action": action,
            "had_effect": self.actions[-1][1],
            "outcome": outcome,
            "position": list(self.state[0]),
        }
        if len(self.state) > 1:
            info["box"] = list(self.state[1])
        return info
