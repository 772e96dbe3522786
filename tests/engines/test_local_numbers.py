"""The embedded engine computes what transformers computes, whatever the layout."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, examples, spec

from kolb.chat.batching import micro_batches, pack
from kolb.engines.base import Stats
from kolb.engines.local.head import Distributions, stats_of
from kolb.engines.local.rows import Parking
from kolb.engines.torch_local import TorchLocal
from kolb.terms.cross_entropy import CrossEntropy
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import Example, MinP, SamplingParams

TERMS = (PolicyGradient(), CrossEntropy())


@pytest.fixture(scope="module", params=FAMILIES)
def learner(request):
    return TorchLocal(threads=1).open_policy("agent", spec(request.param))


@pytest.fixture
def llama():
    return TorchLocal(threads=1).open_policy("agent", spec("llama"))


def plain_logprobs(learner, example: Example) -> np.ndarray:
    """One unpadded transformers forward of prompt and targets, and a log-softmax: the definition."""
    ids = torch.tensor(np.concatenate([example.prompt_ids, example.target_ids]).astype(np.int64))[
        None
    ]
    with torch.no_grad(), learner.model.plain_attention():
        logits = learner.model.hf(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    start = len(example.prompt_ids)
    rows = torch.log_softmax(logits.double(), -1)[start - 1 : -1]
    return rows.gather(1, ids[0, start:, None])[:, 0].numpy()


def gradients(learner, parts, terms=TERMS) -> dict[str, torch.Tensor]:
    for part in parts:
        learner.forward_backward(part, terms)
    found = {n: p.grad.clone() for n, p in learner.parameters.items() if p.grad is not None}
    learner.optimizer.zero_grad(set_to_none=True)
    return found


def relative(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    norm = torch.sqrt(sum((g**2).sum() for g in b.values()))
    return float(torch.sqrt(sum(((a[n] - b[n]) ** 2).sum() for n in b)) / norm)


def test_every_family_takes_the_fast_path(learner):
    assert learner.model.is_fast
    assert learner.model.has_fused_head


def test_learner_logprobs_equal_a_plain_forward(learner):
    batch = examples()
    for example, seen in zip(batch, learner.forward(batch), strict=True):
        weighted = (example.weights["policy"] + example.weights["imitation"]) > 0
        expected = plain_logprobs(learner, example)
        np.testing.assert_allclose(seen["logprobs"][weighted], expected[weighted], atol=1e-5)
        assert not seen["logprobs"][~weighted].any()


def test_sampler_logprobs_equal_learner_and_plain_ones_over_two_turns(learner, monkeypatch):
    taken = []
    take = Parking.take
    monkeypatch.setattr(
        Parking, "take", lambda self, ids: taken.append(row := take(self, ids)) or row
    )
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 250, n).astype(np.int32) for n in (7, 19, 30)]
    sampler = learner.publish()

    async def two_turns():
        first = await asyncio.gather(
            *(
                sampler.sample(p, SamplingParams(max_tokens=9 + 3 * i, seed=10 * i), n=3)
                for i, p in enumerate(prompts)
            )
        )
        second = [
            np.concatenate([p, c.token_ids, rng.integers(0, 250, 5)]).astype(np.int32)
            for p, cs in zip(prompts, first, strict=True)
            for c in cs
        ]
        answers = await asyncio.gather(
            *(sampler.sample(p, SamplingParams(max_tokens=9, seed=3)) for p in second)
        )
        return [(p, c) for p, cs in zip(prompts, first, strict=True) for c in cs] + list(
            zip(second, [a[0] for a in answers], strict=True)
        )

    pairs = asyncio.run(two_turns())
    assert sum(row is not None for row in taken) >= 7  # second turns go on from parked rows
    drawn = [
        Example("agent", p, c.token_ids, {"policy": np.ones(len(c.token_ids), np.float32)})
        for p, c in pairs
    ]
    for example, (_, completion), seen in zip(drawn, pairs, learner.forward(drawn), strict=True):
        np.testing.assert_allclose(completion.logprobs, seen["logprobs"], atol=1e-5)
        np.testing.assert_allclose(completion.logprobs, plain_logprobs(learner, example), atol=1e-5)


def test_gradients_equal_the_padded_ones_for_every_cut(learner):
    batch = examples()
    learner.model.is_fast = False
    reference = gradients(learner, [batch])
    learner.model.is_fast = True
    whole = learner.micro_tokens
    try:
        for micro_tokens in (whole, 40, 1):
            learner.micro_tokens = micro_tokens
            assert relative(gradients(learner, [batch]), reference) < 1e-5
    finally:
        learner.micro_tokens = whole


def test_gradients_do_not_depend_on_order_or_on_calls(llama):
    from kolb.terms.base import pin

    batch = examples()
    reference = gradients(llama, [batch])
    pinned = pin(TERMS, batch)
    shuffled = [pinned[i] for i in np.random.default_rng(1).permutation(len(pinned))]
    assert relative(gradients(llama, [shuffled]), reference) < 1e-5
    assert relative(gradients(llama, [[e] for e in pinned]), reference) < 1e-5


def test_a_token_without_weight_moves_nothing(llama):
    batch = examples()
    reference = gradients(llama, [batch])
    changed = []
    for e in batch:
        targets = e.target_ids.copy()
        last = np.flatnonzero((e.weights["policy"] + e.weights["imitation"]) > 0)[-1]
        targets[last + 1 :] = 7
        changed.append(
            Example(e.policy, e.prompt_ids, targets, e.weights, e.advantages, sequence=e.sequence)
        )
    assert all(
        torch.equal(a, b)
        for a, b in zip(gradients(llama, [changed]).values(), reference.values(), strict=True)
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_fused_statistics_and_gradients_equal_brute_force(temperature, monkeypatch):
    monkeypatch.setattr("kolb.engines.local.head.CPU_CHUNK_BYTES", 4 * 300 * 16)  # several chunks
    torch.manual_seed(0)
    hidden = torch.randn(70, 12, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(300, 12).requires_grad_()
    bias = torch.randn(300).requires_grad_()
    targets = torch.randint(0, 300, (70,))
    found = Distributions(hidden, weight, bias)
    seen = stats_of(found, targets, temperature=temperature, entropy=True, minp=MinP(0.05))
    p = torch.softmax((hidden @ weight.t() + bias) / temperature, -1)
    logp = p.log()
    kept = p >= 0.05 * p.max(-1, keepdim=True).values
    torch.testing.assert_close(
        seen.logprobs, logp.gather(1, targets[:, None])[:, 0], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(seen.entropy, -(p * logp).sum(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen.max_logprob, logp.max(-1).values.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        seen.minp_logmass, (p * kept).sum(-1).log().detach(), atol=1e-5, rtol=1e-5
    )
    upstream = torch.randn(2, 70)
    ours = torch.autograd.grad(
        (seen.logprobs * upstream[0] + seen.entropy * upstream[1]).sum(), (hidden, weight, bias)
    )
    brute = torch.autograd.grad(
        (
            logp.gather(1, targets[:, None])[:, 0] * upstream[0] - (p * logp).sum(-1) * upstream[1]
        ).sum(),
        (hidden, weight, bias),
    )
    for a, b in zip(ours, brute, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)


def test_minp_mass_of_the_worked_distribution():
    """arXiv:2510.03222: p = (.60, .25, .10, .04, .0099, .0001) and kappa .02 keep a mass of .99."""
    p = torch.tensor([0.60, 0.25, 0.10, 0.04, 0.0099, 0.0001])
    found = Distributions(torch.ones(1, 1), p.log()[:, None])
    seen = stats_of(found, torch.tensor([3]), minp=MinP(0.02))
    assert seen.minp_logmass is not None
    assert seen.max_logprob is not None
    assert float(seen.minp_logmass.exp()) == pytest.approx(0.99, abs=1e-6)
    assert float(seen.max_logprob.exp()) == pytest.approx(0.60, abs=1e-6)
    assert float((seen.logprobs - seen.minp_logmass).exp()) == pytest.approx(0.0404040, abs=1e-6)


def test_forward_statistics_equal_the_plain_ones(llama):
    batch = examples()
    asked = Stats(entropy=True, minp=MinP(0.1))
    fast = llama.forward(batch, stats=asked, temperature=0.7)
    llama.model.is_fast = False
    plain = llama.forward(batch, stats=asked, temperature=0.7)
    for a, b in zip(fast, plain, strict=True):
        assert a.keys() == b.keys() == {"logprobs", "entropy", "max_logprob", "minp_logmass"}
        for key in a:
            np.testing.assert_allclose(a[key], b[key], atol=1e-5)


def test_a_shared_prompt_is_computed_once_and_nothing_after_the_last_target():
    prompt = np.arange(10, dtype=np.int32)

    def example(n: int, weighted: int) -> Example:
        weights = np.zeros(n, np.float32)
        weights[:weighted] = 1
        return Example("a", prompt, np.arange(n, dtype=np.int32), {"policy": weights})

    batch = pack([example(6, 6), example(8, 3), example(4, 1)])
    assert len(batch.ids) == 10 + 5 + 2 + 0
    assert batch.targets.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 0]
    assert batch.source.tolist() == [9, 10, 11, 12, 13, 14, 9, 15, 16, 9]
    assert batch.positions.tolist() == [*range(10), 10, 11, 12, 13, 14, 10, 11]


def test_micro_batches_hold_every_example_once_and_keep_groups_together():
    batch = examples()
    for size in (1, 30, 60, 10_000):
        cuts = list(micro_batches(batch, size))
        assert sorted(i for cut in cuts for i in cut) == list(range(len(batch)))
    assert list(micro_batches(batch, 10_000)) == [list(range(len(batch)))]


def test_an_example_without_a_prompt_is_refused():
    nothing = Example(
        "a", np.zeros(0, np.int32), np.ones(2, np.int32), {"policy": np.ones(2, np.float32)}
    )
    with pytest.raises(ValueError, match="at least one prompt token"):
        pack([nothing])
