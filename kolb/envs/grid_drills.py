"""Drills in looking up, for the embedded base model: boards whose cells show what they like.

On a board of a game two or three words of an answer are looked up; here every second word is, so a small model
learns from a drill what it does not learn from games (docs/decisions/0008). Each drill gives the three messages of
a chat: system, user, assistant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kolb.envs import grid_cells
from kolb.envs.grid_cells import LETTERS
from kolb.envs.grid_games import Cell

ASK_WHERE = "where is what ?"
ASK_WHAT = "what is where ?"
ASK_BESIDE = "what is beside ?"
ASKED = 8

Chat = tuple[str, str, str]
Drill = Callable[[np.random.Generator, Sequence[Cell]], Chat]


def where(rng: np.random.Generator, cells: Sequence[Cell]) -> Chat:
    """Where each symbol is, from A to l; a board with more cells than symbols is shown in part."""
    letters = [str(s) for s in rng.permutation(list(LETTERS + LETTERS.lower()))]
    chosen = sorted(int(i) for i in rng.permutation(len(cells))[: len(letters)])
    shown = {cells[i]: symbol for i, symbol in zip(chosen, letters, strict=False)}
    found = sorted((symbol, grid_cells.cell_name(cell)) for cell, symbol in shown.items())
    said = " ".join(f"{symbol} {name}" for symbol, name in found)
    return ASK_WHERE, grid_cells.cells_text(shown), said


def what(rng: np.random.Generator, cells: Sequence[Cell]) -> Chat:
    """What is in each cell that is asked for."""
    shown = scattered(rng, cells)
    asked = some(rng, cells, 2 * ASKED)
    return (ASK_WHAT, *answered(shown, asked, [shown[cell] for cell in asked]))


def beside(rng: np.random.Generator, cells: Sequence[Cell]) -> Chat:
    """What is to the Left, Down, Right and Up of each cell that is asked for."""
    shown = scattered(rng, cells)
    asked = some(rng, cells, ASKED)
    near = [" ".join(grid_cells.beside(shown, cell)) for cell in asked]
    return (ASK_BESIDE, *answered(shown, asked, near))


DRILLS: Mapping[str, Drill] = {"where": where, "what": what, "beside": beside}


def scattered(rng: np.random.Generator, cells: Sequence[Cell]) -> dict[Cell, str]:
    letters = rng.choice(list(LETTERS + LETTERS.lower()), size=len(cells))
    return {cell: str(symbol) for cell, symbol in zip(cells, letters, strict=True)}


def answered(
    shown: Mapping[Cell, str], asked: Sequence[Cell], answers: Sequence[str]
) -> tuple[str, str]:
    """The board with the names that are asked for, and each name with its answer."""
    names = [grid_cells.cell_name(cell) for cell in asked]
    said = " ".join(f"{name} {answer}" for name, answer in zip(names, answers, strict=True))
    return f"{grid_cells.cells_text(shown)}\n{' '.join(names)}", said


def some(rng: np.random.Generator, things: Sequence[Any], count: int) -> list[Any]:
    """``count`` of ``things`` in a random order, or all of them where there are fewer."""
    return [things[int(i)] for i in rng.permutation(len(things))[:count]]
