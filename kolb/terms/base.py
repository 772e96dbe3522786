"""What a loss is: a named pure function of token statistics that returns a SUM.

The engine computes logprobs (and, when a term ``needs`` it, entropy) for every token that has weight in
some stream, hands each term the tokens of its own stream, and adds up what the terms return. A term never
divides: ``coefficients`` puts the one global denominator into each token's coefficient before micro-batches
are cut, so the gradient does not depend on accumulation, packing or the number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kolb.errors import RecipeError, nearest
from kolb.types import Example, Floats

NORMALISATIONS = ("token-mean", "sequence-mean", "sequence-mean-token-sum", "constant")


@dataclass(frozen=True)
class TokenStats:
    """The tokens [T] of one stream in one micro-batch, several sequences flat behind each other.

    ``logprobs`` carries the gradient (and ``entropy``, if asked for). ``coefficients`` are the stream's
    weights divided by the global denominator: a loss is ``(coefficients * per_token).sum()``.
    ``old_logprobs`` is what the ratio is taken against: the given ones, or the detached current ones where
    an update is the first after sampling. ``sampler_logprobs`` equals ``old_logprobs`` where nobody sampled.
    ``sequence`` [T] numbers the sequences of this micro-batch, ``sequences`` of them.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    coefficients: Tensor
    sequence: Tensor
    sequences: int
    entropy: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TermResult:
    """``loss`` is a scalar sum. ``metrics`` are name -> (sum, count), detached."""

    loss: Tensor
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Term(Protocol):
    """A frozen dataclass: its fields are its settings.

    ``stream`` names the weights it reads; ``normalisation`` is one of NORMALISATIONS (``constant`` divides
    by ``constant``); ``needs`` lists statistics and engine capabilities beyond logprobs:
    ``stats:entropy``, ``stats:minp``, ``base`` (then ``extras["ref_logprobs"]`` is there).
    """

    @property
    def name(self) -> str: ...
    @property
    def stream(self) -> str: ...
    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def normalisation(self) -> str: ...
    def __call__(self, stats: TokenStats) -> TermResult: ...
