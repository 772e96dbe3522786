"""What a loss is: a named pure function of token statistics that returns a SUM.

The engine computes logprobs (and, when a term ``needs`` it, entropy) for every token that has weight in
some stream, hands each term the tokens of its own stream, and adds up what the terms return. A term never
divides: ``coefficients`` puts the one global denominator into each token's coefficient before micro-batches
are cut, so the gradient does not depend on accumulation, packing or the number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kolb.errors import RecipeError, nearest
from kolb.types import Example, Floats, MinP

if TYPE_CHECKING:
    from torch import Tensor

NORMALISATIONS = ("token-mean", "sequence-mean", "sequence-mean-token-sum", "constant")

PINNED = "coefficients/"
"""What the names in ``Example.extras`` start with where ``pin`` left a term's coefficients."""


@dataclass(frozen=True)
class TokenStats:
    """The tokens [T] of one stream in one micro-batch, several sequences flat behind each other.

    ``logprobs`` carries the gradient (and ``entropy``, if asked for). ``coefficients`` are the stream's
    weights divided by the global denominator: a loss is ``(coefficients * per_token).sum()``.
    ``old_logprobs`` is what the ratio is taken against: the given ones, or the detached current ones where
    an update is the first after sampling. ``sampler_logprobs`` equals ``old_logprobs`` where nobody sampled.
    ``example`` [T] numbers the examples of this micro-batch; no cut divides an example. ``proxy_kl`` carries a
    gradient: KL(proxy || current) over all tokens, the proxy being the policy before the first update under min-p.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    coefficients: Tensor
    example: Tensor
    entropy: Tensor | None = None
    proxy_kl: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TermResult:
    """``loss`` is a scalar sum. ``metrics`` are name -> (sum, count), detached.

    Micro-batches add sums and counts. A name that ends in ``/max`` is (largest, 1) instead, and the
    largest of all micro-batches is kept.
    """

    loss: Tensor
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Term(Protocol):
    """A frozen dataclass: its fields are its settings.

    ``stream`` names the weights it reads; ``normalisation`` is one of NORMALISATIONS (``constant`` divides
    by ``constant``), or empty: that of the method's first term, so that both losses share one denominator; ``needs`` lists statistics and engine capabilities beyond logprobs:
    ``stats:entropy``, ``stats:minp``, ``stats:proxy_kl``, ``base`` (then ``extras["ref_logprobs"]`` is there).

    What a term must know of the policy *before* the first update from a batch of episodes it says in ``before``:
    settings of ``engines.base.Stats``, whose results are then in ``extras`` as ``old_max_logprob`` and so on. What
    it must know of *all examples* of that batch it says in ``mark(examples, logprobs)``: extras for each of them,
    from their logprobs [N] before the first update. It is called once, so the result depends on no cut; examples that
    are idle for all terms are left out, unless ``ranks_all`` is true. ``only`` names
    such an extra that is 0 for the tokens that the term leaves out, of its denominator too.

    ``remark(metrics)``, from the means of its metrics in a step, says in words what is wrong; empty: nothing.

    A term may also have ``reads``: what every example with weight in its stream must bring along, as
    ``advantages`` or as a name in ``Example.extras``. ``prepare`` checks it. And ``is_idle(example)``, true
    where its loss does not depend on the weights: such an example counts in the denominators only.
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


def check_terms(terms: Sequence[Term]) -> None:
    """Raises RecipeError unless the terms can be added up: distinct names, known normalisations, one wish as to the
    policy before the first update."""
    names = [term.name for term in terms]
    asked: dict[str, Any] = {}
    for term in terms:
        for name, value in getattr(term, "before", {}).items():
            if asked.setdefault(name, value) != value:
                raise RecipeError(
                    f"terms ask for different statistics, {name} = {asked[name]} and {value} ({term.name}); there is "
                    "one policy to compare with, so let them agree"
                )
        if names.count(term.name) > 1:
            raise RecipeError(
                f"two terms are called {term.name!r}, and losses and coefficients are kept by name; "
                "give one of them another `name`"
            )
        if term.normalisation and term.normalisation not in NORMALISATIONS:
            hint = nearest(term.normalisation, NORMALISATIONS)
            raise RecipeError(f"{term.name}: normalisation = {term.normalisation!r}{hint}")
        if term.normalisation == "constant" and not _constant(term) > 0:
            raise RecipeError(
                f"{term.name}: constant = {_constant(term)}; it divides, so it is above 0"
            )


def coefficients(term: Term, examples: Sequence[Example]) -> list[Floats]:
    """What each token's loss is multiplied by, [N] per example, were ``examples`` the whole optimiser step.

    A sequence is all examples that share ``Example.sequence``; an empty name is a sequence by itself.
    Sequences without weight in the term's stream are not counted. ``w`` is a token's weight there:

    ==========================  ==========================================================
    ``token-mean``              ``w`` / sum of all weights
    ``sequence-mean``           ``w`` / sum of weights of its sequence / number of sequences
    ``sequence-mean-token-sum`` ``w`` / number of sequences
    ``constant``                ``w`` / ``term.constant``
    ==========================  ==========================================================

    Where there is nothing to divide by, every coefficient is 0.
    """
    weights = [_weights(term, example) for example in examples]
    names = [example.sequence or index for index, example in enumerate(examples)]
    sums: dict[str | int, float] = {}
    for name, w in zip(names, weights, strict=True):
        if total := float(w.sum()):
            sums[name] = sums.get(name, 0.0) + total
    match term.normalisation:
        case "" | "token-mean":
            denominators = [sum(sums.values())] * len(weights)
        case "sequence-mean":
            denominators = [sums.get(name, 0.0) * len(sums) for name in names]
        case "sequence-mean-token-sum":
            denominators = [float(len(sums))] * len(weights)
        case _:
            denominators = [_constant(term)] * len(weights)
    return [
        (w / d if d else np.zeros_like(w)).astype(np.float32)
        for w, d in zip(weights, denominators, strict=True)
    ]


