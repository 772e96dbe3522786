"""An ideal player of every role of Training-Free GRPO on ``evidence.worth``: what it answers to each of the method's prompts.

It reads nothing but the prompt. The small models of the evidence imitate it, and tests play it through the method.

    act       the letter that a note names for the place, if it is offered; else any letter
    compare   more 0.4 F less 0.3 C <experiences> 1. goal F </experiences>
    propose   for each lesson ADD, UPDATE (a note names another letter) or NONE (the same one)
    plan      for each place what most proposals say

The editor's operations are those that the embedded model ``notes`` was taught (``kolb.models.notes.editing``).

To compare is to infer. Which of the offered letters is good has a posterior, given letters and rewards (the prior is uniform,
and so is the richness). Two rewards that differ make it certain. The ideal player says what is certain and nothing else, so
a single attempt is made the most of and nothing false is ever noted. One that ``guesses`` draws the good letter from the
posterior where it is open. Asked for lessons without any attempt, both guess: there is nothing else to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random

from evidence.worth import NOTES, PLACES
from kolb.envs.grid_cells import LETTERS
from kolb.memory.library import ExperienceLibrary
from kolb.memory.proposals import Proposal
from kolb.models.notes.editing import MOST_IDS, list_text, planned, proposed
from kolb.types import Experience

ATTEMPT = re.compile(r"\(reward ([\d.]+)\):\s+## Turn 1\s+The agent: (\w)")
OFFER = re.compile(r"offer (\w+)((?: [A-L])+)")
NOTE = re.compile(r"\[(G\d+)\]\. (\w+ [A-L])\b")
LESSON = re.compile(r"\d+\. (\w+) ([A-L])\b")
PROPOSAL = re.compile(r"\((\d+)\) (?:revise: )?(\w+ [A-L])\b")

Scored = Sequence[tuple[str, float]]
"""Letters that were said at one task, and what they earned; those without a known reward left out."""


def notes_in(text: str) -> ExperienceLibrary:
    found = tuple(Experience(*row) for row in NOTE.findall(text))
    return ExperienceLibrary(found, next_id=MOST_IDS)


def choices(notes: ExperienceLibrary, place: str, offered: Sequence[str]) -> list[str]:
    """The letters among which an agent with these notes has no preference."""
    named = {e.text.split()[1] for e in notes.experiences if e.text.split()[0] == place}
    return [x for x in offered if x in named] or list(offered)


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


def lessons(
    place: str, offered: Sequence[str], scored: Scored, *, guesses: bool = False
) -> Mapping[str, float]:
    """The answers of an ideal comparer, with their probabilities."""
    chances = {x: p for x, p in posterior(offered, scored).items() if p > 0}
    seen = found_in(scored)
    if guesses or len(chances) == 1:
        return {said(seen, f"{place} {good}"): p for good, p in chances.items()}
    return {said(seen): 1.0}


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


# ------------------------------------------------------------------------------------- all of them


def answers(system: str, user: str, *, guesses: bool = False) -> Mapping[str, float]:
    """What may be answered to a prompt, with probabilities. ``system`` is one of the prompts of ``NOTES``, or holds notes."""
    if system == NOTES.prompts.proposals:
        library, _, new = user.partition("<lessons>")
        return {list_text(proposed(notes_in(library), dict(LESSON.findall(new)))): 1.0}
    if system == NOTES.prompts.plan:
        found = [Proposal("add", text) for _, text in PROPOSAL.findall(user)]
        numbers = [int(n) for n, _ in PROPOSAL.findall(user)]
        in_order = [p for _, p in sorted(zip(numbers, found, strict=True), key=lambda row: row[0])]
        return {list_text(planned(notes_in(user), in_order)[0]): 1.0}
    offer = OFFER.search(user)
    if offer is None:
        tips = [said("nothing", f"{place} {x}") for place in PLACES for x in LETTERS]
        return dict.fromkeys(tips, 1 / len(tips))
    place, offered = offer[1], offer[2].split()
    if system == NOTES.prompts.comparison:
        scored = [(letter, float(reward)) for reward, letter in ATTEMPT.findall(user)]
        return lessons(place, offered, [s for s in scored if s[0] in offered], guesses=guesses)
    letters = choices(notes_in(system), place, offered)
    return {letter: 1 / len(letters) for letter in letters}


def draw(rng: Random, chances: Mapping[str, float]) -> str:
    return rng.choices(list(chances), list(chances.values()))[0]
