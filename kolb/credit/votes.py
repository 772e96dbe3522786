"""What the attempts of a group agree on: a majority vote over final answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from kolb.types import Trajectory


def final_answer(attempt: Trajectory) -> str:
    """What an attempt ends with: its last box, else what stands behind its last ``answer:``, else its last line."""
    lines = attempt.turns[-1].completion.text.strip().splitlines() if attempt.turns else []
    text = "\n".join(lines)
    boxes = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    _, told, after = text.casefold().rpartition("answer:")
    found = boxes[-1] if boxes else after if told else lines[-1] if lines else ""
    return " ".join(found.casefold().split()).strip(" .$*")


def majority(answers: Sequence[str]) -> list[float | None]:
    """1 for the most frequent answer and 0 for the others; None for all where no answer leads, or was given twice.

    >>> majority(["7", "7", "8"]), majority(["7", "8"])
    ([1.0, 1.0, 0.0], [None, None])
    """
    votes = Counter(a for a in answers if a).most_common(2)
    leads = votes and votes[0][1] > 1 and (len(votes) < 2 or votes[0][1] > votes[1][1])
    return [float(a == votes[0][0]) if leads else None for a in answers]
