"""Text for prompts: experiences as lines, and templates with names in braces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kolb.types import Experience


def render(experiences: Sequence[Experience], budget: int | None = None) -> str:
    """One lesson behind another, oldest first, each as ``[G3]. its text``; an empty string for none.

    ``budget`` is the most characters that the result may have. Lessons are never cut. The newest are
    chosen first; one that does not fit is left out, and an older, shorter one may take its room.

    >>> lessons = [Experience("G0", "Look first."), Experience("G4", "Never push into a corner.")]
    >>> print(render(lessons))
    [G0]. Look first.
    [G4]. Never push into a corner.
    >>> render(lessons, budget=20)
    '[G0]. Look first.'
    """
    if budget is not None and budget < 0:
        raise ValueError(f"a budget of {budget} characters; give 0 or more, or None for no limit")
    lines = [f"[{e.id}]. {e.text}" for e in experiences]
    if budget is None:
        return "\n".join(lines)
    kept: list[str] = []
    room = budget
    for line in reversed(lines):
        needed = len(line) + (1 if kept else 0)
        if needed <= room:
            kept.append(line)
            room -= needed
    return "\n".join(reversed(kept))


def fill(text: str, **values: str) -> str:
    """``text`` with ``{name}`` replaced where there is a value of that name; other braces stay.

    >>> fill("{a} and {b}, {'json': 1}", a="{b}")
    "{b} and {b}, {'json': 1}"
    """
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)
