"""What every engine keeps, whatever it runs on: the boundary of ``kolb.engines.base`` as tests.

To check an engine of yours, add it to CASES. A test that asks for something the engine does not ``provide``
is skipped for it, so a sample-only endpoint runs the few tests that concern it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from kolb import plugins
from kolb.engines.base import (
    CAPABILITIES,
    Learner,
    LoraSpec,
    ModelSpec,
    OptimizerSpec,
    Report,
    Sampler,
    Stats,
)
from kolb.engines.openai_compat import OpenAICompat
from kolb.engines.scripted import Scripted
from kolb.engines.torch_local import TorchLocal
from kolb.errors import KolbError, NonFiniteError, StaleSamplerError
from kolb.terms.base import pin
from kolb.terms.cross_entropy import CrossEntropy
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import Completion, Example, Message, MinP, SamplingParams

EXAMPLES = Path(__file__).parents[2] / "examples"
ENGINE_TESTS = Path(__file__).parents[1] / "engines"
WINDOW = 160
"""The context window of every case that has one."""

TERMS = (PolicyGradient(), CrossEntropy())
CHAT: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Guess my number, 1 to 100."},
]


@cache
def tokenizer_folder() -> str:
    from kolb.models.tokenizers import byte_tokenizer

    folder = Path(mkdtemp()) / "bytes"
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def nothing() -> ModelSpec:
    return ModelSpec(base="nothing")


def tiny_llama() -> ModelSpec:
    build = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": WINDOW,
        "initializer_range": 0.2,
    }
    return ModelSpec(build=build, tokenizer=tokenizer_folder(), seed=3)


def babble(messages: Any, seed: int) -> str:
    return f"{seed % 7} of {len(messages)}"


@dataclass(frozen=True)
class Case:
    """An engine to check: how it is made, which model it opens, how its policies are trained."""

    make: Callable[[], Any]
    model: Callable[[], ModelSpec] = nothing
    policy: dict[str, Any] = field(default_factory=dict)
    has_window: bool = False


def example_engine() -> Any:
    return plugins.load(str(EXAMPLES / "bisect_engine.py"), "kolb.engines", "ENGINE")()


@cache
def endpoint_url() -> str:
    """A local server that answers by model, messages and seed; it lives as long as the tests do."""
    server = plugins.load(str(ENGINE_TESTS / "fault_server.py"), "tests", "FaultServer")()
    return server.__enter__().url


CASES = {
    "torch_local": Case(lambda: TorchLocal(threads=1), tiny_llama, has_window=True),
    "torch_local-lora": Case(
        lambda: TorchLocal(threads=1), tiny_llama, {"lora": LoraSpec(rank=2, alpha=8.0)}
    ),
    "torch_local-plain": Case(lambda: TorchLocal(threads=1, fast=False), tiny_llama),
    "scripted": Case(lambda: Scripted(babble, context_window=WINDOW), has_window=True),
    "scripted-chat": Case(lambda: Scripted(babble, gives_tokens=False)),
    "openai_compat": Case(lambda: OpenAICompat(base_url=endpoint_url())),
    "example": Case(example_engine),
}


class Bench:
    """One case with its engine open, and the few calls that the tests repeat."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.engine = case.make()
        self.model = case.model()

    def needs(self, *capabilities: str) -> None:
        for capability in capabilities:
            assert capability in CAPABILITIES
            if capability not in self.engine.provides:
                pytest.skip(f"this engine does not provide {capability!r}")

    def sampler(self) -> Any:
        return self.engine.open_sampler(self.model)

    def learner(self, name: str = "agent", **options: Any) -> Any:
        given = {"optimizer": OptimizerSpec(lr=1e-2), **self.case.policy, **options}
        return self.engine.open_policy(name, self.model, **given)


@pytest.fixture(params=list(CASES), ids=list(CASES))
def bench(request: pytest.FixtureRequest) -> Any:
    found = Bench(CASES[request.param])
    yield found
    found.engine.close()


def prompt_of(sampler: Any, chat: list[Message] = CHAT) -> Any:
    return chat if sampler.template is None else sampler.template.open(chat).prompt_ids


def sample(sampler: Any, n: int = 1, prompt: Any = None, **params: Any) -> list[Completion]:
    prompt = prompt_of(sampler) if prompt is None else prompt
    return asyncio.run(sampler.sample(prompt, SamplingParams(**{"max_tokens": 12, **params}), n))


