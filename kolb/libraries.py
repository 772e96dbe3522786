"""A library by the name that a command or a recipe gives it.

runs/notes-0001         the newest version in a run's folder; runs/notes-0001@2 its version 2
lessons.json            a file of any format that ``kolb.memory.importing`` reads
experiences.jsonl@math  one of several libraries in a file
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kolb.errors import RecipeError, RunDirectoryError
from kolb.memory.importing import read_library
from kolb.memory.library import ExperienceLibrary
from kolb.memory.origins import outside
from kolb.runs.directory import RunDirectory
from kolb.stage import Recipe


@dataclass(frozen=True)
class Version:
    """The library of a run after ``step``; step 0 is what the run started from."""

    step: int
    library: ExperienceLibrary

    @property
    def number(self) -> int:
        return self.library.version

    @property
    def when(self) -> str:
        return f"after step {self.step}" if self.step else "at the start"


@dataclass(frozen=True)
class NamedLibrary:
    """``name``: of a run without its version. ``run`` and ``versions`` (oldest first, up to this one) where it is a run's."""

    name: str
    library: ExperienceLibrary
    run: RunDirectory | None = None
    versions: tuple[Version, ...] = ()

    @property
    def outside(self) -> ExperienceLibrary:
        """The library as it may leave its run: every source says which run it is of."""
        return outside(self.library, self.name) if self.run is not None else self.library

    @property
    def title(self) -> str:
        return f"{self.name}@{self.library.version}" if self.run is not None else self.name


def open_library(source: str) -> NamedLibrary:
    """The library called ``source``. RecipeError or RunDirectoryError where there is none."""
    name, part = split(source)
    path = Path(name)
    if path.is_dir():
        return of_run(RunDirectory.open(path), name, part)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(
            f"no library at {source} (looked from {Path.cwd()}); give a run's folder, as in runs/notes-0001 or "
            "runs/notes-0001@2, or a file with lessons"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{name} cannot be read as text: {error}") from None
    try:
        return NamedLibrary(source, read_library(text, name, part))
    except RecipeError as error:
        raise error if name in str(error) else RecipeError(f"{name}: {error}") from None


def split(source: str) -> tuple[str, str]:
    """The path, and what stands behind its last ``@``; a file or folder that is there is a path whole."""
    name, at, part = source.rpartition("@")
    if not at or not name or Path(source).exists():
        return source, ""
    return name, part


def of_run(run: RunDirectory, name: str, part: str = "") -> NamedLibrary:
    """The newest version of the run's library, or version ``part``."""
    versions = tuple(versions_of(run))
    if not versions:
        raise RunDirectoryError(
            f"{name} has no library: none of its steps taught a lesson (or its method keeps none)"
        )
    chosen = [v for v in versions if not part or str(v.number) == part]
    if not chosen:
        known = ", ".join(str(v.number) for v in versions)
        raise RunDirectoryError(f"{name} has no version {part!r} of its library; it has {known}")
    upto = versions[: versions.index(chosen[-1]) + 1]
    return NamedLibrary(name, chosen[-1].library, run, upto)


def versions_of(run: RunDirectory) -> Iterator[Version]:
    """Every version that the run recorded, oldest first, what it started from included; nothing where no
    step changed it."""
    steps = run.numbered("memory")
    if steps and steps[0] > 0:
        yield Version(0, ExperienceLibrary())
    for step in steps:
        yield Version(step, recorded(run, step))


def recorded(run: RunDirectory, step: int) -> ExperienceLibrary:
    """The library that the run wrote after ``step``."""
    path = run.file("memory", step)
    try:
        return ExperienceLibrary.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecipeError) as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}") from None


def starting_library(recipe: Recipe, run: RunDirectory | None = None) -> ExperienceLibrary:
    """What ``library`` of a recipe names, or what ``run`` kept of it, if it did: a file that moves, or a run that
    goes on, does not change what a run started from."""
    if run is not None and 0 in run.numbered("memory"):
        return recorded(run, 0)
    if not recipe.library:
        return ExperienceLibrary()
    try:
        found = open_library(recipe.library)
    except RunDirectoryError as error:
        raise RecipeError(f"library = {recipe.library!r}: {error}") from None
    if not found.library.experiences:
        raise RecipeError(f"library = {recipe.library!r}: {found.title} has no lessons")
    return found.outside
