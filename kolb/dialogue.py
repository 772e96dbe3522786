"""One role's side of an episode: what it is shown, what it says, what it hears back.

A sampler that takes tokens gets them from a chat template's Conversation, which only ever appends; one
that takes messages gets the messages. Either way the record is a tuple of Turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kolb.engines.base import Sampler, Template
from kolb.errors import CapabilityError, KolbError, SamplerError
from kolb.types import NO_FLOATS, Completion, Message, SamplingParams, Turn


def split_system(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The leading system messages, and the rest."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    return tuple(messages[:count]), tuple(messages[count:])


class MessageLog:
    """A Conversation without tokens, for samplers that take messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = list(messages)
        self.turns: tuple[Turn, ...] = ()
        self._new = tuple(messages)

    def add(self, completion: Completion) -> None:
        self.turns += (Turn(self._new, completion, starts_segment=not self.turns),)
        self.messages.append({"role": "assistant", "content": completion.text})
        self._new = ()

    def extend(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)
        self._new += tuple(messages)


class Dialogue:
    """``say`` and ``hear`` in turn. ``history="last"``: every ``say`` starts a segment of its own, with the
    leading system messages and whatever was heard since the last one."""

    def __init__(
        self,
        sampler: Sampler,
        opening: Sequence[Message],
        *,
        history: str = "all",
        tools: Sequence[Any] | None = None,
    ) -> None:
        self._sampler = sampler
        self._tools = tools
        self._keeps_all = history == "all"
        self._system, _ = split_system(opening)
        self._finished: tuple[Turn, ...] = ()
        self._current = self._open(opening)
        self._feedback: dict[int, str] = {}

    def _open(self, messages: Sequence[Message]) -> Any:
        template = self._sampler.template
        if template is not None:
            return template.open(messages, self._tools)
        if self._tools:
            raise CapabilityError(
                "this task shows tools, and its role is played by an endpoint that takes messages only; "
                "describe the tools in the system message, or use an engine that takes tokens"
            )
        return MessageLog(messages)

    @property
    def turns(self) -> tuple[Turn, ...]:
        turns = (*self._finished, *self._current.turns)
        return tuple(replace(t, feedback=self._feedback.get(i, "")) for i, t in enumerate(turns))

    async def say(self, params: SamplingParams) -> Completion | None:
        """The next completion, or None where the context is full: then nothing was said.

        A sampler reports a full context by a completion without tokens that was cut by ``length``.
        """
        is_log = isinstance(self._current, MessageLog)
        prompt = tuple(self._current.messages) if is_log else self._current.prompt_ids
        completion = await sampled(self._sampler, prompt, params)
        if completion.stop_reason == "length" and not completion.tokens and not completion.text:
            return None
        self._current.add(completion)
        return completion

    def hear(
        self, messages: Sequence[Message], feedback: str = "", *, is_last: bool = False
    ) -> None:
        """Takes the answer to what was said. ``is_last``: nothing will be said after it."""
        self._feedback[len(self._finished) + len(self._current.turns) - 1] = feedback
        if is_last:
            return
        if self._keeps_all:
            self._current.extend(messages)
        else:
            self._finished = (*self._finished, *self._current.turns)
            self._current = self._open((*self._system, *messages))

    def repeat(self, turns: Sequence[Turn]) -> None:
        """Says and hears what a dialogue of the same history did, all but its opening, as ``given``."""
        last = len(turns) - 1
        system = split_system(turns[0].messages)[0] if turns else ()
        for number, turn in enumerate(turns):
            given = replace(turn.completion, logprobs=NO_FLOATS, stop_reason="given")
            self._current.add(given)
            heard = () if number == last else turns[number + 1].messages
            heard = heard if self._keeps_all else heard[len(system) :]
            self.hear(heard, turn.feedback, is_last=number == last)


async def sampled(sampler: Sampler, prompt: Any, params: SamplingParams) -> Completion:
    """One completion. SamplerError for anything the sampler raised; KolbErrors pass."""
    try:
        (completion,) = await sampler.sample(prompt, params)
    except KolbError:
        raise
    except Exception as error:
        raise SamplerError(f"the sampler raised {type(error).__name__}: {error}") from error
    return completion


def given_turns(
    template: Template | None, messages: Sequence[Message], tools: Sequence[Any] | None = None
) -> tuple[Turn, ...]:
    """A chat that somebody wrote, as Turns: every assistant message is a completion that was ``given``."""
    if template is not None:
        chat: Any = template
        return tuple(chat.transcribe(messages, tools).turns)
    log = MessageLog(())
    for message in messages:
        if message["role"] == "assistant":
            log.add(Completion(str(message.get("content") or ""), stop_reason="given"))
        else:
            log.extend([message])
    return log.turns
