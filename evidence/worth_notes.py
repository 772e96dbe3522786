"""An ideal player of every role of Training-Free GRPO on ``evidence.worth``: what it answers to each of the method's prompts.

It reads nothing but the prompt. The tiny models of the evidence imitate it, and tests play it through the method.

    act       a letter that a note says to take; else one that no note says to leave; else any
    compare   <experiences> 1. take-F 2. leave-C </experiences>
    propose   for each lesson ADD, UPDATE (a note about this letter says the opposite) or NONE (says the same)
    plan      for each letter what most proposals about it say; nothing where as many say the opposite

To compare is to infer. Which of the offered letters is good has a posterior, given letters and rewards (the prior is uniform,
and so is the richness). Two rewards that differ make it certain. Where it is not, the ideal player guesses: it draws the good
letter from the posterior, so that ``take-X`` is said of a letter with just the probability that it is good. Or, if it does
not guess, it says what is certain and nothing else. Either way a single attempt is made the most of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from evidence.worth import LETTERS

VERBS = ("take", "leave")
ATTEMPT = re.compile(r"\(reward ([\d.]+)\):\s+## Turn 1\s+The agent: (\w)")
NOTE = re.compile(r"\[(G\d+)\]\. (take|leave)-(\w)")
LESSON = re.compile(r"\d+\. (take|leave)-(\w)")
PROPOSAL = re.compile(r"\((\d+)\) (?:revise: )?(take|leave)-(\w)")

Scored = Sequence[tuple[str, float]]
"""Letters that were said at one task, and what they earned; those without a known reward left out."""


@dataclass(frozen=True)
class Note:
    id: str
    verb: str
    letter: str


def notes_in(text: str) -> list[Note]:
    return [Note(*found) for found in NOTE.findall(text)]


# --------------------------------------------------------------------------------------------- act


def choices(notes: Sequence[Note], offered: Sequence[str]) -> list[str]:
    """The letters among which an agent with these notes has no preference."""
    told = {verb: {n.letter for n in notes if n.verb == verb} for verb in VERBS}
    taken = [x for x in offered if x in told["take"]]
    return taken or [x for x in offered if x not in told["leave"]] or list(offered)


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
    if guesses or len(chances) == 1:
        bad = len(offered) - 1
        return {
            said(f"take-{good}", f"leave-{other}"): p / bad
            for good, p in chances.items()
            for other in offered
            if other != good
        }
    surely_bad = [x for x in offered if x not in chances]
    return {said(f"leave-{x}"): 1 / len(surely_bad) for x in surely_bad} or {said(): 1.0}


def said(*found: str) -> str:
    numbered = [f"{n}. {lesson}" for n, lesson in enumerate(found, start=1)]
    return " ".join(("<experiences>", *numbered, "</experiences>"))


# -------------------------------------------------------------------------------- propose and plan


def proposed(notes: Sequence[Note], new: Sequence[tuple[str, str]]) -> str:
    """One operation for each of the lessons ``(verb, letter)``."""
    known = {n.letter: n for n in notes}
    rows: list[str] = []
    for verb, letter in new:
        note = known.get(letter)
        word = "ADD" if note is None else "NONE" if note.verb == verb else "UPDATE"
        rows.append(operation(word, note.id if note and word == "UPDATE" else "", verb, letter))
    return listed(rows)


def planned(notes: Sequence[Note], proposals: Sequence[tuple[int, str, str]]) -> str:
    """One operation for each letter on which most of the proposals ``(number, verb, letter)`` agree, in the order in which they
    are listed, with their numbers."""
    known = {n.letter: n for n in notes}
    rows: list[str] = []
    for letter in dict.fromkeys(x for _, _, x in proposals):
        votes = {v: [n for n, verb, x in proposals if (verb, x) == (v, letter)] for v in VERBS}
        verb = max(VERBS, key=lambda v: len(votes[v]))
        if len(votes["take"]) == len(votes["leave"]):
            continue
        word, id = ("UPDATE", known[letter].id) if letter in known else ("ADD", "")
        rows.append(operation(word, id, verb, letter, votes[verb]))
    return listed(rows)


def operation(word: str, id: str, verb: str, letter: str, numbers: Sequence[int] = ()) -> str:
    """JSON in few words. The lesson comes first: the rest is about it."""
    name = f', "id": "{id}"' if id else ""
    cites = f', "from": [ {" , ".join(map(str, numbers))} ]' if numbers else ""
    return f'{{"content": "{verb}-{letter}", "operation": "{word}"{name}{cites} }}'


def listed(rows: Sequence[str]) -> str:
    return " ".join(("[", " , ".join(rows), "]")) if rows else "[ ]"


# ------------------------------------------------------------------------------------- all of them


def answers(system: str, user: str, *, guesses: bool = True) -> Mapping[str, float]:
    """What may be answered to a prompt, with probabilities. ``system`` begins with the word of the call."""
    call = system.split()[0] if system else ""
    offered = re.findall(r"\b[A-L]\b", user.partition("offer")[2].partition("</task>")[0])
    if call == "compare":
        scored = [(letter, float(reward)) for reward, letter in ATTEMPT.findall(user)]
        if not offered:
            return lessons(LETTERS, (), guesses=guesses)
        return lessons(offered, [(x, r) for x, r in scored if x in offered], guesses=guesses)
    if call == "propose":
        library, _, new = user.partition("<lessons>")
        return {proposed(notes_in(library), LESSON.findall(new)): 1.0}
    if call == "plan":
        found = [(int(n), verb, letter) for n, verb, letter in PROPOSAL.findall(user)]
        return {planned(notes_in(user), found): 1.0}
    letters = choices(notes_in(system), offered)
    return {letter: 1 / len(letters) for letter in letters}


def draw(rng: Random, chances: Mapping[str, float]) -> str:
    return rng.choices(list(chances), list(chances.values()))[0]
