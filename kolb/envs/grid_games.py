"""The rules of the two grid games, and how far each state is from being won.

FrozenLake and Sokoban as in the ERL paper (arXiv:2602.13949, sections on environments): deterministic,
four actions, reward 1 for winning and 0 otherwise. A game is immutable; a state is a tuple of cells.
Boards use the notations of their communities: ``S G H F`` for FrozenLake, ``@ $ . #`` and space for Sokoban
(``+`` is the player on the goal).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

ACTIONS = ("Left", "Down", "Right", "Up")
"""In gymnasium's order: the digits 1 to 4 of a reply, less one, index it."""

Cell = tuple[int, int]
State = tuple[Cell, ...]
Rows = tuple[str, ...]

_STEPS: dict[str, Cell] = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}


@dataclass(frozen=True)
class FrozenLake:
    """``state = (agent,)``. Holes end the episode; the edge of the board blocks.

    >>> lake = FrozenLake(("SF", "HG"))
    >>> lake.move(lake.start, "Right"), lake.distance(lake.start)
    (((0, 1),), 2)
    """

    rows: Rows
    roles: ClassVar[tuple[str, ...]] = (
        "agent",
        "goal",
        "hole",
        "frozen",
        "agent_on_goal",
        "agent_in_hole",
    )

    @cached_property
    def start(self) -> State:
        return (_find(self.rows, "S"),)

    @cached_property
    def goal(self) -> Cell:
        return _find(self.rows, "G")

    def move(self, state: State, action: str) -> State:
        """The state after ``action``; the same state when the move is blocked."""
        there = shifted(state[0], action)
        return (there,) if _inside(self.rows, there) else state

    def is_won(self, state: State) -> bool:
        return state[0] == self.goal

    def is_lost(self, state: State) -> bool:
        return _at(self.rows, state[0]) == "H"

    def role_at(self, state: State, cell: Cell) -> str:
        ground = {"G": "goal", "H": "hole"}.get(_at(self.rows, cell), "frozen")
        if cell != state[0]:
            return ground
        return {"goal": "agent_on_goal", "hole": "agent_in_hole"}.get(ground, "agent")

    def distance(self, state: State) -> int | None:
        return _lake_distances(self.rows).get(state[0])


@dataclass(frozen=True)
class Sokoban:
    """``state = (player, box)``: one box, one goal. Walls, the edge, and a box that cannot move block.

    >>> game = Sokoban(("#####", "#@$.#", "#####"))
    >>> game.move(game.start, "Right"), game.distance(game.start)
    (((1, 2), (1, 3)), 1)
    """

    rows: Rows
    roles: ClassVar[tuple[str, ...]] = (
        "agent",
        "agent_on_goal",
        "box",
        "box_on_goal",
        "goal",
        "wall",
        "floor",
    )

    @cached_property
    def start(self) -> State:
        return (_find(self.rows, "@+"), _find(self.rows, "$"))

    @cached_property
    def goal(self) -> Cell:
        return _find(self.rows, ".+")

    @cached_property
    def walls(self) -> Rows:
        """The board without player, box and goal: what distances depend on beside the goal."""
        return tuple("".join("#" if c == "#" else " " for c in row) for row in self.rows)

    def move(self, state: State, action: str) -> State:
        agent, box = state
        there = shifted(agent, action)
        if there != box:
            return (there, box) if _is_floor(self.walls, there) else state
        beyond = shifted(box, action)
        return (there, beyond) if _is_floor(self.walls, beyond) else state

    def is_won(self, state: State) -> bool:
        return state[1] == self.goal

    def is_lost(self, state: State) -> bool:
        return False

    def role_at(self, state: State, cell: Cell) -> str:
        on_goal = "_on_goal" if cell == self.goal else ""
        if cell in state:
            return ("agent" if cell == state[0] else "box") + on_goal
        if on_goal:
            return "goal"
        return "wall" if _at(self.rows, cell) == "#" else "floor"

    def distance(self, state: State) -> int | None:
        return _sokoban_distances(self.walls, self.goal).get(state)


