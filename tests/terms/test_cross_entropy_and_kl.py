"""Cross-entropy, the KL estimators with their gradients, and the entropy bonus."""

import math

import pytest
import torch
from slow_engine import example, run, stats, tensor, value_and_grad

from kolb.errors import RecipeError
from kolb.terms.base import coefficients
from kolb.terms.cross_entropy import CrossEntropy
from kolb.terms.entropy import Entropy
from kolb.terms.kl import KLToReference, k1, k2, k3


@pytest.mark.parametrize(("normalisation", "loss"), [("token-mean", 2.6), ("sequence-mean", 2.0)])
def test_a_short_and_a_long_row_by_token_and_by_row(normalisation, loss):
    # One row of 2 tokens at 1.0 nats and one of 8 tokens at 3.0 nats.
    term = CrossEntropy(normalisation=normalisation)
    rows = [example(2, stream="imitation"), example(8, stream="imitation")]
    per_token = [c for row in coefficients(term, rows) for c in row.tolist()]
    got, grad = value_and_grad(term, [-1.0] * 2 + [-3.0] * 8, coefficients=per_token)
    assert got == pytest.approx(loss)
    assert grad == pytest.approx([-c for c in per_token])


@pytest.mark.parametrize("masked", [0, 3, 6])
def test_uniform_logits_over_eight_words_cost_ln_8_whatever_is_masked(masked):
    e = example(8, stream="imitation", weights=[0] * masked + [1] * (8 - masked))
    loss, _ = run([CrossEntropy()], [[e]], torch.zeros(8, dtype=torch.float64))
    assert loss == pytest.approx(math.log(8), abs=1e-4)


def test_a_weight_equal_to_the_reward_is_reward_weighted_imitation():
    term = CrossEntropy(normalisation="sequence-mean-token-sum")
    rows = [example(2, stream="imitation", weights=[w] * 2) for w in (1.0, 0.5)]
    assert [c.tolist() for c in coefficients(term, rows)] == [[0.5, 0.5], [0.25, 0.25]]


def test_advantages_play_no_part_in_imitation():
    assert value_and_grad(CrossEntropy(), [-1.0], advantages=-7.0) == (1.0, [-1.0])


def test_imitation_reports_its_mean_in_nats():
    assert CrossEntropy()(stats([-1.0, -3.0])).metrics == {"nll/imitation": (4.0, 2.0)}


@pytest.mark.parametrize(
    ("estimator", "difference", "value", "grad"),  # difference = ref - cur
    [
        (k1, math.log(2), -math.log(2), 1.0),
        (k2, math.log(2), math.log(2) ** 2 / 2, -math.log(2)),
        (k3, 0.0, 0.0, 0.0),
        (k3, math.log(2), 2 - math.log(2) - 1, -1.0),
        (k3, math.log(0.0404040404 / 0.04), 5.06742e-5, -0.01010101),
        (k3, math.log(0.0404040404 / 0.02), 0.31700450, -1.02020202),
        (k3, math.log(0.0404040404 / 0.01), 1.64405934, -3.04040404),
        (k3, math.log(0.0404040404 / 0.003), 9.86769597, -12.46801347),
        (k3, math.log(0.0404040404 / 0.0029), 10.29821, -12.93243),
    ],
)
def test_estimators_and_their_gradients(estimator, difference, value, grad):
    cur = tensor([-3.0]).requires_grad_()
    kl = estimator(cur, tensor([-3.0 + difference]))
    kl.backward()
    assert kl.item() == pytest.approx(value, abs=1e-5)
    assert cur.grad.item() == pytest.approx(grad, abs=1e-5)


def expectation(estimator, logits, reference):
    """The exact mean of an estimator's value, and of its gradient, over tokens of the current policy."""
    logits = logits.clone().requires_grad_()
    log_p = logits.log_softmax(-1)
    per_token = estimator(log_p, reference)
    value = (log_p.detach().exp() * per_token).sum()
    value.backward()
    return value.item(), logits.grad


def test_on_average_k1_and_k3_are_the_kl_and_each_gradient_is_what_the_docstring_says():
    logits, reference = tensor([0.3, -1.0, 0.8]), tensor([1.0, 0.2, -0.5]).log_softmax(-1)
    reverse, forward = (logits.clone().requires_grad_() for _ in range(2))
    log_p = reverse.log_softmax(-1)
    kl = (log_p.exp() * (log_p - reference)).sum()
    kl.backward()
    (reference.exp() * (reference - forward.log_softmax(-1))).sum().backward()
    assert expectation(k1, logits, reference)[0] == pytest.approx(kl.item())
    assert expectation(k3, logits, reference)[0] == pytest.approx(kl.item())
    torch.testing.assert_close(expectation(k1, logits, reference)[1], torch.zeros(3).double())
    torch.testing.assert_close(expectation(k2, logits, reference)[1], reverse.grad)
    torch.testing.assert_close(expectation(k3, logits, reference)[1], forward.grad)


def test_the_reference_term_scales_by_its_coefficient_and_reports_the_bare_kl():
    term = KLToReference(coefficient=0.1)
    given = {"coefficients": 0.5, "ref_logprobs": [-1.0 + math.log(2), -1.0]}
    loss, grad = value_and_grad(term, [-1.0, -1.0], **given)
    k = 1 - math.log(2)
    assert loss == pytest.approx(0.1 * 0.5 * k)
    assert grad == pytest.approx([-0.1 * 0.5, 0.0])
    assert term(stats([-1.0, -1.0], **given)).metrics["kl/reference"] == (pytest.approx(k), 2.0)
    assert term.needs == {"base"}


def test_a_misspelt_estimator_gets_a_hint():
    with pytest.raises(RecipeError, match="did you mean 'k3'"):
        KLToReference(estimator="k33")


def test_entropy_is_rewarded():
    entropy = tensor([0.5, 1.5]).requires_grad_()
    result = Entropy(coefficient=0.01)(stats([-1.0, -1.0], coefficients=0.5, entropy=entropy))
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-0.01)
    assert entropy.grad.tolist() == pytest.approx([-0.005, -0.005])


def test_entropy_without_an_engine_that_gives_it_says_what_is_missing():
    with pytest.raises(RecipeError, match="stats:entropy"):
        Entropy()(stats([-1.0]))
