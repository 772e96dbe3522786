"""The corpus of the model that keeps notes: what it shows, and what it never shows."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kolb.envs import grid_cells
from kolb.envs.grid_games import GAMES
from kolb.envs.grid_lessons import is_board_held_out, is_held_out
from kolb.envs.grid_prompts import parse_action
from kolb.errors import RecipeError
from kolb.memory.proposals import json_list, read_proposals
from kolb.methods.tf_grpo_prompts import lessons_in
from kolb.models.notes.attempts import ROLES
from kolb.models.notes.editing import majority, operation_text
from kolb.models.notes.lessons import KINDS, NoteLesson, NoteLessons
from kolb.types import Experience

Chat = tuple[str, str, str]


def lessons(kind: str, count: int, **options) -> list[tuple[NoteLesson, Chat]]:
    source, found = NoteLessons(shares={kind: 1.0}, **options), []
    for task in source.tasks("train")[:count]:
        lesson = NoteLesson(source, np.random.default_rng(task.seed))
        system, user, answer = (m["content"] for m in lesson.chat())
        found.append((lesson, (system, user, answer)))
    return found


def rules_in(text: str) -> dict[str, str]:
    """The last symbol that a text gives to each role, by its name or by a cell's."""
    found = re.findall(r"\b(agent|goal|hole|frozen) (?:[a-i]\d )?([A-L])\b", text)
    return dict(found)


def sections(text: str) -> list[str]:
    """What states rules in one place: blocks of a prompt, and lines of an attempt's report. Proposals are by
    several, and what an operation changes is the library's."""
    text = re.sub(r'"was": "[^"]*"|^ *\(\d+\).*$', "", text, flags=re.MULTILINE)
    return [*re.findall(r"<\w+>\n(.*?)\n</\w+>", text, re.DOTALL), *text.splitlines()]


def first_board(symbols: dict[str, str], text: str) -> tuple[str, ...]:
    notation = {symbols[r]: m for r, m in zip(ROLES, "SGHF", strict=True)}
    cells = [re.findall(r"\b[a-i]\d([A-L])\b", line) for line in text.splitlines()]
    size = len(next(row for row in cells if row))
    rows = [row for row in cells if len(row) == size][:size]
    return tuple("".join(notation[s] for s in row) for row in rows)


def test_the_same_task_always_gives_the_same_lesson():
    source = NoteLessons()
    task = source.tasks("train")[7]
    assert source.demonstration(task) == source.demonstration(task)
    assert source.demonstration(task) != source.demonstration(source.tasks("test")[7])


@pytest.mark.parametrize("kind", KINDS)
def test_no_lesson_shows_a_held_out_board_or_a_held_out_assignment(kind: str):
    boards = 0
    for lesson, chat in lessons(kind, 300):
        assert not is_held_out("frozenlake", lesson.symbols)
        for text in chat:
            for rules in map(rules_in, sections(text)):
                assert len(rules) < 4 or not is_held_out("frozenlake", rules)
        is_tip = "Attempt" not in chat[1] and kind == "compare"
        if kind in ("act", "summary", "compare") and not is_tip:
            assert not is_board_held_out(first_board(lesson.symbols, chat[1]))
            boards += 1
    assert boards > 200 or kind in ("propose", "plan", "plain")


def test_a_library_of_the_whole_truth_is_acted_on_by_a_best_move():
    seen = 0
    for lesson, (system, board, answer) in lessons("act", 400):
        stated = rules_in(system)
        if stated != {role: lesson.symbols[role] for role in ROLES}:
            continue
        game = GAMES["frozenlake"](first_board(lesson.symbols, board))
        action = parse_action(answer, "cells")
        assert action is not None
        assert game.distance(game.move(game.start, action)) == game.distance(game.start) - 1
        seen += 1
    assert seen > 80


def test_what_a_library_states_is_believed_and_what_it_does_not_is_guessed():
    right = Counter()
    for lesson, (system, _, answer) in lessons("act", 500, sizes=(4,)):
        words = answer.split()
        believed = {"agent": words[0], "goal": words[2], "hole": words[4]}
        stated = rules_in(system)
        for role, symbol in believed.items():
            if role in stated:
                assert symbol == stated[role]
            elif not stated:
                right[symbol == lesson.symbols[role]] += 1
    assert 0.1 < right[True] / right.total() < 0.5


def test_a_library_states_none_some_or_all_of_the_rules():
    sizes = Counter(len(rules_in(system)) for _, (system, _, _) in lessons("act", 500))
    assert min(sizes[n] for n in range(5)) > 25
    assert sizes[4] > 150