Game = FrozenLake | Sokoban
"""One board. ``roles`` name everything that a cell can show; the agent is ``state[0]``; ``distance`` is the
number of moves to the win, None when the state cannot be won any more."""

GAMES: dict[str, type[Game]] = {"frozenlake": FrozenLake, "sokoban": Sokoban}


def what_happened(game: Game, before: State, action: str | None, after: State) -> str:
    """``won``, ``lost``, ``invalid``, ``blocked``, ``pushed`` or ``moved``."""
    if game.is_won(after):
        return "won"
    if game.is_lost(after):
        return "lost"
    if action is None:
        return "invalid"
    if after == before:
        return "blocked"
    return "pushed" if after[1:] != before[1:] else "moved"


def rows_at(game: Game, state: State) -> Rows:
    """The board on which ``state`` is the start. For states that are neither won nor lost.

    >>> rows_at(Sokoban(("######", "#@$ .#", "######")), ((1, 2), (1, 3)))
    ('######', '# @$.#', '######')
    """
    marks = "S" if isinstance(game, FrozenLake) else "@$"
    grid = [[c if c in "GH#" else "F" if marks == "S" else " " for c in row] for row in game.rows]
    row, column = game.goal
    grid[row][column] = "G" if marks == "S" else "."
    for mark, (row, column) in zip(marks, state, strict=True):
        grid[row][column] = "+" if mark == "@" and (row, column) == game.goal else mark
    return tuple("".join(row) for row in grid)


def best_actions(game: Game, state: State) -> list[str]:
    """The actions that bring ``state`` one move closer to the win; none where it is won or cannot be."""
    left = game.distance(state)
    if left is None:
        return []
    return [a for a in ACTIONS if game.distance(game.move(state, a)) == left - 1]


def solve(game: Game) -> list[str] | None:
    """A shortest list of actions from the start to the win (ties: the order of ACTIONS); None if there is none."""
    state, actions = game.start, []
    if game.distance(state) is None:
        return None
    while best := best_actions(game, state):
        state = game.move(state, best[0])
        actions.append(best[0])
    return actions


@lru_cache(maxsize=4096)
def _lake_distances(rows: Rows) -> dict[Cell, int]:
    """Breadth-first from the goal; moves on ice can be reversed, so forward and backward agree."""
    goal = _find(rows, "G")
    distances, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for action in ACTIONS:
            near = shifted(cell, action)
            if near not in distances and _inside(rows, near) and _at(rows, near) != "H":
                distances[near] = distances[cell] + 1
                queue.append(near)
    return distances


@lru_cache(maxsize=1024)
def _sokoban_distances(walls: Rows, goal: Cell) -> dict[State, int]:
    """Breadth-first backward from every won state: one table serves all boards with these walls and goal."""
    floor = [(r, c) for r, row in enumerate(walls) for c in range(len(row)) if row[c] != "#"]
    distances: dict[State, int] = {(agent, goal): 0 for agent in floor if agent != goal}
    queue = deque(distances)
    while queue:
        state = queue.popleft()
        for before in _sokoban_predecessors(walls, state):
            if before not in distances:
                distances[before] = distances[state] + 1
                queue.append(before)
    return distances


def _sokoban_predecessors(walls: Rows, state: State) -> Iterator[State]:
    agent, box = state
    for action in ACTIONS:
        dr, dc = _STEPS[action]
        came_from = (agent[0] - dr, agent[1] - dc)
        if came_from == box or not _is_floor(walls, came_from):
            continue
        yield (came_from, box)
        if shifted(agent, action) == box:
            yield (came_from, agent)


def shifted(cell: Cell, action: str) -> Cell:
    dr, dc = _STEPS[action]
    return (cell[0] + dr, cell[1] + dc)


def _inside(rows: Rows, cell: Cell) -> bool:
    return 0 <= cell[0] < len(rows) and 0 <= cell[1] < len(rows[0])


def _is_floor(walls: Rows, cell: Cell) -> bool:
    return _inside(walls, cell) and _at(walls, cell) != "#"


def _at(rows: Rows, cell: Cell) -> str:
    return rows[cell[0]][cell[1]]


def _find(rows: Rows, marks: str) -> Cell:
    return next((r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark in marks)
