"""The clipped policy gradient: values and gradients from the papers' acceptance lists."""

import math

import pytest
import torch
from slow_engine import stats, value_and_grad

from kolb.errors import RecipeError
from kolb.terms.policy_gradient import PolicyGradient

ERL = PolicyGradient(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
MASA = PolicyGradient(clip_low=0.2, clip_high=0.28, dual_clip=10.0)
PPO = PolicyGradient()
LP_REG = PolicyGradient(clip_low=1.0, clip_high=9.0)  # the ratio within [0, 10]
OPEN = PolicyGradient(clip_low=1.0, clip_high=math.inf)


@pytest.mark.parametrize(
    ("term", "advantage", "ratio", "loss", "grad"),
    [
        (ERL, 1.0, 1.5, -1.28, 0.0),
        (ERL, 1.0, 0.5, -0.5, -0.5),
        (ERL, -1.0, 0.5, 0.8, 0.0),
        (ERL, -1.0, 5.0, 3.0, 0.0),
        (ERL, -1.0, 2.0, 2.0, 2.0),
        (MASA, 1.0, 1.5, -1.28, 0.0),
        (MASA, -1.0, 0.5, 0.8, 0.0),
        (MASA, -1.0, 20.0, 10.0, 0.0),
        (PPO, 2.0, 1.5, -2.4, 0.0),
        (PPO, -2.0, 1.5, 3.0, 3.0),
        (PPO, -2.0, 0.5, 1.6, 0.0),
        (PPO, -1.0, 0.01, 0.8, 0.0),
        (LP_REG, 1.0, 20.0, -10.0, 0.0),
        (LP_REG, -1.0, 20.0, 20.0, 20.0),
        (LP_REG, -1.0, 0.01, 0.01, 0.01),
        (OPEN, 1.0, 20.0, -20.0, -20.0),
        (PolicyGradient(clip_low=1.0), -1.0, 0.01, 0.01, 0.01),
        (PolicyGradient(clip_high=math.inf), 1.0, 20.0, -20.0, -20.0),
    ],
)
def test_loss_and_gradient_of_one_token(term, advantage, ratio, loss, grad):
    old = -5.0
    got = value_and_grad(term, [old + math.log(ratio)], old=[old], advantages=advantage)
    assert got == (pytest.approx(loss, abs=1e-6), pytest.approx([grad], abs=1e-6))


def test_clip_higher_on_two_tokens_with_a_mean():
    loss, grad = value_and_grad(
        PolicyGradient(clip_high=0.28),
        [-1.0 + 0.3, -1.0 - 0.5],
        old=[-1.0, -1.0],
        advantages=[1.0, -1.0],
        coefficients=0.5,
    )
    assert loss == pytest.approx(-0.24)
    assert grad == [0.0, 0.0]


@pytest.mark.parametrize("term", [PPO, ERL, LP_REG, OPEN])
def test_at_ratio_one_the_gradient_is_the_plain_policy_gradient(term):
    loss, grad = value_and_grad(term, [-0.5, -2.0, -3.0], advantages=[1.5, -0.5, 0.0])
    assert loss == pytest.approx(-1.0)
    assert grad == pytest.approx([-1.5, 0.5, 0.0])


def test_a_positive_weight_from_elsewhere_is_reward_weighted_imitation_at_ratio_one():
    # ERL's distillation: the advantage is the retry's reward, the old policy the bare-prompt one.
    _, grad = value_and_grad(ERL, [-2.0, -0.1], advantages=0.5)
    assert grad == pytest.approx([-0.5, -0.5])


@pytest.mark.parametrize(
    ("old_minus_sampler", "cap", "importance"),
    [
        (0.0, 2.0, 1.0),
        (0.5, 2.0, math.exp(0.5)),
        (3.0, 2.0, 2.0),
        (-1.0, 2.0, math.exp(-1)),
        (3.0, None, 1.0),
        (3.0, 0.0, 1.0),
    ],
)
def test_the_importance_weight_is_truncated_and_constant(old_minus_sampler, cap, importance):
    loss, grad = value_and_grad(
        PolicyGradient(importance_cap=cap),
        [-1.0],
        sampler=[-1.0 - old_minus_sampler],
        advantages=2.0,
    )
    assert loss == pytest.approx(-2.0 * importance)
    assert grad == pytest.approx([-2.0 * importance])


def test_a_wild_log_ratio_is_held_at_twenty_and_stays_finite():
    loss, grad = value_and_grad(OPEN, [0.0], old=[-500.0], advantages=-1.0)
    assert loss == pytest.approx(math.exp(20.0))
    assert grad == [0.0]


def test_a_token_without_coefficient_gives_no_gradient_and_counts_in_no_clip_share():
    given = {
        "old": [-1.0, -1.0],
        "sampler": [-1.5, -9.0],
        "advantages": [1.0, -1.0],
        "coefficients": [1.0, 0.0],
    }
    _, grad = value_and_grad(PPO, [-1.0, 2.0], **given)
    assert grad[0] != 0
    assert grad[1] == 0.0
    metrics = PPO(stats([-1.0, 2.0], **given)).metrics
    assert metrics["clip/share"] == (0.0, 1.0)
    assert metrics["ratio/mean"] == (pytest.approx(1.0 + math.exp(3.0)), 2.0)  # of all tokens


def test_metrics_are_sums_and_counts():
    metrics = PPO(
        stats(
            [-1.0, -1.0 + math.log(1.5)],
            old=[-1.0, -1.0],
            sampler=[-1.0, -1.0 - math.log(2)],
            advantages=1.0,
        )
    ).metrics
    assert metrics["clip/share"] == (1.0, 2.0)
    assert metrics["ratio/mean"] == (pytest.approx(2.5), 2.0)
    assert metrics["importance/mean"] == (pytest.approx(3.0), 2.0)
    k3 = 2.0 - math.log(2) - 1.0  # exp(d) - d - 1, d = old - sampler = ln 2
    assert metrics["kl/sampler_learner"] == (pytest.approx(k3), 2.0)
    assert metrics["kl/sampler_learner/max"] == (pytest.approx(k3), 1.0)


def test_a_micro_batch_without_tokens_is_a_zero_that_can_be_differentiated():
    leaf = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    result = PPO(stats(leaf))
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert result.metrics["clip/share"] == (0.0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_low": -0.1},
        {"clip_high": math.nan},
        {"dual_clip": 0.5},
        {"importance_cap": 0.5},
        {"importance_cap": math.nan},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        PolicyGradient(**wrong)


def test_a_dual_clip_of_zero_is_none_as_recipes_must_be_able_to_say():
    given = {"old": [-5.0], "advantages": -1.0}
    off = value_and_grad(PolicyGradient(dual_clip=0.0), [-5.0 + math.log(5.0)], **given)
    assert off == (pytest.approx(5.0, abs=1e-5), pytest.approx([5.0], abs=1e-5))
    with pytest.raises(RecipeError, match="dual_clip"):
        PolicyGradient(dual_clip=0.5)
