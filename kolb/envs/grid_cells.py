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

from kolb.envs.grid_games import ACTIONS, Cell, Game, State, best_actions, shifted

UNKNOWN = "nothing is known about this grid yet : look , try and learn"
"""The system prompt where the rules are hidden: about as long as the rules, and without content."""

LETTERS = "ABCDEFGHIJKL"
"""The symbols of this style, with their small letters: the base model knows no others."""

ROLES: Mapping[str, tuple[str, ...]] = {
    "frozenlake": ("agent", "goal", "hole", "frozen"),
    "sokoban": ("agent", "box", "goal", "wall", "floor"),
}
"""What the rules of a game name, in this order."""

OPPOSITE = {"Left": "Right", "Right": "Left", "Up": "Down", "Down": "Up"}
EDGE = "edge"


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


def shown_cells(game: Game, state: State, symbols: Mapping[str, str]) -> dict[Cell, str]:
    """The symbol that each cell of the board shows, row by row."""
    cells = [(r, c) for r, row in enumerate(game.rows) for c in range(len(row))]
    return {cell: symbols[game.role_at(state, cell)] for cell in cells}


def cells_text(shown: Mapping[Cell, str]) -> str:
    return " ".join(f"{cell_name(cell)}{symbol}" for cell, symbol in shown.items())


def board_text(game: Game, state: State, symbols: Mapping[str, str]) -> str:
    """
    >>> from kolb.envs.grid_games import FrozenLake
    >>> lake = FrozenLake(("SF", "HG"))
    >>> board_text(lake, lake.start, {"agent": "A", "goal": "B", "hole": "C", "frozen": "D"})
    'a1A b1D\\na2C b2B'
    """
    shown = shown_cells(game, state, symbols)
    rows = range(len(game.rows))
    return "\n".join(cells_text({c: s for c, s in shown.items() if c[0] == r}) for r in rows)


def reply_text(game: Game, state: State, action: str, symbols: Mapping[str, str]) -> str:
    """What an expert says before ``action``, and the action."""
    if len(state) == 1:
        near = beside(shown_cells(game, state, symbols), state[0])
        return lake_reply(symbols, places(game, state), near, action)
    return yard_reply(symbols, places(game, state), next_push(game, state, action), action)


def lake_reply(
    symbols: Mapping[str, str], cells: Mapping[str, Cell], near: Sequence[str], action: str
) -> str:
    """``cells``: where agent and goal are; ``near``: what is beside the agent."""
    seen = [f"{symbols[role]} {cell_name(cells[role])}" for role in ("agent", "goal")]
    return " ".join([*seen, judged(near, symbols["hole"]), action])


def yard_reply(
    symbols: Mapping[str, str], cells: Mapping[str, Cell], push: str, action: str
) -> str:
    """``cells``: where agent, box and goal are; ``push``: which way the box goes next."""
    seen = [f"{symbols[role]} {cell_name(cells[role])}" for role in ("agent", "box", "goal")]
    return " ".join([*seen, push, cell_name(behind(cells["box"], push)), action])


def beside(shown: Mapping[Cell, str], cell: Cell) -> list[str]:
    """What the cells to the Left, Down, Right and Up of ``cell`` show."""
    return [shown.get(shifted(cell, action), EDGE) for action in ACTIONS]


def judged(near: Sequence[str], hole: str) -> str:
    """The hole's symbol, then each of ``near`` and whether it is safe.

    >>> judged(["D", "C", "edge", "B"], "C")
    'C D yes C no edge no B yes'
    """
    return " ".join([hole, *(f"{s} {'no' if s in (hole, EDGE) else 'yes'}" for s in near)])


def next_push(game: Game, state: State, action: str) -> str:
    """Which way the box goes next on a shortest way that starts with ``action``."""
    while True:
        after = game.move(state, action)
        if after[1:] != state[1:]:
            return action
        state, action = after, best_actions(game, after)[0]


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
    return f"{action} : {'fell' if kind == 'lost' else kind} {place} {cell_name(after[0])}"


def final_text(game: Game, before: State, outcome: str, *, truncated: bool) -> str:
    """The last feedback: the outcome, whether time is up, and what stood where on the last board that was shown.

    The hint is the paper's, whose last feedback gives the final state.
    """
    ends = " ".join(f"{name} {cell_name(cell)}" for name, cell in places(game, before).items())
    return f"{outcome} {'timeout' if truncated else 'end'} : {ends}"


def places(game: Game, state: State) -> dict[str, Cell]:
    """Where agent, box and goal are."""
    return {**dict(zip(("agent", "box"), state, strict=False)), "goal": game.goal}


def reflection_text(told: Mapping[str, str], seen: Mapping[str, Cell], rules: str) -> str:
    """What a reflector says: for each thing where it was seen and what was there, then the rules.

    >>> reflection_text({"agent": "I", "hole": "F"}, {"agent": (0, 0)}, "agent I hole F")
    'agent a1 I hole ? F <prompt> agent I hole F </prompt>'
    """
    words = " ".join(
        f"{role} {cell_name(seen[role]) if role in seen else '?'} {symbol}"
        for role, symbol in told.items()
    )
    return f"{words} <prompt> {rules} </prompt>"
