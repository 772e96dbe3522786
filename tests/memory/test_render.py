"""Rendering under a budget: whole lessons only, the newest first in line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolb.memory.render import render
from kolb.types import Experience

THREE = [Experience(f"G{i}", "x" * n) for i, n in enumerate((4, 9, 2))]  # 10, 15 and 8 characters


def ids(text):
    return [line[1 : line.index("]")] for line in text.splitlines()]


def test_all_lessons_in_order_and_nothing_for_none():
    assert render([Experience("G0", "A"), Experience("G1", "B")]) == "[G0]. A\n[G1]. B"
    assert render([]) == render([], budget=0) == render(THREE, budget=0) == ""


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (35, ["G0", "G1", "G2"]),
        (34, ["G1", "G2"]),
        (24, ["G1", "G2"]),
        (23, ["G0", "G2"]),
        (18, ["G2"]),
        (8, ["G2"]),
        (7, []),
    ],
)
def test_the_newest_are_kept_and_an_older_shorter_one_takes_left_room(budget, kept):
    assert ids(render(THREE, budget)) == kept


@given(st.lists(st.text("ab c", min_size=1, max_size=12), max_size=6), st.integers(0, 60))
def test_a_budget_is_never_passed_and_no_lesson_is_cut(words, budget):
    lessons = [Experience(f"G{i}", w) for i, w in enumerate(words)]
    text = render(lessons, budget)
    assert len(text) <= budget
    whole = render(lessons).split("\n")
    assert all(line in whole for line in text.split("\n") if line)


def test_a_negative_budget_is_refused():
    with pytest.raises(ValueError, match="-1 characters"):
        render(THREE, -1)
