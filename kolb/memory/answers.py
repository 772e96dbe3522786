"""Whether a lesson gives a private answer away."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

SHORTEST_WORD = 4
"""Letters of the shortest answer that is looked for. Shorter ones (``A``, ``no``, ``yes``) are ordinary words.
Numbers are looked for at any length."""


def answer_texts(answer: Any) -> list[str]:
    """The texts that ``Task.answer`` may be recognised by: itself, or every leaf of a list or table.

    >>> answer_texts(["Paris", {"year": 1900}, None, True, "no"])
    ['Paris', '1900']
    """
    if isinstance(answer, dict):
        return answer_texts(list(answer.values()))
    if isinstance(answer, list | tuple | set | frozenset):
        return list(dict.fromkeys(t for part in answer for t in answer_texts(part)))
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return []
    text = " ".join(str(answer).split())
    is_number = any(c.isdigit() for c in text)
    return [text] if is_number or len(text) >= SHORTEST_WORD else []


def gives_away(text: str, answers: Iterable[str]) -> bool:
    """Whether one of ``answers`` stands in ``text`` as a word or words of its own, in any case.

    >>> gives_away("The total is 204.", ["204"]), gives_away("Try 2040 or 204.5.", ["204"])
    (True, False)
    """
    told = " ".join(text.split())
    return any(
        re.search(rf"(?<![\w.]){re.escape(a)}(?!\w|\.\d)", told, re.IGNORECASE)
        for a in answers
        if a
    )