def prepare(terms: Sequence[Term], examples: Sequence[Example]) -> list[dict[str, Floats]]:
    """For each example its coefficients under each term's name: what an engine multiplies by.

    They come from ``pin`` where the examples went through it, else ``examples`` are taken as the whole
    optimiser step. Raises RecipeError when only some examples or terms were pinned, or when something
    that a term reads is missing.
    """
    check_terms(terms)
    prepared: list[dict[str, Floats]] = [{} for _ in examples]
    for term in terms:
        _check_reads(term, examples)
        for mine, c in zip(
            prepared, _pinned(term, examples) or coefficients(term, examples), strict=True
        ):
            mine[term.name] = c
    return prepared


def pin(terms: Sequence[Term], examples: Sequence[Example]) -> list[Example]:
    """The examples of one whole optimiser step, each carrying its coefficients in ``extras``.

    After this they may be cut, packed, shuffled and sent to several ``forward_backward`` calls or
    processes: ``prepare`` finds the numbers of the whole step again. Pin afresh for every optimiser step.
    Anything else that a term must know about all examples of a step at once (the quantile of a gate,
    say) belongs in ``extras`` in the same way, at the same moment.
    """
    bare = [
        replace(e, extras={k: v for k, v in e.extras.items() if not k.startswith(PINNED)})
        for e in examples
    ]
    return [
        e.with_extras(**{PINNED + name: c for name, c in mine.items()})
        for e, mine in zip(bare, prepare(terms, bare), strict=True)
    ]


def proxy_rule(terms: Sequence[Term]) -> MinP | None:
    """The min-p rule of the terms that need ``stats:proxy_kl``."""
    rules = (term.before["minp"] for term in terms if "stats:proxy_kl" in term.needs)  # type: ignore[attr-defined]
    return next(rules, None)


def mean_of_all(values: Tensor) -> tuple[float, float]:
    """A metric over all tokens of the stream, those that a term leaves out (``only``) included."""
    return float(values.detach().double().sum()), float(len(values))


def mean_of(values: Tensor, stats: TokenStats) -> tuple[float, float]:
    """A metric: the sum of ``values`` over the tokens that count, and how many those are."""
    counts = stats.coefficients != 0
    return float(values.detach()[counts].double().sum()), float(counts.sum())


def max_of(values: Tensor, stats: TokenStats) -> tuple[float, float]:
    """A ``/max`` metric: the largest of ``values`` over the tokens that count; 0 where there are none."""
    counted = values.detach()[stats.coefficients != 0]
    return (float(counted.max()), 1.0) if len(counted) else (0.0, 0.0)


def _pinned(term: Term, examples: Sequence[Example]) -> list[Floats]:
    """The coefficients that ``pin`` left for the term; empty where the examples were never pinned."""
    if not any(key.startswith(PINNED) for example in examples for key in example.extras):
        return []
    found = [e.extras[PINNED + term.name] for e in examples if PINNED + term.name in e.extras]
    if len(found) < len(examples):
        raise RecipeError(
            f"{term.name}: {len(examples) - len(found)} of {len(examples)} examples carry no "
            "coefficients from `pin`; pin all examples of one optimiser step together, for all terms"
        )
    return found


def _constant(term: Term) -> float:
    return float(getattr(term, "constant", 1.0))


def _weights(term: Term, example: Example) -> NDArray[np.float64]:
    """The example's weights in the term's stream, zeros where it has none; checked."""
    n = len(example.target_ids)
    weights = np.asarray(example.weights.get(term.stream, np.zeros(n)), np.float64)
    if (only := getattr(term, "only", "")) and only in example.extras:
        weights = weights * (example.extras[only] != 0)
    if weights.shape != (n,) or not np.all(weights >= 0) or not np.all(np.isfinite(weights)):
        raise ValueError(
            f"weights {weights} in stream {term.stream!r} of an example with {n} targets; give one "
            "finite number of 0 or more for each target"
        )
    return weights


def _check_reads(term: Term, examples: Sequence[Example]) -> None:
    for number, example in enumerate(examples):
        present = {*example.extras, *(("advantages",) if example.advantages is not None else ())}
        if example.advantages is not None and hasattr(term, "is_idle") and term.is_idle(example):  # type: ignore[attr-defined]
            continue  # nobody looked at it before the first update
        missing = set(getattr(term, "reads", ())) - present
        if missing and np.any(example.weights.get(term.stream, 0)):
            raise RecipeError(
                f"{term.name} reads {', '.join(sorted(missing))}, which example {number} (policy "
                f"{example.policy!r}, stream {term.stream!r}) lacks; give it there, or leave the term out"
            )
