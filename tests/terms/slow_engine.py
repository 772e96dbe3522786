"""The smallest engine that can run terms: one table of logits, everything by hand.

``run`` does what every engine does with its micro-batches, in the plainest way, so that tests can say
what a term and its coefficients do together.
"""

import numpy as np
import torch

from kolb.terms.base import TokenStats, prepare
from kolb.types import Example


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def stats(logprobs, *, old=None, sampler=None, advantages=0.0, coefficients=1.0, **more):
    """TokenStats of one sequence from plain lists; numbers are spread over all tokens."""
    cur = logprobs if isinstance(logprobs, torch.Tensor) else tensor(logprobs)
    old = cur.detach() if old is None else tensor(old)
    entropy = more.pop("entropy", None)
    return TokenStats(
        logprobs=cur,
        old_logprobs=old,
        sampler_logprobs=old if sampler is None else tensor(sampler),
        advantages=tensor(advantages).expand_as(cur),
        coefficients=tensor(coefficients).expand_as(cur),
        example=torch.zeros(len(cur), dtype=torch.long),
        entropy=entropy,
        extras={name: tensor(values) for name, values in more.items()},
    )


def value_and_grad(term, logprobs, **given):
    """The loss of tokens with these logprobs, and its gradient with respect to each of them."""
    leaf = tensor(logprobs).requires_grad_()
    loss = term(stats(leaf, **given)).loss
    return loss.item(), torch.autograd.grad(loss, leaf)[0].tolist()


def example(n, *, stream="policy", weights=None, sequence="", advantages=None, **more):
    """An Example of ``n`` targets 0, 1, 2, ... whose weights are 1 unless given."""
    floats = {k: np.array(v, np.float32) for k, v in more.items()}
    old, sampler = floats.pop("old", None), floats.pop("sampler", None)
    return Example(
        "agent",
        np.array([0], np.int32),
        np.arange(n, dtype=np.int32),
        {stream: np.array([1.0] * n if weights is None else weights, np.float32)},
        None if advantages is None else np.full(n, advantages, np.float32),
        sampler,
        old,
        floats,
        sequence,
    )


def run(terms, batches, logits):
    """Loss and gradient with respect to ``logits`` [V] over all micro-batches, one after another."""
    logits = logits.clone().requires_grad_()
    total = 0.0
    for batch in batches:
        for e, mine in zip(batch, prepare(terms, batch), strict=True):
            for term in terms:
                loss = term(_token_stats(term, e, mine[term.name], logits)).loss
                loss.backward()
                total += loss.item()
    return total, logits.grad


def _token_stats(term, e, coefficients, logits):
    taken = np.asarray(e.weights.get(term.stream, np.zeros(len(e.target_ids)))) != 0
    log_p = logits.log_softmax(-1)
    cur = log_p[torch.tensor(e.target_ids[taken], dtype=torch.long)]
    pick = lambda a: tensor(np.asarray(a, np.float64)[taken].tolist())  # noqa: E731
    old = cur.detach() if e.old_logprobs is None else pick(e.old_logprobs)
    zeros = np.zeros(len(e.target_ids))
    return TokenStats(
        logprobs=cur,
        old_logprobs=old,
        sampler_logprobs=old if e.sampler_logprobs is None else pick(e.sampler_logprobs),
        advantages=pick(zeros if e.advantages is None else e.advantages),
        coefficients=pick(coefficients),
        example=torch.zeros(len(cur), dtype=torch.long),
        entropy=-(log_p.exp() * log_p).sum().expand_as(cur),
        extras={k: pick(v) for k, v in e.extras.items()},
    )
