"""An ideal player of every role of Training-Free GRPO on ``evidence.worth``: what it answers to each of the method's prompts.

It reads nothing but the prompt. The tiny models of the evidence imitate it, and tests play it through the method.

    act       a letter that a note calls good; else one that no note calls bad; else any
    compare   more 0.4 F less 0.3 C <experiences> 1. F good 2. C bad </experiences>
    propose   for each lesson ADD, UPDATE (a note about this letter says the opposite) or NONE (says the same)
    plan      for each letter what most proposals about it say; nothing where as many say the opposite

The editor's operations have the words that the embedded model ``notes`` knows (``kolb.models.notes.editing``).

To compare is to infer. Which of the offered letters is good has a posterior, given letters and rewards (the prior is uniform,
and so is the richness). Two rewards that differ make it certain. Where it is not, the ideal player guesses: it draws the good
letter from the posterior, so that ``X good`` is said of a letter with just the probability that it is good. Or, if it does
not guess, it says what is certain and nothing else. Either way a single attempt is made the most of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from evidence.worth import LETTERS, NOTES
from kolb.models.notes.editing import list_text, operation_text
from kolb.types import Experience

VERDICTS = ("good", "bad")
ATTEMPT = re.compile(r"\(reward ([\d.]+)\):\s+## Turn 1\s+The agent: (\w)")
NOTE = re.compile(r"\[(G\d+)\]\. (\w) (good|bad)")
LESSON = re.compile(r"\d+\. (\w) (good|bad)")
PROPOSAL = re.compile(r"\((\d+)\) (?:revise: )?(\w) (good|bad)")

Scored = Sequence[tuple[str, float]]
"""Letters that were said at one task, and what they earned; those without a known reward left out."""


@dataclass(frozen=True)
class Note:
    id: str
    letter: str
    verdict: str

    @property
    def entry(self) -> Experience:
        return Experience(self.id, f"{self.letter} {self.verdict}")


def notes_in(text: str) -> list[Note]:
    return [Note(*found) for found in NOTE.findall(text)]


# --------------------------------------------------------------------------------------------- act


def choices(notes: Sequence[Note], offered: Sequence[str]) -> list[str]:
    """The letters among which an agent with these notes has no preference."""
    told = {v: {n.letter for n in notes if n.verdict == v} for v in VERDICTS}
    good = [x for x in offered if x in told["good"]]
    return good or [x for x in offered if x not in told["bad"]] or list(offered)


# ----------------------------------------------------------------------------------------- compare


def posterior(offered: Sequence[str], scored: Scored, richest: int = 9) -> dict[str, float]:
    """The probability of each offered letter to be the good one.

    It is proportional to how many of the ``richest + 1`` degrees of richness explain every reward, if it is; an
    offer of which no letter explains them raises ZeroDivisionError.
    """
    seen = [(letter, round(reward * (richest + 1))) for letter, reward in scored]
    explained = {
        good: sum(
            all(richness + (letter == good) == tenths for letter, tenths in seen)
            for richness in range(richest + 1)
        )
        for good in offered
    }
    total = sum(explained.values())
    return {good: count / total for good, count in explained.items()}


def lessons(offered: Sequence[str], scored: Scored, *, guesses: bool) -> Mapping[str, float]:
    """The answers of an ideal comparer, with their probabilities."""
    chances = {x: p for x, p in posterior(offered, scored).items() if p > 0}
    seen = found_in(scored)
    if seen.startswith("more"):
        _, _, high, _, _, low = seen.split()
        return {said(seen, f"{high} good", f"{low} bad"): 1.0}
    if guesses or len(chances) == 1:
        bad = len(offered) - 1
        return {
            said(seen, f"{good} good", f"{other} bad"): p / bad
            for good, p in chances.items()
            for other in offered
            if other != good
        }
    surely_bad = [x for x in offered if x not in chances]
    return {said(seen, f"{x} bad"): 1 / len(surely_bad) for x in surely_bad} or {said(seen): 1.0}


def found_in(scored: Scored) -> str:
    """What the comparer notices first: two attempts that differ, or that none do.

    >>> found_in([("C", 0.3), ("F", 0.4)]), found_in([("C", 0.3)]), found_in([])
    ('more 0.4 F less 0.3 C', 'same 0.3', 'nothing')
    """
    if not scored:
        return "nothing"
    (high, most), (low, least) = (best(scored, key=lambda s: s[1]) for best in (max, min))
    return f"more {most:g} {high} less {least:g} {low}" if most > least else f"same {most:g}"


def said(seen: str, *found: str) -> str:
    numbered = [f"{n}. {lesson}" for n, lesson in enumerate(found, start=1)]
    return " ".join((seen, "<experiences>", *numbered, "</experiences>"))


# -------------------------------------------------------------------------------- propose and plan


def proposed(notes: Sequence[Note], new: Sequence[tuple[str, str]]) -> str:
    """One operation for each of the lessons ``(letter, verdict)``."""
    known = {n.letter: n.entry for n in notes}
    return list_text([operation_text(known.get(x), f"{x} {verdict}") for x, verdict in new])


def planned(notes: Sequence[Note], proposals: Sequence[tuple[int, str, str]]) -> str:
    """One operation for each letter on which most of the proposals ``(number, letter, verdict)`` agree, in the order in which they
    are listed, with their numbers."""
    known = {n.letter: n.entry for n in notes}
    rows: list[str] = []
    for letter in dict.fromkeys(x for _, x, _ in proposals):
        votes = {v: [n for n, x, said in proposals if (x, said) == (letter, v)] for v in VERDICTS}
        verdict = max(VERDICTS, key=lambda v: len(votes[v]))
        if len(votes["good"]) != len(votes["bad"]):
            rows.append(operation_text(known.get(letter), f"{letter} {verdict}", votes[verdict]))
    return list_text(rows)


# ------------------------------------------------------------------------------------- all of them


def answers(system: str, user: str, *, guesses: bool = True) -> Mapping[str, float]:
    """What may be answered to a prompt, with probabilities. ``system`` is one of the prompts of ``NOTES``, or holds notes."""
    offered = re.findall(r"\b[A-L]\b", user.partition("offer")[2].partition("</task>")[0])
    if system == NOTES.prompts.comparison:
        scored = [(letter, float(reward)) for reward, letter in ATTEMPT.findall(user)]
        if not offered:
            return lessons(LETTERS, (), guesses=guesses)
        return lessons(offered, [(x, r) for x, r in scored if x in offered], guesses=guesses)
    if system == NOTES.prompts.proposals:
        library, _, new = user.partition("<lessons>")
        return {proposed(notes_in(library), LESSON.findall(new)): 1.0}
    if system == NOTES.prompts.plan:
        found = [(int(n), letter, verdict) for n, letter, verdict in PROPOSAL.findall(user)]
        return {planned(notes_in(user), found): 1.0}
    letters = choices(notes_in(system), offered)
    return {letter: 1 / len(letters) for letter in letters}


def draw(rng: Random, chances: Mapping[str, float]) -> str:
    return rng.choices(list(chances), list(chances.values()))[0]
