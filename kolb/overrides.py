"""``--set a.b=value``: the only way to change a recipe from the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from kolb.errors import RecipeError, nearest


def apply_sets(data: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """A copy of ``data`` with every ``path=value`` applied, left to right.

    Values are TOML; what is not TOML is text (``policies.agent.base=smollm2-135m``). In a list a part of
    the path is an index or the ``name`` of an entry: ``stages.0.steps=2``, ``stages.rl.steps=2``.

    >>> apply_sets({"stages": [{"name": "rl", "steps": 9}]}, ["stages.rl.steps=2"])
    {'stages': [{'name': 'rl', 'steps': 2}]}
    """
    result = copied(data)
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals or not all(parts := path.strip().split(".")):
            raise RecipeError(f"--set {text!r}: write it as path.to.key=value")
        put(result, parts, value_of(value), text)
    return result


def copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: copied(v) for k, v in value.items()}
    return [copied(v) for v in value] if isinstance(value, list | tuple) else value


def value_of(text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    return document["value"] if len(document) == 1 else text


def put(data: Any, parts: Sequence[str], value: Any, text: str) -> None:
    """Walks to the table that holds the last part, makes missing tables on the way, and sets it."""
    for position, part in enumerate(parts):
        is_last = position == len(parts) - 1
        key: Any = part
        if isinstance(data, list):
            key = entry_of(data, part, text)
        elif not isinstance(data, dict):
            walked = ".".join(parts[:position])
            raise RecipeError(f"--set {text!r}: {walked} is {data!r}, not a table")
        elif not is_last:
            data.setdefault(part, {})
        if is_last:
            data[key] = value
        else:
            data = data[key]


def entry_of(entries: Sequence[Any], part: str, text: str) -> int:
    names = [e.get("name", "") if isinstance(e, dict) else "" for e in entries]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(entries):
        return int(part)
    known = [n for n in names if n] or [str(i) for i in range(len(entries))]
    raise RecipeError(
        f"--set {text!r}: no entry {part!r} in a list of {len(entries)}{nearest(part, known)}"
    )
