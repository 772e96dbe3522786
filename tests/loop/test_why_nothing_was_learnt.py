"""A step that taught nothing says why, in words that fit."""

from __future__ import annotations

from kolb.listeners import why_nothing_was_learnt
from kolb.types import Completion, Episode, Group, Status, Task, Trajectory, Turn

SAID = (Trajectory("solver", turns=(Turn((), Completion("x")),)),)


def group(*outcomes: float | None, said=SAID, status=Status.OK) -> Group:
    return Group(Task("t"), tuple(Episode("t", i, said, o, status) for i, o in enumerate(outcomes)))


def test_each_reason_has_its_words():
    silent = (Trajectory("solver"),)
    for groups, words in (
        ([], "collected no groups"),
        ([group(1.0, 0.0, status=Status.TIMEOUT)], "a broken episode and was dropped"),
        ([group(0.0, 0.0, said=silent)], "fills the model's context"),
        ([group(None, None)], "every grader abstained"),
        (
            [group(0.0, 0.0), group(0.0, 0.0)],
            "in each of 2 groups all rewards are equal (all are 0)",
        ),
        ([group(0.0, 0.0), group(1.0, 1.0)], "from group to group they differ"),
        ([group(0.0, 1.0)], "gave no token any weight"),
    ):
        assert words in why_nothing_was_learnt(groups, 1)


def test_remedies_come_from_the_third_step_in_a_row_and_only_where_they_help():
    assert "What helps" not in why_nothing_was_learnt([group(0.0, 0.0)], 2)
    assert "What helps" in why_nothing_was_learnt([group(0.0, 0.0)], 3)
    assert "What helps" not in why_nothing_was_learnt([group(None, None)], 3)
