"""What differs between two libraries: lessons added, revised and removed, word by word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from kolb.memory.library import ExperienceLibrary
from kolb.memory.origins import origin_of
from kolb.types import Experience

ALIKE = 0.5
"""Two texts under one id are one lesson where they share so much of their words, whatever their sources say."""


@dataclass(frozen=True)
class Change:
    """``before`` is None for a lesson that was added, ``after`` for one that was removed."""

    before: Experience | None
    after: Experience | None

    @property
    def action(self) -> str:
        """``added``, ``revised`` or ``removed``."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "revised"

    @property
    def id(self) -> str:
        lesson = self.after or self.before
        return lesson.id if lesson else ""

    @property
    def sources(self) -> tuple[str, ...]:
        """Those that came with the change; none for a removal, whose reasons no library keeps."""
        known = self.before.sources if self.before else ()
        return tuple(s for s in (self.after.sources if self.after else ()) if s not in known)

    @property
    def marked(self) -> str:
        """The text; of a revision with ``[-words that went-]`` and ``{+words that came+}``."""
        if self.before and self.after:
            return marked(self.before.text, self.after.text)
        lesson = self.after or self.before
        return lesson.text if lesson else ""


def changes_in_run(before: ExperienceLibrary, after: ExperienceLibrary) -> list[Change]:
    """From one version of a run's library to another, where an id is one lesson for life: first those of ``before``."""
    old, new = ({e.id: e for e in side.experiences} for side in (before, after))
    gone = [
        Change(e, new.get(e.id))
        for e in old.values()
        if e.id not in new or e.text != new[e.id].text
    ]
    return [*gone, *(Change(None, e) for e in new.values() if e.id not in old)]


def changes(before: ExperienceLibrary, after: ExperienceLibrary) -> list[Change]:
    """The same for any two libraries.

    A lesson is known by its id, except where neither sources nor words agree: ids of libraries that were learnt
    apart mean nothing to each other. A text that only has another id there is no change.
    """
    new = {e.id: e for e in after.experiences}
    pairs = {e.id: new[e.id] for e in before.experiences if e.id in new and is_same(e, new[e.id])}
    rest = [e for e in after.experiences if e.id not in pairs]
    texts, others = {e.text for e in rest}, {e.text for e in before.experiences}
    found: list[Change] = []
    for e in before.experiences:
        if e.id in pairs:
            found += [Change(e, pairs[e.id])] if e.text != pairs[e.id].text else []
        elif e.text not in texts:
            found.append(Change(e, None))
    return [*found, *(Change(None, e) for e in rest if e.text not in others)]


def is_same(one: Experience, other: Experience) -> bool:
    """Whether these are one lesson under one id: a revision keeps the sources that were there."""
    shared = set(one.sources) & set(other.sources)
    if one.text == other.text or any(origin_of(s) is not None for s in shared):
        return True
    return (
        SequenceMatcher(None, one.text.split(), other.text.split(), autojunk=False).ratio() >= ALIKE
    )


def marked(before: str, after: str) -> str:
    """
    >>> marked("Look left first.", "Look twice first.")
    'Look [-left-]{+twice+} first.'
    """
    old, new = re.findall(r"\s*\S+", before), re.findall(r"\s*\S+", after)
    words = [[part.strip() for part in side] for side in (old, new)]
    parts: list[str] = []
    for what, i, j, k, m in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        went, came = "".join(old[i:j]), "".join(new[k:m])
        if what == "equal":
            parts.append(came)
            continue
        first = came or went
        parts.append(first[: -len(first.lstrip())])
        parts += [f"[-{went.strip()}-]"] if went else []
        parts += [f"{{+{came.strip()}+}}"] if came else []
    return "".join(parts)
