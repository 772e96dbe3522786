"""The ``cells`` style of the grid games: words for a model of a few million parameters.

Every cell of a board is written with its name, ``a1D`` is the cell in column a and row 1, and every step of
thought is one look-up: where a symbol is, what is beside a cell. So a small network can act by rules that it
reads, whatever the size of the board. A reply names what it believes before it acts:

    FrozenLake  ``A b2 B d4 C D yes D yes D yes C no Left``  agent, where; goal, where; hole; what is Left, Down,
                Right and Up, and whether to go there
    Sokoban     ``A b2 B c2 C d2 Right b2 Right``              agent, where; box, where; goal, where; push which way, from where

and its last word is the action. All words are separated by spaces or new lines, which mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kolb.envs.grid_games import ACTIONS, Cell, Game, State, shifted

UNKNOWN = "nothing is known about this grid yet : look , try and learn"
"""The system prompt where the rules are hidden: about as long as the rules, and without content."""

ROLES: Mapping[str, tuple[str, ...]] = {
    "frozenlake": ("agent", "goal", "hole", "frozen"),
    "sokoban": ("agent", "box", "goal", "wall", "floor"),
}
"""What the rules of a game name, in this order."""

OPPOSITE = {"Left": "Right", "Right": "Left", "Up": "Down", "Down": "Up"}
EDGE = "edge"
NAMES = {"won": "won", "lost": "fell", "moved": "moved", "blocked": "blocked", "pushed": "pushed"}


def cell_name(cell: Cell) -> str:
    """
    >>> cell_name((0, 2))
    'c1'
    """
    row, column = cell
    return f"{chr(ord('a') + column)}{row + 1}"


def rules_text(game: str, symbols: Mapping[str, str]) -> str:
    """
    >>> rules_text("frozenlake", {"agent": "H", "goal": "C", "hole": "F", "frozen": "A"})
    'agent H goal C hole F frozen A'
    """
    return " ".join(f"{role} {symbols[role]}" for role in ROLES[game])


def board_text(game: Game, state: State, symbols: Mapping[str, str]) -> str:
    """
    >>> from kolb.envs.grid_games import FrozenLake
    >>> lake = FrozenLake(("SF", "HG"))
    >>> board_text(lake, lake.start, {"agent": "A", "goal": "B", "hole": "C", "frozen": "D"})
    'a1A b1D\\na2C b2B'
    """
    rows = [
        " ".join(
            f"{cell_name((r, c))}{symbols[game.role_at(state, (r, c))]}" for c in range(len(row))
        )
        for r, row in enumerate(game.rows)
    ]
    return "\n".join(rows)


def reply_text(game: Game, state: State, action: str, symbols: Mapping[str, str]) -> str:
    """What an expert says before ``action``, and the action."""
    if len(state) == 1:
        thought = judged(beside(game, state, symbols), symbols["hole"])
    else:
        push = next_push(game, state, action)
        thought = (
            f"{symbols['goal']} {cell_name(game.goal)} {push} {cell_name(behind(state[1], push))}"
        )
    first = f"{symbols['agent']} {cell_name(state[0])}"
    what, where = ("goal", game.goal) if len(state) == 1 else ("box", state[1])
    return f"{first} {symbols[what]} {cell_name(where)} {thought} {action}"


def beside(
    game: Game, state: State, symbols: Mapping[str, str], around: Cell | None = None
) -> list[str]:
    """The symbols to the Left, Down, Right and Up of the agent, or of another cell."""
    near = []
    for row, column in neighbours(around or state[0]):
        inside = 0 <= row < len(game.rows) and 0 <= column < len(game.rows[0])
        near.append(symbols[game.role_at(state, (row, column))] if inside else EDGE)
    return near


def judged(near: Sequence[str], hole: str) -> str:
    """The hole's symbol, then each of ``near`` and whether it is safe.

    >>> judged(["D", "C", "edge", "B"], "C")
    'C D yes C no edge no B yes'
    """
    return " ".join([hole, *(f"{s} {'no' if s in (hole, EDGE) else 'yes'}" for s in near)])


def neighbours(cell: Cell) -> list[Cell]:
    """The cells to the Left, Down, Right and Up."""
    return [shifted(cell, action) for action in ACTIONS]


def next_push(game: Game, state: State, action: str) -> str:
    """Which way the box goes next on a shortest way that starts with ``action``."""
    while True:
        after = game.move(state, action)
        if after[1:] != state[1:]:
            return action
        state = after
        left = game.distance(state) or 0
        action = next(a for a in ACTIONS if game.distance(game.move(state, a)) == left - 1)


def behind(box: Cell, push: str) -> Cell:
    """Where to stand to push the box that way.

    >>> cell_name(behind((2, 2), "Right"))
    'b3'
    """
    return shifted(box, OPPOSITE[push])


def outcome_text(kind: str, action: str | None, after: State) -> str:
    """What came of an action.

    >>> outcome_text("pushed", "Right", ((0, 1), (0, 2)))
    'Right : pushed to b1'
    """
    if action is None:
        return "invalid"
    place = "at" if kind in ("blocked", "lost") else "to"
    return f"{action} : {NAMES[kind]} {place} {cell_name(after[0])}"


def final_text(game: Game, before: State, outcome: str, *, truncated: bool) -> str:
    """The last feedback: the outcome, whether time is up, and what stood where on the last board that was shown.

    The hint is the paper's, whose last feedback gives the final state.
    """
    places = [("agent", before[0]), *([("box", before[1])] if len(before) > 1 else [])]
    ends = " ".join(f"{name} {cell_name(cell)}" for name, cell in (*places, ("goal", game.goal)))
    return f"{outcome} {'timeout' if truncated else 'end'} : {ends}"


def places(game: Game, before: State, hole: State | None) -> dict[str, Cell]:
    """Where the things are that the last feedback tells of; a wall is always in the first corner."""
    found = {"agent": before[0], "goal": game.goal}
    if len(before) > 1:
        return {**found, "box": before[1], "wall": (0, 0)}
    return {**found, "hole": hole[0]} if hole else found


def reflection_text(told: Mapping[str, str], places: Mapping[str, Cell], rules: str) -> str:
    """What a reflector says: for each thing where it was seen and what was there, then the rules.

    >>> reflection_text({"agent": "I", "hole": "F"}, {"agent": (0, 0)}, "agent I hole F")
    'agent a1 I hole ? F <prompt> agent I hole F </prompt>'
    """
    seen = " ".join(
        f"{role} {cell_name(places[role]) if role in places else '?'} {symbol}"
        for role, symbol in told.items()
    )
    return f"{seen} <prompt> {rules} </prompt>"
