"""The one evaluator: the loop and ``kolb eval`` both call it, so their numbers are the same numbers.

The seed fixes which tasks are taken and what is sampled. A broken episode is no zero: it leaves the mean
and is counted by status.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from kolb.credit.group_stats import SUCCESS_AT, failure_metrics, score_metrics
from kolb.engines.base import Sampler
from kolb.errors import RecipeError
from kolb.stage import Evaluation, Stage
from kolb.types import Episode, Group, Library, Task, derive_seed
from kolb.world import LiveWorld, stop_if_broken

Z_95 = 1.959964

RESAMPLES = 2000


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The chance that at least one of ``k`` samples is correct, from ``correct`` of ``samples``.

    ``1 - C(n - c, k) / C(n, k)``, unbiased (arXiv:2107.03374, equation 1).

    >>> round(pass_at_k(32, 4, 8), 8)
    0.70450501
    """
    if not 0 < k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} of {correct} correct among {samples}; needs 0 < k <= samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of the mean of ``values`` (2000 resamples).

    Resample over what varies independently: tasks, not samples of a task. Where all values are 0, or all
    1, resampling sees no variation at all; then it is Wilson's interval of a proportion (1927). With few
    tasks and rare successes the bootstrap is too narrow: take 50 tasks or more.
    """
    array = np.asarray(values, np.float64)
    if array.min() == array.max() and array[0] in (0.0, 1.0):
        slack = 1.0 - len(array) / (len(array) + Z_95**2)
        return (0.0, slack) if array[0] == 0.0 else (1.0 - slack, 1.0)
    rng = np.random.default_rng(seed)
    means = [array[rng.integers(0, len(array), len(array))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class EvaluationResult:
    """``mean`` of the tasks' mean outcomes and its 95% interval; None where no episode has an outcome.

    ``outcomes`` are by task id, None where an episode broke or its grader abstained. ``pass_at`` maps k to
    the mean of ``pass_at_k`` over the tasks with all their samples; a success is an outcome of at least 1.
    """

    split: str
    mean: float | None
    interval: tuple[float, float] | None
    success: float | None
    pass_at: Mapping[int, float]
    statuses: Mapping[str, int]
    outcomes: Mapping[str, tuple[float | None, ...]]
    groups: tuple[Group, ...] = field(repr=False, default=())
    tokens: int = 0

    def metrics(self, area: str = "eval") -> dict[str, float]:
        """The numbers as flat metrics: ``eval/mean``, ``eval/low``, ``eval/pass@4``, ..."""
        metrics: dict[str, float] = {
            f"{area}/episodes": sum(self.statuses.values()),
            f"{area}/tokens": self.tokens,
        }
        if self.mean is not None and self.interval is not None and self.success is not None:
            metrics |= {f"{area}/mean": self.mean, f"{area}/success": self.success}
            metrics |= {f"{area}/low": self.interval[0], f"{area}/high": self.interval[1]}
        metrics |= {f"{area}/pass@{k}": value for k, value in self.pass_at.items()}
        errors = {name: count for name, count in failure_metrics(self.groups).items() if count}
        return metrics | {
            f"{area}/{name}": value for name, value in (score_metrics(self.groups) | errors).items()
        }


def choose_tasks(stage: Stage, spec: Evaluation) -> list[Task]:
    """``spec.episodes`` tasks of the split, drawn by the seed, in the order of the split; 0 means all."""
    tasks = list(stage.source.tasks(spec.split))
    if not tasks:
        raise RecipeError(
            f"stage {stage.name!r}: there are no tasks in split {spec.split!r} to evaluate on"
        )
    if len({task.id for task in tasks}) < len(tasks):
        raise RecipeError(
            f"stage {stage.name!r}: split {spec.split!r} has tasks of one id; outcomes are kept by id, so each needs its own"
        )
    if not 0 < spec.episodes < len(tasks):
        return tasks
    chosen = Random(derive_seed("evaluation tasks", spec.seed)).sample(
        range(len(tasks)), spec.episodes
    )
    return [tasks[i] for i in sorted(chosen)]


async def evaluate(
    stage: Stage,
    spec: Evaluation,
    samplers: Mapping[str, Sampler],
    library: Library,
    *,
    step: int = 0,
) -> EvaluationResult:
    """Plays the tasks and sums up. ``step`` is only what the World says; no seed depends on it.

    A method may say what an evaluation episode is by a coroutine ``evaluate_episode(task, index, world)``;
    without it that is one attempt of its first role. Raises TooManyFailuresError as training does.
    """
    temperature = stage.sampling.temperature if spec.temperature is None else spec.temperature
    sampling = replace(stage.sampling, temperature=temperature, top_p=spec.top_p, top_k=spec.top_k)
    seed = derive_seed("evaluation", spec.seed)
    world = LiveWorld(stage, samplers, library, seed, step, sampling)
    own = getattr(stage.method, "evaluate_episode", None)

    async def attempt(task: Task, index: int) -> Episode:
        if own is not None:
            return await own(task, index, world)
        return await world.play(task, role=stage.method.roles[0], index=index)

    groups = await world.groups(choose_tasks(stage, spec), spec.samples, attempt, kind="evaluation")
    stop_if_broken(groups, stage.limits, f"evaluation on split {spec.split!r}")
    return summarise(groups, spec, tokens=world.tokens.total())


def summarise(groups: Sequence[Group], spec: Evaluation, *, tokens: int = 0) -> EvaluationResult:
    """The result of finished groups; pure."""
    outcomes = {
        g.task.id: tuple(e.outcome if e.status.is_usable else None for e in g.episodes)
        for g in groups
    }
    present = [[o for o in row if o is not None] for row in outcomes.values()]
    scored = [row for row in present if row]
    means = [statistics.fmean(row) for row in scored]
    return EvaluationResult(
        split=spec.split,
        mean=statistics.fmean(means) if means else None,
        interval=bootstrap_interval(means, seed=spec.seed) if means else None,
        success=statistics.fmean([share_solved(row) for row in scored]) if scored else None,
        pass_at=passes([row for row in scored if len(row) == spec.samples], spec.samples),
        statuses=dict(Counter(str(e.status) for g in groups for e in g.episodes)),
        outcomes=outcomes,
        groups=tuple(groups),
        tokens=tokens,
    )


def share_solved(outcomes: Sequence[float]) -> float:
    return statistics.fmean(o >= SUCCESS_AT for o in outcomes)


def passes(rows: Sequence[Sequence[float]], samples: int) -> dict[int, float]:
    """pass@k for k = 1, 2, 4, ... up to the number of samples, which is always among them."""
    ks = sorted({*(2**i for i in range(samples.bit_length())), samples}) if rows else []
    correct = [sum(o >= SUCCESS_AT for o in row) for row in rows]
    return {k: statistics.fmean(pass_at_k(samples, c, k) for c in correct) for k in ks}
