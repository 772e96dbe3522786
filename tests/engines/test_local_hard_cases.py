"""What broke the embedded engine once: each case stands for a fault that no other test saw."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest
import torch
from tiny_models import examples, spec

from kolb.engines.base import LoraSpec, OptimizerSpec
from kolb.engines.local.rows import FastRows, Parking, PlainRows
from kolb.engines.torch_local import TorchLocal
from kolb.errors import RecipeError, StaleSamplerError
from kolb.evaluate import bootstrap_interval
from kolb.terms.cross_entropy import CrossEntropy
from kolb.types import Example, SamplingParams

ADAM = OptimizerSpec(lr=1e-2)


def opened(family: str = "llama", name: str = "agent", lora: LoraSpec | None = None, **changes):
    engine = TorchLocal(
        threads=1, **{k: changes.pop(k) for k in ("max_rows", "parking_mib") if k in changes}
    )
    return engine.open_policy(name, spec(family, **changes), lora=lora, optimizer=ADAM)


def ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 250, n).astype(np.int32)


def drawn(sampler, requests):
    async def go():
        return [c[0] for c in await asyncio.gather(*(sampler.sample(p, q) for p, q in requests))]

    return asyncio.run(go())


def assert_plain(learner, prompts, completions) -> None:
    """Every sampled logprob is that of transformers' own padded forward."""
    made = [
        Example("a", p, c.token_ids, {"p": np.ones(len(c.token_ids), np.float32)})
        for p, c in zip(prompts, completions, strict=True)
    ]
    expected = learner.model.plain_logprobs(made).numpy()
    batch_order = np.concatenate(
        [completions[i].logprobs for group in by_prompt(prompts) for i in group]
    )
    np.testing.assert_allclose(batch_order, expected, atol=3e-5)


def by_prompt(prompts):
    groups: dict[bytes, list[int]] = {}
    for i, p in enumerate(prompts):
        groups.setdefault(p.tobytes(), []).append(i)
    return groups.values()


def test_refills_with_one_row_per_prompt_do_not_mix_prompts():
    learner = opened(max_rows=3)
    prompts = [ids(4 + i % 5, i) for i in range(14)]
    requests = [(p, SamplingParams(max_tokens=2 + i % 6, seed=i)) for i, p in enumerate(prompts)]
    assert_plain(learner, prompts, drawn(learner.publish(), requests))


def test_a_row_resumed_near_the_end_of_learned_positions_leaves_the_others_alive():
    learner = opened("gpt2", n_positions=64)
    sampler = learner.publish()
    first = drawn(
        sampler,
        [
            (ids(52), SamplingParams(max_tokens=4, seed=1)),
            (ids(8, 1), SamplingParams(max_tokens=4, seed=2)),
        ],
    )
    longer = [
        np.concatenate([ids(52), first[0].token_ids, ids(2)]).astype(np.int32),
        np.concatenate([ids(8, 1), first[1].token_ids, ids(30, 3)]).astype(np.int32),
    ]
    second = drawn(sampler, [(p, SamplingParams(max_tokens=4, seed=5)) for p in longer])
    assert_plain(learner, longer, second)


def test_weights_that_move_under_a_running_request_fail_it_and_leave_no_stale_keys():
    learner = opened()
    before = learner.publish()

    async def go():
        running = asyncio.ensure_future(
            before.sample(ids(6), SamplingParams(max_tokens=60, seed=4))
        )
        for _ in range(14):
            await asyncio.sleep(0)
        assert not running.done()
        learner.forward_backward(examples(), (CrossEntropy(),))
        learner.optim_step(1e-2)
        with pytest.raises(StaleSamplerError):
            await running

    asyncio.run(go())
    after = learner.publish()
    prompts = [ids(6), ids(9, 2)]
    assert_plain(
        learner, prompts, drawn(after, [(p, SamplingParams(max_tokens=9, seed=3)) for p in prompts])
    )


def test_structure_that_a_short_probe_cannot_see_takes_the_plain_path(caplog):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 6,
        "long_factor": [4.0] * 6,
        "original_max_position_embeddings": 64,
        "factor": 4.0,
    }
    with caplog.at_level(logging.WARNING, "kolb.engine"):
        learner = opened("llama", model_type="phi3", rope_parameters=rope, pad_token_id=0)
    assert not learner.model.is_fast
    assert "longrope" in caplog.text


def test_heads_of_unequal_size_are_sampled_without_the_shared_prompt_and_right():
    learner = opened(
        "llama", model_type="deepseek_v3", num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12, first_k_dense_replace=2, n_routed_experts=4, n_group=1, topk_group=1,
    )  # fmt: skip
    sampler = learner.publish()
    assert isinstance(sampler._decoder.rows, PlainRows)
    prompts = [ids(6), ids(6, 1)]
    assert_plain(
        learner,
        prompts,
        drawn(sampler, [(p, SamplingParams(max_tokens=6, seed=3)) for p in prompts]),
    )


