"""Attempts at FrozenLake by agents of every quality, and the report on what an attempt shows.

An attempt is played in the real environment, so its words are those that a run writes. A report names a cell for every
role, and what is there, so that each of its words is one look-up:

    agent b3 K goal d4 C hole ? frozen a2 D
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kolb.envs import grid_cells
from kolb.envs.grid_beliefs import random_belief, reply_on_belief
from kolb.envs.grid_games import Cell, Game, what_happened
from kolb.envs.grid_text import GridText, GridWorld
from kolb.models.notes.desk import at_once
from kolb.types import Completion, Trajectory, Turn

GAME = "frozenlake"
ROLES = grid_cells.ROLES[GAME]
NOTHING = "?"
LAKE = GridText(game=GAME, style="cells")


@dataclass(frozen=True)
class Move:
    """From where to where, and what it was: ``won``, ``lost``, ``moved`` or ``blocked``."""

    before: Cell
    after: Cell
    kind: str


def played(
    rng: np.random.Generator, game: Game, symbols: Mapping[str, str], known: Mapping[str, str]
) -> tuple[Trajectory, list[Move]]:
    """One attempt by an agent that believes what is ``known`` and guesses the rest anew in each turn."""
    world = GridWorld(LAKE, game, symbols)
    heard = at_once(world.reset())
    turns: list[Turn] = []
    moves: list[Move] = []
    reward = 0.0
    while heard:
        before = world.state
        shown = grid_cells.shown_cells(game, before, symbols)
        said = reply_on_belief(rng, shown, random_belief(rng, shown, known))
        result = at_once(world.step(said))
        turns.append(Turn(heard, Completion(said), feedback=result.feedback))
        kind = what_happened(game, before, world.actions[-1][0], world.state)
        moves.append(Move(before[0], world.state[0], kind))
        reward += result.reward or 0.0
        heard = () if result.terminated or result.truncated else result.observation
    return Trajectory("solver", turns=tuple(turns), scores={"reward": reward}), moves


def shown_with_results(game: Game, moves: Sequence[Move]) -> dict[str, Cell]:
    """For each role a cell that shows it, as boards and feedback tell."""
    last = moves[-1]
    found = {"agent": last.before, "goal": game.goal}
    if last.kind == "lost":
        found["hole"] = last.after
    entered = [move.after for move in moves if move.kind == "moved"]
    return found | ({"frozen": entered[0]} if entered else {})


def shown_without_results(moves: Sequence[Move]) -> dict[str, Cell]:
    """The same where only the boards tell: what moved is the agent, and what it left is ice. The last move is not shown."""
    first = next((move for move in moves[:-1] if move.kind == "moved"), None)
    return {} if first is None else {"agent": first.after, "frozen": first.before}


def report_text(cells: Mapping[str, Cell], symbols: Mapping[str, str]) -> str:
    """
    >>> report_text({"agent": (2, 1), "goal": (3, 3)}, {"agent": "K", "goal": "C"})
    'agent b3 K goal d4 C hole ? frozen ?'
    """
    return " ".join(
        f"{role} {grid_cells.cell_name(cells[role])} {symbols[role]}"
        if role in cells
        else f"{role} {NOTHING}"
        for role in ROLES
    )
