"""Acting on a belief about the symbols of a grid game, true or not: what an agent says that is told some of the rules.

A belief names the symbols of the roles that matter to an action: agent and goal, and a hole or a box. What is not
known of it is guessed among the symbols on the board.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kolb.envs import grid_cells
from kolb.envs.grid_cells import LETTERS
from kolb.envs.grid_games import ACTIONS, GAMES, Cell, Rows, best_actions

NONE: Mapping[str, str] = {}


def random_belief(
    rng: np.random.Generator,
    shown: Mapping[Cell, str],
    known: Mapping[str, str] = NONE,
    *,
    wall: str | None = None,
) -> dict[str, str]:
    """Which symbol is what, for each role that matters: as ``known``, else at random among the symbols that ``shown``
    has and ``known`` leaves. ``wall`` is Sokoban's, and says that this is Sokoban."""
    taken = {wall, *known.values()}
    letters = sorted({s for s in shown.values() if s not in taken})
    spare = [s for s in LETTERS if s not in letters and s not in taken]
    rng.shuffle(letters)
    rng.shuffle(spare)
    names = ["agent", "goal"] if wall is None else ["agent", "box", "goal"]
    believed = {name: known[name] for name in (*names, "hole") if name in known}
    asked = [name for name in names if name not in known]
    guessed = dict(zip(asked, letters, strict=False))
    rest = [*letters[len(guessed) :], *spare]
    believed |= guessed
    believed |= {name: rest.pop() for name in asked if name not in guessed}
    if wall is None and "hole" not in known:
        believed["hole"] = rest[0]
    return believed


def reply_on_belief(
    rng: np.random.Generator,
    shown: Mapping[Cell, str],
    believed: Mapping[str, str],
    *,
    wall: str | None = None,
) -> str:
    """Thoughts and the action of an expert for whom the symbols mean what is ``believed``. Where that leaves no way,
    or nothing to do, the action is random."""
    places = {name: _somewhere(rng, shown, symbol) for name, symbol in believed.items()}
    cells = {name: places[name] or (0, 0) for name in believed}
    rows = _believed_board(shown, believed, places, wall)
    game = GAMES["frozenlake" if wall is None else "sokoban"](rows)
    state = (cells["agent"], cells["box"]) if "box" in cells else (cells["agent"],)
    is_whole = all(places[n] is not None for n in believed if n != "hole")
    left = game.distance(state) if is_whole else None
    action = ACTIONS[int(rng.integers(4))]
    push = ACTIONS[int(rng.integers(4))]
    if left:
        best = best_actions(game, state)
        action = best[int(rng.integers(len(best)))]
        if "box" in cells:
            push = grid_cells.next_push(game, state, action)
    if "box" in cells:
        return grid_cells.yard_reply(believed, cells, push, action)
    near = grid_cells.beside(shown, cells["agent"])
    return grid_cells.lake_reply(believed, cells, near, action)


def _somewhere(rng: np.random.Generator, shown: Mapping[Cell, str], symbol: str) -> Cell | None:
    cells = [cell for cell, s in shown.items() if s == symbol]
    return cells[int(rng.integers(len(cells)))] if cells else None


def _believed_board(
    shown: Mapping[Cell, str],
    believed: Mapping[str, str],
    places: Mapping[str, Cell | None],
    wall: str | None,
) -> Rows:
    size = max(r for r, _ in shown) + 1
    marks = {"agent": "S", "goal": "G"} if wall is None else {"agent": "@", "goal": ".", "box": "$"}
    grid = {}
    for cell, symbol in shown.items():
        if wall is None:
            grid[cell] = "H" if symbol == believed["hole"] else "F"
        else:
            grid[cell] = "#" if symbol == wall else " "
    for name, cell in places.items():
        if name in marks and cell is not None:
            grid[cell] = marks[name]
    return tuple("".join(grid[r, c] for c in range(size)) for r in range(size))
