"""Optimiser steps: how examples are cut, what they carry, and at which rate."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_toys import engine, recipe

from kolb.engines.base import ModelSpec, OptimizerSpec
from kolb.engines.scripted import ScriptedLearner
from kolb.learning import learning_rate, minibatches, update_policy
from kolb.methods.grpo import Grpo
from kolb.stage import Stage
from kolb.terms.cross_entropy import CrossEntropy
from kolb.types import Example, SamplingParams


def example(number: int, *, length: int = 4, sequence: str = "", sampled: bool = True) -> Example:
    ones = np.ones(length, np.float32)
    return Example(
        "agent",
        np.array([1], np.int32),
        np.full(length, number, np.int32),
        {"policy": ones},
        advantages=ones * (1 if number % 2 else -1),
        sampler_logprobs=-ones if sampled else None,
        sequence=sequence,
    )


def stage(**changes: Any) -> Stage:
    return recipe(**changes).stages[0]


def learner(**options: Any) -> ScriptedLearner:
    return engine().open_policy("agent", ModelSpec(), **options)


# ------------------------------------------------------------------------------------------ rates


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        ("linear", 2, [0.5, 1.0, 1.0, 0.5]),
        ("cosine", 0, [1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_rate_warms_up_and_falls_over_the_stage(
    schedule: str, warmup: int, expected: list[float]
) -> None:
    chosen = stage(steps=4, schedule=schedule, warmup_steps=warmup)
    rates = [learning_rate(chosen, OptimizerSpec(lr=1.0), s) for s in range(4)]
    assert rates == pytest.approx(expected, abs=1e-6)


def test_a_stages_own_rate_comes_before_the_optimisers() -> None:
    assert learning_rate(stage(learning_rate=0.5), OptimizerSpec(lr=1.0), 0) == 0.5


# ---------------------------------------------------------------------------------------- batches


def test_one_update_takes_the_examples_as_they_come() -> None:
    examples = [example(i) for i in range(5)]
    assert minibatches(examples, 1, 1, seed=0) == [examples]


def test_a_sequence_is_never_split_and_every_epoch_sees_every_example_once() -> None:
    examples = [example(i, sequence=f"s{i // 3}") for i in range(12)]
    batches = minibatches(examples, 2, 3, seed=0)
    assert [len(b) for b in batches] == [6] * 6
    for epoch in range(3):
        seen = [e.target_ids[0] for b in batches[2 * epoch : 2 * epoch + 2] for e in b]
        assert sorted(seen) == list(range(12))
    for batch in batches:
        names = [e.sequence for e in batch]
        assert all(names.count(name) == 3 for name in names)


def test_the_cut_depends_on_the_seed_alone_and_changes_with_the_epoch() -> None:
    examples = [example(i) for i in range(8)]

    def order(seed: int) -> list[list[int]]:
        return [[int(e.target_ids[0]) for e in b] for b in minibatches(examples, 2, 2, seed)]

    assert order(1) == order(1) != order(2)
    assert order(1)[:2] != order(1)[2:]


def test_fewer_sequences_than_updates_give_fewer_updates() -> None:
    assert [len(b) for b in minibatches([example(0), example(1)], 5, 1, seed=0)] == [1, 1]


# ---------------------------------------------------------------------------------------- updates


def test_the_only_update_carries_no_old_logprobs_and_several_carry_those_before_the_first() -> None:
    examples = [example(i) for i in range(4)]
    for changes, steps in (({}, 1), ({"updates_per_step": 2}, 2), ({"epochs": 3}, 3)):
        fake = learner()
        before = fake.forward(examples)[0]["logprobs"]
        report = update_policy(fake, examples, stage(**changes), lr=1.0, seed=0)
        assert len(report.grad_norms) == fake.version == steps
        carried = [e.old_logprobs for batch in fake.batches for e in batch]
        if steps == 1:
            assert carried == [None] * 4
        else:
            first = [e for b in fake.batches for e in b if e.target_ids[0] == 0]
            for e in first:
                np.testing.assert_array_equal(e.old_logprobs, before)  # type: ignore[arg-type]


def test_what_has_no_advantage_gets_no_old_logprobs_and_what_nobody_sampled_does() -> None:
    fake = learner()
    given = replace(example(0), advantages=None, weights={"imitation": np.ones(4, np.float32)})
    examples = [given, example(1, sampled=False)]
    both = replace(stage(epochs=2), terms=(CrossEntropy(),))
    update_policy(fake, examples, both, lr=1.0, seed=0)
    carried = {int(e.target_ids[0]): e.old_logprobs is None for e in fake.batches[0]}
    assert carried == {0: True, 1: False}


def test_reference_logprobs_are_those_of_the_base_however_far_the_weights_have_moved() -> None:
    fake = learner(keep_base=True)
    examples = [example(0), example(1)]
    base = fake.forward(examples)
    fake.version = 5
    update_policy(fake, examples, stage(method=Grpo(group_size=2, kl=0.1)), lr=1.0, seed=0)
    for e, numbers in zip(fake.batches[0], base, strict=True):
        np.testing.assert_array_equal(e.extras["ref_logprobs"], numbers["logprobs"])


def test_denominators_span_the_optimiser_step_and_not_the_example() -> None:
    fake = learner()
    update_policy(fake, [example(0, length=2), example(1, length=6)], stage(), lr=1.0, seed=0)
    for e in fake.batches[0]:
        np.testing.assert_allclose(e.extras["coefficients/policy_gradient"], 1 / 8)


def test_examples_without_weight_are_left_out_and_alone_they_teach_nothing() -> None:
    fake = learner()
    empty = replace(example(0), weights={"policy": np.zeros(4, np.float32)})
    update_policy(fake, [empty, example(1)], stage(), lr=1.0, seed=0)
    assert [len(b) for b in fake.batches] == [1]
    assert update_policy(learner(), [empty], stage(), lr=1.0, seed=0).examples == 0


def test_a_bad_update_leaves_the_good_ones_beside_it() -> None:
    fake = learner()
    bad = replace(example(0), advantages=np.full(4, np.inf, np.float32))
    report = update_policy(fake, [bad, example(1)], stage(updates_per_step=2), lr=1.0, seed=0)
    assert fake.version == 1
    assert sorted(report.outcomes) == [False, True]
    assert [e.target_ids[0] for e in report.skipped[0][1]] == [0]


def test_losses_are_reported_as_means_over_the_updates() -> None:
    fake = learner()
    examples = [example(1) for _ in range(2)]
    report = update_policy(fake, examples, stage(epochs=4), lr=0.5, seed=0)
    single = update_policy(learner(), examples, stage(), lr=0.5, seed=0)
    # The learner's logprobs are 1/16 below the sampler's, and rise by 1/64 with each update.
    losses = [-math.exp(-1 / 16) * math.exp(update / 64) for update in range(4)]
    assert single.metrics()["loss/policy_gradient"] == pytest.approx(losses[0])
    assert report.metrics()["loss/policy_gradient"] == pytest.approx(statistics.fmean(losses))
    assert report.metrics("/agent")["lr/agent"] == 0.5
    assert report.metrics()["updates/agent"] == 4


def test_the_learner_works_under_the_sampling_temperature_and_under_1_after_greedy_sampling() -> (
    None
):
    heard: list[float] = []

    class Spy(ScriptedLearner):
        def forward_backward(self, examples: Any, terms: Any, *, temperature: float = 1.0) -> Any:
            heard.append(temperature)
            return super().forward_backward(examples, terms, temperature=temperature)

    for temperature in (0.7, 0.0):
        chosen = stage(sampling=SamplingParams(temperature=temperature))
        update_policy(Spy(engine(), "agent"), [example(1)], chosen, lr=1.0, seed=0)
    assert heard == [0.7, 1.0]


def test_examples_without_advantage_count_in_the_mean_and_are_not_computed() -> None:
    taught = learner()
    idle = [replace(example(n), advantages=np.zeros(4, np.float32)) for n in (2, 4, 6)]
    report = update_policy(taught, [example(1), *idle], stage(), lr=1.0, seed=0)
    assert report.examples == 1
    (batch,) = taught.batches
    assert [int(e.target_ids[0]) for e in batch] == [1]
    coefficients = next(v for k, v in batch[0].extras.items() if k.startswith("coefficients/"))
    assert coefficients == pytest.approx([1 / 16] * 4)


def test_only_idle_examples_take_no_step() -> None:
    taught = learner()
    idle = replace(example(2), advantages=np.zeros(4, np.float32))
    report = update_policy(taught, [idle], stage(), lr=1.0, seed=0)
    assert (report.examples, report.grad_norms, taught.version) == (0, [], 0)


def test_examples_longer_than_the_context_are_left_out_and_counted() -> None:
    taught = engine(context_window=8).open_policy("agent", ModelSpec())
    report = update_policy(
        taught, [example(1), example(3, length=12), example(5)], stage(), lr=1.0, seed=0
    )
    assert (report.examples, report.too_long) == (2, 1)
    (batch,) = taught.batches
    assert [int(e.target_ids[0]) for e in batch] == [1, 5]
    assert report.metrics()["examples/too_long/agent"] == 1
