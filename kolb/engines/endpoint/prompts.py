"""Messages as text, for the completions API: there the chat template is ours to apply, without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kolb.chat.messages import plain_messages
from kolb.chat.templates import DATE, PLAIN
from kolb.errors import RecipeError, TemplateError
from kolb.types import Message


def _refuse(message: str) -> Any:
    raise jinja2.TemplateError(message)


class PromptTemplate:
    """``template``: ``plain``, or a file with a chat template in Jinja. Special tokens stand in it as text; the
    server adds the one that begins a text by itself."""

    def __init__(self, template: str) -> None:
        self.name = template
        source = PLAIN
        if template != "plain":
            if not Path(template).is_file():
                raise RecipeError(
                    f"template = {template!r}: no such file; the completions API takes text, so give the policy "
                    'template = "plain" or a file with the chat template of the model'
                )
            source = Path(template).read_text(encoding="utf-8")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise RecipeError(f"template = {template!r} is no Jinja template: {error}") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The text of ``messages`` and the words that ask the assistant to speak."""
        given = {"bos_token": "", "eos_token": "", "date_string": DATE}
        try:
            return self._template.render(
                messages=plain_messages(messages), add_generation_prompt=True, **given
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateError(
                f"the chat template {self.name!r} refuses these messages: {error}"
            ) from error
