"""The ExperienceLibrary: lessons in words that change by edits and never in place.

A library is a value. ``apply`` gives a new one, with a new version if anything changed. Ids are names
for life: a lesson keeps its id when it is revised, and the id of a removed lesson is not given again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kolb.errors import RecipeError
from kolb.memory.render import render
from kolb.types import Edit, Experience

SCHEMA = 1


@dataclass(frozen=True)
class ExperienceLibrary:
    """Lessons in the order in which they were first learnt.

    ``next_id`` is the number of the next id to be given (``G`` and a number).

    >>> library = ExperienceLibrary().apply([Edit("add", "Look first.", sources=("lake-7@3",))])
    >>> library.version, library.experiences[0].id, library.render()
    (1, 'G0', '[G0]. Look first.')
    """

    experiences: tuple[Experience, ...] = ()
    version: int = 0
    next_id: int = 0

    def __post_init__(self) -> None:
        ids = [e.id for e in self.experiences]
        repeated = sorted({i for i in ids if ids.count(i) > 1})
        taken = [
            i for i in ids if i.startswith("G") and i[1:].isdecimal() and int(i[1:]) >= self.next_id
        ]
        if repeated or taken:
            raise RecipeError(
                f"an experience library with next_id={self.next_id} and the ids {ids}: ids must differ, "
                "and next_id must be above every number in them"
            )

    def apply(self, edits: Iterable[Edit]) -> ExperienceLibrary:
        """The library after ``edits``, in order. If nothing changed it is this very library.

        ``add`` appends under a fresh id (an id in the edit is not used). ``revise`` replaces the text,
        keeps the id and the place, and adds the sources. ``remove`` drops the lesson. An edit that can
        change nothing is skipped, never an error: see ``ignored``.
        """
        library = self
        for edit in edits:
            library = library._after(edit)
        return library if library is self else replace(library, version=self.version + 1)

    def ignored(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """Those of ``edits`` that ``apply`` skips: an unknown id (removed by an earlier edit included),
        an empty text, or a revision that says what is already there."""
        skipped: list[Edit] = []
        library = self
        for edit in edits:
            after = library._after(edit)
            if after is library:
                skipped.append(edit)
            library = after
        return tuple(skipped)

    def render(self, budget: int | None = None) -> str:
        """The lessons as text of at most ``budget`` characters: see ``kolb.memory.render``."""
        return render(self.experiences, budget)

    def to_json(self) -> str:
        """The library as indented JSON, the same bytes for the same library, made for ``diff``."""
        data = {
            "schema": SCHEMA,
            "version": self.version,
            "next_id": self.next_id,
            "experiences": [
                {"id": e.id, "text": e.text, "sources": list(e.sources)} for e in self.experiences
            ],
        }
        return json.dumps(data, ensure_ascii=False, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ExperienceLibrary:
        """Reads what ``to_json`` wrote. Raises RecipeError on anything else."""
        try:
            data = json.loads(text)
            if (schema := data["schema"]) != SCHEMA:
                raise RecipeError(
                    f"an experience library of schema {schema!r}; this version of kolb reads schema "
                    f"{SCHEMA}: open it with the version that wrote it"
                )
            lessons = tuple(_experience(entry) for entry in data["experiences"])
            return cls(lessons, version=int(data["version"]), next_id=int(data["next_id"]))
        except RecipeError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RecipeError(
                f"not an experience library ({type(error).__name__}: {error}); expected the JSON that "
                "ExperienceLibrary.to_json writes"
            ) from error

    def _after(self, edit: Edit) -> ExperienceLibrary:
        """The library after one edit, its version unchanged; self if the edit changes nothing."""
        text = clean(edit.text)
        if edit.action == "add":
            if not text:
                return self
            new = Experience(f"G{self.next_id}", text, _joined((), edit.sources))
            return replace(self, experiences=(*self.experiences, new), next_id=self.next_id + 1)
        if edit.action == "remove":
            left = tuple(e for e in self.experiences if e.id != edit.id)
            return replace(self, experiences=left) if left != self.experiences else self
        return self._revised(edit, text)

    def _revised(self, edit: Edit, text: str) -> ExperienceLibrary:
        revised = tuple(
            replace(e, text=text, sources=_joined(e.sources, edit.sources))
            if e.id == edit.id and text
            else e
            for e in self.experiences
        )
        return replace(self, experiences=revised) if revised != self.experiences else self


def clean(text: str) -> str:
    """Without outer blanks, and without half characters, which no UTF-8 file can hold."""
    return text.strip().encode("utf-8", "replace").decode("utf-8")


def _joined(sources: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*sources, *more)))


def _experience(entry: dict[str, Any]) -> Experience:
    id, text, sources = entry["id"], entry["text"], entry["sources"]
    if not isinstance(sources, list) or not all(isinstance(x, str) for x in (id, text, *sources)):
        raise TypeError(f"an entry needs texts for id, text and sources, not {entry}")
    return Experience(clean(id), clean(text), tuple(map(clean, sources)))
