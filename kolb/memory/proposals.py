"""Changes to the library as a model wrote them: read, and checked one by one.

Pure. Nothing that a model writes raises here: what cannot be used is left out and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ACTIONS: Mapping[str, str] = {
    **{"ADD": "add", "UPDATE": "revise", "MODIFY": "revise", "DELETE": "remove"},
    **{"MERGE": "merge", "NONE": "keep", "KEEP": "keep"},
}
"""A model's word for what is to be done, and ours."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "action": ("operation", "option"),
    "text": ("content", "experience"),
    "ids": ("id", "ids", "modified_from", "merged_from"),
    "cites": ("from",),
}
"""Under which keys each part may stand; the second of each pair is the paper-era code's."""

FAULTS = ("malformed", "unknown_action", "unknown_id", "empty")


@dataclass(frozen=True)
class Proposal:
    """``action`` is ``add``, ``revise``, ``remove`` or ``merge`` (several ids become one lesson).

    ``cites`` are numbers of earlier proposals that it rests on, ``sources`` the groups behind it.
    """

    action: str
    text: str = ""
    ids: tuple[str, ...] = ()
    cites: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()


def json_list(answer: str) -> list[Any] | None:
    """The JSON list in the last fenced block that says ``json``, or the whole answer; None if there is none.

    >>> json_list('Two things. ```json\\n["a"]\\n```'), json_list('["a"]'), json_list('Two: ["a"]')
    (['a'], ['a'], None)
    """
    _, fence, rest = answer.rpartition("```json")
    try:
        found = json.loads(rest.partition("```")[0] if fence else answer)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def read_proposals(
    items: Sequence[Any],
    known: Collection[str],
    *,
    actions: Collection[str] = ("add", "revise", "remove"),
    unknown_is_new: bool = True,
    removes_without_text: bool = True,
) -> tuple[list[Proposal], Counter[str]]:
    """What of ``items`` can be done to a library with the ids ``known``, and how often it had each of FAULTS.

    A missing operation is an addition. A revision of what is not there, or was removed further up, is an
    addition too (left out where not ``unknown_is_new``). Other unknown ids are left out.
    """
    proposals: list[Proposal] = []
    faults: Counter[str] = Counter()
    left = set(known)
    for item in items:
        given = _read(item)
        if given is None or given.action not in actions:
            fault = "malformed" if given is None else "unknown_action"
            faults[fault] += given is None or given.action != "keep"
            continue
        if not given.text and not (given.action == "remove" and removes_without_text):
            faults["empty"] += 1
            continue
        ids = tuple(i for i in given.ids if i in left)
        faults["unknown_id"] += given.action != "add" and (len(ids) < len(given.ids) or not ids)
        checked = _with_ids(given, ids, unknown_is_new=unknown_is_new)
        if checked is not None:
            proposals.append(checked)
            left -= set(ids) if checked.action in ("remove", "merge") else set()
    return proposals, +faults


def _with_ids(given: Proposal, ids: tuple[str, ...], *, unknown_is_new: bool) -> Proposal | None:
    match given.action:
        case "add":
            return replace(given, ids=())
        case "merge":
            return replace(given, ids=ids)
        case "revise" if not ids:
            return replace(given, action="add", ids=()) if unknown_is_new else None
        case _:
            return replace(given, ids=ids[:1]) if ids else None


def _read(item: Any) -> Proposal | None:
    """The parts of ``item``, whatever they say; None where it has not their shape."""
    if not isinstance(item, dict):
        return None
    parts = {part: next((item[k] for k in keys if k in item), None) for part, keys in KEYS.items()}
    action = "ADD" if parts["action"] is None else parts["action"]
    text = "" if parts["text"] is None else parts["text"]
    ids = parts["ids"] if isinstance(parts["ids"], list) else [parts["ids"]]
    cites = parts["cites"] if isinstance(parts["cites"], list) else [parts["cites"]]
    ids = [i for i in ids if i is not None]
    if not all(isinstance(x, str) for x in (action, text, *ids)):
        return None
    word = action.strip().upper()
    return Proposal(
        ACTIONS.get(word, word),
        _one_line(text),
        tuple(dict.fromkeys(i.strip().strip("[]") for i in ids)),
        tuple(c for c in cites if type(c) is int),
    )


def _one_line(text: str) -> str:
    """Lessons are lines of a list. Half characters, which JSON can spell and no file can hold, go."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
