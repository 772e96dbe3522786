"""The scripted engine's tokens: unicode code points, and a chat layout that any message survives.

A message is START, its role, a newline, its content, END; both marks are private-use characters. A system
prompt, a tool call, everything is written the same way, and nothing is ever rewritten: tokens only append.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from kolb.errors import TemplateError
from kolb.types import NO_IDS, Completion, Ids, Message, Turn

START, END = "\ue000", "\ue001"
OPENING = f"{START}assistant\n"


def encode(text: str) -> Ids:
    return np.array([ord(c) for c in text], np.int32)


def layout(message: Message) -> str:
    if not isinstance(message, dict) or "role" not in message:
        raise TemplateError(f"a message is a dict with a role and a content, not {message!r}")
    calls = message.get("tool_calls")
    content = str(message.get("content") or "") + (json.dumps(calls) if calls else "")
    return f"{START}{message['role']}\n{content}{END}"


def messages_of(prompt: Ids) -> list[Message]:
    """The messages in a prompt that ends with the opening of an assistant message.

    What follows an END that is missing (a completion that was cut) belongs to the cut message.
    """
    text = "".join(map(chr, prompt))
    parts = [part.partition("\n") for part in text.split(START)[1:-1]]
    return [{"role": role, "content": content.removesuffix(END)} for role, _, content in parts]


class ScriptedTemplate:
    """Implements ``kolb.engines.base.Template``."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        return (ord(END),)

    def encode(self, text: str) -> Ids:
        return encode(text)

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """The text of ``ids``, without the marks at its end."""
        return "".join(map(chr, ids)).rstrip(END)

    def open(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> ScriptedChat:
        chat = ScriptedChat()
        chat.extend(
            [{"role": "tools", "content": json.dumps(list(tools))}, *messages]
            if tools
            else messages
        )
        return chat

    def transcribe(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> ScriptedChat:
        """The chat with every assistant message as a ``given`` completion."""
        chat = self.open((), tools)
        for message in messages:
            if message["role"] == "assistant":
                said = layout(message).removeprefix(OPENING)
                chat.add(Completion(said.removesuffix(END), encode(said), stop_reason="given"))
            else:
                chat.extend([message])
        return chat


class ScriptedChat:
    """A growing conversation: ``prompt_ids`` [L], ``add``, ``extend``, ``turns``."""

    def __init__(self) -> None:
        self.turns: tuple[Turn, ...] = ()
        self._before: Ids = NO_IDS
        self._heard: tuple[Message, ...] = ()

    @property
    def _context_ids(self) -> Ids:
        last = self.turns[-1].completion.token_ids[-1:].tolist() if self.turns else [ord(END)]
        cut = last != [ord(END)]
        return encode((END if cut else "") + "".join(map(layout, self._heard)) + OPENING)

    @property
    def prompt_ids(self) -> Ids:
        return np.concatenate([self._before, self._context_ids])

    def add(self, completion: Completion) -> None:
        context = self._context_ids
        turn = Turn(self._heard, completion, context, starts_segment=not self.turns)
        self._before = np.concatenate([self._before, context, completion.token_ids])
        self.turns, self._heard = (*self.turns, turn), ()

    def extend(self, messages: Sequence[Message]) -> None:
        self._heard += tuple(messages)
