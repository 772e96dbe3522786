"""Lessons in other formats: read with their ids, or refused in words; what kolb wrote comes back as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolb.errors import RecipeError
from kolb.memory.exporting import as_mapping, as_markdown, as_prompt, size
from kolb.memory.importing import read_library
from kolb.memory.library import ExperienceLibrary
from kolb.types import Edit

TWO = {"G0": "Look first.", "G4": "Then act."}
AGENT = """
# @package _global_
agent:
  name: practised
  instructions: |-
    Solve it step by step.

    When solving problems, you MUST first carefully read and understand the helpful instructions and experiences:
    [G0]. Look
      first.
    [G4]. Then act.
model: some
"""


def texts(library: ExperienceLibrary) -> dict[str, str]:
    return {e.id: e.text for e in library.experiences}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps(TWO)),
        ("a.json", json.dumps([{"id": i, "text": t} for i, t in TWO.items()])),
        ("a.jsonl", "\n".join(json.dumps({"id": i, "text": t}) for i, t in TWO.items())),
        ("a.md", "# Lessons\n\n- **G0** Look\n  first.\n- **G4** Then act.\n\nThat is all.\n"),
        ("a.txt", "Read these:\n[G0]. Look first.\n[G4]. Then act.\n"),
        ("a.yaml", AGENT),
        ("A.YML", 'agent: {instructions: "Do it.\\n\\n[G0]. Look first.\\n[G4]. Then act."}'),
    ],
)
def test_every_format_gives_the_same_lessons_under_their_own_ids(name: str, text: str):
    library = read_library(text, name)
    assert {i: " ".join(t.split()) for i, t in texts(library).items()} == TWO
    assert (library.version, library.next_id) == (1, 5)
    assert {e.sources for e in library.experiences} == {(f"imported from {name}",)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '["Look first.", "Then act."]'),
        ("a.md", "- Look first.\n- Then act.\n"),
        ("a.jsonl", '{"text": "Look first."}\n\n{"text": "Then act."}\n'),
    ],
)
def test_lessons_without_ids_are_numbered(name: str, text: str):
    assert texts(read_library(text, name)) == {"G0": "Look first.", "G1": "Then act."}


def test_a_number_that_is_taken_is_not_given_again():
    library = read_library("- Look.\n- **G0** Act.\n- **tip** Rest.\n- Leave.\n", "a.md")
    assert texts(library) == {"G1": "Look.", "G0": "Act.", "tip": "Rest.", "G2": "Leave."}
    assert library.next_id == 3


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "x", "a library is a run's folder, or a file that ends in .json, .jsonl"),
        ("a.json", "{", "a.json cannot be read as lessons"),
        ("a.json", "7", 'expected kolb\'s own JSON, {"G0": "a lesson"}'),
        ("a.json", '{"G0": 7}', "7 is not the text of a lesson"),
        ("a.json", '{"G0": " "}', "' ' is not the text of a lesson"),
        ("a.json", '[{"note": "x"}]', "a.json cannot be read as lessons ('text')"),
        ("a.json", "{}", "a.json holds no lessons"),
        ("a.json", '{"schema": 9}', "this version of kolb reads schema 1"),
        ("a.json", '{"schema": 1}', "not an experience library"),
        ("a.jsonl", '"x"', "a.jsonl cannot be read as lessons"),
        ("a.jsonl", '{"text": "x", "id": 7}', "7 is not the text of a lesson"),
        ("a.md", "# Nothing\n", "expected `- a lesson` on each line"),
        ("a.txt", "Look first.", "expected `[G0]. a lesson` on each line"),
        ("a.yaml", "a: [", "not YAML"),
        ("a.yaml", "agent: {name: x}", "a.yaml holds no lessons"),
        ("a.md", "- **G0** a\n- **G0** b\n", "ids must differ"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(name: str, text: str, says: str):
    with pytest.raises(RecipeError) as caught:
        read_library(text, name)
    assert says in str(caught.value)


def test_several_libraries_in_a_file_are_told_apart_by_their_domain():
    text = "\n".join(
        json.dumps({"domain": d, "id": "G0", "text": f"Of {d}."}) for d in ("math", "web")
    )
    assert texts(read_library(text, "a.jsonl", "web")) == {"G0": "Of web."}
    with pytest.raises(RecipeError, match=r"say which, as in a\.jsonl@math"):
        read_library(text, "a.jsonl")
    with pytest.raises(RecipeError, match="did you mean 'web'"):
        read_library(text, "a.jsonl", "wep")
    with pytest.raises(RecipeError, match="is one library, and has no 'web'; leave @web out"):
        read_library('["x"]', "a.json", "web")


lesson = st.text("ab *-[].:", min_size=1, max_size=12).filter(lambda t: bool(t.strip()))
libraries = st.lists(st.tuples(lesson, st.sampled_from([(), ("t@1",), ("t@1:0,2", "u@2")]))).map(
    lambda rows: ExperienceLibrary().apply([Edit("add", t, sources=s) for t, s in rows])
)


@given(libraries)
def test_json_gives_the_very_same_library_again(library: ExperienceLibrary):
    assert read_library(library.to_json(), "a.json") == library


@given(libraries.filter(lambda x: bool(x.experiences)))
def test_markdown_and_mapping_keep_ids_and_texts(library: ExperienceLibrary):
    assert texts(read_library(as_mapping(library), "a.json")) == texts(library)
    again = read_library(as_markdown(library), "a.md")
    assert texts(again) == texts(library)
    assert [e.sources or ("imported from a.md",) for e in library.experiences] == [
        e.sources for e in again.experiences
    ]


def test_a_lesson_of_several_lines_stays_one_in_markdown():
    library = ExperienceLibrary().apply([Edit("add", "Rules:\n\n- look\n- act", sources=("t@1",))])
    shown = as_markdown(library)
    assert shown.endswith("- **G0** Rules:\n\n  - look\n  - act\n  - from t@1\n")
    assert read_library(shown, "a.md").experiences == library.experiences


def test_a_prompt_is_a_heading_and_the_lessons_and_can_be_read_again():
    library = read_library(json.dumps(TWO), "a.json")
    shown = as_prompt(library, "Read these:")
    assert shown == "Read these:\n[G0]. Look first.\n[G4]. Then act.\n"
    assert texts(read_library(shown, "a.txt")) == TWO
    assert size(library) == "2 lessons, 4 words"


def test_the_published_libraries_load():
    folder = os.environ.get("KOLB_DATA")
    if not folder or not (file := Path(folder) / "tf_grpo" / "experiences.jsonl").is_file():
        pytest.skip("KOLB_DATA names no folder with tf_grpo/experiences.jsonl in it")
    text = file.read_text(encoding="utf-8")
    math, web = (read_library(text, file.name, d) for d in ("math", "web"))
    assert (size(math), size(web)) == ("27 lessons, 610 words", "46 lessons, 1310 words")
    assert [e.id for e in web.experiences] == [f"G{n}" for n in range(46)]
    assert math.experiences[3].text.startswith("Parallel lines angles: Apply the theorem")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "- **G0** Look first.\n- **G4** Then act.\n"),
        ("a.txt", "[G0]. Look first.\n[G4]. Then act.\n"),
        ("a.json", json.dumps(TWO)),
    ],
)
def test_a_byte_order_mark_does_not_hide_the_first_lesson(name: str, text: str):
    assert texts(read_library(f"\ufeff{text}", name)) == TWO


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[" * 100_000),
        ("a.json", '{"schema": 1, "version": 1e999, "next_id": 0, "experiences": []}'),
        ("a.json", json.dumps({"G" + "9" * 5000: "Look first."})),
        ("a.yaml", "&all [*all]"),
    ],
)
def test_a_file_without_end_is_refused_in_words(name: str, text: str):
    with pytest.raises(RecipeError, match=r"a\.(json|yaml)"):
        read_library(text, name)


@pytest.mark.parametrize(
    "data",
    [
        ["half \ud800"],
        {
            **{"schema": 1, "version": 1, "next_id": 1},
            "experiences": [{"id": "G0", "text": "half \ud800", "sources": ["x\ud800@1"]}],
        },
    ],
)
def test_half_characters_do_not_reach_a_file(data: object):
    library = read_library(json.dumps(data), "a.json")
    assert texts(library) == {"G0": "half ?"}
    assert ExperienceLibrary.from_json(library.to_json().encode().decode()) == library


def test_a_line_of_jsonl_may_hold_the_line_ends_of_unicode():
    row = json.dumps({"text": "one\u2028two\x85three"}, ensure_ascii=False)
    assert texts(read_library(f"{row}\n", "a.jsonl")) == {"G0": "one\u2028two\x85three"}
