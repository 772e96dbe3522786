"""Rules about symbols as lessons, and what a good editor makes of them. Pure.

Rules are a table from role to symbol, of any of the four roles; a lesson is one line of it, ``goal C``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from kolb.envs.grid_lessons import is_held_out
from kolb.memory.library import ExperienceLibrary
from kolb.memory.proposals import Proposal
from kolb.models.notes.attempts import GAME, ROLES
from kolb.types import Experience

Rules = Mapping[str, str]

MOST_IDS = 64
MOST_CITED = 5
"""An operation of a plan names as many proposals at most."""


def may_be_shown(*stated: Rules) -> bool:
    """Whether none of these rules is a held-out assignment."""
    return not any(len(rules) == len(ROLES) and is_held_out(GAME, rules) for rules in stated)


def library_of(rng: np.random.Generator, rules: Rules) -> ExperienceLibrary:
    """A lesson for each rule in a random order, under ids that are low half of the time."""
    texts = [f"{role} {symbol}" for role, symbol in rules.items()]
    rng.shuffle(texts)
    most = 6 if rng.random() < 0.5 else MOST_IDS
    ids = sorted(int(i) for i in rng.permutation(most)[: len(texts)])
    lessons = [Experience(f"G{i}", text) for i, text in zip(ids, texts, strict=True)]
    return ExperienceLibrary(tuple(lessons), next_id=MOST_IDS)


def entry_of(library: ExperienceLibrary, role: str) -> Experience | None:
    return next((e for e in library.experiences if e.text.split()[0] == role), None)


def majority(claims: Sequence[Rules], truth: Rules) -> dict[str, str]:
    """What most of the claims say about each role that any of them is about; the truth decides a tie that it is in."""
    found: dict[str, str] = {}
    for role in ROLES:
        counts = Counter(claim[role] for claim in claims if role in claim)
        if counts:
            found[role] = max(counts, key=lambda s: (counts[s], s == truth[role]))
    return found


def numbered(rules: Rules) -> str:
    """
    >>> numbered({"goal": "C", "agent": "K"})
    '1. agent K 2. goal C'
    """
    stated = [role for role in ROLES if role in rules]
    return " ".join(f"{n}. {role} {rules[role]}" for n, role in enumerate(stated, start=1))


def lessons_text(rules: Rules) -> str:
    return f"<experiences> {numbered(rules)} </experiences>".replace("  ", " ")


def operation_text(entry: Experience | None, lesson: str, cited: Sequence[int] = ()) -> str:
    """What a lesson asks for where ``entry`` has its role: ADD where there is none, NONE where it says the same, else
    UPDATE. JSON in words of the vocabulary, which single spaces join. What is easy to say stands first: the lesson, then
    the entry and what it says (a key that the method does not read), then what follows from both.

    >>> operation_text(None, "goal C", [1, 4])
    '{"content": " goal C " , "id": null, "operation": "ADD" , "from": [ 1 , 4 ] }'
    >>> operation_text(Experience("G3", "goal D"), "goal C")
    '{"content": " goal C " , "id": "G3", "was": " goal D " , "operation": "UPDATE" }'
    """
    found = f'"id": "{entry.id}", "was": " {entry.text} " ,' if entry else '"id": null,'
    word = "ADD" if entry is None else "NONE" if entry.text == lesson else "UPDATE"
    behind = f' , "from": [ {" , ".join(map(str, cited))} ]' if cited else ""
    return f'{{"content": " {lesson} " , {found} "operation": "{word}"{behind} }}'


def list_text(operations: Sequence[str]) -> str:
    return " ".join(("[", " , ".join(operations), "]")) if operations else "[ ]"


def proposed(library: ExperienceLibrary, lessons: Rules) -> list[str]:
    """An operation for each lesson."""
    stated = [role for role in ROLES if role in lessons]
    return [operation_text(entry_of(library, r), f"{r} {lessons[r]}") for r in stated]


def planned(
    library: ExperienceLibrary, proposals: Sequence[Proposal]
) -> tuple[list[str], dict[str, str]]:
    """One operation for each role that is proposed for, by the majority of its proposals, the first where they tie;
    and the rules that it leaves."""
    operations: list[str] = []
    rules = {role: symbol for role, symbol in (e.text.split() for e in library.experiences)}
    for role in ROLES:
        own = [(n, p) for n, p in enumerate(proposals, start=1) if p.text.split()[0] == role]
        if not own:
            continue
        text = Counter(p.text for _, p in own).most_common(1)[0][0]
        cited = [n for n, p in own if p.text == text][:MOST_CITED]
        operations.append(operation_text(entry_of(library, role), text, cited))
        rules[role] = text.split()[1]
    return operations, rules
