"""``kolb library``: the lessons that a run learnt, or that somebody wrote, read and used. One function a verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

library = typer.Typer(
    help="Lessons in words: show, diff, export, apply, eval. SOURCE is a run's folder (RUN@2: version 2 of its "
    "library), or a file with lessons (JSON, JSONL, YAML, Markdown, text).",
    no_args_is_help=True,
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A run's folder or a file.")]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe, or a run's folder.")]
To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="A new file.")]


@library.command()
def show(
    source: Source,
    version: Annotated[int | None, typer.Option(help="Of a run's library; the newest.")] = None,
    why: Annotated[str, typer.Option(metavar="ID", help="Where this lesson comes from.")] = "",
) -> None:
    """Read the lessons; --why: what is behind one."""
    from kolb.cli.library_showing import show_library, show_why

    named = source if version is None else f"{source}@{version}"
    if why:
        show_why(named, why)
    else:
        show_library(named)


@library.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="As SOURCE.")],
    after: Annotated[
        str,
        typer.Argument(metavar="B", help="As SOURCE; without it: A beside the version before."),
    ] = "",
) -> None:
    """What changed from A to B, word by word."""
    from kolb.cli.library_showing import show_changes

    show_changes(before, after)


@library.command()
def export(
    source: Source,
    form: Annotated[
        Literal["markdown", "json", "mapping", "prompt"],
        typer.Option("--format", help='json can be read again whole; mapping is {"G0": "..."}.'),
    ] = "markdown",
    to: To = None,
) -> None:
    """Write the lessons for people, programs, prompts."""
    from kolb.cli.library_using import export_library

    export_library(source, form, to)


@library.command()
def apply(source: Source, recipe: Recipe, to: To = None) -> None:
    """Write a recipe that starts from these lessons."""
    from kolb.cli.library_using import apply_library

    apply_library(source, Path(recipe), to)


@library.command(name="eval")
def evaluate(
    source: Source,
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A recipe or a run; SOURCE's own run without it."),
    ] = "",
    against: Annotated[
        str, typer.Option(metavar="OTHER", help="Another library, as SOURCE; none without it.")
    ] = "",
    split: Annotated[str | None, typer.Option(help="train, dev or test.")] = None,
    episodes: Annotated[int | None, typer.Option(help="How many tasks; 0 means all.")] = None,
    samples: Annotated[int | None, typer.Option(help="Attempts at each task.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the tasks and the sampling.")] = None,
    stage: Annotated[str, typer.Option("--stage", help="Which stage; the last.")] = "",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Also write the result as JSON.")
    ] = None,
) -> None:
    """Measure what the lessons are worth."""
    from kolb.cli.library_evaluating import compare

    asked = {"split": split, "episodes": episodes, "samples": samples, "seed": seed}
    changes = {name: value for name, value in asked.items() if value is not None}
    compare(
        source, recipe, against, changes=changes, opened={"stage": stage, "sets": sets or []}, to=to
    )
