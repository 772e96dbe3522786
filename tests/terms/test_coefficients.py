"""One global denominator per term, fixed before micro-batches are cut."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_engine import example, run, tensor

from kolb.errors import RecipeError
from kolb.terms.base import NORMALISATIONS, check_terms, coefficients, pin, prepare
from kolb.terms.cross_entropy import CrossEntropy
from kolb.terms.entropy import Entropy
from kolb.terms.kl import KLToReference
from kolb.terms.policy_gradient import PolicyGradient


def lists(arrays):
    return [a.tolist() for a in arrays]


@pytest.mark.parametrize(
    ("normalisation", "expected"),
    [
        ("token-mean", [[0.2, 0, 0.2], [0.2], [0.2, 0.2]]),
        ("sequence-mean", [[1 / 4, 0, 1 / 4], [1 / 6], [1 / 6, 1 / 6]]),
        ("sequence-mean-token-sum", [[0.5, 0, 0.5], [0.5], [0.5, 0.5]]),
        ("constant", [[0.1, 0, 0.1], [0.1], [0.1, 0.1]]),
    ],
)
def test_each_normalisation_by_hand(normalisation, expected):
    # Two sequences of weight: [1, 0, 1] by itself, and "s" of two segments; "empty" has none.
    term = PolicyGradient(normalisation=normalisation, constant=10.0)
    rows = [
        example(3, weights=[1, 0, 1]),
        example(1, sequence="s"),
        example(2, sequence="s"),
        example(2, sequence="empty", weights=[0, 0]),
    ]
    got = lists(coefficients(term, rows))
    for mine, wanted in zip(got, [*expected, [0, 0]], strict=True):
        assert mine == pytest.approx(wanted)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_nothing_to_divide_by_gives_zeros(normalisation):
    term = PolicyGradient(normalisation=normalisation)
    rows = [example(2, weights=[0, 0]), example(2, stream="imitation")]
    assert lists(coefficients(term, rows)) == [[0, 0], [0, 0]]
    assert coefficients(term, []) == []


def test_terms_of_different_streams_have_denominators_of_their_own():
    policy = [example(2, advantages=1.0), example(4, advantages=-1.0)]
    imitation = [example(30, stream="imitation")]
    terms = (
        PolicyGradient(normalisation="sequence-mean"),
        CrossEntropy(normalisation="token-mean"),
    )
    alone, mixed = prepare(terms, policy), prepare(terms, policy + imitation)
    assert lists(m["policy_gradient"] for m in mixed[:2]) == lists(
        m["policy_gradient"] for m in alone
    )
    assert mixed[2]["cross_entropy"].tolist() == pytest.approx([1 / 30] * 30)
    assert not mixed[2]["policy_gradient"].any()
    assert not mixed[0]["cross_entropy"].any()


def test_losses_of_two_terms_add_up():
    logits = tensor([0.1, -0.4, 0.9])
    rows = [example(3, advantages=0.7), example(2, stream="imitation")]
    terms = (PolicyGradient(normalisation="sequence-mean"), CrossEntropy())
    both_loss, both_grad = run(terms, [rows], logits)
    parts = [run([t], [rows], logits) for t in terms]
    assert both_loss == pytest.approx(sum(p[0] for p in parts))
    torch.testing.assert_close(both_grad, parts[0][1] + parts[1][1])


def test_a_masked_token_does_not_move_its_logit():
    rows = [example(3, advantages=1.0, weights=[1, 0, 1], ref_logprobs=[-1, -9, -1])]
    terms = (PolicyGradient(), KLToReference(coefficient=1.0))
    _, grad = run(terms, [rows], tensor([0.0, 0.0, 0.0]))
    other = [example(3, advantages=1.0, weights=[1, 0, 1], ref_logprobs=[-1, -2, -1])]
    assert torch.equal(grad, run(terms, [other], tensor([0.0, 0.0, 0.0]))[1])


@st.composite
def steps(draw):
    """The examples of one optimiser step, and a way to cut them."""
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        n = draw(st.integers(1, 5))
        numbers = st.lists(st.floats(-2, 2, width=32), min_size=n, max_size=n)
        negative = st.lists(st.floats(-3, -0.5, width=32), min_size=n, max_size=n)
        rows.append(
            example(
                n,
                stream=draw(st.sampled_from(["policy", "imitation"])),
                weights=draw(st.lists(st.sampled_from([0, 0.5, 1]), min_size=n, max_size=n)),
                sequence=draw(st.sampled_from(["", "a", "b"])),
                advantages=draw(st.sampled_from([-1.0, 0.25, 1.5])),
                old=draw(negative),
                sampler=draw(negative),
                ref_logprobs=draw(numbers),
            )
        )
    order = draw(st.permutations(range(len(rows))))
    cuts = draw(st.sets(st.integers(1, len(rows)), max_size=3))
    return rows, order, sorted(cuts)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@settings(max_examples=25, deadline=None)
@given(step=steps())
def test_loss_and_gradient_do_not_depend_on_how_a_step_is_cut(normalisation, step):
    rows, order, cuts = step
    how = {"normalisation": normalisation, "constant": 7.0}
    terms = (
        PolicyGradient(dual_clip=3.0, **how),
        KLToReference(coefficient=0.3, **how),
        Entropy(coefficient=0.1, **how),
        CrossEntropy(**how),
    )
    logits = tensor([0.3, -0.2, 0.9, 0.0, -1.0])
    whole_loss, whole_grad = run(terms, [rows], logits)
    pinned = pin(terms, rows)
    shuffled = [pinned[i] for i in order]
    edges = [0, *cuts, len(shuffled)]
    batches = [shuffled[a:b] for a, b in itertools.pairwise(edges)]
    loss, grad = run(terms, batches, logits)
    assert np.isfinite(whole_loss)
    assert loss == pytest.approx(whole_loss, abs=1e-9)
    torch.testing.assert_close(grad, whole_grad, atol=1e-9, rtol=1e-9)


def test_pinned_numbers_are_kept_when_cut_and_made_afresh_when_pinned_again():
    term = PolicyGradient()
    rows = [example(1, advantages=1.0), example(3, advantages=1.0)]
    pinned = pin([term], rows)
    assert prepare([term], pinned[:1])[0]["policy_gradient"].tolist() == [0.25]
    assert prepare([term], rows[:1])[0]["policy_gradient"].tolist() == [1.0]
    assert prepare([term], pin([term], pinned[:1]))[0]["policy_gradient"].tolist() == [1.0]
    assert rows[0].extras == {}


def test_a_mixture_of_pinned_and_bare_examples_is_refused():
    term = PolicyGradient()
    rows = [example(1, advantages=1.0), example(3, advantages=1.0)]
    with pytest.raises(RecipeError, match="policy_gradient: 1 of 2 examples carry no coefficients"):
        prepare([term], [pin([term], rows)[0], rows[1]])


def test_a_term_that_joins_after_pinning_is_refused():
    pinned = pin([PolicyGradient()], [example(1, advantages=1.0)])
    with pytest.raises(RecipeError, match="entropy: 1 of 1 examples carry no coefficients"):
        prepare([PolicyGradient(), Entropy()], pinned)


def test_a_term_that_lacks_what_it_reads_names_it():
    with pytest.raises(RecipeError, match="policy_gradient reads advantages, which example 1"):
        prepare([PolicyGradient()], [example(1, advantages=1.0), example(1)])
    with pytest.raises(RecipeError, match="kl_to_reference reads ref_logprobs"):
        prepare([KLToReference()], [example(1)])
    # An example of another stream owes a term nothing.
    prepare([PolicyGradient(), KLToReference()], [example(1, stream="imitation")])


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_weights_that_are_missing_negative_or_not_finite_are_refused(weights):
    with pytest.raises(ValueError, match="an example with 2 targets"):
        coefficients(PolicyGradient(), [example(2, weights=weights)])


def test_terms_need_names_of_their_own():
    with pytest.raises(RecipeError, match="two terms are called 'policy_gradient'"):
        check_terms([PolicyGradient(), PolicyGradient(stream="distill")])
    check_terms([PolicyGradient(), PolicyGradient(stream="distill", name="distill")])


def test_a_misspelt_normalisation_gets_a_hint_and_a_constant_must_divide():
    with pytest.raises(RecipeError, match="did you mean 'token-mean'"):
        check_terms([CrossEntropy(normalisation="token_mean")])
    with pytest.raises(RecipeError, match=r"constant = 0\.0"):
        check_terms([CrossEntropy(normalisation="constant", constant=0.0)])
