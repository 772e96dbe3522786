"""What a run sampled, through the weights of one of its checkpoints: each token's probability and entropy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise

import numpy as np

from kolb.cli.opened import Source
from kolb.credit.examples import to_examples
from kolb.engines.base import Learner, Stats
from kolb.learning import training_temperature
from kolb.runs.directory import RunDirectory
from kolb.types import Completion, Trajectory
from kolb.view.words import is_sampled, sampled_trajectories

BATCH = 64
"""Trajectories of one forward."""


def computed(
    run: RunDirectory, step: int, policy: str, learner: Learner, temperature: float
) -> Iterator[tuple[Completion, np.ndarray]]:
    """Every completion that ``policy`` sampled in ``step``, with float64 [N, 2]: the probabilities of its
    tokens and the entropies (nats) of the distributions that they come from, by the weights of ``learner``.

    Raises CapabilityError for a completion that has text and no tokens.
    """
    trajectories = sampled_trajectories(run, step, policy)
    while batch := list(islice(trajectories, BATCH)):
        examples = [to_examples(replace(t, learns=True)) for t in batch]
        flat = [example for of_one in examples for example in of_one]
        seen = iter(learner.forward(flat, stats=Stats(entropy=True), temperature=temperature))
        for trajectory, of_one in zip(batch, examples, strict=True):
            parts = []
            for example in of_one:
                at, numbers = example.weights["policy"] > 0, next(seen)
                parts.append(np.stack([np.exp(numbers["logprobs"][at]), numbers["entropy"][at]], 1))
            yield from by_completion(trajectory, np.concatenate([np.zeros((0, 2)), *parts]))


def by_completion(
    trajectory: Trajectory, numbers: np.ndarray
) -> Iterator[tuple[Completion, np.ndarray]]:
    """Cuts the numbers of all completion tokens of a trajectory; leaves out what was given."""
    said = [turn.completion for turn in trajectory.turns]
    ends = list(accumulate((len(c.token_ids) for c in said), initial=0))
    for completion, (start, end) in zip(said, pairwise(ends), strict=True):
        if is_sampled(completion) and end > start:
            yield completion, numbers[start:end]


def nearest_first(steps: Sequence[int], checkpoint: int) -> list[int]:
    """The step after the checkpoint was sampled by its weights; then those around it, by their distance.

    >>> nearest_first([1, 2, 3, 4], 2)
    [3, 2, 4, 1]
    """
    return sorted(steps, key=lambda step: (abs(step - checkpoint - 1), step))


def temperature_of_steps(source: Source, run: RunDirectory) -> dict[int, float]:
    """The training temperature of each recorded step, by its stage; a step under way is of the newest."""
    stages = {line["step"]: line["stage"] for line in run.metrics()}
    temperatures, stage = {}, ""
    for step in run.episode_steps():
        stage = stages.get(step, stage)
        temperatures[step] = training_temperature(source.stage(stage))
    return temperatures
