"""Named policies: adapters on one base, full copies, references, files, exports, awkward models."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest
import torch
from tiny_models import examples, spec, tokenizer_folder

from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.engines.torch_local import TorchLocal
from kolb.errors import KolbError, NonFiniteError, RecipeError, RunDirectoryError
from kolb.terms.cross_entropy import CrossEntropy
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import Example, SamplingParams

ADAM = OptimizerSpec(lr=1e-2)


def step(learner, seed: int = 0) -> None:
    learner.forward_backward(examples(seed), (PolicyGradient(), CrossEntropy()))
    learner.optim_step(1e-2)


def logprobs(learner, **kw) -> np.ndarray:
    return np.concatenate([row["logprobs"] for row in learner.forward(examples(), **kw)])


def test_adapters_share_a_base_and_training_one_leaves_the_other_bit_equal():
    engine = TorchLocal(threads=1)
    a, b = (
        engine.open_policy(n, spec("llama"), lora=LoraSpec(rank=4, alpha=8), optimizer=ADAM)
        for n in ("a", "b")
    )
    assert a.model is b.model
    before_a, before_b = logprobs(a), logprobs(b)
    np.testing.assert_array_equal(before_a, before_b)  # a fresh adapter adds nothing
    step(a)
    assert np.abs(logprobs(a) - before_a).max() > 1e-4
    np.testing.assert_array_equal(logprobs(b), before_b)
    np.testing.assert_array_equal(logprobs(a, use_base=True), before_b)
    step(b)
    step(a)
    assert (a.version, b.version) == (2, 1)


def test_samplers_of_two_adapters_and_of_the_base_work_at_the_same_time():
    engine = TorchLocal(threads=1)
    a, b = (
        engine.open_policy(n, spec("qwen3"), lora=LoraSpec(rank=4), optimizer=ADAM)
        for n in ("a", "b")
    )
    step(a, 1)
    step(b, 2)
    base = engine.open_sampler(spec("qwen3"))
    samplers = [a.publish(), b.publish(), base]
    prompt, params = np.arange(5, 15, dtype=np.int32), SamplingParams(max_tokens=12, seed=1)

    async def together():
        return await asyncio.gather(*(s.sample(prompt, params, 4) for s in samplers))

    mixed = asyncio.run(together())
    alone = [asyncio.run(s.sample(prompt, params, 4)) for s in samplers]
    for x, y in zip(mixed, alone, strict=True):
        for c, d in zip(x, y, strict=True):
            np.testing.assert_array_equal(c.token_ids, d.token_ids)
    assert len({tuple(c.token_ids) for group in mixed for c in group[:1]}) > 1


def test_only_the_adapter_has_gradients_and_optimiser_state():
    learner = TorchLocal(threads=1).open_policy(
        "a", spec("llama"), lora=LoraSpec(rank=2), optimizer=ADAM
    )
    frozen = {
        n: p.detach().clone() for n, p in learner.model.hf.named_parameters() if "lora_" not in n
    }
    step(learner)
    assert all("lora_" in n for n in learner.parameters)
    for name, parameter in learner.model.hf.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name])


def test_full_policies_of_one_base_do_not_share_weights_and_keep_their_reference():
    engine = TorchLocal(threads=1)
    a = engine.open_policy("a", spec("llama"), optimizer=ADAM, keep_base=True)
    b = engine.open_policy("b", spec("llama"), optimizer=ADAM)
    start = logprobs(a)
    step(a)
    np.testing.assert_array_equal(logprobs(b), start)
    np.testing.assert_array_equal(logprobs(a, use_base=True), start)
    with pytest.raises(ValueError, match="keep_base"):
        logprobs(b, use_base=True)


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4)])
def test_save_load_resume_is_exact(tmp_path, lora):
    def opened():
        return TorchLocal(threads=1).open_policy("agent", spec("llama"), lora=lora, optimizer=ADAM)

    straight, resumed = opened(), opened()
    for seed in range(4):
        step(straight, seed)
        if seed == 1:
            straight.save(tmp_path)
    resumed.load(tmp_path)
    assert resumed.version == 2
    for seed in (2, 3):
        step(resumed, seed)
    for name, parameter in straight.parameters.items():
        assert torch.equal(parameter, resumed.parameters[name]), name


def test_a_checkpoint_of_another_policy_is_refused(tmp_path):
    TorchLocal(threads=1).open_policy("a", spec("llama")).save(tmp_path)
    other = TorchLocal(threads=1).open_policy("a", spec("llama"), lora=LoraSpec(rank=2))
    with pytest.raises(RunDirectoryError, match="does not fit policy 'a'"):
        other.load(tmp_path)


def test_exports_open_in_transformers_and_peft_with_the_same_logprobs(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner = TorchLocal(threads=1).open_policy(
        "a", spec("llama"), lora=LoraSpec(rank=4), optimizer=ADAM
    )
    step(learner)
    learner.export(tmp_path / "merged", merge=True)
    learner.export(tmp_path / "adapter")
    full = TorchLocal(threads=1).open_policy("b", spec("llama"))
    full.export(tmp_path / "base")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    adapted = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
    example = examples()[0]
    ids = torch.tensor(np.concatenate([example.prompt_ids, example.target_ids]).astype(np.int64))[
        None
    ]
    weighted = (example.weights["policy"] + example.weights["imitation"]) > 0
    ours = learner.forward([example])[0]["logprobs"][weighted]
    for model in (merged, adapted):
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        theirs = (
            torch.log_softmax(logits, -1)[len(example.prompt_ids) - 1 : -1]
            .gather(1, ids[0, len(example.prompt_ids) :, None])[:, 0]
            .numpy()
        )
        np.testing.assert_allclose(ours, theirs[weighted], atol=1e-4)


def test_an_exported_folder_is_a_base_like_any_other(tmp_path):
    engine = TorchLocal(threads=1)
    learner = engine.open_policy("a", spec("gemma3"), optimizer=ADAM)
    step(learner)
    learner.export(tmp_path)
    again = engine.open_policy("b", ModelSpec(base=str(tmp_path)))
    np.testing.assert_allclose(logprobs(again), logprobs(learner), atol=1e-6)


def test_non_finite_losses_and_gradients_leave_weights_and_optimiser_untouched():
    learner = TorchLocal(threads=1).open_policy("a", spec("llama"), optimizer=ADAM)
    before = {n: p.detach().clone() for n, p in learner.parameters.items()}
    bad = [
        Example(
            "a",
            e.prompt_ids,
            e.target_ids,
            e.weights,
            np.full(len(e.target_ids), np.inf, np.float32),
        )
        for e in examples()
    ]
    with pytest.raises(NonFiniteError, match="the loss"):
        learner.forward_backward(bad, (PolicyGradient(),))
    assert all(p.grad is None for p in learner.parameters.values())
    learner.forward_backward(examples(), (CrossEntropy(),))
    next(iter(learner.parameters.values())).grad[0] = torch.nan
    with pytest.raises(NonFiniteError, match="gradient norm"):
        learner.optim_step(1e-2)
    assert all(torch.equal(p, before[n]) for n, p in learner.parameters.items())
    assert learner.version == 0
    assert not learner.optimizer.state


def test_the_gradient_norm_is_reported_before_clipping_and_clipped_after():
    learner = TorchLocal(threads=1).open_policy(
        "a", spec("llama"), optimizer=OptimizerSpec(lr=0.0, max_grad_norm=0.5)
    )
    learner.forward_backward(examples(), (CrossEntropy(),))
    expected = float(
        torch.sqrt(
            sum((p.grad**2).sum() for p in learner.parameters.values() if p.grad is not None)
        )
    )
    assert learner.optim_step(0.0)["grad_norm"] == pytest.approx(expected, rel=1e-5)
    assert expected > 0.5


def test_checkpointed_layers_give_the_same_gradients():
    plain = TorchLocal(threads=1).open_policy("a", spec("llama"))
    checkpointed = TorchLocal(threads=1, gradient_checkpointing=True).open_policy(
        "a", spec("llama")
    )
    for learner in (plain, checkpointed):
        learner.forward_backward(examples(), (CrossEntropy(),))
    assert checkpointed.model.hf.base_model.layers[0].gradient_checkpointing
    for name, parameter in plain.parameters.items():
        torch.testing.assert_close(
            parameter.grad, checkpointed.parameters[name].grad, atol=1e-6, rtol=1e-5
        )


def test_bfloat16_compute_keeps_float32_masters_and_agrees_roughly():
    """The GPU's numbers, by construction on a CPU: slow there, so nobody gets it unasked."""
    exact = TorchLocal(threads=1).open_policy("a", spec("llama"))
    half = TorchLocal(threads=1, compute="bfloat16").open_policy("a", spec("llama"), optimizer=ADAM)
    assert all(p.dtype is torch.float32 for p in half.parameters.values())
    difference = np.abs(logprobs(exact) - logprobs(half))
    assert 0 < difference.mean() < 0.1
    half.publish()
    step(half)
    assert all(bool(torch.isfinite(p).all()) for p in half.parameters.values())


