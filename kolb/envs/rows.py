"""Rows of the user's own JSONL or JSON files, whatever the format, as prompt and demonstration.

Read unchanged: TRL's ``prompt`` (text or messages), ``prompt`` with ``completion``, and ``messages``;
LLaMA-Factory's alpaca (``instruction``, ``input``, ``output``, ``system``, ``history``) and sharegpt
(``conversations`` of ``from``/``value``, ``system``, ``tools``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kolb.errors import RecipeError
from kolb.types import Message

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "observation": "tool",
    "tool": "tool",
    "function_call": "assistant",
}
"""sharegpt's speakers (and OpenAI's, which some files use in the same place)."""


@dataclass(frozen=True)
class Row:
    """``prompt`` is what the agent sees; ``demonstration`` the whole chat, empty where the row has no answer.
    ``is_text``: the prompt was a plain string, so a reward function gets strings, not messages."""

    prompt: tuple[Message, ...]
    demonstration: tuple[Message, ...] = ()
    is_text: bool = False


def read_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line number, row) for every row of a JSONL file, or of a JSON file that holds one list (there the
    number is the row's place in the list). Raises RecipeError with file and line."""
    if not path.is_file():
        raise RecipeError(
            f"there is no file {path.absolute()} (relative paths start at the current directory)"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text: {error}") from error
    if text.lstrip().startswith("["):
        rows = list(enumerate(_parse(text, path, 0), start=1))
    else:
        # Not splitlines(): JSON strings may hold other line separators than a newline.
        lines = enumerate(text.split("\n"), start=1)
        rows = [(number, _parse(line, path, number)) for number, line in lines if line.strip()]
    for number, row in rows:
        if not isinstance(row, dict):
            raise RecipeError(
                f"{path}:{number}: expected an object {{...}}, not {type(row).__name__}"
            )
    return rows


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RecipeError(
            f"{path}:{line or error.lineno}: not JSON: {error.msg} at column {error.colno}"
        ) from error


def read_row(row: Mapping[str, Any], prompt_column: str, system: str, where: str) -> Row:
    """The row's prompt and demonstration. ``system`` is put first where the row has no system message."""
    if prompt_column in row:
        found = _trl(row, prompt_column, where)
    elif "messages" in row:
        found = _chat(_messages(row["messages"], f"{where}: messages"))
    elif "conversations" in row:
        found = _chat(_sharegpt(row, where))
    elif "instruction" in row:
        found = _alpaca(row, where)
    else:
        raise RecipeError(
            f"{where}: none of {prompt_column!r}, 'messages', 'conversations', 'instruction' is among the "
            f"columns {sorted(row)}; name the right one with prompt_column"
        )
    return Row(
        _with_system(found.prompt, system), _with_system(found.demonstration, system), found.is_text
    )


def _trl(row: Mapping[str, Any], column: str, where: str) -> Row:
    prompt = row[column]
    is_text = isinstance(prompt, str)
    messages = (_say("user", prompt),) if is_text else _messages(prompt, f"{where}: {column}")
    if "completion" not in row:
        return Row(messages, is_text=is_text)
    answer = row["completion"]
    if isinstance(answer, str):
        return Row(messages, (*messages, _say("assistant", answer)), is_text)
    return Row(messages, (*messages, *_messages(answer, f"{where}: completion")), is_text)


def _chat(messages: tuple[Message, ...]) -> Row:
    """A chat that ends with the assistant is a demonstration; what comes before that answer is the prompt."""
    if messages[-1]["role"] != "assistant":
        return Row(messages)
    return Row(messages[:-1], messages)


def _alpaca(row: Mapping[str, Any], where: str) -> Row:
    for column in ("instruction", "input", "output", "system"):
        if not isinstance(row.get(column) or "", str):
            raise RecipeError(f"{where}: {column} must be text, not {type(row[column]).__name__}")
    chat = [_say("system", row["system"])] if row.get("system") else []
    for pair in row.get("history") or ():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise RecipeError(
                f"{where}: history must be a list of [question, answer], not {pair!r}"
            )
        chat += [_say("user", pair[0]), _say("assistant", pair[1])]
    asked = "\n".join(part for part in (row["instruction"], row.get("input")) if part)
    prompt = (*chat, _say("user", asked))
    answer = row.get("output")
    return Row(
        prompt, (*prompt, _say("assistant", answer)) if answer else (), is_text=len(prompt) == 1
    )


def _sharegpt(row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    turns = row["conversations"]
    if not isinstance(turns, list) or not turns:
        raise RecipeError(f"{where}: conversations must be a list of turns that is not empty")
    chat = [_say("system", row["system"])] if row.get("system") else []
    return (
        *chat,
        *(_sharegpt_turn(turn, f"{where}: conversations[{i}]") for i, turn in enumerate(turns)),
    )


def _sharegpt_turn(turn: Any, where: str) -> Message:
    turn = turn if isinstance(turn, dict) else {}
    speaker, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if speaker not in ROLES or not isinstance(text, str):
        raise RecipeError(
            f"{where}: expected from (one of {', '.join(ROLES)}) and value (text), given {turn!r:.120}"
        )
    if speaker != "function_call":
        return _say(ROLES[speaker], text)
    try:
        call = json.loads(text)
        calls = call if isinstance(call, list) else [call]
        functions = [{"name": c["name"], "arguments": c.get("arguments", {})} for c in calls]
    except (json.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
        raise RecipeError(
            f"{where}: a function_call is JSON with name and arguments, given {text!r:.120}"
        ) from error
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "tool_calls": tool_calls}


def _messages(value: Any, where: str) -> tuple[Message, ...]:
    """``value`` as chat messages in OpenAI's form, or RecipeError."""
    if not isinstance(value, list) or not value:
        raise RecipeError(f"{where}: expected text or a list of messages, given {value!r:.120}")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RecipeError(
                f'{where}[{index}]: expected {{"role": "user", "content": "..."}}, given {message!r:.120}'
            )
        if message.get("content") is None and not message.get("tool_calls"):
            raise RecipeError(f"{where}[{index}]: a message without content and without tool_calls")
    return tuple(value)


def _with_system(messages: tuple[Message, ...], system: str) -> tuple[Message, ...]:
    if not system or not messages or messages[0]["role"] == "system":
        return messages
    return (_say("system", system), *messages)


def _say(role: str, text: Any) -> Message:
    return {"role": role, "content": text}