def test_a_model_without_the_common_cache_is_sampled_right():
    learner = opened("llama", model_type="mamba", state_size=8, num_hidden_layers=1, hidden_size=32)
    prompts = [ids(6), ids(6, 1)]
    assert_plain(
        learner,
        prompts,
        drawn(learner.publish(), [(p, SamplingParams(max_tokens=5, seed=3)) for p in prompts]),
    )


@pytest.mark.parametrize("targets", [("q_proj", "lm_head"), ("q_proj", "embed_tokens")])
def test_an_adapter_on_the_ends_of_the_model_is_refused_in_words(targets):
    with pytest.raises(RecipeError, match="all-linear"):
        opened(tie_word_embeddings=False, lora=LoraSpec(rank=2, targets=targets))


@pytest.mark.parametrize("name", ["mlp", "layers", "base_layer", "lora_A", "a.b"])
def test_a_policy_may_be_called_like_a_part_of_the_model(name, tmp_path):
    learner = opened(name=name, lora=LoraSpec(rank=2))
    assert learner.parameters
    assert all("lora_" in n for n in learner.parameters)
    learner.export(tmp_path)
    from safetensors.torch import load_file

    names = load_file(str(tmp_path / "adapter_model.safetensors"))
    assert all(n.endswith((".lora_A.weight", ".lora_B.weight")) for n in names)


def test_an_example_beyond_the_context_is_refused_in_words():
    learner = opened(max_position_embeddings=32)
    long = Example("a", ids(20), ids(20), {"p": np.ones(20, np.float32)})
    with pytest.raises(RecipeError, match="40 tokens does not fit into the context of 32"):
        learner.forward([long])


def test_prompts_are_let_go_and_counted_with_the_rows_that_hold_them():
    learner = opened(max_rows=4, parking_mib=1)
    sampler = learner.publish()
    rows = sampler._decoder.rows
    assert isinstance(rows, FastRows)
    drawn(sampler, [(ids(40, i), SamplingParams(max_tokens=3, seed=i)) for i in range(200)])
    held = {id(p) for p in rows.prompts.values()}
    assert held == {id(r.prompt) for r in rows.parking.rows.values()}
    expected = sum(
        t.nbytes
        for r in rows.parking.rows.values()
        for kv in (r.suffix, r.prompt.kv)
        for pair in kv
        for t in pair
    )
    assert rows.parking.used == expected <= 2**20
    assert len(held) < 100
    sampler.rest()
    assert not rows.prompts
    assert rows.parking.used == 0


def test_a_group_that_outlasts_the_rows_has_its_prompt_computed_once(monkeypatch):
    learner = opened(max_rows=3)
    sampler = learner.publish()
    seen = []
    original = FastRows._prefill_some
    monkeypatch.setattr(
        FastRows,
        "_prefill_some",
        lambda self, prompts: seen.extend(prompts) or original(self, prompts),
    )
    drawn(sampler, [(ids(30), SamplingParams(max_tokens=3 + i % 4, seed=i)) for i in range(12)])
    assert len(seen) == 1


def test_a_long_stop_string_is_found():
    learner = opened()
    sampler = learner.publish()
    free = drawn(sampler, [(ids(5), SamplingParams(max_tokens=120, seed=1))])[0]
    stop = free.text[5:65]
    cut = drawn(sampler, [(ids(5), SamplingParams(max_tokens=120, seed=1, stop=(stop,)))])[0]
    assert stop in cut.text
    assert len(cut.token_ids) < len(free.token_ids)


def test_parking_keeps_its_account_when_rows_share_a_prompt():
    from kolb.engines.local.decode import Prompt
    from kolb.engines.local.rows import Parked

    def kv(n):
        return [(torch.zeros(1, n, 2), torch.zeros(1, n, 2))]

    parking, prompt = Parking(budget=10_000), Prompt(10, kv(10), torch.zeros(3))
    for i in range(3):
        parking.put(np.int32([1, 2, i]).tobytes(), Parked(prompt, kv(5), 5))
    assert parking.used == 160 + 3 * 80
    parking.put(np.int32([1, 2, 0]).tobytes(), Parked(prompt, kv(5), 5))
    assert parking.used == 160 + 3 * 80
    assert parking.take(np.int32([1, 2, 1, 7])) is not None
    assert parking.used == 160 + 2 * 80
    parking.clear()
    assert parking.used == 0


def test_an_evaluation_without_any_variation_still_has_an_interval():
    low, high = bootstrap_interval([0.0] * 20)
    assert low == 0.0
    assert high == pytest.approx(0.1611, abs=1e-4)
    assert bootstrap_interval([1.0] * 20) == (pytest.approx(0.8389, abs=1e-4), 1.0)
