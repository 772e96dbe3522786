"""The library is a value: edits give a new one, ids are for life, files are byte-stable."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kolb.errors import RecipeError
from kolb.memory.library import ExperienceLibrary
from kolb.types import Edit, Experience, Library

ABC = ExperienceLibrary().apply([Edit("add", t, sources=(f"{t}@0",)) for t in "abc"])

edits = st.builds(
    Edit,
    st.sampled_from(Edit.ACTIONS),
    st.text(max_size=5),
    st.sampled_from(["", "G0", "G1", "G2", "G3", "G9"]),
    st.sampled_from([(), ("lake-1@2",), ("lake-2@2", "lake-1@2")]),
)


def texts(library):
    return {e.id: e.text for e in library.experiences}


def test_adding_gives_ids_in_order_and_one_new_version_for_the_whole_list():
    assert texts(ABC) == {"G0": "a", "G1": "b", "G2": "c"}
    assert (ABC.version, ABC.next_id) == (1, 3)
    assert ABC.experiences[1] == Experience("G1", "b", ("b@0",))


def test_a_plan_of_all_kinds_of_edits():
    plan = [
        Edit("revise", "b2", id="G1", sources=("t@5",)),
        Edit("add", "d"),
        Edit("remove", id="G0"),
        Edit("revise", "e", id="G9"),
        Edit("remove", id="G2"),
    ]
    after = ABC.apply(plan)
    assert texts(after) == {"G1": "b2", "G3": "d"}
    assert after.experiences[0].sources == ("b@0", "t@5")
    assert ABC.ignored(plan) == (plan[3],)
    assert texts(ABC) == {"G0": "a", "G1": "b", "G2": "c"}


def test_the_id_of_a_removed_lesson_is_never_given_again():
    emptied = ABC.apply([Edit("remove", id=i) for i in ("G0", "G1", "G2")])
    assert emptied.experiences == ()
    assert texts(emptied.apply([Edit("add", "new")])) == {"G3": "new"}


def test_a_revision_keeps_the_place_and_names_a_source_once():
    twice = ABC.apply([Edit("revise", t, id="G0", sources=("x@1",)) for t in ("a2", "a3")])
    assert twice.experiences[0] == Experience("G0", "a3", ("a@0", "x@1"))


@pytest.mark.parametrize(
    "edit",
    [
        Edit("revise", "x", id="G9"),
        Edit("remove", id="G9"),
        Edit("remove"),
        Edit("add", " \n"),
        Edit("revise", "", id="G0"),
        Edit("revise", "a", id="G0", sources=("a@0",)),
    ],
)
def test_an_edit_that_can_change_nothing_is_counted_and_makes_no_version(edit):
    assert ABC.apply([edit]) is ABC
    assert ABC.ignored([edit]) == (edit,)


def test_no_edits_give_the_same_library():
    assert ABC.apply([]) is ABC
    assert ABC.ignored([]) == ()


def test_an_edit_of_a_lesson_that_an_earlier_edit_removed_is_ignored():
    plan = [Edit("remove", id="G1"), Edit("revise", "b2", id="G1")]
    assert texts(ABC.apply(plan)) == {"G0": "a", "G2": "c"}
    assert ABC.ignored(plan) == (plan[1],)


def test_the_library_is_what_methods_expect():
    view: Library = ABC
    assert view.render() == "[G0]. a\n[G1]. b\n[G2]. c"
    assert (view.version, len(view.experiences)) == (1, 3)
    with pytest.raises(AttributeError):
        ABC.version = 2


def test_the_json_is_these_very_bytes():
    library = ExperienceLibrary().apply([Edit("add", "Geh früh.", sources=("see-7@3",))])
    assert library.to_json() == (
        '{\n  "schema": 1,\n  "version": 1,\n  "next_id": 1,\n  "experiences": [\n    {\n'
        '      "id": "G0",\n      "text": "Geh früh.",\n      "sources": [\n        "see-7@3"\n'
        "      ]\n    }\n  ]\n}\n"
    )


@settings(deadline=None)
@given(st.lists(st.lists(edits, max_size=4), max_size=5))
def test_any_history_survives_json_and_never_reuses_an_id(history):
    library, seen = ExperienceLibrary(), set()
    for plan in history:
        before = set(texts(library))
        after = library.apply(plan)
        fresh = set(texts(after)) - before
        assert not fresh & seen
        seen |= fresh
        assert after.version == library.version + (after is not library)
        assert (after is library) == (len(library.ignored(plan)) == len(plan))
        library = ExperienceLibrary.from_json(after.to_json())
        assert library == after
        assert library.to_json() == after.to_json()
        library.to_json().encode("utf-8")


def test_half_characters_become_question_marks_so_that_files_can_be_written():
    assert texts(ExperienceLibrary().apply([Edit("add", "ab\ud83d")])) == {"G0": "ab?"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 1, "version": 0, "next_id": 0}',
        '{"schema": 1, "version": "x", "next_id": 0, "experiences": []}',
        '{"schema": 1, "version": 0, "next_id": 1, "experiences": ["a"]}',
        '{"schema": 1, "version": 0, "next_id": 1, "experiences": [{"id": 0, "text": "", "sources": []}]}',
        '{"schema": 1, "version": 0, "next_id": 1, "experiences": [{"id": "G0", "text": "", "sources": "ab"}]}',
    ],
)
def test_a_file_that_is_no_library_is_refused_in_words(text):
    with pytest.raises(RecipeError, match="not an experience library"):
        ExperienceLibrary.from_json(text)


def test_a_foreign_schema_names_both_numbers():
    text = json.dumps({**json.loads(ABC.to_json()), "schema": 7})
    with pytest.raises(RecipeError, match="schema 7; this version of kolb reads schema 1"):
        ExperienceLibrary.from_json(text)


@pytest.mark.parametrize(("ids", "next_id"), [(("G0", "G0"), 1), (("G0", "G4"), 4), (("G0",), 0)])
def test_ids_that_could_clash_later_are_refused_at_once(ids, next_id):
    with pytest.raises(RecipeError, match="ids must differ"):
        ExperienceLibrary(tuple(Experience(i, "x") for i in ids), next_id=next_id)
