"""Lp-Reg by hand: every number of the paper's equations and of the released code's loss, gradients included."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from slow_lp_reg import PROXY, P, distribution, loss_and_slopes, row

from kolb.engines.local.head import Distributions, proxy_kl, stats_of
from kolb.errors import RecipeError
from kolb.methods import lp_reg as methods
from kolb.terms.lp_reg import OFFICIAL, PAPER, LpReg
from kolb.types import MinP

# ------------------------------------------------------------------------------------- the proxy


def proxy_of(p: list[float], minp: MinP) -> tuple[list[float], float]:
    """The proxy as the engine's two numbers and the sampled token's logprob give it, token by token."""
    found = distribution(p)
    seen = [stats_of(found, torch.tensor([i]), minp=minp) for i in range(len(p))]
    proxy = []
    for s in seen:
        assert s.minp_logmass is not None
        is_kept = bool(minp.keeps(s.logprobs, s.max_logprob))
        proxy.append(float((s.logprobs - s.minp_logmass).exp()) if is_kept else 0.0)
    assert seen[0].minp_logmass is not None
    return proxy, float(seen[0].minp_logmass.exp())


@pytest.mark.parametrize(
    ("minp", "expected", "mass"),
    [
        (MinP(0.02), PROXY, 0.99),
        (MinP(tau=0.05), [0.631579, 0.263158, 0.105263, 0, 0, 0], 0.95),
        (MinP(0.0), P, 1.0),
        (MinP(1.0), [1, 0, 0, 0, 0, 0], 0.6),
    ],
)
def test_the_proxy_is_what_the_filter_keeps_renormalised(minp, expected, mass):
    proxy, kept = proxy_of(P, minp)
    assert proxy == pytest.approx(expected, abs=1e-6)
    assert kept == pytest.approx(mass, abs=1e-6)


def test_a_flat_distribution_is_kept_whole_by_min_p():
    proxy, mass = proxy_of([0.01] * 100, MinP(0.02))
    assert proxy == pytest.approx([0.01] * 100, abs=1e-7)
    assert mass == pytest.approx(1.0, abs=1e-5)


def test_a_fixed_threshold_above_everything_keeps_the_likeliest():
    flat, mass = proxy_of([0.01] * 100, MinP(tau=0.02, strict=True))
    assert flat == pytest.approx([0.01] * 100, abs=1e-7)  # all are the likeliest
    peaked, mass = proxy_of([0.012, *[0.0098] * 100], MinP(tau=0.02))
    assert peaked[:2] == pytest.approx([1.0, 0.0])
    assert mass == pytest.approx(0.012 / 0.992, rel=1e-4)


def test_a_token_at_the_threshold_is_kept_unless_strict():
    p = [0.5, 0.25, 0.01, 0.24]  # kappa .02: threshold .01
    assert proxy_of(p, MinP(0.02))[0][2] > 0
    assert proxy_of(p, MinP(0.02, strict=True))[0][2] == 0


# --------------------------------------------------------------------------------- the full KL


def full_kl(now: list[float], old: list[float]) -> tuple[float, list[float]]:
    logits = torch.tensor(now).log()[None].requires_grad_()
    kl = proxy_kl(Distributions(logits), distribution(old), MinP(0.02, strict=True), 1.0)
    (slopes,) = torch.autograd.grad(kl.sum(), logits)
    return kl.item(), slopes[0].tolist()


def test_the_full_kl_of_an_unchanged_policy_is_minus_log_of_the_kept_mass():
    kl, slopes = full_kl(P, P)
    assert kl == pytest.approx(-math.log(0.99), abs=1e-6) == pytest.approx(0.01005034, abs=1e-6)
    expected = [-0.00606061, -0.00252525, -0.00101010, -0.00040404, 0.0099, 0.0001]
    assert slopes == pytest.approx(expected, abs=1e-6)


def test_the_full_kl_pulls_up_a_token_that_fell():
    kl, slopes = full_kl([0.62, 0.26, 0.10, 0.01, 0.0099, 0.0001], P)
    assert kl == pytest.approx(0.03628539, abs=1e-6)
    expected = [0.01393939, 0.00747475, -0.00101010, -0.03040404, 0.0099, 0.0001]
    assert slopes == pytest.approx(expected, abs=1e-6)


def test_the_full_kl_through_an_output_layer_equals_brute_force_in_any_chunking(monkeypatch):
    torch.manual_seed(0)
    hidden = torch.randn(50, 8).requires_grad_()
    weight = torch.randn(40, 8).requires_grad_()
    old_hidden, old_weight = torch.randn(50, 8), torch.randn(40, 8)
    minp = MinP(0.1)

    def through_the_head() -> tuple[torch.Tensor, ...]:
        kl = proxy_kl(
            Distributions(hidden, weight), Distributions(old_hidden, old_weight), minp, 0.7
        )
        return kl, *torch.autograd.grad((kl * torch.arange(50)).sum(), (hidden, weight))

    logp = torch.log_softmax(hidden @ weight.t() / 0.7, -1)
    p_old = torch.softmax(old_hidden @ old_weight.t() / 0.7, -1)
    q = p_old * (p_old >= 0.1 * p_old.max(-1, keepdim=True).values)
    q = q / q.sum(-1, keepdim=True)
    brute = (torch.xlogy(q, q) - q * logp).sum(-1)
    wanted = (brute, *torch.autograd.grad((brute * torch.arange(50)).sum(), (hidden, weight)))
    for size in (16, 10_000):
        monkeypatch.setattr("kolb.engines.local.head.CPU_CHUNK_BYTES", 4 * 40 * size)
        for a, b in zip(through_the_head(), wanted, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


# --------------------------------------------------------------------------- the sampled token's KL


@pytest.mark.parametrize(
    ("p", "value", "slope"),
    [
        (0.04, 5.06742e-5, -0.01010101),
        (0.02, 0.31700450, -1.02020202),
        (0.01, 1.64405934, -3.04040404),
        (0.003, 9.86769597, -12.46801347),
        (0.0029, 10.0, 0.0),
    ],
)
def test_k3_to_the_proxy_and_its_clamp(p, value, slope):
    term = LpReg(rho=1.0)
    loss, (seen,) = loss_and_slopes([term], [p], old=[0.04], advantages=[-1.0], kept=0.99)
    assert loss == pytest.approx(value, abs=2e-6)
    assert seen == pytest.approx(slope, abs=2e-6)


def test_without_a_clamp_the_pull_goes_on():
    term = LpReg(rho=1.0, kl_clamp=None)
    loss, (slope,) = loss_and_slopes([term], [0.0029], old=[0.04], advantages=[-1.0], kept=0.99)
    assert loss == pytest.approx(10.298, abs=1e-3)
    assert slope == pytest.approx(1 - 0.0404040 / 0.0029, rel=1e-5)


def test_k1_has_the_constant_gradient_one():
    term = LpReg(rho=1.0, kl_mode="k1")
    loss, (slope,) = loss_and_slopes([term], [0.01], old=[0.04], advantages=[-1.0], kept=0.99)
    assert loss == pytest.approx(math.log(0.01 * 0.99 / 0.04), abs=1e-6)
    assert slope == pytest.approx(1.0)


# ---------------------------------------------------- the loss of a step: surrogate and term together


@pytest.mark.parametrize(
    ("p", "advantage", "loss", "slope"),
    [
        (0.04, -1, 1.00005067, 0.49494949),
        (0.02, -1, 0.81700450, -0.26010101),  # the sign flips: the token is pulled up
        (0.05, -1, 1.25, 0.625),  # above the proxy already: no penalty
        (0.04, 1, -1.0, -0.5),
        (1e-4, -1, 10.0025, 0.00125),  # clamped: no pull is left
    ],
)
def test_two_equal_tokens_under_the_released_loss(p, advantage, loss, slope):
    terms = methods.OFFICIAL.terms[0], LpReg(rho=1.0, gate_scope="micro")
    seen, slopes = loss_and_slopes(
        terms, [p, p], old=[0.04, 0.04], advantages=[advantage] * 2, kept=0.99
    )
    assert seen == pytest.approx(loss, abs=1e-5)
    assert slopes == pytest.approx([slope] * 2, abs=1e-5)


def test_above_the_proxy_the_papers_gate_still_holds():
    terms = methods.PAPER.terms[0], LpReg(rho=1.0, noise_gate="proxy_positive")
    loss, slopes = loss_and_slopes(
        terms, [0.05, 0.05], old=[0.04, 0.04], advantages=[-1.0, -1.0], kept=0.99
    )
    k3 = 0.0404040 / 0.05 - 1 - math.log(0.0404040 / 0.05)
    assert loss == pytest.approx(1.25 + k3, abs=1e-5)
    assert slopes == pytest.approx([(1.25 + 1 - 0.0404040 / 0.05) / 2] * 2, abs=1e-5)


def test_a_token_that_the_filter_drops_is_noise():
    terms = methods.OFFICIAL.terms[0], LpReg(rho=1.0, kappa=0.1, gate_scope="micro")
    loss, slopes = loss_and_slopes(
        terms, [0.04, 0.04], old=[0.04, 0.04], advantages=[-1.0, -1.0], kept=0.95
    )
    assert loss == pytest.approx(1.0)
    assert slopes == pytest.approx([0.5, 0.5])


def test_one_token_is_gated_by_a_batch_and_by_no_micro_batch():
    """rho .5 of two negatives is one token, which the released code takes for none."""
    given = {"old": [0.04, 0.04], "advantages": [-1.0, -1.0], "kept": 0.99}
    surrogate = methods.OFFICIAL.terms[0]
    loss, slopes = loss_and_slopes(
        [surrogate, LpReg(rho=0.5, gate_scope="micro")], [0.04, 0.039], **given
    )
    assert loss == pytest.approx((1 + 0.039 / 0.04) / 2)
    assert slopes == pytest.approx([0.5, 0.4875])
    loss, slopes = loss_and_slopes(
        [surrogate, LpReg(rho=0.5)], [0.04, 0.039], threshold=math.log(0.0395), **given
    )
    assert slopes == pytest.approx([0.5, 0.4875 + (1 - 0.0404040 / 0.039) / 2], abs=1e-5)


@pytest.mark.parametrize(
    ("method", "advantage", "ratio", "loss", "slope"),
    [
        (methods.OFFICIAL, 1.0, 20.0, -10.0, 0.0),
        (methods.OFFICIAL, -1.0, 20.0, 20.0, 20.0),
        (methods.PAPER, -1.0, 20.0, 10.0, 0.0),
        (methods.OFFICIAL, -1.0, 0.01, 0.01, 0.01),  # GRPO's 0.2 would have stopped this one
        (methods.PAPER, -1.0, 0.01, 0.01, 0.01),
    ],
)
def test_the_surrogate_is_bounded_as_the_paper_or_as_the_code(
    method, advantage, ratio, loss, slope
):
    old = 0.04
    seen, (push,) = loss_and_slopes(
        [method.terms[0]], [old * ratio], old=[old], advantages=[advantage], kept=0.99
    )
    assert seen == pytest.approx(loss, abs=1e-5)
    assert push == pytest.approx(slope, abs=1e-5)


def test_two_tokens_with_a_negative_advantage_and_a_ratio_of_twenty():
    given = {"old": [0.04, 0.04], "advantages": [-1.0, -1.0]}
    assert loss_and_slopes([methods.OFFICIAL.terms[0]], [0.8, 0.8], **given) == (
        pytest.approx(20.0),
        pytest.approx([10.0, 10.0]),
    )
    assert loss_and_slopes([methods.PAPER.terms[0]], [0.8, 0.8], **given) == (
        pytest.approx(10.0),
        [0, 0],
    )


def test_where_the_filter_keeps_everything_no_gate_can_fire():
    """A hundred tokens at .01: the proxy is the policy, and no token is below it."""
    for term in (LpReg(rho=1.0), LpReg(rho=1.0, gate_scope="micro"), LpReg(rho=1.0, kappa=0.0)):
        now = [0.01, 0.01 * (1 - 1e-8)]
        loss, slopes = loss_and_slopes(
            [term], now, old=[0.01, 0.01], advantages=[-1.0, -1.0], kept=1.0, likeliest=0.01
        )
        assert loss == 0
        assert slopes == [0, 0]


def test_of_equal_probabilities_a_micro_batch_gates_no_more_than_its_share():
    term = LpReg(rho=0.5, gate_scope="micro")
    _, slopes = loss_and_slopes([term], [0.02] * 4, old=[0.04] * 4, advantages=[-1.0] * 4)
    assert [s != 0 for s in slopes] == [True, True, False, False]


ROWS = {"advantages": [-1.0] * 4 + [1.0] * 3, "kept": 0.98}
TWO_ROWS = [0.9, 0.5, 0.03, 0.02, 0.8, 0.01, 0.04]


def test_the_released_gate_takes_the_lowest_of_the_negatives():
    terms = methods.OFFICIAL.terms[0], LpReg(rho=0.5, gate_scope="micro")
    loss, slopes = loss_and_slopes(terms, TWO_ROWS, old=TWO_ROWS, **ROWS)
    assert loss == pytest.approx(0.14291584, abs=1e-6)
    expected = [0.14285714, 0.14285714, 0.13994169, 0.13994169, *[-0.14285714] * 3]
    assert slopes == pytest.approx(expected, abs=1e-6)
    terms = methods.OFFICIAL.terms[0], LpReg(rho=0.29, gate_scope="micro")
    assert loss_and_slopes(terms, TWO_ROWS, old=TWO_ROWS, **ROWS)[1][:4] == pytest.approx(
        [1 / 7] * 4, abs=1e-6
    )


# ------------------------------------------------------------------------------ thresholds of a batch


def thresholds(
    term: LpReg, probabilities: list[list[float]], advantages: list[float]
) -> list[float]:
    rows = [row(a, [1.0] * len(p)) for p, a in zip(probabilities, advantages, strict=True)]
    logprobs = [np.log(np.array(p, np.float32)) for p in probabilities]
    marks = term.mark(rows, logprobs)
    return [float(np.exp(m["lp_reg/threshold"][0])) for m in marks]


def test_the_papers_quantile_is_of_all_tokens_and_only_negative_ones_are_gated():
    """rho .29 of 7 tokens: .01 (positive) and .02 (negative), so that .02 alone is gated."""
    rows = [TWO_ROWS[:4], TWO_ROWS[4:]]
    assert thresholds(LpReg(rho=0.29, gate_pool="all"), rows, [-1, 1]) == pytest.approx([0.02] * 2)
    assert thresholds(LpReg(rho=0.29), rows, [-1, 1]) == pytest.approx([0.02] * 2)  # 1 of 4
    assert thresholds(LpReg(rho=0.5), rows, [-1, 1]) == pytest.approx([0.03] * 2)
    assert thresholds(LpReg(rho=0.2), rows, [-1, 1]) == [0.0, 0.0]  # less than one token
    term = LpReg(rho=0.29, gate_pool="all", noise_gate="proxy_positive")
    logprobs = [np.log(np.array(p, np.float32)) for p in rows]
    marks = term.mark([row(-1.0, [1] * 4), row(1.0, [1] * 3)], logprobs)
    threshold = float(marks[0]["lp_reg/threshold"][0])
    terms = methods.PAPER.terms[0], term
    now = np.exp(np.concatenate(logprobs).astype(np.float64)).tolist()
    _, slopes = loss_and_slopes(terms, now, old=now, threshold=threshold, **ROWS)
    gated = [abs(abs(s) - 1 / 7) > 1e-4 for s in slopes]
    assert gated == [False, False, False, True, False, False, False]


def test_pads_and_masked_tokens_are_in_no_quantile_and_feel_nothing():
    logprobs = [np.log(np.array([0.5, 1e-6, 0.2, 0.1], np.float32))]
    (mark,) = LpReg(rho=0.34).mark([row(-1.0, [1, 0, 1, 1])], logprobs)
    assert np.exp(mark["lp_reg/threshold"]) == pytest.approx([0.1] * 4)
    terms = [LpReg(rho=1.0)]
    _, slopes = loss_and_slopes(
        terms, [0.02, 0.02], old=[0.04, 0.04], advantages=[-1, -1], kept=0.99, coefficients=[1.0, 0]
    )
    assert slopes == pytest.approx([-1.02020202, 0.0], abs=1e-6)


# ----------------------------------------------------------------------------------- settings


def test_the_presets_are_what_the_paper_and_the_code_have():
    assert (PAPER.kl_mode, PAPER.gate_scope, PAPER.gate_pool) == ("full", "batch", "all")
    assert (PAPER.noise_gate, PAPER.strict, PAPER.kl_clamp) == ("proxy_positive", True, None)
    assert (OFFICIAL.kl_mode, OFFICIAL.gate_scope, OFFICIAL.gate_pool) == (
        "k3",
        "micro",
        "negatives",
    )
    assert (OFFICIAL.noise_gate, OFFICIAL.strict, OFFICIAL.kl_clamp) == ("below_proxy", False, 10.0)
    for term in (PAPER, OFFICIAL, LpReg()):
        assert (term.beta, term.rho, term.kappa) == (1.0, 0.01, 0.02)
    for method in (methods.METHOD, methods.OFFICIAL, methods.PAPER):
        assert (method.grpo.clip_low, method.grpo.clip_high) == (1.0, 9.0)
        assert method.grpo.group_size == 8
        assert [term.normalisation for term in method.terms] == ["token-mean"] * 2
        assert not method.grpo.importance_cap


def test_rows_that_nobody_sampled_are_in_no_quantile():
    """As ERL's distilled ones: unlikely as they stand, and never pushed down."""
    sampled = replace(row(-1.0, [1] * 4), sampler_logprobs=np.zeros(4, np.float32))
    logprobs = [np.log(np.array(p, np.float32)) for p in ([0.9, 0.5, 0.03, 0.02], [1e-9] * 4)]
    marks = LpReg(rho=0.5, gate_pool="all").mark([sampled, row(1.0, [1] * 4)], logprobs)
    assert np.exp(marks[1]["lp_reg/threshold"]) == pytest.approx([0.03] * 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kl_mode": "k2"}, "kl_mode = 'k2'"),
        ({"gate_scope": "global"}, "gate_scope = 'global'"),
        ({"rho": 1.5}, "rho = 1.5; expected 0 to 1"),
        ({"kappa": -0.1}, "kappa = -0.1"),
        ({"beta": -1.0}, "beta"),
        ({"kl_clamp": -1.0}, "kl_clamp"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options, said):
    with pytest.raises(RecipeError, match=said):
        LpReg(**options)


def test_only_the_full_kl_needs_whole_distributions():
    assert "stats:proxy_kl" in PAPER.needs
    assert OFFICIAL.needs == {"stats:minp"}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"gated": 0.1, "rare": 0.2, "noise": 0.1}, ""),
        ({"gated": 0.0, "rare": 0.0, "noise": 0.0, "threshold": 0.0}, "less than one token"),
        ({"gated": 0.0, "rare": 0.0, "noise": 0.0, "threshold": 0.02}, "have A >= 0"),
        ({"gated": 0.0, "rare": 0.2, "noise": 0.2, "threshold": 0.02}, "calls all rare tokens"),
        ({"gated": 0.0, "rare": 0.2, "noise": 0.1, "threshold": 0.02}, "as likely as in the proxy"),
    ],
)
def test_a_gate_that_never_fires_is_said_in_words(metrics, said):
    remark = LpReg().remark({f"lp_reg/{name}": value for name, value in metrics.items()})
    assert said in remark
    assert bool(said) == bool(remark)
