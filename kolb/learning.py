"""How examples move weights: optimiser steps cut by whole trajectories, one policy at a time.

Losses are sums whose denominators span the optimiser step (``kolb.terms.base.pin``), so nothing here
depends on how an engine packs. ``old_logprobs`` are asked for only where a batch is used for more than one
optimiser step: for the only one they are the current ones, which each term then takes by itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from kolb.engines.base import Learner, OptimizerSpec, Report, Stats
from kolb.errors import NonFiniteError
from kolb.stage import Stage
from kolb.terms.base import pin
from kolb.types import Example, Floats, derive_seed


@dataclass
class PolicyReport:
    """What one policy's optimiser steps did. ``skipped`` are those whose loss or gradient was not finite,
    with the examples that caused it."""

    policy: str
    lr: float
    examples: int = 0
    report: Report = field(default_factory=Report)
    grad_norms: list[float] = field(default_factory=list)
    skipped: list[tuple[NonFiniteError, list[Example]]] = field(default_factory=list)
    outcomes: list[bool] = field(default_factory=list)
    """For each optimiser step, in order, whether it was taken."""
    too_long: int = 0
    """Examples that were left out because the model's context cannot hold them."""

    def metrics(self, ending: str = "") -> dict[str, float]:
        """Losses are means over the optimiser steps. ``ending`` tells policies apart where several learn."""
        done = max(len(self.grad_norms), 1)
        metrics = {f"loss/{name}": total / done for name, total in self.report.losses.items()}
        metrics |= self.report.means() | {"lr": self.lr}
        metrics = {f"{name}{ending}": value for name, value in metrics.items()}
        if self.grad_norms:
            metrics[f"grad_norm/{self.policy}"] = math.fsum(self.grad_norms) / done
        metrics[f"updates/{self.policy}"] = len(self.grad_norms)
        metrics[f"examples/{self.policy}"] = self.examples
        metrics[f"examples/too_long/{self.policy}"] = self.too_long
        return metrics


def learning_rate(stage: Stage, optimizer: OptimizerSpec, step: int) -> float:
    """The rate of the stage's step number ``step``, counted from 0.

    Linear warm-up over ``warmup_steps``, then the schedule over what is left: ``linear`` and ``cosine`` fall
    towards 0, which would be reached one step after the last.
    """
    peak = optimizer.lr if stage.learning_rate is None else stage.learning_rate
    if step < stage.warmup_steps:
        return peak * (step + 1) / stage.warmup_steps
    done = (step - stage.warmup_steps) / max(stage.steps - stage.warmup_steps, 1)
    shape = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return peak * shape[stage.schedule]


def minibatches(
    examples: Sequence[Example], updates: int, epochs: int, seed: int
) -> list[list[Example]]:
    """The examples of each optimiser step: ``updates`` parts of about equal numbers of sequences, drawn
    anew in each epoch. A sequence is never split; where there are fewer, there are fewer parts."""
    sequences: dict[Any, list[Example]] = {}
    for index, example in enumerate(examples):
        sequences.setdefault(example.sequence or index, []).append(example)
    if updates * epochs == 1:
        return [list(examples)]
    batches: list[list[Example]] = []
    for epoch in range(epochs):
        order = list(sequences.values())
        Random(derive_seed(seed, epoch)).shuffle(order)
        for part in np.array_split(np.arange(len(order)), min(updates, len(order))):
            batches.append([example for i in part for example in order[i]])
    return batches


def update_policy(
    learner: Learner, examples: Sequence[Example], stage: Stage, *, lr: float, seed: int
) -> PolicyReport:
    """All optimiser steps that ``stage`` takes from the examples of one policy.

    An update that is not finite is skipped and reported; the weights then are as before it. Examples
    that no term can learn from (a policy gradient from advantages of 0, say) stand in the denominators and
    are computed no further, so the report may be empty. Those that are longer than the learner's context are
    left out and counted.
    """
    weighted = [e for e in examples if e.has_weight]
    policy = weighted[0].policy if weighted else ""
    examples = [e for e in weighted if length(e) <= learner.context_length]
    useful = sum(is_useful(e, stage) for e in examples)
    result = PolicyReport(policy, lr, useful, too_long=len(weighted) - len(examples))
    if not useful:
        return result
    temperature = training_temperature(stage)
    ready = with_logprobs(learner, examples, stage, temperature)
    for batch in minibatches(ready, stage.updates_per_step, stage.epochs, seed):
        batch = [e for e in pin(stage.all_terms, batch) if is_useful(e, stage)]
        if not batch:
            continue
        try:
            report = learner.forward_backward(batch, stage.all_terms, temperature=temperature)
            result.grad_norms.append(learner.optim_step(lr)["grad_norm"])
            result.report.add(report)
            result.outcomes.append(True)
        except NonFiniteError as error:
            result.skipped.append((error, batch))
            result.outcomes.append(False)
    return result


