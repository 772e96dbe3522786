"""Lessons in the formats in which people and other programs keep them. Pure: text in, a library out.

.json         what kolb writes; {"G0": "a lesson"}, as the code of arXiv:2510.08191 keeps them; a list of
              lessons, or of tables with ``text``
.jsonl        a table with ``text`` per line; ``domain`` tells several libraries in one file apart
.yaml, .yml   an agent's settings as that code leaves them, with lines like ``[G0]. a lesson`` in a text
.md           a list: ``- a lesson`` or ``- **G0** a lesson``
.txt          lines like ``[G0]. a lesson``
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from kolb.errors import RecipeError, nearest
from kolb.memory.library import ExperienceLibrary, clean
from kolb.memory.origins import IMPORTED
from kolb.types import Experience

NUMBERED = re.compile(
    r"^[ \t]*\[([^\[\]\s]+)\]\.[ \t]*(.*?)(?=^[ \t]*\[[^\[\]\s]+\]\.|\Z)", re.M | re.S
)
BULLET = re.compile(r"[-*] +(?:\*\*(?P<id>\S+?)\*\* +)?(?P<text>.*)")
SOURCE = "  - from "
SAYS = {
    ".json": 'kolb\'s own JSON, {"G0": "a lesson"}, or ["a lesson"]',
    ".jsonl": '{"text": "a lesson"} on each line',
    ".yaml": "lines like `[G0]. a lesson` in a text",
    ".yml": "lines like `[G0]. a lesson` in a text",
    ".md": "`- a lesson` on each line",
    ".txt": "`[G0]. a lesson` on each line",
}

Lesson = tuple[str, str, tuple[str, ...]]
"""Id (empty: none is given), text, sources (empty: the file)."""


def read_library(text: str, name: str, domain: str = "") -> ExperienceLibrary:
    """The library in the ``text`` of the file called ``name``, whose ending says how to read it.

    Ids are kept, and numbers are given where there are none. What kolb wrote is the same library again;
    anything else is version 1, and its lessons come from the file. ``domain`` chooses where a file has
    several. RecipeError for anything that is not as the table above says.
    """
    ending = PurePath(name).suffix.lower()
    if ending not in SAYS:
        raise RecipeError(
            f"{name}: a library is a run's folder, or a file that ends in {', '.join(SAYS)}"
        )
    try:
        # Editors of Windows put a mark in front, which would hide the first lesson.
        found = lessons_in(text.removeprefix("\ufeff"), ending)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecipeError(
            f"{name} cannot be read as lessons ({error}); expected {SAYS[ending]}"
        ) from error
    if isinstance(found, ExperienceLibrary):
        if domain:
            raise RecipeError(f"{name} is one library, and has no {domain!r}; leave @{domain} out")
        return found
    lessons = of_domain(found, name, domain)
    if not lessons:
        raise RecipeError(f"{name} holds no lessons; expected {SAYS[ending]}")
    return as_library(lessons, f"{name}@{domain}" if domain else name)


def lessons_in(text: str, ending: str) -> ExperienceLibrary | dict[str, list[Lesson]]:
    """The library that kolb wrote, or lessons by domain (``""``: the file names none)."""
    match ending:
        case ".json":
            data = json.loads(text)
            if isinstance(data, Mapping) and "schema" in data:
                return ExperienceLibrary.from_json(text)
            return {"": lessons_of(data)}
        case ".jsonl":
            found: dict[str, list[Lesson]] = {}
            for row in (json.loads(line) for line in text.split("\n") if line.strip()):
                found.setdefault(str(row.get("domain", "")), []).append(lesson_of(row))
            return found
        case ".yaml" | ".yml":
            return {"": [x for leaf in leaves(yaml_of(text)) for x in numbered(leaf)]}
        case ".md":
            return {"": listed(text)}
        case _:
            return {"": numbered(text)}


def of_domain(found: Mapping[str, list[Lesson]], name: str, domain: str) -> list[Lesson]:
    if domain in found or not found:
        return found.get(domain, [])
    if not domain and len(found) == 1:
        return next(iter(found.values()))
    known = [d for d in found if d]
    if not known:
        raise RecipeError(f"{name} is one library, and has no {domain!r}; leave @{domain} out")
    raise RecipeError(
        f"{name} holds several libraries: say which, as in {name}@{known[0]}{nearest(domain, known)}"
    )


def as_library(lessons: Sequence[Lesson], name: str) -> ExperienceLibrary:
    made: list[Experience] = []
    try:
        numbers = [int(i[1:]) for i, _, _ in lessons if re.fullmatch(r"G\d+", i)]
        free = max(numbers, default=-1) + 1
        for id, text, sources in lessons:
            made.append(Experience(id or f"G{free}", text, sources or (f"{IMPORTED}{name}",)))
            free += not id
        return ExperienceLibrary(tuple(made), version=1, next_id=free)
    except ValueError as error:  # ids that clash, or a number of more digits than Python reads
        raise RecipeError(f"{name}: {error}") from error


# ------------------------------------------------------------------------------------- the formats


def lessons_of(data: Any) -> list[Lesson]:
    if isinstance(data, Mapping):
        return [(checked(id), checked(text), ()) for id, text in data.items()]
    if not isinstance(data, list):
        raise ValueError(f"it is {type(data).__name__}")
    return [lesson_of(row) if isinstance(row, Mapping) else ("", checked(row), ()) for row in data]


def lesson_of(row: Mapping[str, Any]) -> Lesson:
    id = row.get("id") or ""
    return checked(id) if id else "", checked(row["text"]), ()


def checked(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{text!r} is not the text of a lesson")
    return clean(text)


def numbered(text: str) -> list[Lesson]:
    """Lessons as they stand in a prompt; line breaks inside one become blanks.

    >>> numbered("Read these:\\n[G0]. Look\\n  first.\\n[G4]. Then act.")
    [('G0', 'Look first.', ()), ('G4', 'Then act.', ())]
    """
    return [(id, checked(" ".join(said.split())), ()) for id, said in NUMBERED.findall(text)]


def listed(text: str) -> list[Lesson]:
    """A Markdown list. A line belongs to the lesson above it where it is indented or follows at once; ``- from``
    there names a source."""
    found: list[tuple[str, list[str], list[str]]] = []
    is_near = False
    for line in text.splitlines():
        if (bullet := BULLET.fullmatch(line)) is not None:
            found.append((bullet["id"] or "", [bullet["text"]], []))
        elif found and line.startswith(SOURCE):
            found[-1][2].append(line.removeprefix(SOURCE).strip())
        elif found and (is_near or line.startswith("  ") or not line.strip()):
            found[-1][1].append(line.removeprefix("  "))
        is_near = bool(line.strip())
    return [(id, checked("\n".join(said)), tuple(sources)) for id, said, sources in found]


def yaml_of(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ValueError("YAML takes PyYAML: pip install pyyaml; or write JSON") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def leaves(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping | list):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from leaves(part)
