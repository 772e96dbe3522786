"""Chat messages to tokens, through the tokenizer's own chat template.

Text is rendered by the template; tokens are only ever appended. What a model sampled stays as the ids that
it sampled, and only what stands between two answers is encoded (``kolb.chat.conversation``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from kolb.chat.conversation import Conversation
from kolb.chat.messages import merge_system, plain_messages
from kolb.engines.base import as_ids
from kolb.errors import TemplateError
from kolb.types import Completion, Ids, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("kolb.chat")

PLAIN = (
    "{% for tool in tools or [] %}{{ 'tool: ' + tool | tojson + '\n' }}{% endfor %}"
    "{% for message in messages %}{{ message.role + ':\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function or call) | tojson + '</tool_call>' }}{% endfor %}"
    "{{ (eos_token if message.role == 'assistant' else '') + '\n' }}{% endfor %}"
    "{{ 'assistant:\n' if add_generation_prompt else '' }}"
)
"""Roles on lines of their own, the end token behind what the assistant says. For tokenizers without a template."""

SENTINEL = "kolb0sentinel0kolb"
DATE = "26 Jul 2024"
"""The day that Llama templates take when they know none: a prompt must not depend on the calendar."""


class ChatTemplate:
    """Implements ``kolb.engines.base.Template`` for any transformers tokenizer.

    ``template``: None for the tokenizer's own, ``"plain"``, a path to a .jinja file, or template text.
    ``extra_end_ids``: further ids that end a turn, such as those of a generation config. Raises
    TemplateError where there is no template, or none that renders a user and an assistant message.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template: str | None = None,
        extra_end_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer: Any = tokenizer
        self._source = _source(self.tokenizer, template)
        self._special = _special_ids(self.tokenizer)
        self._merges_system: bool | None = None
        self._said: set[str] = set()
        self.tail, self.end_text, end_id = self._find_end()
        found = (self.tokenizer.eos_token_id, end_id, *extra_end_ids)
        self._end_ids = tuple(dict.fromkeys(int(i) for i in found if i is not None))
        if not self._end_ids:
            raise TemplateError(
                f"{_name(tokenizer)} has no eos token and its template puts none after an answer, so a turn"
                " would never end; set tokenizer.eos_token, or pass extra_end_ids"
            )
        self.turn_end_id: int = self._end_ids[0] if end_id is None else end_id
        """The id that ends a written turn: the template's own, else the tokenizer's eos."""
        self._warn_of_dates()

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self._end_ids

    def open(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Conversation:
        """A growing conversation that starts with ``messages``; ``tools`` as JSON schemas or functions."""
        if tools and self.render(messages) == self.render(messages, tools):
            raise TemplateError(
                f"the chat template of {_name(self.tokenizer)} does not show tools; describe them in the"
                ' system message, or set `template = "plain"`'
            )
        return Conversation(self, messages, tools)

    def transcribe(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> Conversation:
        """A chat that somebody wrote, laid out as if it had been sampled: every assistant message becomes a
        Turn whose completion was ``given``. What follows the last of them is nobody's prompt, and left out.
        """
        at = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        if not at:
            raise TemplateError("a chat without an assistant message has nothing to learn from")
        chat = self.open(messages[: at[0]], tools)
        for i, after in zip(at, [*at[1:], None], strict=True):
            chat.write(messages[i])
            if after is not None:
                chat.extend(messages[i + 1 : after])
        return chat

    def given(self, text: str) -> Completion:
        """``text`` and the end of its turn as a completion that somebody wrote."""
        ids = self.encode_behind(text + self.end_text)
        if not self.end_text:
            ids = as_ids([*ids, self.turn_end_id])
        return Completion(self.decode(ids), ids, stop_reason="given")

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """The text of ``ids``, without the special tokens that stand at its end."""
        ids = [int(i) for i in ids]
        while ids and (ids[-1] in self._special or ids[-1] in self._end_ids):
            ids.pop()
        return str(
            self.tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        *,
        answer: bool = True,
    ) -> str:
        """The text of ``messages``; ``answer`` adds the words that ask the assistant to speak."""
        chat = plain_messages(messages)
        if chat and chat[0]["role"] == "system" and self._must_merge_system():
            chat = merge_system(chat)
        text = self._render(chat, tools, answer)
        if any(message.get("tool_calls") for message in chat):
            self._check_calls(chat, tools, answer, text)
        return text

    def encode(self, text: str) -> Ids:
        """``text`` as the start of a sequence. Nothing is added: a BOS is there if the template wrote one."""
        return as_ids(self.tokenizer.encode(text, add_special_tokens=False))

    def encode_behind(self, text: str) -> Ids:
        """``text`` as something that stands inside a sequence: some tokenizers put a space before the first
        word of all, which must not happen here. So it is encoded behind an end token, which is taken off."""
        anchor = self.tokenizer.eos_token or ""
        size = len(self.encode(anchor)) if anchor else 0
        return self.encode(anchor + text)[size:]

    def behind_end(self, ids: Ids) -> Ids:
        """``ids`` without the end of turn that they begin with, where the template writes one."""
        if not self.end_text:
            return ids
        at = [int(i) for i in ids].index(self.turn_end_id)
        return ids[at + 1 :]

    def say_once(self, key: str, message: str) -> None:
        if key not in self._said:
            self._said.add(key)
            log.warning("%s: %s", _name(self.tokenizer), message)

    def _render(self, chat: Sequence[Message], tools: Sequence[Any] | None, answer: bool) -> str:
        if not chat:
            raise TemplateError(
                "no messages: a chat template needs at least one before the assistant speaks"
            )
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(chat),
                    tools=list(tools) if tools else None,
                    chat_template=self._source,
                    add_generation_prompt=answer,
                    tokenize=False,
                    date_string=DATE,
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            roles = ", ".join(m["role"] for m in chat)
            raise TemplateError(
                f"the chat template of {_name(self.tokenizer)} refuses the roles [{roles}]: {error}"
            ) from error

    def _check_calls(
        self, chat: Sequence[Message], tools: Sequence[Any] | None, answer: bool, text: str
    ) -> None:
        """TemplateError where the same ``text`` comes out without the tool calls."""
        bare = [{k: v for k, v in message.items() if k != "tool_calls"} for message in chat]
        try:
            drops = self._render(bare, tools, answer) == text
        except TemplateError:
            drops = False  # it misses them, so it reads them
        if drops:
            raise TemplateError(
                f"the chat template of {_name(self.tokenizer)} drops tool calls;"
                " write them into `content`"
            )

    def _must_merge_system(self) -> bool:
        """Whether the template refuses a system message, or drops it silently."""
        if self._merges_system is None:
            probe = [{"role": "system", "content": SENTINEL}, {"role": "user", "content": "?"}]
            try:
                self._merges_system = SENTINEL not in self._render(probe, None, True)
            except TemplateError:
                self._merges_system = True
            if self._merges_system:
                self.say_once(
                    "system",
                    "no system role in this chat template; its text goes before the first user message",
                )
        return self._merges_system

    def _find_end(self) -> tuple[str, str, int | None]:
        """What the template writes behind a last answer; what it writes behind any answer, up to and with
        its end token; and that token. The latter two are empty where it writes none."""
        user, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": SENTINEL}
        texts = (
            self._render([user, answer], None, False),
            self._render([user, answer, user], None, True),
        )
        if not all(SENTINEL in text for text in texts):
            raise TemplateError(
                f"the chat template of {_name(self.tokenizer)} does not show what the assistant says"
            )
        last, inner = (text.split(SENTINEL, 1)[1] for text in texts)
        shared = "".join(
            a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(last, inner, strict=False))
        )
        for token in self.encode_behind(shared):
            text = self.tokenizer.decode([int(token)])
            if int(token) in self._special:
                return last, shared[: shared.index(text) + len(text)], int(token)
            if text.strip():
                break
        return last, "", None

    def _warn_of_dates(self) -> None:
        texts = self._source or self.tokenizer.chat_template
        if "strftime_now" in str(texts) and "date_string" not in str(texts):
            self.say_once(
                "date", "this chat template writes today's date, so prompts change from day to day"
            )


def _source(tokenizer: Any, template: str | None) -> str | None:
    """Template text, or None for the tokenizer's own."""
    if template is None:
        if not tokenizer.chat_template:
            raise TemplateError(
                f'{_name(tokenizer)} has no chat template; set `template = "plain"` in the recipe\'s policy, or'
                ' `template = "FILE.jinja"` with the template that the model was trained with'
            )
        return None
    if template == "plain":
        if tokenizer.eos_token is None:
            raise TemplateError(
                f"{_name(tokenizer)} has no eos token, which the plain template needs; set tokenizer.eos_token"
            )
        begins = tokenizer.encode("")[:1] == [tokenizer.bos_token_id]
        return "{{ bos_token }}" + PLAIN if begins and tokenizer.bos_token else PLAIN
    if "{%" in template or "{{" in template:
        return template
    if not Path(template).is_file():
        raise TemplateError(
            f'template = {template!r} is neither "plain", nor a file, nor the text of a Jinja template'
        )
    return Path(template).read_text(encoding="utf-8")


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