def length(example: Example) -> int:
    return len(example.prompt_ids) + len(example.target_ids)


def is_useful(example: Example, stage: Stage) -> bool:
    """Whether some term reads a weight of the example and does not call it idle."""
    return any(
        bool(np.any(example.weights.get(term.stream, 0))) and not idle(term, example)
        for term in stage.all_terms
    )


def idle(term: Any, example: Example) -> bool:
    """A term may have ``is_idle(example)``: its loss there is a constant. One without it never is."""
    return hasattr(term, "is_idle") and term.is_idle(example)


def training_temperature(stage: Stage) -> float:
    """Logprobs are under the sampling temperature; those of greedy sampling under temperature 1."""
    return stage.sampling.temperature or 1.0


def with_logprobs(
    learner: Learner, examples: Sequence[Example], stage: Stage, temperature: float
) -> list[Example]:
    """The examples with what must be known before the first optimiser step: ``old_logprobs`` of those with
    advantages where there will be a second one, what terms ask for in ``before`` and say in ``mark``, and
    ``ref_logprobs`` where a term needs the base."""
    ready = list(examples)
    useful = [i for i, e in enumerate(ready) if is_useful(e, stage)]
    stats, is_reused = stats_before(stage), stage.updates_per_step * stage.epochs > 1
    if is_reused or stats is not None:
        asked = range(len(ready)) if ranks_all(stage) else useful
        scored = [i for i in asked if ready[i].advantages is not None]
        chosen = [ready[i] for i in scored]
        old = learner.forward(chosen, stats=stats or Stats(), temperature=temperature)
        logprobs = [numbers["logprobs"] for numbers in old]
        chosen = [
            e.with_extras(**{f"old_{name}": values for name, values in numbers.items()})
            for e, numbers in zip(chosen, old, strict=True)
        ]
        if is_reused:  # else they are the current ones, to the last bit
            chosen = [
                replace(e, old_logprobs=mine) for e, mine in zip(chosen, logprobs, strict=True)
            ]
        for i, example in zip(scored, marked(chosen, logprobs, stage), strict=True):
            ready[i] = example
    if any("base" in term.needs for term in stage.all_terms):
        chosen = [ready[i] for i in useful]
        base = learner.forward(chosen, temperature=temperature, use_base=True)
        for i, numbers in zip(useful, base, strict=True):
            ready[i] = ready[i].with_extras(ref_logprobs=numbers["logprobs"])
    return ready


def stats_before(stage: Stage) -> Stats | None:
    """What the stage's terms ask of the policy before the first update; None where they ask nothing."""
    asked: dict[str, Any] = {}
    for term in stage.all_terms:
        asked |= getattr(term, "before", {})
    has_marks = any(hasattr(term, "mark") for term in stage.all_terms)
    return Stats(**asked) if asked or has_marks else None


def ranks_all(stage: Stage) -> bool:
    """Whether a term ranks tokens among those of examples, too, that no term learns from."""
    return any(getattr(term, "ranks_all", False) for term in stage.all_terms)


def marked(
    examples: Sequence[Example], logprobs: Sequence[Floats], stage: Stage
) -> Sequence[Example]:
    """The examples with the extras that terms give all of them together."""
    for term in stage.all_terms:
        if hasattr(term, "mark"):
            extras = term.mark(examples, logprobs)
            examples = [e.with_extras(**mine) for e, mine in zip(examples, extras, strict=True)]
    return examples


def dump_batch(folder: Path, name: str, error: Exception, batch: Sequence[Example]) -> Path:
    """Writes the examples of a skipped update as ``folder/name.npz``, for a post-mortem.

    Arrays are called ``NUMBER/FIELD``; ``about`` is JSON with the error and each example's names.
    """
    folder.mkdir(exist_ok=True)
    arrays: dict[str, Any] = {}
    for i, e in enumerate(batch):
        fields = {
            "prompt_ids": e.prompt_ids,
            "target_ids": e.target_ids,
            "advantages": e.advantages,
        }
        fields |= {"sampler_logprobs": e.sampler_logprobs, "old_logprobs": e.old_logprobs}
        fields |= {f"weights/{k}": v for k, v in e.weights.items()}
        fields |= {f"extras/{k}": v for k, v in e.extras.items()}
        arrays |= {f"{i}/{k}": v for k, v in fields.items() if v is not None}
    about = {"error": str(error), "examples": [[e.policy, e.sequence] for e in batch]}
    path = folder / f"{name}.npz"
    np.savez_compressed(path, about=np.array(json.dumps(about)), **arrays)
    return path
