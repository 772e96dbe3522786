"""``kolb run``: starts or resumes a run, shows its progress, and closes with a report."""

from __future__ import annotations

import atexit
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from kolb import recipe as recipes
from kolb.cli.estimating import costs_something, print_estimate
from kolb.loop import check_tasks, run
from kolb.report import print_report
from kolb.runs.directory import RunDirectory, next_path
from kolb.runs.progress import Progress
from kolb.stage import Recipe


def start_run(path: str, sets: Sequence[str], out: Path | None, quiet: bool) -> None:
    recipe = recipes.load(path, sets)
    if not quiet and costs_something(recipe):
        print_estimate(recipe)
    follow(recipe, out or next_path("runs", recipe.name), quiet, resume=False)


def try_run(path: str, sets: Sequence[str]) -> None:
    """All that can be known without asking a policy: whether the recipe is sound, and what it asks for."""
    recipe = recipes.load(path, sets)
    check_tasks(recipe)
    print_estimate(recipe)


def resume_run(directory: Path, quiet: bool, after: int | None = None) -> None:
    recipe = recipes.parse(RunDirectory.open(directory).recipe())
    follow(recipe, directory, quiet, resume=True, after=after)


def follow(
    recipe: Recipe, directory: Path, quiet: bool, *, resume: bool, after: int | None = None
) -> None:
    if not quiet:
        print(f"run: {directory}", flush=True)
    steps = sum(stage.steps for stage in recipe.stages)
    logging.getLogger("asyncio").addFilter(is_no_interrupt)
    try:
        with Progress(steps, quiet) as progress:
            result = run(recipe, directory, resume=resume, after=after, observer=progress)
    except KeyboardInterrupt:
        # A second Ctrl-C while the interpreter takes itself down would only show its insides.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        print(f"\nstopped. {how_to_go_on(directory)}", file=sys.stderr)
        raise typer.Exit(130) from None
    print_report(result, quiet=quiet)


def is_no_interrupt(record: logging.LogRecord) -> bool:
    """False for what asyncio says of a task that a second Ctrl-C ended: whoever pressed it knows."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def how_to_go_on(directory: Path) -> str:
    if not directory.is_dir():
        return "Nothing was written yet."
    steps = RunDirectory.open(directory).numbered("checkpoints")
    where = (
        f"its checkpoint of step {steps[-1]}" if steps else "the start: it has no checkpoint yet"
    )
    return f"The run goes on from {where}, with\n  kolb run --resume {directory}"
