"""What differs between libraries, and where a lesson comes from."""

from __future__ import annotations

import pytest

from kolb.memory.changes import changes, changes_in_run, marked
from kolb.memory.library import ExperienceLibrary
from kolb.memory.origins import Origin, origin_of, outside
from kolb.types import Edit, Experience

OLD = ExperienceLibrary().apply(
    [Edit("add", f"{t} the wall first", sources=(f"{t}@1",)) for t in ("watch", "touch", "leave")]
)


def library(*lessons: Experience) -> ExperienceLibrary:
    return ExperienceLibrary(lessons, version=1, next_id=9)


def test_a_plan_shows_as_its_additions_revisions_and_removals():
    plan = [
        Edit("revise", "touch the door first", id="G1", sources=("boat@2",)),
        Edit("remove", id="G0"),
        Edit("add", "rest", sources=("sea@2", "sky@2")),
    ]
    found = changes(OLD, OLD.apply(plan))
    assert [(c.action, c.id, c.marked, c.sources) for c in found] == [
        ("removed", "G0", "watch the wall first", ()),
        ("revised", "G1", "touch the [-wall-]{+door+} first", ("boat@2",)),
        ("added", "G3", "rest", ("sea@2", "sky@2")),
    ]
    assert changes_in_run(OLD, OLD.apply(plan)) == found
    assert changes(OLD, OLD) == changes_in_run(OLD, OLD) == []


def test_in_a_run_an_id_is_a_lesson_for_life_whatever_its_words():
    moved = OLD.apply([Edit("remove", id="G0"), Edit("add", "watch the wall first")])
    rewritten = OLD.apply([Edit("revise", "something else", id="G2")])
    assert [(c.action, c.id) for c in changes_in_run(OLD, moved)] == [
        ("removed", "G0"),
        ("added", "G3"),
    ]
    assert changes(OLD, moved) == []
    assert [c.action for c in changes_in_run(OLD, rewritten)] == ["revised"]


def test_one_id_in_libraries_that_were_learnt_apart_is_two_lessons():
    other = library(Experience("G0", "count your money twice", ("bank@1",)))
    assert [(c.action, c.id) for c in changes(OLD, other)] == [
        *(("removed", i) for i in ("G0", "G1", "G2")),
        ("added", "G0"),
    ]


def test_one_id_is_one_lesson_where_the_sources_or_most_words_agree():
    mine = library(Experience("G0", "look around", ("lake@1",)))
    rewritten = library(Experience("G0", "use your eyes", ("lake@1", "sea@2")))
    retouched = library(Experience("G0", "look far around", ("imported from x",)))
    assert [c.action for c in changes(mine, rewritten)] == ["revised"]
    assert [c.action for c in changes(mine, retouched)] == ["revised"]


def test_coming_from_one_file_makes_two_lessons_not_one():
    file = ("imported from notes.md",)
    one, other = library(Experience("G0", "a b", file)), library(Experience("G0", "c d", file))
    assert [c.action for c in changes(one, other)] == ["removed", "added"]


def test_a_text_under_another_id_is_no_change():
    renamed = library(*(Experience(f"X{e.id}", e.text) for e in OLD.experiences))
    assert changes(OLD, renamed) == []


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("a b c", "a c", "a [-b-] c"),
        ("a c", "a b c", "a {+b+} c"),
        ("a", "b", "[-a-]{+b+}"),
        ("a\nb", "a\nc", "a\n[-b-]{+c+}"),
        ("", "a", "{+a+}"),
        ("a b", "a", "a [-b-]"),
        ("a", "a b", "a {+b+}"),
    ],
)
def test_words_that_went_and_came_are_marked(before: str, after: str, shown: str):
    assert marked(before, after) == shown


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("lake-7@3", Origin("", "lake-7", 3)),
        ("lake-7@3:0,2", Origin("", "lake-7", 3, (0, 2))),
        ("lake@7@3#12", Origin("", "lake@7", 3)),
        ("runs/a-0001 > lake-7@3:4", Origin("runs/a-0001", "lake-7", 3, (4,))),
        ("imported from a@3", None),
        ("somebody said so", None),
        ("lake@x", None),
    ],
)
def test_a_source_names_a_group_or_nothing(source: str, origin: Origin | None):
    assert origin_of(source) == origin


def test_outside_its_run_a_source_says_which_run_it_is_of_and_says_it_once():
    mixed = library(Experience("G0", "x", ("t@1:0", "runs/b > u@2", "imported from x.md", "t@1#5")))
    named = outside(mixed, "runs/a")
    assert named.experiences[0].sources == (
        *("runs/a > t@1:0", "runs/b > u@2", "imported from x.md", "runs/a > t@1#5"),
    )
    assert outside(named, "runs/c") == named


@pytest.mark.parametrize("source", [f"lake@{'9' * 5000}", f"lake@3:0,{'9' * 5000}"])
def test_a_source_whose_numbers_nobody_could_have_counted_names_no_group(source: str):
    assert origin_of(source) is None
