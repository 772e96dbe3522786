"""What Training-Free GRPO asks its model (``kolb.methods.tf_grpo``), in our own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kolb.memory.render import fill
from kolb.types import Message, Trajectory

HIDDEN = "[REDACTED]"
"""Stands where answer or reward may not be known."""


@dataclass(frozen=True)
class Prompts:
    """The system prompt of each call; the data follow in the user message, in tagged blocks. Defaults at the end.

    ``agent`` says what the agent is there for, ``wanted`` what kind of lesson is wanted: {agent}, {wanted},
    {lessons}, {words} and {most} are filled in. ``comparison`` and ``tips`` must ask for experiences tags,
    ``proposals``, ``plan`` and, in style merge, ``critique`` and ``merging`` for a JSON list. ``heading`` stands above
    the library.
    """

    agent: str
    wanted: str
    heading: str
    summary: str
    comparison: str
    tips: str
    proposals: str
    plan: str
    critique: str
    merging: str


@dataclass(frozen=True)
class Attempt:
    """What the comparer may know of one attempt. ``reward`` is None where it may not know one."""

    index: int
    trajectory: Trajectory
    reward: float | None
    summary: str = ""

    @property
    def opening(self) -> str:
        return text_of(self.trajectory.turns[0].messages)

    def turns(self, *, with_feedback: bool) -> str:
        """Turn by turn what was seen, but for the opening, said, and heard."""
        shown: list[str] = []
        for number, turn in enumerate(self.trajectory.turns, start=1):
            seen = text_of(turn.messages) if number > 1 else ""
            said = f"The agent: {turn.completion.text.strip()}"
            heard = f"Feedback: {turn.feedback}" if with_feedback and turn.feedback else ""
            shown.append("\n".join(p for p in (f"## Turn {number}", seen, said, heard) if p))
        return "\n\n".join(shown)


def lessons_in(answer: str) -> str:
    """The text between experiences tags; empty where there is none.

    >>> lessons_in("So: <experiences> Look first. </EXPERIENCES>")
    'Look first.'
    """
    found = re.search(r"<experiences>(.*?)</experiences>", answer, re.DOTALL | re.IGNORECASE)
    return found[1].strip() if found else ""


def text_of(messages: Iterable[Message]) -> str:
    """What ``messages`` say, system prompts left out."""
    return "\n\n".join(str(m.get("content") or "") for m in messages if m["role"] != "system")


def block(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"


def placed(opening: Sequence[Message], shown: str, site: str) -> tuple[Message, ...]:
    """``opening`` with ``shown`` behind its last system prompt, or before its last message of a user: see ``site``."""
    places = [i for i, m in enumerate(opening) if m["role"] == site]
    if not places:
        return ({"role": site, "content": shown}, *opening)
    place = places[-1]
    own = str(opening[place].get("content") or "")
    text = f"{own}\n\n{shown}" if site == "system" else f"{shown}\n\n{own}"
    return (*opening[:place], {**opening[place], "content": text}, *opening[place + 1 :])


def filled(system: str, prompts: Prompts, numbers: Mapping[str, int]) -> str:
    values = {name: str(value) for name, value in numbers.items()}
    return fill(system, agent=prompts.agent, wanted=prompts.wanted, **values)


def with_note(asked: Sequence[Message], note: str) -> list[Message]:
    return [*asked[:-1], {**asked[-1], "content": asked[-1]["content"] + note}]


UNREADABLE = "\n\nYour last answer held no list that could be read. Answer with one ```json block that holds a list."
TOO_LARGE = (
    "\n\nYour last list would leave {size} lessons in the library, and at most {most} may stay. Say more with fewer: "
    "merge what is alike, and delete what matters least."
)

OPERATIONS = """\
```json
[{"operation": "ADD", "id": null, "content": "Name: one sentence"}]
```
ADD: the library lacks it. UPDATE: it belongs to the lesson with this id, whose new wording is the content. DELETE: the \
lesson with this id is wrong or harmful. NONE: the library says it already."""

PROMPTS = Prompts(
    agent="The agent is given a task and acts or answers step by step.",
    wanted="Strategies and pitfalls that carry over to other tasks of this kind.",
    heading="Lessons from earlier attempts at other tasks. Read them before you begin, and follow those that fit:",
    summary="""\
