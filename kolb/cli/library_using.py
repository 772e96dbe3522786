"""``kolb library export`` and ``apply``: the lessons as a file, and as the start of a recipe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kolb.cli.counting import say
from kolb.errors import RecipeError
from kolb.libraries import NamedLibrary, open_library
from kolb.memory.exporting import as_mapping, as_markdown, as_prompt
from kolb.memory.library import ExperienceLibrary
from kolb.methods.tf_grpo_prompts import PROMPTS
from kolb.runs.files import write_atomic
from kolb.runs.toml import dumps


def export_library(source: str, form: str, to: Path | None) -> None:
    """Writes to the new file ``to``, else to the standard output, and there nothing else."""
    named = with_lessons(source)
    text = exported(named, form)
    if to is None:
        print(text, end="")
        return
    write_new(to, text)
    say(f"{named.title} is in {to}")


def with_lessons(source: str) -> NamedLibrary:
    named = open_library(source)
    if not named.library.experiences:
        raise RecipeError(f"{named.title} has no lessons yet, so there is nothing to use")
    return named


def exported(named: NamedLibrary, form: str) -> str:
    library: ExperienceLibrary = named.outside
    match form:
        case "markdown":
            return as_markdown(library)
        case "json":
            return library.to_json()
        case "mapping":
            return as_mapping(library)
        case _:
            return as_prompt(library, heading_of(named))


def heading_of(named: NamedLibrary) -> str:
    """What stood above the lessons where they were learnt."""
    stages = named.run.recipe()["stages"] if named.run is not None else []
    own = [s["method"].get("prompts", {}).get("heading", "") for s in stages]
    return next((heading for heading in reversed(own) if heading), PROMPTS.heading)


def write_new(path: Path, text: str) -> None:
    if path.exists():
        raise RecipeError(f"{path} is there already; give a new file")
    if not path.parent.is_dir():
        raise RecipeError(f"there is no folder {path.parent} to write {path.name} to")
    write_atomic(path, text.encode())


# -------------------------------------------------------------------------------------------- apply


def apply_library(source: str, recipe: Path, to: Path | None) -> None:
    """A copy of ``recipe`` beside it that starts from the library, and the library as JSON beside both, so that
    neither a longer run nor a moved file changes what was applied."""
    named = with_lessons(source)
    text = read_recipe(recipe)
    to = recipe.with_name(f"{recipe.stem}_with_library.toml") if to is None else to
    if to.suffix != ".toml" or to.resolve().parent != recipe.resolve().parent:
        raise RecipeError(
            f"--to {to}: expected a TOML file in {recipe.parent}, beside {recipe.name}, whose paths are relative to it"
        )
    lessons = to.with_suffix(".json")
    changed = with_key(text, f"./{lessons.name}", recipe)
    for path in (to, lessons):
        if path.exists():
            raise RecipeError(f"{path} is there already; give another name by --to")
    write_new(lessons, named.outside.to_json())
    write_new(to, changed)
    say(f"{to} is {recipe.name} that starts from {named.title}, which is copied to {lessons}\n")
    say(
        f"next, for example:\n  kolb run {to}\n  kolb eval {to}\n  kolb library eval {lessons} {recipe}"
    )


def read_recipe(path: Path) -> str:
    if path.is_dir():
        path = path / "recipe.toml"
        raise RecipeError(f"apply takes a recipe's file; that of this run is {path}")
    try:
        text = path.read_text(encoding="utf-8")
        tomllib.loads(text)
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path} (looked from {Path.cwd()})") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None
    return text


def with_key(text: str, library: str, recipe: Path) -> str:
    """``text`` with the key ``library`` at its top, in place of the one that may be there, and the rest,
    comments included, as it was."""
    line = dumps({"library": library})
    top = re.search(r"^[ \t]*\[", text, re.M)
    head = text[: top.start()] if top else text
    rest = text[len(head) :]
    if re.search(r"^library\s*=", head, re.M):
        head = re.sub(r"^library\s*=.*\n?", lambda _: line, head, flags=re.M)
    else:
        head = f"{head.rstrip()}\n\n{line}\n".lstrip()
    changed = head + rest
    wanted = {**tomllib.loads(text), "library": library}
    try:
        is_right = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise RecipeError(
            f"{recipe}: the key could not be placed; write `{line.strip()}` at its top yourself"
        )
    return changed
