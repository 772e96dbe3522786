"""``kolb view``: which of the views the given numbers ask for."""

from __future__ import annotations

from pathlib import Path

from kolb.errors import RecipeError
from kolb.view import terminal


def view_run(
    run: Path, *, step: int | None, group: int | None, episode: int | None, tokens: bool
) -> None:
    """Nothing given: browse. A step: its groups. A group: its episodes. An episode: every turn."""
    if step is None:
        if group is not None or episode is not None or tokens:
            raise RecipeError("--group, --episode and --tokens need --step")
        terminal.browse(run)
    elif group is None:
        if episode is not None or tokens:
            raise RecipeError("--episode and --tokens need --group")
        terminal.list_groups(run, step)
    elif episode is None:
        if tokens:
            raise RecipeError("--tokens needs --episode")
        terminal.show_group(run, step, group)
    else:
        terminal.show_episode(run, step, group, episode, tokens=tokens)