You write reports on the attempts of an agent. {agent}

You are shown a task, its answer and the attempt's result where they are known, and the whole attempt. Report step by \
step: what the agent did and with what input, what came of it, why it seems to have done so, and what it overlooked. \
Then state its main findings, its final answer and its overall strategy. Report what is there and judge nothing else. \
Write in the language of the attempt.""",
    comparison="""\
You study several attempts of one agent at the same task, to find what made the difference. {agent}

Wanted: {wanted}

Answer in these parts:
1. What the task demands.
2. What each attempt did well and badly.
3. Where the better attempts parted from the worse ones, and why that mattered. Where results are hidden, decide from \
what the attempts agree on and how sound their steps are.
4. The pattern behind it.
5. Inside <experiences> tags, numbered lessons, {lessons} at most. Each is one sentence of at most {words} words with a \
short name in front: "Name: When X, do Y." It must hold for other tasks: no numbers, names or answers of this one.

<experiences>
1. ...
</experiences>""",
    tips="""\
You give advice to an agent before its first attempt. {agent}

Wanted: {wanted}

No attempt has been made yet. From what you know of tasks of this kind, think of what such an agent most often gets \
wrong, and how that is avoided. Then write, inside <experiences> tags, numbered lessons, {lessons} at most. Each is one \
sentence of at most {words} words with a short name in front: "Name: When X, do Y."

<experiences>
1. ...
</experiences>""",
    proposals="""\
You keep a library of lessons for an agent. {agent}

Wanted: {wanted}

You are shown the library and new lessons. For each new lesson choose one operation, so that the library stays free of \
repetition and contradiction. A content is one sentence of at most {words} words with a short name in front, general, \
without numbers, names or answers of a single task. End with one list:
"""
    + OPERATIONS,
    plan="""\
You keep a library of lessons for an agent. {agent}

Wanted: {wanted}

Several people read the same library at the same time and proposed changes, each without knowing of the others. You are \
shown each lesson with the proposals for it, then the proposals of new lessons, all numbered. Make one consistent plan \
of them: several updates of one lesson become one; a deletion outweighs an update; new lessons that say nearly the same \
become one; of two that contradict each other keep the more general one, or say when each holds. At most {most} lessons \
may be in the library. A content is one sentence of at most {words} words with a short name in front, without numbers, \
names or answers of a single task. Add to each operation, as "from", the numbers of the proposals that it rests on. End \
with one list:
"""
    + OPERATIONS.replace('sentence"}', 'sentence", "from": [1]}'),
    critique="""\
You study several attempts of one agent at the same task, and keep a library of lessons for it. {agent}

Wanted: {wanted}

You are shown the task, the attempts and the library that they had. Think freely first: which lessons were used, which \
were missing, where the better attempts parted from the worse ones. Then propose at most {lessons} changes: add a \
lesson that the library lacks, or modify one by its id. A content is one sentence of at most {words} words, general, \
without numbers, names or answers of this task. End with one list:
```json
[{"operation": "ADD", "content": "..."}, {"operation": "MODIFY", "id": "G0", "content": "..."}]
```""",
    merging="""\
You keep a library of lessons for an agent. {agent}

Wanted: {wanted}

You are shown the library, with the changes that were proposed for each lesson, and new lessons with ids of their own, \
which enter as they are unless you change that. Modify what was proposed, one wording for each id, and merge lessons \
that overlap, old and new alike: the merged ones go, and one takes their place. At most {most} lessons may be in the \
library. A content is one sentence of at most {words} words, general, without numbers, names or answers of a single \
task. End with one list:
```json
[{"operation": "MODIFY", "id": "G0", "content": "..."}, {"operation": "MERGE", "ids": ["G1", "C0"], "content": "..."}]
```""",
)
"""A recipe may write its own: ``[stages.method.prompts]``."""
