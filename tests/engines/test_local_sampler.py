"""Sampling: seeds, stops, refills, parking, plain path, handles."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import numpy as np
import pytest
import torch
from tiny_models import examples, spec

from kolb.engines.base import OptimizerSpec
from kolb.engines.local.sampler import draw
from kolb.engines.torch_local import TorchLocal
from kolb.errors import PublishMismatchError, SamplerError, StaleSamplerError
from kolb.terms.cross_entropy import CrossEntropy
from kolb.types import Example, SamplingParams


@pytest.fixture(scope="module")
def learner():
    return TorchLocal(threads=1).open_policy("agent", spec("llama"))


def ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 250, n).astype(np.int32)


def sample_all(sampler, requests, n: int = 1):
    async def go():
        return await asyncio.gather(*(sampler.sample(p, params, n) for p, params in requests))

    return asyncio.run(go())


def test_the_same_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(learner):
    sampler = learner.publish()
    params = SamplingParams(max_tokens=20, seed=42)
    alone = sample_all(sampler, [(ids(9), params)])[0][0]
    crowd = [
        (ids(4 + i % 13, i), SamplingParams(max_tokens=3 + i, seed=i, temperature=0.5 + i / 20))
        for i in range(30)
    ]
    among = sample_all(sampler, [*crowd[:15], (ids(9), params), *crowd[15:]])[15][0]
    np.testing.assert_array_equal(alone.token_ids, among.token_ids)
    np.testing.assert_allclose(alone.logprobs, among.logprobs, atol=1e-5, rtol=1e-5)
    assert not np.array_equal(
        alone.token_ids,
        sample_all(sampler, [(ids(9), SamplingParams(max_tokens=20, seed=43))])[0][0].token_ids,
    )


def test_n_completions_take_consecutive_seeds(learner):
    sampler = learner.publish()
    together = sample_all(sampler, [(ids(9), SamplingParams(max_tokens=8, seed=5))], n=3)[0]
    apart = [
        sample_all(sampler, [(ids(9), SamplingParams(max_tokens=8, seed=5 + i))])[0][0]
        for i in range(3)
    ]
    for a, b in zip(together, apart, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)


def test_more_requests_than_rows_are_refilled_and_all_answered():
    narrow = TorchLocal(threads=1, max_rows=3).open_policy("agent", spec("llama"))
    wide = TorchLocal(threads=1, max_rows=64).open_policy("agent", spec("llama"))
    requests = [
        (ids(3 + i % 5, i % 4), SamplingParams(max_tokens=1 + i % 7, seed=i)) for i in range(20)
    ]
    for a, b in zip(
        sample_all(narrow.publish(), requests), sample_all(wide.publish(), requests), strict=True
    ):
        np.testing.assert_array_equal(a[0].token_ids, b[0].token_ids)
        np.testing.assert_allclose(a[0].logprobs, b[0].logprobs, atol=1e-5, rtol=1e-5)


def test_the_plain_path_draws_the_same_tokens(learner):
    plain = TorchLocal(threads=1, fast=False).open_policy("agent", spec("llama"))
    requests = [(ids(3 + i % 3, i), SamplingParams(max_tokens=2 + i % 6, seed=i)) for i in range(9)]
    for a, b in zip(
        sample_all(learner.publish(), requests), sample_all(plain.publish(), requests), strict=True
    ):
        np.testing.assert_array_equal(a[0].token_ids, b[0].token_ids)
        np.testing.assert_allclose(a[0].logprobs, b[0].logprobs, atol=1e-5, rtol=1e-5)


def test_frequencies_follow_the_probabilities(learner):
    sampler = learner.publish()
    prompt = ids(6)
    drawn = Counter(
        int(c.token_ids[0])
        for c in sample_all(
            sampler, [(prompt, SamplingParams(max_tokens=1, temperature=0.7))], n=3000
        )[0]
    )
    token, count = drawn.most_common(1)[0]
    example = Example(
        "agent", prompt, np.array([token], np.int32), {"policy": np.ones(1, np.float32)}
    )
    p = math.exp(learner.forward([example], temperature=0.7)[0]["logprobs"][0])
    assert abs(count / 3000 - p) < 4 * math.sqrt(p * (1 - p) / 3000)


def test_greedy_takes_the_most_likely_token_and_reports_its_logprob_at_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    tokens, logprobs = draw(logits, [SamplingParams(temperature=0.0)] * 2, [0.99, 0.99])
    assert tokens == [1, 0]
    assert logprobs == pytest.approx(
        torch.log_softmax(logits, -1).gather(1, torch.tensor([[1], [0]]))[:, 0].tolist()
    )


def test_top_k_and_top_p_restrict_the_draw_and_not_the_logprob():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    at = lambda u, **kw: draw(logits, [SamplingParams(**kw)], [u])  # noqa: E731
    assert at(0.999, top_k=2)[0] == [1]
    assert at(0.999, top_p=0.6)[0] == [1]
    assert at(0.999, top_p=0.4)[0] == [0]
    assert at(0.999)[0] == [3]
    assert at(0.0)[0] == [0]
    assert at(0.999, top_k=2)[1] == pytest.approx([math.log(0.3)])


def test_inverting_the_cumulative_distribution_meets_its_edges():
    logits = torch.tensor([[0.25, 0.25, 0.5]]).log()
    for u, expected in ((0.0, 0), (0.2499, 0), (0.2501, 1), (0.4999, 1), (0.5001, 2), (0.99999, 2)):
        assert draw(logits, [SamplingParams()], [u])[0] == [expected]


def test_an_end_token_stops_and_stays_in_the_record_but_not_in_the_text(learner):
    sampler = learner.publish()
    end = learner.template.end_ids[0]
    completions = sample_all(
        sampler, [(ids(5), SamplingParams(max_tokens=200, seed=i)) for i in range(40)]
    )
    stopped = [c[0] for c in completions if c[0].stop_reason == "stop"]
    assert stopped
    for c in stopped:
        assert c.token_ids[-1] == end
        assert end not in c.token_ids[:-1]
        assert c.text == learner.template.decode(c.token_ids[:-1])
    assert all(len(c[0].token_ids) == 200 for c in completions if c[0].stop_reason == "length")


def test_a_stop_string_ends_with_the_token_that_completes_it(learner):
    sampler = learner.publish()
    free = sample_all(sampler, [(ids(5), SamplingParams(max_tokens=30, seed=1))])[0][0]
    stop = free.text[6:8]
    cut = sample_all(sampler, [(ids(5), SamplingParams(max_tokens=30, seed=1, stop=(stop,)))])[0][0]
    assert cut.stop_reason == "stop"
    assert stop in cut.text
    assert len(cut.token_ids) < len(free.token_ids)
    np.testing.assert_array_equal(cut.token_ids, free.token_ids[: len(cut.token_ids)])


def test_the_context_window_ends_a_completion_and_a_full_one_gives_none():
    short = TorchLocal(threads=1).open_policy("agent", spec("llama", max_position_embeddings=32))
    sampler = short.publish()
    completion = sample_all(sampler, [(ids(28), SamplingParams(max_tokens=50))])[0][0]
    assert len(completion.token_ids) <= 4
    full = sample_all(sampler, [(ids(32), SamplingParams(max_tokens=5))])[0][0]
    assert (full.text, len(full.token_ids), full.stop_reason) == ("", 0, "length")
    with pytest.raises(SamplerError, match="empty prompt"):
        sample_all(sampler, [(ids(0), SamplingParams(max_tokens=5))])


def test_a_cancelled_request_leaves_the_others_alone(learner):
    sampler = learner.publish()
    expected = sample_all(sampler, [(ids(7), SamplingParams(max_tokens=12, seed=1))])[0][0]

    async def go():
        doomed = asyncio.ensure_future(
            sampler.sample(ids(5), SamplingParams(max_tokens=200, seed=3))
        )
        kept = asyncio.ensure_future(sampler.sample(ids(7), SamplingParams(max_tokens=12, seed=1)))
        for _ in range(10):
            await asyncio.sleep(0)
        doomed.cancel()
        return (await kept)[0]

    np.testing.assert_array_equal(asyncio.run(go()).token_ids, expected.token_ids)


def test_a_fault_in_the_model_reaches_every_caller_and_the_sampler_recovers(learner, monkeypatch):
    sampler = learner.publish()
    with monkeypatch.context() as patch:
        patch.setattr(type(learner.model), "logits", lambda self, hidden: 1 / 0)
        with pytest.raises(SamplerError, match="ZeroDivisionError"):
            sample_all(sampler, [(ids(5), SamplingParams(max_tokens=4))])
    assert len(sample_all(sampler, [(ids(5), SamplingParams(max_tokens=4))])[0][0].token_ids) == 4


def test_parked_rows_stay_below_their_budget(learner):
    tight = TorchLocal(threads=1, parking_mib=0).open_policy("agent", spec("llama")).publish()
    first = sample_all(tight, [(ids(5), SamplingParams(max_tokens=6, seed=1))])[0][0]
    assert not tight._decoder.rows.parking.rows
    longer = np.concatenate([ids(5), first.token_ids, ids(3)]).astype(np.int32)
    again = sample_all(tight, [(longer, SamplingParams(max_tokens=6, seed=2))])[0][0]
    resumed = learner.publish()
    sample_all(resumed, [(ids(5), SamplingParams(max_tokens=6, seed=1))])
    np.testing.assert_array_equal(
        again.token_ids,
        sample_all(resumed, [(longer, SamplingParams(max_tokens=6, seed=2))])[0][0].token_ids,
    )


def test_score_gives_logprobs_at_temperature_one(learner):
    tokens = ids(12)
    scored = asyncio.run(learner.publish().score(tokens, 4))
    example = Example("agent", tokens[:4], tokens[4:], {"policy": np.ones(8, np.float32)})
    np.testing.assert_allclose(scored, learner.forward([example])[0]["logprobs"], atol=1e-6)


def test_a_handle_whose_weights_moved_on_refuses():
    learner = TorchLocal(threads=1).open_policy(
        "agent", spec("llama"), optimizer=OptimizerSpec(lr=1e-3)
    )
    before = learner.publish()
    learner.forward_backward(examples(), (CrossEntropy(),))
    learner.optim_step(1e-3)
    after = learner.publish()
    assert (before.version, after.version) == (0, 1)
    with pytest.raises(StaleSamplerError, match=r"version 0.*at 1"):
        sample_all(before, [(ids(5), SamplingParams(max_tokens=2))])
    assert sample_all(after, [(ids(5), SamplingParams(max_tokens=2))])[0][0].version == 1


def test_publication_notices_a_sampler_that_computes_something_else(learner, monkeypatch):
    logits = type(learner.model).logits
    monkeypatch.setattr(
        type(learner.model), "logits", lambda self, hidden: logits(self, hidden * 1.5)
    )
    with pytest.raises(PublishMismatchError, match="sampler and learner differ"):
        learner.publish()
