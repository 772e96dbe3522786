"""Lp-Reg on the embedded engine: what holds whatever the weights are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loop_toys import recipe

from kolb.checks import check_recipe
from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec, Stats
from kolb.engines.local.learner import LocalLearner
from kolb.engines.torch_local import TorchLocal
from kolb.errors import RecipeError
from kolb.learning import update_policy
from kolb.methods.grpo import Grpo
from kolb.models.tokenizers import byte_tokenizer
from kolb.stage import Stage
from kolb.terms.base import check_terms
from kolb.terms.entropy import Entropy
from kolb.terms.forking import ForkingTokens
from kolb.terms.gspo import Gspo
from kolb.terms.kl_cov import KlCov
from kolb.terms.lp_reg import OFFICIAL, PAPER, LpReg
from kolb.types import Example, MinP

LLAMA = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip


@pytest.fixture
def opened(tmp_path) -> Any:
    byte_tokenizer().save_pretrained(tmp_path)

    def learner(*, micro_tokens: int = 4096, lora: LoraSpec | None = None) -> LocalLearner:
        engine = TorchLocal(threads=1, micro_tokens=micro_tokens)
        model = ModelSpec(build=LLAMA, tokenizer=str(tmp_path), seed=3)
        return engine.open_policy("agent", model, lora=lora, optimizer=OptimizerSpec(lr=1e-2))

    return learner


def batch(seed: int = 0, size: int = 12) -> list[Example]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(size):
        n = int(rng.integers(3, 9))
        weights = np.ones(n, np.float32)
        weights[1] = 0.0  # what the environment said
        made.append(
            Example(
                "agent",
                rng.integers(0, 260, 5).astype(np.int32),
                rng.integers(0, 260, n).astype(np.int32),
                {"policy": weights},
                np.full(n, 1.0 if i % 3 == 0 else -0.5, np.float32),
                sequence=f"s{i}",
            )
        )
    return made


def stage(*terms: Any, updates: int = 1, **changes: Any) -> Stage:
    made = recipe(updates_per_step=updates).stages[0]
    method = Grpo(clip_low=1.0, clip_high=9.0, importance_cap=None)
    return replace(made, terms=terms, **{"method": method, **changes})


def weights(learner: LocalLearner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.parameters.values()])


def learn(learner: LocalLearner, chosen: Stage) -> dict[str, float]:
    report = update_policy(learner, batch(), chosen, lr=1e-2, seed=1)
    assert not report.skipped
    return report.metrics()


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("off", [LpReg(beta=0.0), LpReg(rho=0.0), replace(PAPER, beta=0.0)])
def test_at_weight_zero_a_run_is_grpo_to_the_last_bit(opened, off, updates):
    plain, with_term = opened(), opened()
    learn(plain, stage(updates=updates))
    learn(with_term, stage(off, updates=updates))
    assert torch.equal(weights(plain), weights(with_term))


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize(
    "term",
    [
        LpReg(rho=0.3, kappa=1e-3),
        replace(PAPER, rho=0.3, kappa=1e-3),
        KlCov(percent=20),
        ForkingTokens(),
        Gspo(),
    ],
    ids=["lp_reg", "paper", "kl_cov", "forking", "gspo"],
)
def test_no_result_depends_on_how_a_batch_is_cut(opened, term, updates):
    whole, cut = opened(), opened(micro_tokens=16)
    before = weights(whole)
    a, b = learn(whole, stage(term, updates=updates)), learn(cut, stage(term, updates=updates))
    assert (weights(whole) - before).abs().max() > 1e-3
    torch.testing.assert_close(weights(whole), weights(cut), atol=2e-5, rtol=1e-4)
    for name in (n for n in a if n.startswith(("lp_reg/", "loss/"))):
        assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-5)


def test_the_released_gate_does_depend_on_it(opened):
    official = replace(OFFICIAL, rho=0.1, kappa=1e-3)
    whole, cut = learn(opened(), stage(official)), learn(opened(micro_tokens=16), stage(official))
    assert whole["lp_reg/gated"] > 0
    assert cut["lp_reg/gated"] == 0  # no micro-batch has twenty negatives: the method is off


def test_the_gate_moves_weights_and_says_how_much_it_covers(opened):
    without, with_term = opened(), opened()
    learn(without, stage(updates=3))
    seen = learn(with_term, stage(LpReg(rho=0.3, kappa=1e-3), updates=3))
    assert not torch.equal(weights(without), weights(with_term))
    assert seen["lp_reg/negative"] == pytest.approx(2 / 3, abs=0.1)
    assert 0.2 < seen["lp_reg/rare"] < 0.5
    assert 0 < seen["lp_reg/gated"] <= seen["lp_reg/rare"] - seen["lp_reg/noise"] + 1e-6
    assert 0 < seen["lp_reg/kept_mass"] <= 1
    assert seen["lp_reg/kl"] > 0
    assert 0 < seen["tokens/rare"] <= 1
    assert seen["entropy/mean"] > 0


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4)])
def test_the_proxy_stays_that_of_the_weights_before_the_first_update(opened, lora):
    """At first the full KL is -ln of the kept mass; after an update its proxy has not moved."""
    learner = opened(lora=lora)
    minp, rows = MinP(0.02, strict=True), batch()
    term = replace(PAPER, rho=1.0)
    asked = Stats(minp=minp, remember=True)
    numbers = learner.forward(rows, stats=asked)
    mean_mass = np.concatenate(
        [n["minp_logmass"][r.weights["policy"] > 0] for n, r in zip(numbers, rows, strict=True)]
    )
    ready = [
        r.with_extras(
            **{f"old_{k}": v for k, v in n.items()},
            **{"lp_reg/threshold": np.zeros_like(n["logprobs"])},
        )
        for r, n in zip(rows, numbers, strict=True)
    ]
    report = learner.forward_backward(ready, (replace(term, gate_pool="all"),))
    kept = [
        bool(minp.keeps(lp, top))
        for n, r in zip(numbers, rows, strict=True)
        for lp, top, w, a in zip(
            n["logprobs"], n["max_logprob"], r.weights["policy"], r.advantages, strict=True
        )
        if w > 0 and a < 0
    ]
    negative = np.concatenate([(r.advantages < 0)[r.weights["policy"] > 0] for r in rows])
    wanted = float(-mean_mass[negative][np.array(kept)].mean())
    assert report.means()["lp_reg/kl"] == pytest.approx(wanted, rel=1e-4)
    learner.optim_step(1e-2)
    moved = learner.forward_backward(ready, (term,)).means()["lp_reg/kl"]
    assert moved > wanted  # the policy has left its proxy


def test_without_remembered_weights_the_full_kl_is_an_error(opened):
    learner = opened()
    rows = [e.with_extras(old_max_logprob=np.zeros(len(e.target_ids), np.float32)) for e in batch()]
    with pytest.raises(RecipeError, match="remember=True"):
        learner.forward_backward(rows, (PAPER,))


def test_terms_that_ask_for_different_proxies_are_refused(opened):
    clash = (LpReg(kappa=0.1), LpReg(kappa=0.2, name="another"))
    with pytest.raises(RecipeError, match=r"different statistics, minp = .*another"):
        check_terms(clash)
    made = recipe(Grpo())
    with pytest.raises(RecipeError, match="another"):
        check_recipe(replace(made, stages=(replace(made.stages[0], terms=clash),)), TorchLocal())


def test_groups_without_a_difference_stop_no_run(opened):
    """Their advantages are 0: nothing is asked about them, and nothing is missed."""
    dead = [replace(e, advantages=np.zeros_like(e.advantages)) for e in batch(1, 4)]
    good = [replace(e, advantages=np.abs(e.advantages)) for e in batch(2, 4)]
    for term in (LpReg(rho=0.3), OFFICIAL, replace(PAPER, rho=0.3), KlCov(), ForkingTokens()):
        for rows in ([*batch(), *dead], good, dead):
            report = update_policy(opened(), rows, stage(term, updates=2), lr=1e-2, seed=1)
            assert not report.skipped


def test_the_quantile_of_all_tokens_counts_those_of_dead_groups(opened):
    dead = [replace(e, advantages=np.zeros_like(e.advantages)) for e in batch(1)]
    term = LpReg(rho=0.1, kappa=1e-3, gate_pool="all")
    alone = update_policy(opened(), batch(), stage(term), lr=1e-2, seed=1).metrics()
    both = update_policy(opened(), [*batch(), *dead], stage(term), lr=1e-2, seed=1).metrics()
    assert alone["lp_reg/threshold"] != both["lp_reg/threshold"]
    assert alone["examples/agent"] == both["examples/agent"]


def test_a_term_that_leaves_it_open_has_the_normalisation_of_the_methods_first():
    chosen = stage(LpReg(), ForkingTokens(), method=Grpo(normalisation="constant", constant=50.0))
    assert [(t.normalisation, t.constant) for t in chosen.all_terms] == [("constant", 50.0)] * 2
    assert LpReg().normalisation == ""
    told = stage(LpReg(normalisation="token-mean"), method=Grpo(normalisation="sequence-mean"))
    assert [t.normalisation for t in told.all_terms] == ["sequence-mean", "token-mean"]


def test_entropy_and_rarity_are_of_all_tokens_whichever_learn(opened):
    plain, forking = learn(opened(), stage()), learn(opened(), stage(ForkingTokens()))
    for name in ("entropy/mean", "tokens/rare"):
        assert forking[name] == pytest.approx(plain[name], rel=1e-4)


def test_a_stages_surrogate_takes_the_place_of_the_methods():
    chosen = stage(Gspo(), Entropy())
    assert [type(t).__name__ for t in chosen.all_terms] == ["Gspo", "Entropy"]
    assert [type(t).__name__ for t in stage(Entropy()).all_terms] == ["PolicyGradient", "Entropy"]
