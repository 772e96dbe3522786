"""Training-Free GRPO (arXiv:2510.08191), the part that is computed: from what the model answered to edits of the library.

Pure. ``collect`` reads here what the next question needs, and ``credit`` reads the same answers on record once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from kolb.memory.answers import answer_texts, gives_away
from kolb.memory.proposals import FAULTS, Proposal, json_list, read_proposals
from kolb.memory.reconciling import Known, as_edits, growth, read_plan, within
from kolb.memory.render import fill
from kolb.methods.tf_grpo_prompts import TOO_LARGE, UNREADABLE
from kolb.types import Edit, Episode, Group

LEFT_OUT = (
    *FAULTS,
    *("no_lesson", "unparsed", "too_many", "unattributed", "with_answer", "too_long", "no_room"),
)
"""Why something of an answer did not come into the library: each is counted."""


@dataclass(frozen=True)
class Rules:
    """How answers are read, and what may enter the library. The fields are those of the method."""

    merges: bool
    lessons_per_group: int
    max_lessons: int
    max_words: int
    removes_without_text: bool

    def proposals(self, groups: Sequence[Group]) -> tuple[list[Proposal], Counter[str]]:
        """What the comparisons propose, in the order of tasks, ``lessons_per_group`` of each at most."""
        found: list[Proposal] = []
        faults: Counter[str] = Counter()
        for episode in episodes_of(groups, "comparison"):
            answers = [t.text for t in episode.trajectories if t.name.startswith("proposals")]
            items = last_list(answers)
            if items is None:
                faults["unparsed" if answers else "no_lesson"] += 1
                continue
            own, wrong = read_proposals(
                items,
                episode.info["known"],
                actions=("add", "revise") if self.merges else ("add", "revise", "remove"),
                unknown_is_new=not self.merges,
                removes_without_text=self.removes_without_text,
            )
            faults += wrong
            faults["too_many"] += max(len(own) - self.lessons_per_group, 0)
            sources = (str(episode.info["source"]),)
            found += [replace(p, sources=sources) for p in own[: self.lessons_per_group]]
        return found, faults

    def edits(self, groups: Sequence[Group]) -> tuple[tuple[Edit, ...], Counter[str]]:
        """The reconciled plan as edits, none where no try of it can be read; with what was wrong, counted."""
        proposals, faults = self.proposals(groups)
        edits: tuple[Edit, ...] = ()
        for episode in episodes_of(groups, "reconciliation"):
            items = last_list([t.text for t in episode.trajectories])
            if items is None:
                faults["unparsed"] += 1
                continue
            known = episode.info["known"]
            plan, wrong = self.plan(items, known, proposals)
            sound, refused = self.sound(plan, len(known), groups)
            edits = as_edits(sound)
            faults += wrong + refused
        return edits, faults

    def objection(self, answer: str, known: Known, proposals: Sequence[Proposal]) -> str:
        """What to tell the editor before it tries again; empty where its plan can be read and fits."""
        items = json_list(answer)
        if items is None:
            return UNREADABLE
        size = len(known) + growth(self.plan(items, known, proposals)[0])
        numbers = {"size": str(size), "most": str(self.max_lessons)}
        return fill(TOO_LARGE, **numbers) if size > self.max_lessons else ""

    def plan(
        self, items: Sequence[Any], known: Known, proposals: Sequence[Proposal]
    ) -> tuple[list[Proposal], Counter[str]]:
        return read_plan(
            items,
            known,
            proposals,
            merges=self.merges,
            removes_without_text=self.removes_without_text,
        )

    def sound(
        self, plan: Sequence[Proposal], size: int, groups: Sequence[Group]
    ) -> tuple[list[Proposal], Counter[str]]:
        """What of the plan may enter a library of ``size`` lessons: no answer to a task of this step, no
        essay, no more lessons than there is room for."""
        answers = [a for g in groups for a in answer_texts(g.task.answer)]
        safe = [p for p in plan if p.action == "remove" or not gives_away(p.text, answers)]
        short = [
            p for p in safe if p.action == "remove" or len(p.text.split()) <= 2 * self.max_words
        ]
        kept = within(short, size, self.max_lessons)
        left_out = Counter(
            with_answer=len(plan) - len(safe),
            too_long=len(safe) - len(short),
            no_room=len(short) - len(kept),
        )
        return kept, left_out


def episodes_of(groups: Sequence[Group], kind: str) -> list[Episode]:
    return [e for g in groups if g.kind == kind and g.usable for e in g.episodes]


def last_list(answers: Sequence[str]) -> list[Any] | None:
    """The last of ``answers`` that holds a JSON list."""
    found = [items for answer in answers if (items := json_list(answer)) is not None]
    return found[-1] if found else None


# -------------------------------------------------------------------------------- held-out tasks


def gains_of(groups: Sequence[Group]) -> list[float]:
    """By held-out task: the mean outcome under the new library minus that under the old one."""
    means = {(g.kind, g.task.id): fmean(g.outcomes) for g in groups if g.usable and g.outcomes}
    tasks = [g.task.id for g in groups if g.kind == "after"]
    both = [(("before", t), ("after", t)) for t in tasks]
    return [means[new] - means[old] for old, new in both if old in means and new in means]


def is_worse(gains: Sequence[float]) -> bool:
    """Whether their mean is below 0 by more than one standard error; of a single task any loss is."""
    if not gains:
        return False
    error = stdev(gains) / sqrt(len(gains)) if len(gains) > 1 else 0.0
    return fmean(gains) + error < 0
