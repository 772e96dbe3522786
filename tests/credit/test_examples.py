"""Trajectories to Examples: which token is context, which is learnt, and what it is worth."""

import dataclasses

import numpy as np
import pytest

from kolb.credit.examples import to_examples
from kolb.errors import CapabilityError, NonFiniteError
from kolb.types import Completion, Trajectory, Turn


def said(*ids, logprobs=True, text="said", stop="stop"):
    lp = [-0.25 * (i + 1) for i in range(len(ids))] if logprobs else []
    return Completion(text, np.array(ids, np.int32), np.array(lp, np.float32), stop_reason=stop)


def turn(context, completion, *, new=False):
    return Turn((), completion, np.array(context, np.int32), starts_segment=new)


TWO_TURNS = Trajectory(
    "solver", "agent", (turn([1, 2, 3], said(10, 11)), turn([4, 5], said(12, 13, 14)))
)
TWO_SEGMENTS = dataclasses.replace(
    TWO_TURNS, turns=(*TWO_TURNS.turns, turn([1, 6, 7], said(15, 16), new=True))
)


def test_turns_append_into_one_example_with_context_masked():
    (e,) = to_examples(TWO_TURNS, advantage=0.5)
    assert e.policy == "agent"
    assert e.prompt_ids.tolist() == [1, 2, 3]
    assert e.target_ids.tolist() == [10, 11, 4, 5, 12, 13, 14]
    assert e.weights["policy"].tolist() == [1, 1, 0, 0, 1, 1, 1]
    assert e.advantages.tolist() == [0.5, 0.5, 0, 0, 0.5, 0.5, 0.5]
    assert e.sampler_logprobs.tolist() == [-0.25, -0.5, 0, 0, -0.25, -0.5, -0.75]


def test_the_sampled_ids_come_through_untouched_whatever_their_values():
    # 0 may be pad and end of text at once: a mask made from ids would lose it.
    (e,) = to_examples(Trajectory("solver", turns=(turn([0, 0], said(0, 7, 0)),)))
    assert e.target_ids.tolist() == [0, 7, 0]
    assert e.weights["policy"].tolist() == [1, 1, 1]


def test_arrays_are_int32_and_float32():
    (e,) = to_examples(TWO_TURNS, advantage=1.0)
    assert e.target_ids.dtype == np.int32
    assert {a.dtype for a in (e.weights["policy"], e.advantages, e.sampler_logprobs)} == {
        np.dtype(np.float32)
    }


def test_a_new_segment_is_a_second_example_of_the_same_sequence():
    first, second = to_examples(TWO_SEGMENTS, advantage=-1.0)
    assert first.target_ids.tolist() == [10, 11, 4, 5, 12, 13, 14]
    assert second.prompt_ids.tolist() == [1, 6, 7]
    assert second.target_ids.tolist() == [15, 16]
    assert first.sequence == second.sequence != ""


def test_two_trajectories_with_the_same_words_are_two_sequences():
    names = {to_examples(t)[0].sequence for t in (TWO_SEGMENTS, dataclasses.replace(TWO_SEGMENTS))}
    assert len(names) == 2


def test_a_given_sequence_name_is_kept():
    assert {e.sequence for e in to_examples(TWO_SEGMENTS, sequence="t/3")} == {"t/3"}


def test_advantages_per_token_skip_context_and_cross_segments():
    first, second = to_examples(TWO_SEGMENTS, advantage=np.arange(1, 8))
    assert first.advantages.tolist() == [1, 2, 0, 0, 3, 4, 5]
    assert second.advantages.tolist() == [6, 7]


def test_no_advantage_is_none_and_zero_advantage_is_zeros():
    assert to_examples(TWO_TURNS)[0].advantages is None
    assert to_examples(TWO_TURNS, advantage=0.0)[0].advantages.tolist() == [0.0] * 7


def test_stream_and_weight_are_the_callers():
    (e,) = to_examples(TWO_TURNS, stream="imitation", weight=0.5)
    assert list(e.weights) == ["imitation"]
    assert e.weights["imitation"].tolist() == [0.5, 0.5, 0, 0, 0.5, 0.5, 0.5]


def test_what_does_not_learn_or_weighs_nothing_gives_no_example():
    assert to_examples(dataclasses.replace(TWO_TURNS, learns=False)) == []
    assert to_examples(TWO_TURNS, weight=0.0) == []
    assert to_examples(Trajectory("solver")) == []


def test_a_demonstration_is_learnt_and_has_no_sampler_logprobs():
    given = Trajectory("solver", turns=(turn([1], said(8, 9, logprobs=False, stop="given")),))
    (e,) = to_examples(given, stream="imitation")
    assert e.weights["imitation"].tolist() == [1, 1]
    assert e.sampler_logprobs is None


def test_a_segment_with_a_given_completion_has_no_sampler_logprobs_and_the_other_keeps_its_own():
    given = turn([1], said(8, logprobs=False, stop="given"))
    mixed = Trajectory("solver", turns=(given, turn([2], said(9)), turn([3], said(4), new=True)))
    first, second = to_examples(mixed)
    assert first.sampler_logprobs is None
    assert second.sampler_logprobs.tolist() == [-0.25]


def test_text_without_tokens_is_refused_and_named():
    spoken = Trajectory("judge", "remote", (turn([1], Completion("yes")),))
    with pytest.raises(CapabilityError, match=r"turn 0 of role 'judge' \(policy 'remote'\)"):
        to_examples(spoken)
    assert to_examples(dataclasses.replace(spoken, learns=False)) == []


def test_an_empty_completion_adds_nothing_and_an_empty_segment_is_no_example():
    silent = turn([6], said(text=""), new=True)
    (e,) = to_examples(dataclasses.replace(TWO_TURNS, turns=(*TWO_TURNS.turns, silent)))
    assert e.target_ids.tolist() == [10, 11, 4, 5, 12, 13, 14]
    assert e.sequence == ""


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), [1, 2, 3, 4, float("nan")]])
def test_an_advantage_that_is_not_finite_raises(bad):
    with pytest.raises(NonFiniteError):
        to_examples(TWO_TURNS, advantage=bad)


def test_a_wrong_number_of_advantages_says_how_many_tokens_there_are():
    with pytest.raises(ValueError, match="for 5 completion tokens"):
        to_examples(TWO_TURNS, advantage=[1.0] * 7)


def test_logprobs_that_do_not_match_the_tokens_raise():
    odd = Completion("x", np.array([1, 2], np.int32), np.array([-1.0], np.float32))
    with pytest.raises(ValueError, match="2 tokens and 1 logprobs"):
        to_examples(Trajectory("solver", turns=(turn([1], odd),)))
