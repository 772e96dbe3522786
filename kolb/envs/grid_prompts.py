"""What the grid games say and how their replies are read: prompts, boards as text, feedback.

Three styles. ``paper`` follows the structure of the ERL paper's solver prompt (arXiv:2602.13949, table 2), in
our own words: reason first, then the action between triple backticks. ``short`` is for models of a few
million parameters: the user turn is the board and nothing else, the reply is one word. ``cells`` is in ``grid_cells``.

With hidden rules a system prompt never says what a symbol means or what the game is about; only the
feedback does, as in the paper. Where the released code and the paper differ (a reminder that gives a rule
away, letters that are not on the board), this follows the paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from kolb.envs import grid_cells
from kolb.envs.grid_games import ACTIONS, GAMES, Game, State
from kolb.errors import RecipeError, nearest

STYLES = ("paper", "short", "cells")
RULES = ("hidden", "visible")

SYMBOLS: Mapping[str, Mapping[str, str]] = {
    "frozenlake": {
        "agent": "A",
        "goal": "B",
        "hole": "C",
        "frozen": "D",
        "agent_on_goal": "b",
        "agent_in_hole": "c",
    },
    "sokoban": {
        "agent": "A",
        "agent_on_goal": "a",
        "box": "B",
        "box_on_goal": "b",
        "goal": "C",
        "wall": "E",
        "floor": "D",
    },
}
"""The paper's symbols. The agent on the goal or in a hole is only seen once an episode is over."""


# ---------------------------------------------------------------------------------- symbols and boards


def check_symbols(game: str, given: Mapping[str, str]) -> dict[str, str]:
    """The paper's symbols with ``given`` on top. Raises RecipeError on unknown roles and on clashes."""
    for role, symbol in given.items():
        if role not in SYMBOLS[game]:
            raise RecipeError(f"symbols: {game} has no {role!r}{nearest(role, SYMBOLS[game])}")
        if not isinstance(symbol, str) or not symbol or any(c.isspace() for c in symbol):
            raise RecipeError(
                f"symbols.{role} = {symbol!r}: expected text without spaces, one letter say"
            )
    symbols = {**SYMBOLS[game], **given}
    if len(set(symbols.values())) != len(symbols):
        raise RecipeError(f"symbols: two things look alike in {symbols}; give each its own symbol")
    return symbols


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def random_symbols(game: str, seed: int, letters: str = LETTERS) -> dict[str, str]:
    """One of ``letters`` for each thing, drawn from ``seed``; on the goal or in a hole, its small letter."""
    roles = GAMES[game].roles
    plain = [role for role in roles if "_" not in role]
    drawn = np.random.default_rng(seed).permutation(list(letters))
    symbols = {role: str(letter) for role, letter in zip(plain, drawn, strict=False)}
    # The agent's small letter stands for "agent on goal"; a hole's for "agent in it".
    small = {"agent_on_goal": "agent", "agent_in_hole": "hole", "box_on_goal": "box"}
    return {role: symbols.get(role) or symbols[small[role]].lower() for role in roles}


def board_text(game: Game, state: State, symbols: Mapping[str, str], style: str) -> str:
    """Paper: every cell is space, symbol, space, tab (the paper's). Short: symbols with one space between."""
    if style == "cells":
        return grid_cells.board_text(game, state, symbols)
    rows = [
        [symbols[game.role_at(state, (r, c))] for c in range(len(row))]
        for r, row in enumerate(game.rows)
    ]
    if style == "paper":
        return "\n".join("".join(f" {symbol} \t" for symbol in row) for row in rows)
    return "\n".join(" ".join(row) for row in rows)


# ------------------------------------------------------------------------------------------- replies

_FENCED = re.compile(r"```(.*?)```", re.DOTALL)
_WORD = re.compile(r"[^\W_]+")
_LEGAL = {a.lower(): a for a in ACTIONS} | {str(i): a for i, a in enumerate(ACTIONS, start=1)}


def parse_action(reply: str, style: str) -> str | None:
    """The action that a reply names, or None.

    The last span between triple backticks decides: a direction in any case, or a digit (1 Left, 2 Down,
    3 Right, 4 Up). In the short style a reply without such a span gives its last direction or digit. In the
    cells style the last word decides, or there is no action: directions stand in its thoughts, too.
    """
    if style == "cells":
        return _LEGAL.get((reply.split() or [""])[-1].lower())
    spans = _FENCED.findall(reply)
    if spans:
        return _LEGAL.get(spans[-1].strip().lower())
    if style == "short":
        words = [w for w in _WORD.findall(reply.lower()) if w in _LEGAL]
        return _LEGAL[words[-1]] if words else None
    return None


# ------------------------------------------------------------------------------------------- prompts


def system_prompt(game: str, style: str, rules: str, symbols: Mapping[str, str]) -> str:
    if style == "cells":
        visible = rules == "visible"
        return grid_cells.rules_text(game, symbols) if visible else grid_cells.UNKNOWN
    parts = [_PAPER_SYSTEM if style == "paper" else _SHORT_SYSTEM]
    if rules == "visible":
        parts.append(_RULES[game].format(**symbols))
    return "\n\n".join(parts)


def user_turn(board: str, step: int, moves_left: int, nothing_changed: bool) -> str:
    """The paper style's user message for step ``step`` (from 0)."""
    lines = [f"Step {step}", board, "The goal is not achieved yet. Choose the next action."]
    if nothing_changed:
        lines.append("Warning: your last action changed nothing, the grid is the same as before.")
    lines.append(f"Moves remaining: {moves_left}")
    return "\n".join(lines)


