"""What an answer to a question is worth: the reward of the ERL paper (arXiv:2602.13949) on HotpotQA.

1 for an exact match after normalisation, else the F1 of the words where it is at least 0.3, else 0. Yes and no
match exactly or not at all. Normalisation and F1 are those of SQuAD (arXiv:1606.05250) and HotpotQA
(arXiv:1809.09600). The paper's code also guesses at answers outside of a box; here they are worth 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_F1 = 0.3
CLOSED = ("yes", "no", "noanswer")
"""Answers that are right or wrong, never partly right (HotpotQA's evaluation script has these three)."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Grade:
    """``reward`` in [0, 1]; ``f1`` of the best gold answer, also where it was too low to count; ``details`` says
    which rule decided: ``exact_match``, ``f1_score``, ``low_f1`` or ``not_boxed``."""

    reward: float
    f1: float
    details: str

    @property
    def is_exact(self) -> bool:
        return self.details == "exact_match"


def boxed(text: str) -> str | None:
    r"""What stands in the first ``\boxed{...}`` whose braces balance; None where there is none.

    >>> boxed(r"so \boxed{f_{1} of {a}}, not \boxed{b}")
    'f_{1} of {a}'
    """
    opened: list[int] = []
    boxes: list[tuple[int, int]] = []
    for place, character in enumerate(text):
        if character == "{":
            opened.append(place + 1)
        elif character == "}" and opened:
            start = opened.pop()
            boxes += [(start, place)] if text.endswith("\\boxed{", 0, start) else []
    if not boxes:
        return None
    start, end = min(boxes)
    return text[start:end].strip()


def normalise(text: str) -> str:
    """Small letters, no ASCII punctuation, no articles, single spaces.

    >>> normalise(" The  Old Mill, (a ruin)! ")
    'old mill ruin'
    """
    bare = _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION))
    return " ".join(bare.split())


def matches(answer: str, gold: str) -> bool:
    """Whether the two are equal once normalised. Where nothing of the gold is left ("The The"), as they stand."""
    if normalise(gold):
        return normalise(answer) == normalise(gold)
    return answer.strip().lower() == gold.strip().lower()


def f1_score(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over the words, which is ``2 common / (|answer| + |gold|)``."""
    said, wanted = normalise(answer), normalise(gold)
    if said != wanted and (said in CLOSED or wanted in CLOSED):
        return 0.0
    ours, theirs = said.split(), wanted.split()
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def grade(answer: str | None, golds: Sequence[str]) -> Grade:
    """The best that ``answer`` is worth under any of ``golds``. None: nothing was boxed."""
    if answer is None:
        return Grade(0.0, 0.0, "not_boxed")
    if any(matches(answer, gold) for gold in golds):
        return Grade(1.0, 1.0, "exact_match")
    f1 = max(f1_score(answer, gold) for gold in golds)
    return Grade(f1, f1, "f1_score") if f1 >= LEAST_F1 else Grade(0.0, f1, "low_f1")
