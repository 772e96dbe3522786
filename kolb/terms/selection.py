"""Choosing tokens by their rank: the rarest, the most uncertain, those of the highest covariance.

A rank is among some tokens, so it matters which. ``batch``: all tokens of a batch of episodes, by the policy before its
first update. ``micro``: those of the micro-batch at hand, by the current policy, as most released code does; then
the choice depends on how an engine cuts its batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kolb.errors import RecipeError, nearest
from kolb.types import Example, Floats

SCOPES = ("batch", "micro")


def check_scope(name: str, scope: str) -> None:
    if scope not in SCOPES:
        raise RecipeError(f"{name}: scope = {scope!r}{nearest(scope, SCOPES)}")


def highest(scores: Tensor, count: int) -> Tensor:
    """Booleans [T]: the ``count`` highest of ``scores`` [T]; of equal ones the first.

    >>> highest(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2).tolist()
    [False, True, False, True]
    """
    order = torch.argsort(scores, descending=True, stable=True)
    chosen = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    chosen[order[:count]] = True
    return chosen


def has_weight(example: Example, stream: str) -> np.ndarray:
    """Booleans [N]: the targets with weight in ``stream``."""
    n = len(example.target_ids)
    return np.asarray(example.weights.get(stream, np.zeros(n, np.float32))) != 0


def joined(arrays: Sequence[Floats], examples: Sequence[Example], stream: str) -> Tensor:
    """What ``arrays`` [N] of each example say of its weighted targets, one behind the other."""
    parts = [a[has_weight(e, stream)] for a, e in zip(arrays, examples, strict=True)]
    return torch.as_tensor(np.concatenate([*parts, np.zeros(0, np.float32)]))


def marks_of(
    name: str, chosen: Tensor, examples: Sequence[Example], stream: str
) -> list[dict[str, Floats]]:
    """``chosen``, in the order of ``joined``, as the extra ``name`` of each example: 1 for the chosen targets, else 0."""
    marks = []
    start = 0
    for example in examples:
        mark = has_weight(example, stream).astype(np.float32)
        count = int(mark.sum())
        mark[mark != 0] = chosen[start : start + count].numpy()
        marks.append({name: mark})
        start += count
    return marks


def placed(chosen: Tensor, among: Tensor) -> Tensor:
    """``chosen``, booleans for the tokens that are true in ``among`` [T], as booleans [T]."""
    whole = among.clone()
    whole[among] = chosen
    return whole


def worths(examples: Sequence[Example]) -> list[Floats]:
    """The advantages [N] of each example, zeros where it has none."""
    zeros = [np.zeros(len(e.target_ids), np.float32) for e in examples]
    return [
        z if e.advantages is None else e.advantages for e, z in zip(examples, zeros, strict=True)
    ]


def covariance(advantages: Tensor, logprobs: Tensor) -> Tensor:
    """``(A - mean A) * (logprob - mean logprob)`` [T] (arXiv:2505.22617, section 4)."""
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())
