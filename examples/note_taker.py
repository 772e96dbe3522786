"""Stands in for a language model that plays every role of ``tf_grpo``, so that its loop can be watched without one.

It guesses numbers blindly until its prompt says how to do better, and reports, compares and keeps notes as a model is
asked to. In a recipe: ``engine = { use = "scripted", answer = "examples/note_taker.py:answer" }``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random

from kolb.types import Message

LESSON = "Halving: When you hear Higher or Lower, guess the middle of the numbers that are left."


def answer(messages: Sequence[Message], seed: int) -> str:
    """What it says next, whichever role it is asked to play."""
    system = "".join(str(m["content"]) for m in messages if m["role"] == "system")
    asked = str(messages[-1]["content"])
    if "<experiences>" in system:
        return (
            f"The better attempts used what they heard.\n<experiences>\n1. {LESSON}\n</experiences>"
        )
    if "```json" in system:
        return changes(asked)
    if "<attempt>" in asked:
        return "The agent guessed: " + ", ".join(re.findall(r"The agent: (\d+)", asked))
    return guess(messages, is_halving=LESSON in system, seed=seed)


def changes(asked: str) -> str:
    """Adds the lesson once, and resting on all who propose it."""
    numbers = [int(n) for n in re.findall(r"^\((\d+)\)", asked, re.MULTILINE)]
    known = asked.partition("<library>")[2].partition("</library>")[0]
    operation = "NONE" if LESSON in known else "ADD"
    return f"```json\n{json.dumps([{'operation': operation, 'content': LESSON, 'from': numbers}])}\n```"


def guess(messages: Sequence[Message], *, is_halving: bool, seed: int) -> str:
    texts = [str(m["content"]) for m in messages if m["role"] != "system"]
    found = re.search(r"(\d+) to (\d+)", texts[0])
    low, high = map(int, found.groups()) if found else (1, 100)
    if not is_halving:
        return str(Random(seed).randint(low, high))
    for said, heard in zip(texts[1::2], texts[2::2], strict=False):
        low = int(said) + 1 if heard.startswith("Higher") else low
        high = int(said) - 1 if heard.startswith("Lower") else high
    return str((low + high) // 2)
