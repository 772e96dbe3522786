"""``kolb words``: words over a run, as a table and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from kolb.errors import RecipeError, RunDirectoryError, nearest
from kolb.models.fetch import resolve
from kolb.runs.directory import RunDirectory
from kolb.runs.plots import plot_png
from kolb.view.render import safe
from kolb.view.token_ends import Decode
from kolb.view.word_tables import unlikely_table, word_table
from kolb.view.words import WordBin, WordCounter, cut

ABOUT = "p: the probability that the sampler gave to a word's first token, at its temperature"
BELOW = 0.1
"""What counts as unlikely when nobody says."""
POINTS = 60
"""Of a line in the picture."""


def count_words(run: Path, words: Sequence[str], *, bins: int, policy: str = "") -> None:
    """The table of the chosen words, and ``words.png`` in the run's folder."""
    words = distinct(words)
    directory = opened(run, policy)
    counter = WordCounter(partial(decoder_of, directory), words, policy=policy)
    by_step = [counter.count(directory, [step]) for step in directory.episode_steps()]
    whole = checked(directory, WordBin.joined(by_step))
    say(f"{word_table(joined(by_step, bins), words)}\n\n{ABOUT}")
    say_unplaced(whole)
    for word in words:
        if not whole.tallies[word].count:
            say(f"{word!r} was never sampled (whole words are looked for, in any case)")
    points = joined(by_step, POINTS)
    series = {word: [(b.middle, b.per_thousand(word)) for b in points] for word in words}
    path = directory.path / "words.png"
    say_picture(lambda: plot_png(series, path, directory.name, "occurrences per 1000 tokens"))


def joined(by_step: Sequence[WordBin], count: int) -> list[WordBin]:
    return [WordBin.joined(part) for part in cut(by_step, count)]


def count_unlikely(run: Path, *, bins: int, below: float, policy: str = "") -> None:
    """The table of the words that were sampled although they were unlikely."""
    directory = opened(run, policy)
    counter = WordCounter(partial(decoder_of, directory), below=below, policy=policy)
    counted = [counter.count(directory, steps) for steps in cut(directory.episode_steps(), bins)]
    whole = checked(directory, WordBin.joined(counted))
    say(f"words that were sampled with a probability under {below:g} (of their first token):\n")
    say(unlikely_table(counted))
    say_unplaced(whole)


def checked(run: RunDirectory, whole: WordBin) -> WordBin:
    if not whole.completions:
        raise RunDirectoryError(
            f"{run.path}: nothing was sampled in the {len(whole.steps)} recorded steps (by this policy), so there "
            "are no words to count; what was given, as in imitation, does not count"
        )
    return whole


def distinct(words: Sequence[str]) -> list[str]:
    """``words`` without those that differ in case alone; RecipeError where one is empty."""
    if not all(word.strip() for word in words):
        raise RecipeError(
            "a word to count is empty; give words, as in `kolb words RUN wait however`"
        )
    return list({word.lower(): word for word in reversed(words)}.values())[::-1]


def opened(run: Path, policy: str) -> RunDirectory:
    """The run, or an error in words where it has no episodes or no such policy."""
    directory = RunDirectory.open(run)
    if not directory.episode_steps():
        raise RunDirectoryError(
            f"{run} has no episodes yet (or its recipe says record_episodes = false), so no words to count"
        )
    known = directory.recipe().get("policies", {})
    if policy and policy not in known:
        raise RecipeError(f"no policy {policy!r}{nearest(policy, known)}")
    return directory


def decoder_of(run: RunDirectory, policy: str) -> Decode | None:
    """The decoding by a policy's tokenizer, where it is on this disk: nothing is fetched."""
    if find_spec("tokenizers") is None or (file := tokenizer_file(run, policy)) is None:
        return None
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def tokenizer_file(run: RunDirectory, policy: str) -> Path | None:
    """The one trained for the run, or the one that the recipe names: a folder, a known name, the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    trained = run.path / "models" / policy / "tokenizer.json"
    if trained.is_file():
        return trained
    given = run.recipe().get("policies", {}).get(policy, {})
    name = given.get("tokenizer") or given.get("base")
    if not isinstance(name, str) or not name:
        return None
    try:
        where = resolve(name)
    except RecipeError:
        return None
    file = Path(where) / "tokenizer.json"
    if file.is_file():
        return file
    cached = try_to_load_from_cache(where, "tokenizer.json") if "/" in where else None
    return Path(cached) if isinstance(cached, str) else None


def say(text: str) -> None:
    Console(highlight=False).print(safe(text), soft_wrap=True)


def say_unplaced(counted: WordBin) -> None:
    if counted.unplaced:
        say(
            f"{counted.unplaced} of {counted.completions} completions are without probabilities: they have no "
            "logprobs, or their policy's tokenizer is not on this disk or does not spell their text"
        )


def say_picture(draw: Callable[[], Path]) -> None:
    try:
        say(f"as a picture: {draw()}")
    except RecipeError as error:
        say(f"no picture: {error}")