def test_pad_equal_to_eos_changes_nothing(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path)
    same = spec("llama")
    learner = TorchLocal(threads=1).open_policy(
        "a",
        ModelSpec(
            build={**same.build, "pad_token_id": tokenizer.eos_token_id},
            tokenizer=str(tmp_path),
            seed=1,
        ),
    )
    end = tokenizer.eos_token_id
    example = Example(
        "a",
        np.array([5, end, 6], np.int32),
        np.array([end, 7, end], np.int32),
        {"policy": np.array([1, 0, 1], np.float32)},
    )
    seen = learner.forward([example])[0]["logprobs"]
    assert seen[0] < 0
    assert seen[1] == 0
    assert seen[2] < 0


def test_all_end_ids_of_a_generation_config_stop_and_nothing_else_of_it_is_used(tmp_path):
    from transformers import GenerationConfig

    TorchLocal(threads=1).open_policy("a", spec("llama")).export(tmp_path)
    GenerationConfig(
        eos_token_id=[2, 77, 78], do_sample=True, top_k=1, temperature=0.01
    ).save_pretrained(tmp_path)
    learner = TorchLocal(threads=1).open_policy("a", ModelSpec(base=str(tmp_path)))
    assert {2, 77, 78} <= set(learner.template.end_ids)
    drawn = asyncio.run(
        learner.publish().sample(np.arange(5, 12, dtype=np.int32), SamplingParams(max_tokens=1), 40)
    )
    assert len({int(c.token_ids[0]) for c in drawn}) > 5  # a top_k of 1 would give one


