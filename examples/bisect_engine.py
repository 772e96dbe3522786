"""A whole engine in one file: it only samples, as a chat endpoint does, and plays ``guess_number``.

An example of the third door (CONTRIBUTING.md). In a recipe: ``engine = "examples/bisect_engine.py"``. To
connect a model server of yours, put the request to it where ``guess`` is called, with ``params`` in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from kolb.engines.base import ModelSpec
from kolb.errors import CapabilityError, SamplerError
from kolb.types import Completion, Message, SamplingParams


def guess(messages: Sequence[Message], seed: int) -> str:
    """A random number among those that the answers so far leave open."""
    text = [str(m["content"]) for m in messages if m["role"] != "system"]
    bounds = re.search(r"(\d+) to (\d+)", text[0])
    low, high = map(int, bounds.groups()) if bounds else (1, 100)
    for said, heard in zip(text[1::2], text[2::2], strict=False):
        low = int(said) + 1 if heard.startswith("Higher") else low
        high = int(said) - 1 if heard.startswith("Lower") else high
    return str(Random(seed).randint(low, max(low, high)))


@dataclass(frozen=True)
class BisectSampler:
    """``template`` is None: whoever asks hands over messages, and gets text without tokens."""

    version: int = 0
    template: None = None

    def rest(self) -> None:
        """Nothing is kept between answers."""

    async def sample(
        self, prompt: Sequence[Message], params: SamplingParams, n: int = 1
    ) -> list[Completion]:
        """``n`` answers with consecutive seeds; the same seed gives the same answer."""
        return [Completion(guess(prompt, params.seed + i)) for i in range(n)]

    async def score(self, tokens: Any, start: int = 1) -> Any:
        raise SamplerError("this engine gives no logprobs; it does not provide 'score'")


@dataclass(frozen=True)
class Bisect:
    """The fields of an engine are its options in the recipe's ``[engine]`` table; this one has none."""

    provides: ClassVar[frozenset[str]] = frozenset({"sample"})

    def open_sampler(self, model: ModelSpec) -> BisectSampler:
        return BisectSampler()

    def open_policy(self, name: str, model: ModelSpec, **_: Any) -> Any:
        # A recipe that wants to train is refused before this; it stands here for callers from Python.
        raise CapabilityError(f"policy {name!r}: this engine only samples; train on torch_local")

    def close(self) -> None:
        """Nothing is open."""


ENGINE = Bisect