def expert_reply(game: Game, state: State, action: str, symbols: Mapping[str, str]) -> str:
    """The paper style's skeleton filled in with what the shortest path knows, in the board's own symbols."""
    left = game.distance(state) or 0
    value = "High" if left <= 2 else "Medium" if left <= 5 else "Low"
    rest = [a for a in ACTIONS if a != action]
    other = min(rest, key=lambda a: _badness(game, game.move(state, a)))
    return (
        "<reason>\n"
        f"1. **State analysis:** {_whereabouts(game, state, symbols)}.\n"
        f"2. **Value:** {value}, because {_moves(left)} would be enough from here.\n"
        f"3. **Consequences:** {action}: {_consequence(game, state, action)}. "
        f"{other}: {_consequence(game, state, other)}.\n"
        "</reason>\n"
        f"```{action}```"
    )


def _whereabouts(game: Game, state: State, symbols: Mapping[str, str]) -> str:
    things = zip(("agent", "box"), state, strict=False)
    return ", ".join(
        f"{symbols[role]} is at row {row}, column {column}"
        for role, (row, column) in (*things, ("goal", game.goal))
    )


def _badness(game: Game, state: State) -> float:
    left = game.distance(state)
    return float("inf") if left is None else left


def _consequence(game: Game, state: State, action: str) -> str:
    after = game.move(state, action)
    if after == state:
        return "nothing changes because the way is blocked"
    left = game.distance(after)
    if left is None:
        return "the attempt is lost because there is no way on from there"
    if left == 0:
        return "the attempt succeeds because this is the last move needed"
    return f"{_moves(left)} more would be needed because of where this leads"


def _moves(count: int) -> str:
    return "1 move" if count == 1 else f"{count} moves"


# ------------------------------------------------------------------------------------------ feedback

OUTCOMES: Mapping[str, Mapping[str, str]] = {
    "frozenlake": {
        "won": "The agent reached the goal.",
        "lost": "The agent fell into a hole.",
        "moved": "The agent moved and has not reached the goal yet.",
        "blocked": "The agent did not move: the edge of the grid is there.",
        "invalid": "There was no valid action in the reply, so nothing changed.",
        "limit": "The step limit was hit before the goal was reached.",
    },
    "sokoban": {
        "won": "The puzzle is solved: the box is on the goal.",
        "moved": "The player moved and the puzzle is not solved yet.",
        "pushed": "The player pushed the box and the puzzle is not solved yet.",
        "blocked": "The player did not move: a wall or a box that cannot be pushed is in the way.",
        "invalid": "There was no valid action in the reply, so nothing changed.",
        "limit": "The step limit was hit before the puzzle was solved.",
    },
}


def final_line(
    game: Game, state: State, outcome: str, actions: list[tuple[str | None, bool]]
) -> str:
    """The paper's closing feedback: outcome, wasted actions, last action, final state, reward and steps.

    ``actions`` are (action or None where invalid, whether it had an effect), one per step.
    """
    wasted = sum(not effect for _, effect in actions)
    tail = next((i for i, (_, effect) in enumerate(reversed(actions)) if effect), len(actions))
    parts = [outcome]
    if wasted:
        parts.append(f"{wasted} of {len(actions)} actions had no effect.")
    if tail >= 2:
        parts.append(f"The last {tail} actions in a row did nothing.")
    parts.append(f"Last action: {actions[-1][0] or 'invalid'}.")
    names = dict.fromkeys(("agent", "box")[: len(state)])
    ends = [f"{name} at {cell}" for name, cell in zip(names, state, strict=True)]
    parts.append(f"Final state (row, column): {', '.join(ends)}, goal at {game.goal}.")
    parts.append(f"Reward={1.0 if game.is_won(state) else 0.0}, steps={len(actions)}.")
    return " ".join(parts)


# ------------------------------------------------------------------------------- the prompts' wording

_PAPER_SYSTEM = """\
You are an agent in an unnamed grid game. Work as a reasoning engine: what you believe about the game so \
far, rules and strategy alike, may be incomplete or wrong. The only thing you can do is to choose the next \
action.

Before each action:
1. Summarise the current state.
2. Judge how good this state is in the long run.
3. Take the two most promising actions and predict what each leads to, in the form "result, because reason".
4. Choose one.

Answer in exactly this form:
<reason>
1. **State analysis:** what you see
2. **Value:** High, Medium or Low, and why
3. **Consequences:** the predictions for exactly two actions
</reason>
```action```

The action is one of Up, Down, Left, Right. It stands alone between triple backticks, as in ```Up```."""

_SHORT_SYSTEM = "Grid game. Answer with one word: Up, Down, Left or Right."

_RULES: Mapping[str, str] = {
    "frozenlake": (
        "The symbols: {agent} is you, {goal} the goal, {hole} a hole, {frozen} safe ice. "
        "Each action moves you one cell; the edge of the grid stops you. Reach {goal}; stepping on {hole} loses."
    ),
    "sokoban": (
        "The symbols: {agent} is you ({agent_on_goal} on the goal), {box} the box ({box_on_goal} on the goal), "
        "{goal} the goal, {wall} a wall, {floor} free floor. Each action moves you one cell. Walking into {box} "
        "pushes it if the cell behind it is free; you cannot pull. Bring {box} onto {goal}."
    ),
}
