"""The ``kolb`` command: verbs, and no flag that belongs to a method.

Nothing heavy is imported before a verb runs: ``kolb --help`` answers at once. Mistakes (KolbError) end
with one message and exit code 2; everything else is a bug of somebody's and shows its traceback.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kolb.cli.library import library

app = typer.Typer(
    help="Teach language-model agents from their own experience.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
models = typer.Typer(help="Models by name: list, get.", no_args_is_help=True)
app.add_typer(models, name="models")
app.add_typer(library, name="library")

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the recipe: stages.rl.steps=20. Repeatable."
    ),
]
Source = Annotated[str, typer.Argument(metavar="RUN_OR_RECIPE", help="A run's folder or a recipe.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
Checkpoint = Annotated[
    int | None, typer.Option(metavar="STEP", help="Which checkpoint; the newest by default.")
]
StageName = Annotated[str, typer.Option("--stage", help="Which stage; the last by default.")]


def main() -> None:
    """The console script."""
    from kolb.errors import KolbError

    try:
        app()
    except KolbError as error:
        print(f"kolb: {error}", file=sys.stderr)
        sys.exit(2)


def show_version(is_wanted: bool) -> None:
    if is_wanted:
        from kolb import __version__

        print(f"kolb {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Its version.", is_eager=True, callback=show_version),
    ] = False,
) -> None:
    """Teach language-model agents from their own experience."""


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe: a TOML file.")] = "",
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; runs/NAME-0001 and so on by default.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was interrupted.")
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="STEP", help="With --resume: take the steps after this one again."
        ),
    ] = None,
    dry: Annotated[
        bool,
        typer.Option("--dry-run", help="Only check the recipe, and estimate what it asks for."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only warnings and the result.")] = False,
) -> None:
    """Train: run a recipe, or resume a run."""
    from kolb.cli.running import resume_run, start_run, try_run
    from kolb.errors import RecipeError

    if resume is not None:
        if recipe or sets or out or dry:
            raise RecipeError("--resume goes on with a run's own recipe; give RUN and nothing else")
        resume_run(resume, quiet, after)
    elif after is not None:
        raise RecipeError("--after goes back in a run: give --resume RUN with it")
    elif recipe and dry:
        try_run(recipe, sets or [])
    elif recipe:
        start_run(recipe, sets or [], out, quiet)
    else:
        raise RecipeError(
            "give a recipe, as in `kolb run recipes/quickstart.toml`, or --resume RUN"
        )


@app.command(name="eval")
def evaluate(
    source: Source,
    checkpoint: Checkpoint = None,
    split: Annotated[str | None, typer.Option(help="train, dev or test.")] = None,
    episodes: Annotated[int | None, typer.Option(help="How many tasks; 0 means all.")] = None,
    samples: Annotated[int | None, typer.Option(help="Attempts at each task, for pass@k.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the tasks and the sampling.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    stage: StageName = "",
    sets: Sets = None,
) -> None:
    """Measure: success with its interval, pass@k, and what broke. The evaluator that training uses."""
    from kolb.cli.evaluating import evaluate_source

    asked = {
        "split": split,
        "episodes": episodes,
        "samples": samples,
        "seed": seed,
        "temperature": temperature,
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    evaluate_source(source, changes, checkpoint=checkpoint, stage=stage, sets=sets or [])


@app.command()
def play(
    source: Source,
    task: Annotated[str, typer.Option(help="A task's id, or its number in the split.")] = "0",
    by_hand: Annotated[bool, typer.Option("--by-hand", help="You answer, not the model.")] = False,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    seed: Annotated[int, typer.Option(help="Fixes the sampling.")] = 0,
    checkpoint: Checkpoint = None,
    stage: StageName = "",
    sets: Sets = None,
) -> None:
    """Watch one episode, turn by turn, or play it yourself."""
    from kolb.cli.playing import play_source

    play_source(
        source, task, by_hand=by_hand, split=split, seed=seed,
        opened={"checkpoint": checkpoint, "stage": stage, "sets": sets or []},
    )  # fmt: skip


@app.command()
def view(
    run: Run,
    step: Annotated[
        int | None, typer.Option(help="A step; without it, the run as a whole.")
    ] = None,
    group: Annotated[int | None, typer.Option(help="A group of that step.")] = None,
    episode: Annotated[int | None, typer.Option(help="An episode of that group.")] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Token by token, with logprobs.")
    ] = False,
) -> None:
    """Browse what a run did: steps, groups, episodes, turns, tokens."""
    from kolb.cli.viewing import view_run

    view_run(run, step=step, group=group, episode=episode, tokens=tokens)


@app.command()
def words(
    run: Run,
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="Whole words, in any case.")
    ] = None,
    bins: Annotated[int, typer.Option(min=1, help="Columns of the table.")] = 6,
    policy: Annotated[str, typer.Option(help="What this policy sampled alone.")] = "",
    below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Without words: what is unlikely; 0.1.")
    ] = None,
    scatter: Annotated[
        bool, typer.Option("--scatter", help="Probability and entropy, by a checkpoint's weights.")
    ] = False,
    checkpoint: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Of --scatter; the newest that a recorded step follows."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Of --scatter: how many to compute; 50000.")
    ] = None,
) -> None:
    """Count words over a run, and how likely they were; without words: those sampled although unlikely."""
    from kolb.cli import counting
    from kolb.errors import RecipeError

    if not scatter and (checkpoint is not None or tokens is not None):
        raise RecipeError("--checkpoint and --tokens belong to --scatter")
    if not chosen:
        if scatter:
            raise RecipeError(
                "--scatter needs words, as in `kolb words RUN wait however --scatter`"
            )
        limit = counting.BELOW if below is None else below
        counting.count_unlikely(run, bins=bins, below=limit, policy=policy)
        return
    if below is not None:
        raise RecipeError("--below chooses among all words; give it without words")
    counting.count_words(run, chosen, bins=bins, policy=policy)
    if scatter:
        from kolb.cli import scattering

        how_many = tokens or scattering.TOKENS
        scattering.scatter_words(run, chosen, policy=policy, checkpoint=checkpoint, tokens=how_many)


@app.command()
def check(
    environment: Annotated[str, typer.Argument(help="A name, a dotted name, or a file.py[:NAME].")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its options.")
    ] = None,
) -> None:
    """Check an environment against the contract: determinism, replay, single use, splits."""
    from kolb.cli.checking import check_environment

    check_environment(environment, options or [])


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="A new folder, in Hugging Face's layout.")],
    policy: Annotated[str, typer.Option(help="Which policy; needed where several learn.")] = "",
    merge: Annotated[bool, typer.Option("--merge", help="Fold the adapter into its base.")] = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a policy as a plain Hugging Face folder."""
    from kolb.cli.exporting import export_run

    export_run(run, out, policy=policy, merge=merge, checkpoint=checkpoint)


@models.command(name="list")
def list_models() -> None:
    """The models that kolb knows by name, and which of them are here."""
    from kolb.cli.fetching import list_known

    list_known()


@models.command(name="get")
def get_model(name: Annotated[str, typer.Argument(help="A name from `kolb models list`.")]) -> None:
    """Fetch a model into the cache."""
    from kolb.cli.fetching import fetch

    fetch(name)
