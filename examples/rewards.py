"""A reward of your own: a plain function, named in a recipe as ``examples/rewards.py:last_number``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def last_number(completions: Sequence[str], answer: Sequence[int], **_: Any) -> list[float | None]:
    """1 where the last number of a completion is the answer, else 0; None (no opinion) without an answer.

    ``completions`` are the agent's texts; every column of the data file comes along under its own name.
    """
    return [score(text, wanted) for text, wanted in zip(completions, answer, strict=True)]


def score(text: str, wanted: int | None) -> float | None:
    if wanted is None:
        return None
    numbers = re.findall(r"-?\d+", text)
    return float(bool(numbers) and int(numbers[-1]) == wanted)
