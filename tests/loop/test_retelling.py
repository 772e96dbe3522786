"""An attempt told again after another opening: the same tokens, on real chat templates."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from kolb.chat.templates import ChatTemplate
from kolb.dialogue import Dialogue
from kolb.models.tokenizers import CHATML, byte_tokenizer
from kolb.types import Completion, Message, SamplingParams, Turn

STRIPS_THOUGHTS = CHATML.replace(
    "{{ message.content or '' }}",
    "{{ (message.content.split('</think>')[-1] if message.role == 'assistant' and not loop.last"
    " else message.content) or '' }}",
)
REFUSES_SYSTEM = CHATML.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no') }}{% endif %}",
)


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


class Thinker:
    """Thinks aloud, and is cut off in its second answer."""

    version = 0

    def __init__(self, template: ChatTemplate) -> None:
        self.template, self.answers = template, 0

    def rest(self) -> None:
        """Nothing is kept between answers."""

    async def sample(self, prompt: Any, params: SamplingParams, n: int = 1) -> list[Completion]:
        self.answers += 1
        text = f"<think>number {self.answers}</think>go {self.answers}"
        ids = self.template.encode(text)
        if self.answers != 2:
            ids = np.append(ids, self.template.end_ids[0]).astype(np.int32)
        return [Completion(text, ids, -np.ones(len(ids), np.float32))]


def attempt(template: ChatTemplate, system: str, history: str) -> tuple[Turn, ...]:
    opening = (message("system", system), message("user", "Look."))
    dialogue = Dialogue(Thinker(template), opening, history=history)  # type: ignore[arg-type]
    for step in range(3):
        asyncio.run(dialogue.say(SamplingParams()))
        dialogue.hear((message("user", f"Look {step}."),), f"fine {step}", is_last=step == 2)
    return dialogue.turns


@pytest.mark.parametrize("history", ["all", "last"])
@pytest.mark.parametrize(
    "source", [CHATML, STRIPS_THOUGHTS, REFUSES_SYSTEM], ids=["chatml", "strips", "no_system"]
)
def test_what_was_said_under_one_prompt_is_told_as_if_said_under_the_other(
    source: str, history: str
) -> None:
    template = ChatTemplate(byte_tokenizer(), template=source)
    bare, taught = (attempt(template, s, history) for s in ("S0", "Many rules, at length."))
    retelling = Dialogue(Thinker(template), bare[0].messages, history=history)  # type: ignore[arg-type]
    retelling.repeat(taught)
    assert len(retelling.turns) == 3
    for expected, told in zip(bare, retelling.turns, strict=True):
        assert told.context_ids.tolist() == expected.context_ids.tolist()
        assert told.completion.token_ids.tolist() == expected.completion.token_ids.tolist()
        assert (told.messages, told.feedback) == (expected.messages, expected.feedback)
        assert told.starts_segment == expected.starts_segment
        assert not len(told.completion.logprobs)
    is_anew = history == "last" or source is STRIPS_THOUGHTS
    assert [t.starts_segment for t in retelling.turns] == [True, is_anew, is_anew]