def test_a_report_names_a_cell_for_each_role_and_what_is_there():
    for lesson, (_, user, answer) in lessons("summary", 200):
        assert re.fullmatch(
            r"agent (\?|[a-i]\d [A-L]) goal (\?|[a-i]\d [A-L]) hole (\?|[a-i]\d [A-L]) frozen (\?|[a-i]\d [A-L])",
            answer,
        )
        for cell, symbol in re.findall(r"([a-i]\d) ([A-L])", answer):
            assert f"{cell}{symbol}" in user
        assert all(lesson.symbols[role] == symbol for role, symbol in rules_in(answer).items())


def test_a_report_on_a_fall_names_the_hole_and_every_told_report_the_goal():
    for _, (_, user, answer) in lessons("summary", 200, untold=0.0):
        assert ("hole ?" in answer) == ("fell" not in user)
        assert "goal ?" not in answer


def test_a_report_without_results_says_nothing_of_goal_and_hole():
    for _, (_, user, answer) in lessons("summary", 100, untold=1.0):
        assert "Feedback" not in user
        assert "[REDACTED]" in user
        assert "goal ? hole ?" in answer


def test_a_comparison_says_what_most_reports_say():
    for _, (_, user, answer) in lessons("compare", 200):
        claims = [rules_in(line) for line in user.splitlines() if line.startswith("agent ")]
        for role, symbol in rules_in(lessons_in(answer)).items():
            counts = Counter(claim[role] for claim in claims if role in claim)
            assert not counts or counts[symbol] == max(counts.values())
        assert len(rules_in(answer)) == 4 or claims


def test_a_tie_goes_to_the_truth_where_it_is_in_it():
    truth = {"agent": "K", "goal": "C", "hole": "F", "frozen": "D"}
    claims = [{"agent": "A", "goal": "B"}, {"agent": "K", "goal": "D"}]
    assert majority(claims, truth) == {"agent": "K", "goal": "B"}


def test_an_operation_is_what_the_method_reads():
    text = f"[ {operation_text(Experience('G3', 'goal D'), 'goal C', [1, 4])} ]"
    proposals, faults = read_proposals(json.loads(text), ["G3"])
    assert [(p.action, p.text, p.ids, p.cites) for p in proposals] == [
        ("revise", "goal C", ("G3",), (1, 4))
    ]
    assert not faults


def test_each_lesson_gets_the_operation_that_keeps_one_entry_for_each_role():
    words = Counter()
    for _, (_, user, answer) in lessons("propose", 200):
        library, new = user.split("<lessons>")
        entries = {
            text.split()[0]: (id, text) for id, text in re.findall(r"\[(G\d+)\]\. (.*)", library)
        }
        items = json_list(answer)
        assert items is not None
        assert [item["content"].strip() for item in items] == re.findall(r"\d\. (\w+ [A-L])", new)
        for item in items:
            text = item["content"].strip()
            id, said = entries.get(text.split()[0], (None, ""))
            word = "ADD" if id is None else "NONE" if said == text else "UPDATE"
            assert (item["operation"], item["id"]) == (word, id)
            words[word] += 1
    assert min(words.values()) > 40


def test_a_plan_follows_the_majority_of_proposals_and_names_those_behind_it():
    for _, (_, user, answer) in lessons("plan", 200):
        numbered = {
            int(n): text for n, text in re.findall(r"\((\d+)\) (?:revise: )?(\w+ [A-L])", user)
        }
        items = json_list(answer)
        assert items is not None
        for item in items:
            text = item["content"].strip()
            counts = Counter(t for t in numbered.values() if t.split()[0] == text.split()[0])
            assert counts[text] == max(counts.values())
            behind = [n for n, t in numbered.items() if t == text]
            assert item["from"] == behind[:5]
            is_known = f"]. {text.split()[0]} " in user
            assert item["operation"] == ("UPDATE" if is_known else "ADD")
        assert {i["content"].split()[0] for i in items} == {t.split()[0] for t in numbered.values()}


def test_every_word_of_the_corpus_is_in_the_vocabulary():
    known = set(
        json.loads(
            (Path(__file__).parents[2] / "kolb/models/notes/weights/tokenizer.json").read_text()
        )["model"]["vocab"]
    )
    source = NoteLessons(untold=0.3)
    said = {
        word
        for task in source.tasks("train")[:1500]
        for message in source.demonstration(task)
        for word in message["content"].split()
    }
    assert said <= known


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"shares": {"acts": 1.0}}, "no lesson 'acts'"),
        ({"shares": {"act": 0.0}}, "nothing is drawn"),
        ({"untold": 2.0}, "expected a share"),
        ({"sizes": ()}, "expected sizes"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], what: str):
    with pytest.raises(RecipeError, match=what):
        NoteLessons(**options)  # pyright: ignore[reportArgumentType]


def test_lessons_cannot_be_played():
    source = NoteLessons()
    with pytest.raises(RecipeError, match="grid_text"):
        source.environment(source.tasks("train")[0])
    assert grid_cells.ROLES["frozenlake"] == ROLES
