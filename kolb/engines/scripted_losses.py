"""The real terms on the scripted engine's fixed logprobs: what they say, and how steep they are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kolb.engines.base import Report
from kolb.errors import NonFiniteError
from kolb.terms.base import PINNED, TokenStats, prepare
from kolb.types import Example, Floats

ENTROPY = 2.0


def evaluate_terms(
    examples: Sequence[Example], terms: Sequence[Any], logprobs: Sequence[Floats]
) -> tuple[Report, float]:
    """The Report of one ``forward_backward``, and the squared norm of the gradient of all logprobs."""
    report = Report(
        tokens=sum(len(e.prompt_ids) + len(e.target_ids) for e in examples),
        targets=sum(
            int(np.any([w != 0 for w in e.weights.values()], axis=0).sum()) for e in examples
        ),
    )
    current = torch.tensor(np.concatenate([*logprobs, []]), dtype=torch.float32, requires_grad=True)
    total = current.sum() * 0
    for term, coefficients in zip(terms, _by_term(terms, examples), strict=True):
        if not any(np.any(e.weights.get(term.stream, 0)) for e in examples):
            continue
        result = term(_stats(term, examples, current, coefficients))
        total = total + result.loss
        report.add(Report({term.name: float(result.loss.detach())}, dict(result.metrics)))
    loss = float(total.detach())
    if not math.isfinite(loss):
        raise NonFiniteError(f"the loss is {loss} over {len(examples)} examples")
    total.backward()
    assert current.grad is not None
    return report, float((current.grad**2).sum())


def _by_term(terms: Sequence[Any], examples: Sequence[Example]) -> list[Tensor]:
    prepared = prepare(terms, examples)
    return [_flat([mine[term.name] for mine in prepared]) for term in terms]


def _flat(arrays: Sequence[Floats]) -> Tensor:
    return torch.tensor(np.concatenate([*arrays, []]), dtype=torch.float32)


def _stats(
    term: Any, examples: Sequence[Example], current: Tensor, coefficients: Tensor
) -> TokenStats:
    """The tokens with weight in the term's stream, as an engine hands them over."""
    lengths = [len(e.target_ids) for e in examples]
    zeros = [np.zeros(n, np.float32) for n in lengths]
    weights = [e.weights.get(term.stream, z) for e, z in zip(examples, zeros, strict=True)]
    keep = _flat(weights) != 0

    def given(arrays: Sequence[Floats | None], instead: Tensor) -> Tensor:
        parts = torch.split(instead, lengths)
        pairs = zip(arrays, parts, strict=True)
        return torch.cat([part if a is None else torch.tensor(a) for a, part in pairs])

    now = current.detach()
    old = given([e.old_logprobs for e in examples], now)
    names = sorted({n for e in examples for n in e.extras if not n.startswith(PINNED)})
    extras = {n: given([e.extras.get(n) for e in examples], torch.zeros_like(now)) for n in names}
    return TokenStats(
        logprobs=current[keep],
        old_logprobs=old[keep],
        sampler_logprobs=given([e.sampler_logprobs for e in examples], old)[keep],
        advantages=given([e.advantages for e in examples], torch.zeros_like(now))[keep],
        coefficients=coefficients[keep],
        example=torch.repeat_interleave(torch.arange(len(examples)), torch.tensor(lengths))[keep],
        entropy=torch.full_like(now, ENTROPY)[keep],
        extras={name: values[keep] for name, values in extras.items()},
    )
