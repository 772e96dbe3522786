"""``kolb run``: starts or resumes a run, shows its progress, and closes with a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from kolb import recipe as recipes
from kolb.loop import run
from kolb.report import print_report
from kolb.runs.directory import RunDirectory, next_path
from kolb.runs.progress import Progress
from kolb.stage import Recipe


def start_run(path: str, sets: Sequence[str], out: Path | None, quiet: bool) -> None:
    recipe = recipes.load(path, sets)
    follow(recipe, out or next_path("runs", recipe.name), quiet, resume=False)


def resume_run(directory: Path, quiet: bool) -> None:
    recipe = recipes.parse(RunDirectory.open(directory).recipe())
    follow(recipe, directory, quiet, resume=True)


def follow(recipe: Recipe, directory: Path, quiet: bool, *, resume: bool) -> None:
    if not quiet:
        print(f"run: {directory}", flush=True)
    steps = sum(stage.steps for stage in recipe.stages)
    try:
        with Progress(steps, quiet) as progress:
            result = run(recipe, directory, resume=resume, observer=progress)
    except KeyboardInterrupt:
        print(
            f"\nstopped. The run goes on from its last checkpoint with\n  kolb run --resume {directory}",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    print_report(result, quiet=quiet)
