"""What models write about the library never raises, and what comes of it keeps to the limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kolb.memory.answers import answer_texts, gives_away
from kolb.memory.library import ExperienceLibrary
from kolb.memory.proposals import FAULTS, Proposal, read_proposals
from kolb.memory.reconciling import as_edits, growth, read_plan, within
from kolb.types import Edit

IDS = st.sampled_from(["G0", "G1", "G2", "G9", "C0", "C1", "C7", "", " [G1] "])
ITEM = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "operation": st.sampled_from(
                ["ADD", "update", "DELETE", "MERGE", "NONE", "?", None, 3]
            ),
            "content": st.sampled_from(["one", "two words", "", None, 5, "half \ud800"]),
            "id": IDS | st.none() | st.integers(),
            "ids": st.lists(IDS, max_size=3),
            "from": st.lists(st.integers(-1, 5) | st.text(max_size=1), max_size=3) | st.integers(),
        },
    ),
)
LIBRARY = ExperienceLibrary().apply([Edit("add", t, sources=(f"{t}@0",)) for t in "abc"])
KNOWN = {e.id: e.sources for e in LIBRARY.experiences}
PROPOSALS = [
    Proposal("add", "d", sources=("t@1:0",)),
    Proposal("revise", "a2", ("G0",), sources=("u@1:0",)),
    Proposal("add", "e", sources=("u@1:0",)),
]


@settings(max_examples=200, deadline=None)
@given(st.lists(ITEM, max_size=8), st.booleans(), st.integers(1, 6))
def test_any_plan_is_read_and_what_is_left_of_it_can_be_applied_within_the_limit(
    items: Sequence[Any], merges: bool, most: int
) -> None:
    plan, faults = read_plan(items, KNOWN, PROPOSALS, merges=merges)
    assert set(faults) <= {*FAULTS, "unattributed"}
    assert all(p.sources for p in plan)
    kept = within(plan, len(KNOWN), most)
    library = LIBRARY.apply(as_edits(kept))
    size = len(library.experiences)
    assert size == len(KNOWN) + growth(kept)
    assert size <= max(most, len(KNOWN))
    assert all(isinstance(e.text.encode(), bytes) for e in library.experiences)


def test_of_too_many_additions_the_last_are_refused_and_removals_make_room() -> None:
    a, b, c = (Proposal("add", t) for t in "abc")
    gone, merged = Proposal("remove", ids=("G0",)), Proposal("merge", "m", ("G0", "G1"))
    assert within([a, b, c], 2, 4) == [a, b]
    assert within([a, gone, b], 3, 4) == [a, gone, b]
    assert within([a, gone, b], 3, 3) == [a, gone]
    assert within([merged, a], 3, 3) == [merged, a]
    assert within([a, gone], 9, 3) == [gone]


def test_known_ids_are_the_only_ones_that_are_named() -> None:
    found, faults = read_proposals([{"operation": "DELETE", "id": "G1"}] * 2, ["G1"])
    assert [p.ids for p in found] == [("G1",)]
    assert faults == {"unknown_id": 1}, "the second finds it removed"


@pytest.mark.parametrize(
    ("text", "answer", "told"),
    [
        ("It is 204.", 204, True),
        ("It is 2040, or 204.5, or x204.", 204, False),
        ("It is 0.5", 0.5, True),
        (r"So \frac{1}{2} it is", r"\frac{1}{2}", True),
        ("NEW  york\ncity", "New York", True),
        ("Newark", "Newar", False),
        ("Say yes to a plan", ["yes", "a", None, True], False),
        ("the king of Spain", {"aliases": ["King of Spain"]}, True),
        ("anything", "", False),
        ("anything", None, False),
    ],
)
def test_an_answer_is_found_as_whole_words_numbers_always_and_words_from_four_letters(
    text: str, answer: Any, told: bool
) -> None:
    assert gives_away(text, answer_texts(answer)) == told
