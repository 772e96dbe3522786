"""Tool calls in model text: parsed where they are whole, put into words where they are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolb.chat.tools import ToolCall, parse_tool_calls

ADD = ToolCall("add", {"a": 2, "b": 3})
JSON = '{"name": "add", "arguments": {"a": 2, "b": 3}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{JSON}</tool_call>",
        f"Let me see.\n<tool_call>\n{JSON}\n</tool_call>\nDone.",
        f"<tool_call>{JSON}",  # cut before the closing tag, but whole
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n```",
        '<tool_call>{"type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 2, \\"b\\": 3}"}}</tool_call>',
        '```json\n{"name": "add", "parameters": {"a": 2, "b": 3}}\n```',
    ],
)
def test_one_whole_call_is_found(text: str) -> None:
    assert parse_tool_calls(text) == ([ADD], [])


def test_calls_keep_their_order_and_arguments_may_be_missing() -> None:
    text = f'<tool_call>{{"name": "look"}}</tool_call> then <tool_call>{JSON}</tool_call>'
    assert parse_tool_calls(text) == ([ToolCall("look"), ADD], [])
    assert parse_tool_calls(f"```json\n[{JSON}, {JSON}]\n```") == ([ADD, ADD], [])


def test_tags_win_over_fences() -> None:
    text = f'```json\n{{"name": "x"}}\n```\n<tool_call>{JSON}</tool_call>'
    assert parse_tool_calls(text) == ([ADD], [])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "add", "arguments": {"a": 2', "malformed tool call"),
        ("", "malformed tool call"),
        ("[1]", 'expected an object with a "name"'),
        ('{"arguments": {}}', 'expected an object with a "name"'),
        ('{"name": 3}', 'expected an object with a "name"'),
        ('{"name": "add", "arguments": [1]}', "must be an object, not list"),
        ('{"name": "add", "arguments": "a=2"}', "malformed tool call"),
    ],
)
def test_a_malformed_call_is_a_sentence_and_spares_its_neighbour(body: str, reason: str) -> None:
    calls, errors = parse_tool_calls(f"<tool_call>{body}</tool_call><tool_call>{JSON}</tool_call>")
    assert calls == [ADD]
    assert len(errors) == 1
    assert reason in errors[0]
    assert '"arguments"' in errors[0]  # it says what to write instead


@pytest.mark.parametrize(
    "text", ["", "Up", "```\nUp\n```", '```python\nx = {"name": 1}\n```', '```json\n{"a": 1}\n```']
)
def test_text_without_a_call_is_no_error(text: str) -> None:
    assert parse_tool_calls(text) == ([], [])


def test_a_fenced_call_that_is_broken_is_an_error() -> None:
    calls, errors = parse_tool_calls('```json\n{"name": "add", }\n```')
    assert calls == []
    assert len(errors) == 1


@given(st.text(), st.text())
def test_no_text_raises(before: str, inside: str) -> None:
    calls, errors = parse_tool_calls(f"{before}<tool_call>{inside}</tool_call>")
    assert len(calls) + len(errors) >= 1


def test_absurd_nesting_is_an_error_too() -> None:
    calls, errors = parse_tool_calls("<tool_call>" + "[" * 200_000 + "</tool_call>")
    assert calls == []
    assert len(errors) == 1