def said(completions: list[Completion]) -> list[tuple[str, list[int]]]:
    return [(c.text, c.token_ids.tolist()) for c in completions]


def as_example(prompt: Any, completion: Completion) -> Example:
    n = len(completion.token_ids)
    weights = {"policy": np.ones(n, np.float32)}
    return Example(
        "agent", prompt, completion.token_ids, weights, sampler_logprobs=completion.logprobs
    )


def batch(seed: int = 0) -> list[Example]:
    """Five examples on two prompts, with gaps between weighted targets, in two streams."""
    rng = np.random.default_rng(seed)
    made = []
    for prompt_length, sizes in ((9, (6, 3, 1)), (4, (8, 5))):
        prompt = rng.integers(5, 250, prompt_length).astype(np.int32)
        for n in sizes:
            policy = (rng.random(n) < 0.7).astype(np.float32)
            policy[-1] = 1.0
            streams = {"policy": policy, "imitation": (rng.random(n) < 0.4).astype(np.float32)}
            targets = rng.integers(5, 250, n).astype(np.int32)
            advantages = np.full(n, rng.normal(), np.float32)
            made.append(Example("agent", prompt, targets, streams, advantages))
    return made


def logprobs(learner: Any, **how: Any) -> Any:
    return np.concatenate([numbers["logprobs"] for numbers in learner.forward(batch(), **how)])


def learn(learner: Any, seed: int = 0) -> dict[str, float]:
    learner.forward_backward(pin(TERMS, batch(seed)), TERMS)
    return learner.optim_step(1e-2)


# ---------------------------------------------------------------------------------------- promises


def test_an_engine_promises_only_known_capabilities_and_sampling_is_among_them(
    bench: Bench,
) -> None:
    assert set(bench.engine.provides) - set(CAPABILITIES) == set()
    assert "sample" in bench.engine.provides
    assert isinstance(bench.sampler(), Sampler)


def test_an_engine_that_does_not_train_refuses_a_policy_in_words(bench: Bench) -> None:
    if "train" in bench.engine.provides:
        assert isinstance(bench.learner(), Learner)
        return
    with pytest.raises(KolbError, match="torch_local"):
        bench.learner()


# ---------------------------------------------------------------------------------------- sampling


def test_the_same_seed_says_the_same_whatever_else_is_sampled(bench: Bench) -> None:
    sampler = bench.sampler()
    alone = sample(sampler, seed=11)

    async def among_others() -> list[Completion]:
        prompt = prompt_of(sampler)
        jobs = (sampler.sample(prompt, SamplingParams(max_tokens=12, seed=s)) for s in range(8, 15))
        return [completion for (completion,) in await asyncio.gather(*jobs)]

    assert said(asyncio.run(among_others()))[3:4] == said(alone)
    assert len(set(map(str, said(sample(sampler, n=12, seed=0))))) > 1


def test_n_completions_take_consecutive_seeds(bench: Bench) -> None:
    sampler = bench.sampler()
    together = sample(sampler, n=3, seed=40)
    apart = [sample(sampler, seed=40 + i)[0] for i in range(3)]
    assert said(together) == said(apart)


def test_a_completion_says_why_it_stopped_and_which_version_said_it(bench: Bench) -> None:
    sampler = bench.sampler()
    for completion in sample(sampler, n=4):
        assert completion.stop_reason in ("stop", "length")
        assert completion.version == sampler.version == 0
        assert len(completion.token_ids) <= 12


def test_an_engine_with_tokens_has_a_template_and_one_without_gives_text_only(bench: Bench) -> None:
    sampler = bench.sampler()
    has_tokens = "tokens" in bench.engine.provides
    assert (sampler.template is not None) == has_tokens
    (completion,) = sample(sampler)
    assert bool(len(completion.token_ids)) == has_tokens
    assert has_tokens or completion.text


def test_every_sampled_token_has_a_finite_logprob_of_at_most_0(bench: Bench) -> None:
    bench.needs("tokens", "logprobs")
    for completion in sample(bench.sampler(), n=4, temperature=0.7):
        assert completion.token_ids.dtype == np.int32
        assert completion.logprobs.dtype == np.float32
        assert completion.logprobs.shape == completion.token_ids.shape
        assert np.all(np.isfinite(completion.logprobs))
        assert np.all(completion.logprobs <= 0)


