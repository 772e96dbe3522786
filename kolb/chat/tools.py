"""Tool calls in what a model says: ``<tool_call>{...}</tool_call>`` (hermes style) or a fenced JSON block.

A malformed call is never an exception: it is a sentence that the environment can send back to the model.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FENCED = re.compile(r"```(?:json|tool_call)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """One call that a model asked for.

    >>> ToolCall("add", {"a": 2, "b": 3}).name
    'add'
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def parse_tool_calls(text: str) -> tuple[list[ToolCall], list[str]]:
    """The calls in ``text`` in order, and one error per malformed call, in words.

    Tagged calls count alone where there are any. Otherwise fenced JSON is a call if it is an object (or a
    list of objects) with a ``name``; any other fence is the model's own business, not an error. Arguments
    may be an object or JSON text of one.

    >>> parse_tool_calls('<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>')
    ([ToolCall(name='add', arguments={'a': 2})], [])
    """
    tagged = _TAGGED.findall(text)
    calls: list[ToolCall] = []
    errors: list[str] = []
    for body in tagged or _fenced_calls(text):
        try:
            data = json.loads(body)
            calls += [_call(item) for item in (data if isinstance(data, list) else [data])]
        except (ValueError, RecursionError) as error:
            errors.append(
                f'malformed tool call ({error}); write {{"name": ..., "arguments": {{...}}}}: {body.strip()[:200]}'
            )
    return calls, errors


def _fenced_calls(text: str) -> list[str]:
    """Fenced blocks that mean to be calls: JSON text that speaks of a ``name``."""
    blocks = (body.strip() for body in _FENCED.findall(text))
    return [body for body in blocks if body[:1] in ("{", "[") and '"name"' in body]


def _call(data: Any) -> ToolCall:
    if isinstance(data, dict) and isinstance(data.get("function"), dict):
        data = data["function"]
    if not isinstance(data, dict) or not isinstance(data.get("name"), str) or not data["name"]:
        raise ValueError('expected an object with a "name"')
    arguments = data.get("arguments", data.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f'"arguments" must be an object, not {type(arguments).__name__}')
    return ToolCall(data["name"], arguments)