def test_a_missing_chat_template_names_the_way_out_and_plain_works(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    bare = ModelSpec(build=spec("llama").build, tokenizer=str(tmp_path))
    with pytest.raises(KolbError, match='template = "plain"'):
        TorchLocal(threads=1).open_policy("a", bare)
    plain = ModelSpec(build=bare.build, tokenizer=bare.tokenizer, template="plain")
    learner = TorchLocal(threads=1).open_policy("a", plain)
    assert learner.template.open([{"role": "user", "content": "hi"}]).prompt_ids.size > 0


def test_an_architecture_without_a_fast_path_takes_the_plain_one_and_says_so(caplog):
    """Gemma 2 caps its attention scores and its logits: neither is a plain attention or a plain product."""
    capped = spec(
        "llama",
        model_type="gemma2",
        head_dim=16,
        num_key_value_heads=2,
        sliding_window=8,
        query_pre_attn_scalar=16,
    )
    with caplog.at_level(logging.WARNING, "kolb.engine"):
        learner = TorchLocal(threads=1).open_policy("a", capped, optimizer=ADAM)
    assert not learner.model.is_fast
    assert sum("no fast path" in r.message for r in caplog.records) == 1
    drawn = asyncio.run(
        learner.publish().sample(
            np.arange(5, 12, dtype=np.int32), SamplingParams(max_tokens=6, seed=1), 3
        )
    )
    made = [
        Example(
            "a",
            np.arange(5, 12, dtype=np.int32),
            c.token_ids,
            {"p": np.ones(len(c.token_ids), np.float32)},
        )
        for c in drawn
    ]
    for completion, seen in zip(drawn, learner.forward(made), strict=True):
        np.testing.assert_allclose(completion.logprobs, seen["logprobs"], atol=1e-5)
    step(learner)


def test_scaled_logits_keep_the_fast_attention_without_the_fused_head(caplog):
    """Granite divides its logits: the head is more than its matrix."""
    with caplog.at_level(logging.WARNING, "kolb.engine"):
        learner = TorchLocal(threads=1).open_policy(
            "a", spec("llama", model_type="granite", logits_scaling=4.0), optimizer=ADAM
        )
    assert learner.model.is_fast
    assert not learner.model.has_fused_head
    assert sum("fused head is not used" in r.message for r in caplog.records) == 1
    learner.publish()
    step(learner)


def test_a_base_that_is_not_there_is_a_recipe_error(tmp_path):
    with pytest.raises(RecipeError, match="no-such-model"):
        TorchLocal().open_policy("a", ModelSpec(base=str(tmp_path / "no-such-model")))
    with pytest.raises(RecipeError, match="needs `base`, or `build`"):
        TorchLocal().open_policy("a", ModelSpec())
    with pytest.raises(RecipeError, match=r"(?s)build: .*hidden size"):
        TorchLocal().open_policy("a", spec("llama", hidden_size=65))
    with pytest.raises(RecipeError, match="model_type"):
        TorchLocal().open_policy(
            "a", ModelSpec(build={"model_type": "lama"}, tokenizer=tokenizer_folder())
        )
