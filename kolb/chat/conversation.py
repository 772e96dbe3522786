"""The token-exact, growing record of one role's chat.

    prompt_ids -> sample -> add(completion) -> extend(messages) -> prompt_ids -> ...

Within a segment tokens are only appended: the sampled ids as they are, then a bridge, the encoded text that
the template puts between that answer and the next. Whether the template leaves the past alone is checked at
every turn; where it rewrites it (as those do that strip earlier thoughts), a new segment starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kolb.chat.messages import flat_text
from kolb.errors import TemplateError
from kolb.types import NO_IDS, Completion, Ids, Message, Turn

if TYPE_CHECKING:
    from kolb.chat.templates import ChatTemplate


@dataclass(frozen=True)
class Pending:
    """What is new since the last completion: the next Turn without its completion."""

    messages: tuple[Message, ...]
    context_ids: Ids
    starts_segment: bool


class Conversation:
    """Made by ``ChatTemplate.open``. All state is immutable values, so ``copy.copy`` branches it.

    ``breaks`` counts the segments that began because the template rewrote history.
    """

    def __init__(
        self, template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Any] | None
    ) -> None:
        self._template, self._tools = template, tools
        self.messages: tuple[Message, ...] = ()
        self.turns: tuple[Turn, ...] = ()
        self.breaks = 0
        self.pending: Pending | None = None
        self._ids = NO_IDS  # the segment, up to and with the last completion
        self._shown = ""  # the text that the last completion answered
        self._said = ""  # its own text
        self._text = ""  # the text of the current prompt
        self.extend(messages)

    @property
    def prompt_ids(self) -> Ids:
        """int32 [L]: the whole current segment, to sample from."""
        pending = self._pending("sampling")
        return (
            pending.context_ids
            if pending.starts_segment
            else np.concatenate([self._ids, pending.context_ids])
        )

    def add(self, completion: Completion) -> None:
        """Appends what was sampled, ids untouched. TemplateError for text without token ids."""
        if completion.text and not len(completion.token_ids):
            raise TemplateError(
                "a completion without token ids cannot join a conversation of tokens"
            )
        self._append(completion, {"role": "assistant", "content": completion.text}, completion.text)

    def write(self, message: Message) -> None:
        """Appends an assistant message that somebody wrote, tool calls included, as a ``given`` completion."""
        self._pending("writing")
        text = self._written(message)
        self._append(self._template.given(text), message, text)

    def extend(self, messages: Sequence[Message]) -> None:
        """Appends messages of anybody but the assistant. May be called several times between two answers."""
        before = self.pending
        text = self._template.render((*self.messages, *messages), self._tools)
        bridge = self._bridge(text)
        if bridge is None and self.turns and not (before and before.starts_segment):
            self._note_break()
        ids = self._template.encode(text) if bridge is None else bridge
        new = (*(before.messages if before else ()), *messages)
        self.pending = Pending(new, ids, starts_segment=bridge is None)
        self.messages, self._text = (*self.messages, *messages), text

    def _pending(self, what: str) -> Pending:
        if self.pending is None:
            raise TemplateError(
                f"the assistant spoke last: extend() the conversation before {what}"
            )
        return self.pending

    def _append(self, completion: Completion, message: Message, said: str) -> None:
        prompt, pending = self.prompt_ids, self._pending("adding")
        self.turns += (
            Turn(pending.messages, completion, pending.context_ids, pending.starts_segment),
        )
        self._ids = np.concatenate([prompt, completion.token_ids])
        self.messages += (message,)
        self._shown, self._said, self.pending = self._text, said, None

    def _bridge(self, text: str) -> Ids | None:
        """The tokens of ``text`` between the last answer and the next; None where a segment must start."""
        if not self.turns or not text.startswith(self._shown):
            return None
        rest = behind(text[len(self._shown) :], self._said, self._template.end_text)
        if rest is None:
            return None
        ids = self._template.encode_behind(rest)
        last = self.turns[-1].completion.token_ids
        has_ended = len(last) > 0 and int(last[-1]) in self._template.end_ids
        return self._template.behind_end(ids) if has_ended else ids

    def _written(self, message: Message) -> str:
        """What an assistant must say so that the template's rendering of ``message`` comes out."""
        text = self._template.render((*self.messages, message), self._tools, answer=False)
        if not text.startswith(self._text) and not message.get("tool_calls"):
            # The template opens answers with words that it does not keep in the history, such as "<think>".
            return flat_text(message.get("content"))
        if not text.startswith(self._text) or not text.endswith(self._template.tail):
            raise TemplateError(
                "the chat template shows this message otherwise than an answer of its model, so there is nothing"
                f" to learn; write the tool calls of {message!r:.200} into `content`"
            )
        return text[len(self._text) : len(text) - len(self._template.tail)]

    def _note_break(self) -> None:
        self.breaks += 1
        self._template.say_once(
            "break",
            "this chat template rewrites earlier turns (it may strip thoughts), so each such turn starts a new"
            " segment, whose past is encoded again; a template that keeps the past trains faster",
        )


def behind(text: str, said: str, end: str) -> str | None:
    """What stands in ``text`` behind ``said``, from the end of turn ``end`` on; None where ``text`` does not
    begin with ``said``. White space around ``said`` may be missing or added: templates trim.

    >>> behind("hello</s>next", " hello\\n", "</s>")
    '</s>next'
    """
    core = said.strip()
    lead = len(text) - len(text.lstrip()) if core else 0
    if not text.startswith(core, lead):
        return None
    rest = text[lead + len(core) :]
    if not end:
        return rest.removeprefix(said[len(said.rstrip()) :])
    at = rest.find(end)
    return rest[at:] if at >= 0 and not rest[:at].strip() else None
