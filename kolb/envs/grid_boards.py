"""Where boards come from: generators seeded per board, or a JSONL file of boards.

The generators follow the ERL paper (arXiv:2602.13949) and its released code. FrozenLake: side uniform
on 2..9, share of frozen cells uniform on [0.60, 0.85), start and goal uniform and different, solvable
in at most 6 moves. Sokoban: side uniform on 6..8 before filtering, border walls only, one box, one goal and one
player on distinct inner cells, solvable in at most 8 moves, no board twice.

A board belongs to one split, by a hash of its rows: 1 in 10 boards is ``test``, 1 in 10 ``dev``, the
rest ``train``. So the splits share no board, whatever was asked of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kolb.envs.base import hashed_split
from kolb.envs.grid_games import GAMES, Rows
from kolb.errors import RecipeError
from kolb.types import derive_seed

SIZES = {"frozenlake": tuple(range(2, 10)), "sokoban": (6, 7, 8)}
FROZEN = (0.60, 0.85)
"""FrozenLake's share of ice is drawn from here."""
LONGEST = {"frozenlake": 6, "sokoban": 8}
"""Boards that need more moves than this are not generated."""

_MARKS = {"frozenlake": "SGHF", "sokoban": "@+$.# "}
_ONCE = {"frozenlake": ("S", "G"), "sokoban": ("@+", ".+", "$")}
_PATIENCE = 20_000
"""Draws without a new board before a request is called unanswerable."""


@dataclass(frozen=True)
class BoardRequest:
    """Which boards to generate. Hashable, so that a request is answered once per process."""

    game: str
    split: str
    count: int
    sizes: tuple[int, ...]
    longest: int
    frozen: tuple[float, float] = FROZEN
    seed: int = 0


@dataclass(frozen=True)
class Board:
    """``rows`` in the game's notation; ``seed`` is what it was drawn from; ``tags`` describe it."""

    rows: Rows
    seed: int
    tags: Mapping[str, Any] = field(default_factory=dict)


def split_of(rows: Rows) -> str:
    """The split that a board belongs to."""
    return hashed_split(*rows)


@lru_cache(maxsize=32)
def generate(request: BoardRequest) -> tuple[Board, ...]:
    """``request.count`` boards; the first n do not depend on how many are asked for.

    Raises RecipeError when no further board can be found (few sizes, many boards).
    """
    seen: set[Rows] = set()
    boards = []
    for index in range(request.count):
        board = _draw(request, derive_seed(request.seed, request.game, request.split, index), seen)
        if request.game == "sokoban":
            seen.add(board.rows)
        boards.append(board)
    return tuple(boards)


def _draw(request: BoardRequest, seed: int, seen: set[Rows]) -> Board:
    rng = np.random.default_rng(seed)
    size, share = _any_of(rng, request.sizes), float(rng.uniform(*request.frozen))
    for _ in range(_PATIENCE):
        if request.game == "frozenlake":
            rows = _draw_frozenlake(rng, size, share)
        else:
            rows = _draw_sokoban(rng, _any_of(rng, request.sizes))
        moves = shortest(request.game, rows)
        if moves is None or moves > request.longest:
            continue
        if rows not in seen and split_of(rows) == request.split:
            tags: dict[str, Any] = {"size": len(rows), "shortest_path": moves}
            if request.game == "frozenlake":
                tags["p"] = share
            return Board(rows, seed, tags)
    raise RecipeError(
        f"found no further {request.split} board of {request.game} in {_PATIENCE} draws (sizes "
        f"{list(request.sizes)}, at most {request.longest} moves); ask for fewer tasks or allow more sizes"
    )


def draw_board(game: str, rng: np.random.Generator, sizes: Sequence[int]) -> Rows:
    """Any board of one of ``sizes``, whether it can be won or not."""
    size = _any_of(rng, tuple(sizes))
    if game == "sokoban":
        return _draw_sokoban(rng, size)
    return _draw_frozenlake(rng, size, float(rng.uniform(*FROZEN)))


def _any_of(rng: np.random.Generator, values: tuple[int, ...]) -> int:
    return values[int(rng.integers(len(values)))]


def _draw_frozenlake(rng: np.random.Generator, size: int, share: float) -> Rows:
    cells = np.where(rng.random(size * size) < share, "F", "H")
    start = goal = int(rng.integers(size * size))
    while goal == start:
        goal = int(rng.integers(size * size))
    cells[start], cells[goal] = "S", "G"
    text = "".join(cells)
    return tuple(text[i : i + size] for i in range(0, size * size, size))


def _draw_sokoban(rng: np.random.Generator, size: int) -> Rows:
    inner = size - 2
    places = rng.permutation(inner * inner)[:3]
    grid = [["#"] * size, *(["#", *" " * inner, "#"] for _ in range(inner)), ["#"] * size]
    for mark, place in zip("@$.", places, strict=True):
        row, column = divmod(int(place), inner)
        grid[row + 1][column + 1] = mark
    return tuple("".join(row) for row in grid)


def shortest(game: str, rows: Rows) -> int | None:
    """Fewest moves that win the board; None when nothing does."""
    board = GAMES[game](rows)
    return board.distance(board.start)


def read_boards(game: str, path: str) -> tuple[Board, ...]:
    """The boards of a JSONL file: ``board`` or ``layout`` is a list of strings, as in the ERL paper's files.

    ``size``, ``p``, ``seed`` and ``layout_name`` are kept as tags. Raises RecipeError with file and line.
    """
    return _read_file(game, Path(path).expanduser().resolve())


@lru_cache(maxsize=16)
def _read_file(game: str, file: Path) -> tuple[Board, ...]:
    if not file.is_file():
        raise RecipeError(f"boards: there is no file {file}")
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
    return tuple(_read_board(game, line, f"{file}:{n}") for n, line in lines if line.strip())


def _read_board(game: str, line: str, where: str) -> Board:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecipeError(f"{where}: not JSON: {error}") from error
    rows = row.get("board", row.get("layout")) if isinstance(row, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(r, str) for r in rows):
        raise RecipeError(f"{where}: expected a list of strings under 'board' or 'layout'")
    board = tuple(rows)
    check_board(game, board, where)
    tags = {name: row[name] for name in ("size", "p", "seed", "layout_name") if name in row}
    tags["shortest_path"] = shortest(game, board)
    return Board(board, derive_seed("board", *board), {"size": len(board), **tags})


def check_board(game: str, rows: Rows, where: str) -> None:
    """Raises RecipeError unless ``rows`` is a rectangle in the game's notation with one of each piece."""
    text = "".join(rows)
    if len({len(row) for row in rows}) != 1:
        raise RecipeError(f"{where}: the rows have different lengths")
    if strange := sorted(set(text) - set(_MARKS[game])):
        raise RecipeError(f"{where}: {game} boards use {_MARKS[game]!r}, not {''.join(strange)!r}")
    for marks in _ONCE[game]:
        if (count := sum(text.count(mark) for mark in marks)) != 1:
            raise RecipeError(f"{where}: expected exactly one of {marks!r}, found {count}")
