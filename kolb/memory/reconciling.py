"""One plan for the library from the proposals of several groups, which did not know of each other. Pure.

Where a plan may merge, additions are *candidates*: they have ids of their own, C0, C1, ..., and enter as they are
unless the plan revises them or merges them away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kolb.memory.proposals import Proposal, read_proposals
from kolb.types import Edit, Experience

Known = Mapping[str, Sequence[str]]
"""The ids of the library that all proposals were made against, and the sources of each."""


def candidates_of(proposals: Sequence[Proposal]) -> dict[str, Proposal]:
    return {f"C{n}": p for n, p in enumerate(p for p in proposals if p.action == "add")}


def as_listed(
    lessons: Sequence[Experience], proposals: Sequence[Proposal], *, merges: bool
) -> tuple[str, str]:
    """Each lesson with what is proposed for it, and the additions; proposals are numbered from 1."""
    numbered = list(enumerate(proposals, start=1))
    lines: list[str] = []
    for lesson in lessons:
        own = [f"  ({n}) {p.action}: {p.text}".rstrip() for n, p in numbered if lesson.id in p.ids]
        lines += [f"[{lesson.id}]. {lesson.text}", *own]
    added = [(n, p) for n, p in numbered if p.action == "add"]
    names = [f"[{name}]. " if merges else "" for name in candidates_of(proposals)]
    new = [f"({n}) {name}{p.text}" for name, (n, p) in zip(names, added, strict=True)]
    return "\n".join(lines) or "None", "\n".join(new) or "None"


def read_plan(
    items: Sequence[Any],
    known: Known,
    proposals: Sequence[Proposal],
    *,
    merges: bool,
    removes_without_text: bool = True,
) -> tuple[list[Proposal], Counter[str]]:
    """A model's plan in terms of the library, every part with its sources; and how often it had each fault.

    ``unattributed`` counts the parts that name no proposal where several groups may be behind them: they have
    the sources of all of these.
    """
    candidates = candidates_of(proposals) if merges else {}
    plan, faults = read_proposals(
        items,
        {*known, *candidates},
        actions=("revise", "merge") if merges else ("add", "revise", "remove"),
        removes_without_text=removes_without_text,
    )
    traced: list[Proposal] = []
    for p in plan:
        behind, is_guessed = motives(p, proposals, candidates)
        own = [s for i in p.ids if p.action == "merge" for s in known.get(i, ())]
        sources = tuple(dict.fromkeys([*own, *sources_of(behind)]))
        faults["unattributed"] += is_guessed and len(sources_of(behind)) > 1
        traced.append(replace(p, sources=sources))
    return with_candidates(candidates, traced), +faults


def motives(
    part: Proposal, proposals: Sequence[Proposal], candidates: Mapping[str, Proposal]
) -> tuple[list[Proposal], bool]:
    """The proposals behind a part of a plan: those that it cites, else those for its ids, else, as a guess,
    all additions, or all there are."""
    cited = [proposals[c - 1] for c in part.cites if 0 < c <= len(proposals)]
    for_ids = [p for p in proposals if set(p.ids) & set(part.ids)]
    if cited or for_ids or set(part.ids) & set(candidates):
        return cited or for_ids, False
    return [p for p in proposals if p.action == "add"] or list(proposals), True


def with_candidates(candidates: Mapping[str, Proposal], plan: Iterable[Proposal]) -> list[Proposal]:
    """``plan`` with the ids of ``candidates`` resolved, and behind it those that it left as they are."""
    left = dict(candidates)
    found: list[Proposal] = []
    for p in plan:
        if p.action == "revise" and p.ids[0] in left:
            own = left[p.ids[0]]
            left[p.ids[0]] = replace(own, text=p.text, sources=sources_of([own, p]))
            continue
        taken = [left.pop(i) for i in p.ids if i in left]
        ids = tuple(i for i in p.ids if i not in candidates)
        found.append(replace(p, ids=ids, sources=sources_of([p, *taken])))
    return [*found, *left.values()]


def growth(plan: Iterable[Proposal]) -> int:
    """By how many lessons the plan makes the library larger."""
    by_action = {"add": 1, "revise": 0, "remove": -1}
    return sum(by_action.get(p.action, 1 - len(p.ids)) for p in plan)


def within(plan: Sequence[Proposal], size: int, most: int) -> list[Proposal]:
    """``plan`` without the last additions that would make a library of ``size`` lessons larger than ``most``.
    Where it is larger already, nothing is added."""
    excess = max(size + growth(plan) - most, 0)
    growing = [n for n, p in enumerate(plan) if growth([p]) > 0]
    refused = set(growing[len(growing) - excess :] if excess < len(growing) else growing)
    return [p for n, p in enumerate(plan) if not excess or n not in refused]


def as_edits(plan: Iterable[Proposal]) -> tuple[Edit, ...]:
    """The same as Edits, in order. A merge removes its ids and adds one lesson."""
    edits: list[Edit] = []
    for p in plan:
        if p.action == "revise":
            edits.append(Edit("revise", p.text, p.ids[0], p.sources))
            continue
        edits += [Edit("remove", id=i, sources=p.sources) for i in p.ids]
        edits += [Edit("add", p.text, sources=p.sources)] if p.action != "remove" else []
    return tuple(edits)


def sources_of(proposals: Iterable[Proposal]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(s for p in proposals for s in p.sources))
