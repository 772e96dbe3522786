"""The library for others: Markdown for people, a plain mapping for programs, a system prompt for any agent."""

from __future__ import annotations

import json

from kolb.memory.importing import SOURCE
from kolb.memory.library import ExperienceLibrary


def as_markdown(library: ExperienceLibrary) -> str:
    """A list with the sources of each lesson below it. ``kolb.memory.importing`` reads it again."""
    parts = [f"# Lessons\n\n{size(library)}, version {library.version}.\n"]
    for e in library.experiences:
        text = "\n".join(f"  {line}".rstrip() for line in e.text.splitlines()).lstrip()
        parts.append("\n".join([f"- **{e.id}** {text}", *(f"{SOURCE}{s}" for s in e.sources)]))
    return "\n".join(parts) + "\n"


def as_mapping(library: ExperienceLibrary) -> str:
    """``{"G0": "a lesson"}``, as the released code of arXiv:2510.08191 keeps its experiences."""
    lessons = {e.id: e.text for e in library.experiences}
    return json.dumps(lessons, ensure_ascii=False, indent=2) + "\n"


def as_prompt(library: ExperienceLibrary, heading: str) -> str:
    """The lessons below a ``heading``, as an attempt reads them."""
    return f"{heading}\n{library.render()}\n"


def size(library: ExperienceLibrary) -> str:
    """
    >>> size(ExperienceLibrary())
    'no lessons'
    """
    count = len(library.experiences)
    words = sum(len(e.text.split()) for e in library.experiences)
    return f"{count} lesson{'s' * (count > 1)}, {words} words" if count else "no lessons"
