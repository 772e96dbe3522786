"""OpenAI messages as chat templates expect them: text as strings, tool arguments as mappings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kolb.errors import TemplateError
from kolb.types import Message


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Copies of ``messages`` whose ``content`` is a string. TemplateError for images and the like."""
    return [_plain(message) for message in messages]


def _plain(message: Message) -> Message:
    if not isinstance(message.get("role"), str):
        raise TemplateError(
            f"a message needs a role, as in {{'role': 'user', 'content': '...'}}; got {message!r}"
        )
    plain = {**message, "content": flat_text(message.get("content"))}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return plain


def flat_text(content: Any) -> str:
    """A message's ``content`` as one string: None is empty, a list of text parts is joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(p, dict) and isinstance(p.get("text"), str) for p in content
    ):
        return "".join(part["text"] for part in content)
    raise TemplateError(
        f"message content must be text or a list of text parts, not {content!r:.200}"
    )


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    """OpenAI writes arguments as JSON text; templates write JSON themselves and would quote it twice."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return call
    function = {**function, "arguments": arguments}
    return {**call, "function": function} if "function" in call else function


def merge_system(chat: list[Message]) -> list[Message]:
    """The leading system message put before the first user message's text."""
    system, rest = chat[0], chat[1:]
    if rest and rest[0]["role"] == "user":
        return [{**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [{**system, "role": "user"}, *rest]
