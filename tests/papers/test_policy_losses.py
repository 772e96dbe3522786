"""The losses that Lp-Reg is measured against, by hand: values and gradients of the released code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from slow_lp_reg import loss_and_slopes, row

from kolb.errors import RecipeError
from kolb.terms.cispo import Cispo
from kolb.terms.clip_cov import ClipCov
from kolb.terms.entropy_advantage import EntropyAdvantage
from kolb.terms.forking import ForkingTokens
from kolb.terms.gspo import Gspo
from kolb.terms.kl_cov import KlCov
from kolb.terms.policy_gradient import PolicyGradient
from kolb.terms.selection import highest


def by_logprobs(term, now, *, old, advantages, **more):
    """As ``loss_and_slopes``, from logprobs."""
    return loss_and_slopes(
        [term], np.exp(now).tolist(), old=np.exp(old).tolist(), advantages=advantages, **more
    )


def test_clip_higher_stops_both_tokens():
    term = PolicyGradient(clip_low=0.2, clip_high=0.28, importance_cap=None)
    loss, slopes = by_logprobs(term, [-0.7, -1.5], old=[-1.0, -1.0], advantages=[1.0, -1.0])
    assert loss == pytest.approx(-0.24)
    assert slopes == [0, 0]


NOW, OLD = [-0.2, -1.0, -2.0, -3.0], [-0.1, -1.1, -2.0, -3.1]
WORTH = [1.0, 1.0, -1.0, -1.0]


def test_kl_cov_penalises_the_token_of_highest_covariance():
    """Covariances 1.35, .55, .45, 1.45: of four tokens 25 % is the last."""
    term = KlCov(percent=25, scope="micro", importance_cap=None)
    loss, slopes = by_logprobs(term, NOW, old=OLD, advantages=WORTH)
    assert loss == pytest.approx(0.04879065, abs=1e-6)
    assert slopes == pytest.approx([-0.22620935, -0.27629273, 0.25, 0.52629273], abs=1e-6)


def test_kl_cov_of_a_batch_chooses_by_the_logprobs_before_the_update():
    term = KlCov(percent=25, importance_cap=None)
    rows = [row(1.0, [1, 1]), row(-1.0, [1, 1])]
    marks = term.mark(rows, [np.array(OLD[:2], np.float32), np.array(OLD[2:], np.float32)])
    chosen = [m["policy_gradient/chosen"].tolist() for m in marks]
    assert chosen == [[0, 0], [0, 1]]
    loss, slopes = by_logprobs(
        term, NOW, old=OLD, advantages=WORTH, **{"policy_gradient/chosen": [0.0, 0.0, 0.0, 1.0]}
    )
    assert loss == pytest.approx(0.04879065, abs=1e-6)
    assert slopes == pytest.approx([-0.22620935, -0.27629273, 0.25, 0.52629273], abs=1e-6)


def test_kl_cov_without_a_second_update_is_the_policy_gradient():
    term = KlCov(percent=100, scope="micro", importance_cap=None)
    loss, slopes = by_logprobs(term, NOW, old=NOW, advantages=WORTH)
    assert loss == pytest.approx(0.0)
    assert slopes == pytest.approx([-0.25, -0.25, 0.25, 0.25])


def test_rounding_is_no_change_that_kl_cov_penalises():
    term = KlCov(percent=100, scope="micro", importance_cap=None)
    old = [x + 1e-6 for x in NOW]
    _, slopes = by_logprobs(term, NOW, old=old, advantages=WORTH)
    assert slopes == pytest.approx([-0.25, -0.25, 0.25, 0.25], abs=1e-5)


def test_clip_cov_drops_random_tokens_of_the_range_and_no_others():
    """Covariances by the old logprobs: 1.475, .475, .425, 1.525; between 1 and 5 are the first and the last."""
    rows = [row(1.0, [1, 1]), row(-1.0, [1, 1])]
    logprobs = [np.array(OLD[:2], np.float32), np.array(OLD[2:], np.float32)]
    both = ClipCov(share=0.5).mark(rows, logprobs)
    assert [m["policy_gradient/dropped"].tolist() for m in both] == [[1, 0], [0, 1]]
    one = ClipCov(share=0.25)
    dropped = [m["policy_gradient/dropped"].tolist() for m in one.mark(rows, logprobs)]
    assert dropped in ([[1, 0], [0, 0]], [[0, 0], [0, 1]])
    assert dropped == [m["policy_gradient/dropped"].tolist() for m in one.mark(rows, logprobs)]
    none = ClipCov().mark(rows, logprobs)  # 2e-4 of four is none
    assert [m["policy_gradient/dropped"].tolist() for m in none] == [[0, 0], [0, 0]]
    loss, slopes = by_logprobs(
        ClipCov(importance_cap=None), NOW, old=NOW, advantages=WORTH,
        **{"policy_gradient/dropped": [1.0, 0.0, 0.0, 0.0]},
    )  # fmt: skip
    assert loss == pytest.approx(0.25)
    assert slopes == pytest.approx([0, -0.25, 0.25, 0.25])


ENTROPIES = [0.1, 0.9, 0.2, 0.8, 0.3]
FIVE = {"advantages": [1.0, 1.0, -1.0, -1.0, 1.0], "old": [-1.0] * 5}


def test_only_the_most_undecided_token_of_five_learns():
    term = ForkingTokens(scope="micro", importance_cap=None)
    loss, slopes = by_logprobs(term, [-1.0] * 5, entropy=ENTROPIES, **FIVE)
    assert loss == pytest.approx(-1.0)
    assert slopes == pytest.approx([0, -1, 0, 0, 0])


def test_forking_tokens_of_a_batch_share_one_mean():
    """Two of ten by the entropies before the update, though they stand in one row; each weighs a half."""
    from kolb.terms.base import pin

    term = ForkingTokens(importance_cap=None)
    rows = [
        row(1.0, [1] * 5).with_extras(old_entropy=np.array(ENTROPIES, np.float32)),
        row(-1.0, [1] * 5).with_extras(old_entropy=np.full(5, 0.7, np.float32)),
    ]
    marks = term.mark(rows, [np.zeros(5, np.float32)] * 2)
    assert [m["policy_gradient/chosen"].tolist() for m in marks] == [[0, 1, 0, 1, 0], [0] * 5]
    marked = [r.with_extras(**m) for r, m in zip(rows, marks, strict=True)]
    pinned = [e.extras["coefficients/policy_gradient"].tolist() for e in pin([term], marked)]
    assert pinned == [[0, 0.5, 0, 0.5, 0], [0] * 5]


def test_gspo_of_equal_logprobs_is_a_mean_over_the_answer():
    term = Gspo(clip_low=3e-4, clip_high=3e-4, importance_cap=None)
    loss, slopes = by_logprobs(term, [-1.0, -2.0, -0.5, -0.1], old=[-0.5, -2.5, -0.6, 0.0 - 1e-9],
                               advantages=[1.0] * 4)  # fmt: skip
    assert loss == pytest.approx(
        -1.0, abs=1e-6
    )  # the mean difference is 0, whatever single tokens do
    assert slopes == pytest.approx([-0.25] * 4, abs=1e-6)


def test_gspo_clips_whole_answers():
    term = Gspo(importance_cap=None)
    up = by_logprobs(term, [-1.0, -1.0], old=[-1.001, -1.001], advantages=[1.0, 1.0])
    assert up[0] == pytest.approx(-1.0004, abs=1e-6)
    assert up[1] == [0, 0]
    down = by_logprobs(term, [-1.0, -1.0], old=[-1.001, -1.001], advantages=[-1.0, -1.0])
    assert down[1] == pytest.approx([math.exp(0.001) / 2] * 2, abs=1e-6)


def test_cispo_keeps_the_gradient_of_a_token_beyond_the_bound():
    term = Cispo(clip_high=1.0, importance_cap=None)
    loss, (slope,) = by_logprobs(term, [-1.0], old=[-1.0 - math.log(3)], advantages=[1.0])
    assert slope == pytest.approx(-2.0)  # PPO's clip would have left 0
    assert loss == pytest.approx(2.0)
    assert by_logprobs(term, [-1.0], old=[-1.0], advantages=[-1.0])[1] == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("advantage", "entropy", "expected"),
    [(1.0, 0.5, 1.2), (1.0, 5.0, 1.5), (-1.0, 0.5, -0.8), (-1.0, 5.0, -0.5)],
)
def test_entropy_adds_to_the_advantage_up_to_half_of_it(advantage, entropy, expected):
    term = EntropyAdvantage(importance_cap=None)
    loss, (slope,) = by_logprobs(
        term, [-1.0], old=[-1.0], advantages=[advantage], entropy=[entropy]
    )
    assert loss == pytest.approx(-expected)
    assert slope == pytest.approx(-expected)


def test_of_equal_scores_the_first_is_chosen():
    assert highest(torch.tensor([1.0, 3.0, 3.0]), 1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Gspo(clip_low=-1.0), "gspo: clip_low"),
        (lambda: Cispo(importance_cap=0.5), "cispo: importance_cap"),
        (lambda: KlCov(scope="step"), "kl_cov: scope = 'step'"),  # type: ignore[arg-type]
        (lambda: KlCov(percent=-1.0), "kl_cov: percent"),
        (lambda: ClipCov(share=-1.0), "clip_cov: share"),
        (lambda: ForkingTokens(share=0.0), "share = 0.0; expected more than 0"),
        (lambda: ForkingTokens(scope="micro", normalisation="constant"), "token-mean"),
        (lambda: EntropyAdvantage(kappa=1.0), "kappa = 1.0; above 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, said):
    with pytest.raises(RecipeError, match=said):
        make()