def test_a_full_context_gives_an_empty_completion_that_was_cut_by_length(bench: Bench) -> None:
    bench.needs("tokens")
    if not bench.case.has_window:
        pytest.skip("this case has no context window of known size")
    sampler = bench.sampler()
    prompt = np.resize(prompt_of(sampler), WINDOW).astype(np.int32)
    (full,) = sample(sampler, prompt=prompt)
    assert (len(full.token_ids), full.stop_reason) == (0, "length")


def test_scores_are_the_logprobs_of_sampling_at_temperature_1(bench: Bench) -> None:
    bench.needs("tokens", "logprobs", "score")
    sampler = bench.sampler()
    prompt = prompt_of(sampler)
    (completion,) = sample(sampler)
    tokens = np.concatenate([prompt, completion.token_ids]).astype(np.int32)
    scores = asyncio.run(sampler.score(tokens, start=len(prompt)))
    np.testing.assert_allclose(scores, completion.logprobs, atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------------------------------- template


def test_a_conversation_appends_and_keeps_the_sampled_ids(bench: Bench) -> None:
    bench.needs("tokens")
    sampler = bench.sampler()
    chat = sampler.template.open(CHAT)
    first = chat.prompt_ids
    (completion,) = sample(sampler, prompt=first)
    chat.add(completion)
    chat.extend([{"role": "user", "content": "Higher."}])
    before = np.concatenate([first, completion.token_ids])
    assert chat.prompt_ids[: len(before)].tolist() == before.tolist()
    assert len(chat.prompt_ids) > len(before)
    assert chat.turns[0].starts_segment


def test_a_transcript_is_read_back_as_it_was_written(bench: Bench) -> None:
    bench.needs("tokens")
    template = bench.sampler().template
    written = [*CHAT, {"role": "assistant", "content": "50"}, {"role": "user", "content": "Lower."}]
    turns = template.transcribe([*written, {"role": "assistant", "content": "25"}]).turns
    assert [turn.completion.stop_reason for turn in turns] == ["given", "given"]
    assert [template.decode(turn.completion.token_ids) for turn in turns] == ["50", "25"]
    assert all(turn.completion.token_ids[-1] in template.end_ids for turn in turns)


# ---------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_learner_agree_on_what_was_sampled(bench: Bench, temperature: float) -> None:
    bench.needs("train", "tokens", "logprobs")
    learner = bench.learner()
    learn(learner)
    sampler = learner.publish()
    prompt = prompt_of(sampler)
    completions = sample(sampler, n=4, temperature=temperature)
    examples = [as_example(prompt, c) for c in completions]
    for completion, numbers in zip(
        completions, learner.forward(examples, temperature=temperature), strict=True
    ):
        np.testing.assert_allclose(numbers["logprobs"], completion.logprobs, atol=1e-5, rtol=1e-4)


def test_a_step_makes_a_new_version_and_leaves_old_handles_stale(bench: Bench) -> None:
    bench.needs("train")
    learner = bench.learner()
    old = learner.publish()
    assert (learner.version, old.version) == (0, 0)
    assert learn(learner)["grad_norm"] > 0
    new = learner.publish()
    assert (learner.version, new.version, sample(new)[0].version) == (1, 1, 1)
    with pytest.raises(StaleSamplerError):
        sample(old)


def test_training_moves_the_policy_and_no_frozen_sampler(bench: Bench) -> None:
    bench.needs("train", "score")
    learner, frozen = bench.learner(), bench.sampler()
    tokens = np.concatenate([batch()[0].prompt_ids, batch()[0].target_ids])
    score, before = asyncio.run(frozen.score(tokens)), logprobs(learner)
    learn(learner)
    assert np.abs(logprobs(learner) - before).max() > 1e-4
    np.testing.assert_array_equal(asyncio.run(frozen.score(tokens)), score)


def test_policies_learn_apart_from_each_other(bench: Bench) -> None:
    bench.needs("train", "policies")
    one, other = bench.learner("one"), bench.learner("other")
    before = logprobs(other)
    learn(one)
    assert (one.version, other.version) == (1, 0)
    np.testing.assert_array_equal(logprobs(other), before)


def test_forward_is_0_where_no_stream_has_weight(bench: Bench) -> None:
    bench.needs("train")
    for example, numbers in zip(batch(), bench.learner().forward(batch()), strict=True):
        has_weight = np.any([w != 0 for w in example.weights.values()], axis=0)
        assert np.all(numbers["logprobs"][~has_weight] == 0)
        assert np.all(numbers["logprobs"][has_weight] < 0)


def test_statistics_come_when_asked_for_and_fit_together(bench: Bench) -> None:
    bench.needs("train", "stats:entropy", "stats:minp")
    learner = bench.learner()
    assert set(learner.forward(batch())[0]) == {"logprobs"}
    for numbers in learner.forward(batch(), stats=Stats(entropy=True, minp=MinP(0.1))):
        assert set(numbers) == {"logprobs", "entropy", "max_logprob", "minp_logmass"}
        assert np.all(numbers["entropy"] >= 0)
        assert np.all(numbers["max_logprob"] <= 0)
        assert np.all(numbers["minp_logmass"] <= 1e-6)
        # The kept tokens include the likeliest one.
        assert np.all(numbers["minp_logmass"] >= numbers["max_logprob"] - 1e-6)


def test_a_loss_is_a_sum_that_does_not_depend_on_how_a_step_is_cut(bench: Bench) -> None:
    bench.needs("train")
    pinned = pin(TERMS, batch())
    seen = []
    for number, cut in enumerate(((5,), (2, 3), (1, 1, 1, 1, 1))):
        learner, rest, report = bench.learner(f"cut{number}"), list(pinned), Report()
        start = logprobs(learner)
        for size in cut:
            report.add(learner.forward_backward(rest[:size], TERMS))
            rest = rest[size:]
        norm = learner.optim_step(1e-2)["grad_norm"]
        seen.append((report.losses, norm, logprobs(learner) - start))
    for losses, norm, moved in seen[1:]:
        assert losses == pytest.approx(seen[0][0], rel=1e-4, abs=1e-6)
        assert norm == pytest.approx(seen[0][1], rel=1e-4)
        np.testing.assert_allclose(moved, seen[0][2], atol=2e-3)


def test_a_loss_that_is_not_finite_raises_and_changes_nothing(bench: Bench) -> None:
    bench.needs("train")
    learner = bench.learner()
    before = logprobs(learner)
    poisoned = [
        Example(e.policy, e.prompt_ids, e.target_ids, e.weights, e.advantages * np.float32(np.nan))
        for e in batch()
        if e.advantages is not None
    ]
    with pytest.raises(NonFiniteError):
        learner.forward_backward(pin(TERMS, poisoned), TERMS)
    assert learner.version == 0
    np.testing.assert_array_equal(logprobs(learner), before)


def test_the_base_stays_what_the_policy_started_from(bench: Bench) -> None:
    bench.needs("train", "base")
    learner = bench.learner(keep_base=True)
    start = logprobs(learner)
    np.testing.assert_allclose(logprobs(learner, use_base=True), start, atol=1e-6)
    learn(learner)
    np.testing.assert_allclose(logprobs(learner, use_base=True), start, atol=1e-6)
    assert np.abs(logprobs(learner) - start).max() > 1e-4


# ------------------------------------------------------------------------------------------- files


def test_saved_and_loaded_a_policy_goes_on_as_if_it_had_never_stopped(
    bench: Bench, tmp_path: Path
) -> None:
    bench.needs("train")
    learner = bench.learner("first")
    learn(learner, seed=1)
    learner.save(tmp_path)
    learn(learner, seed=2)
    again = reopened(bench)
    again.load(tmp_path)
    assert again.version == 1
    learn(again, seed=2)
    assert again.version == learner.version == 2
    np.testing.assert_array_equal(logprobs(again), logprobs(learner))


def reopened(bench: Bench) -> Any:
    """The policy ``first`` in a second engine, as a resumed process would open it."""
    return Bench(bench.case).learner("first")


def test_an_export_leaves_files_in_a_folder_of_its_own(bench: Bench, tmp_path: Path) -> None:
    bench.needs("train")
    bench.learner().export(tmp_path / "out")
    assert any((tmp_path / "out").iterdir())
