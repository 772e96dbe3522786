"""``kolb check``: the environment contract on any environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from kolb.envs.checker import check
from kolb.overrides import apply_sets
from kolb.readers import plug
from kolb.recipe import anchored
from kolb.tables import Place, fill


def check_environment(use: str, options: Sequence[str]) -> None:
    """Prints what the environment breaks, exit code 1 when there is something, and notes."""
    place = Place(f"[{use}]")
    table = anchored(apply_sets({}, options), Path.cwd())
    source = fill(plug({"use": use}, "environment", place.title), table, place)
    found = check(source)
    for problem in found:
        print(f"- {'note: ' if problem.is_note else ''}{problem}")
    problems = [problem for problem in found if not problem.is_note]
    if problems:
        print(f"{use}: {len(problems)} {'kind' if len(problems) == 1 else 'kinds'} of problem")
        raise typer.Exit(1)
    print(f"{use}: no problem found")
