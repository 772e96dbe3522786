"""The corpus of the embedded base model: what it shows, and what it never shows."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kolb.envs import grid_cells
from kolb.envs.grid_boards import read_boards
from kolb.envs.grid_cells import LETTERS
from kolb.envs.grid_drills import ASK_WHERE
from kolb.envs.grid_games import ACTIONS, GAMES, rows_at, shifted
from kolb.envs.grid_lessons import (
    ASK_PLAN,
    ASK_RULES,
    KINDS,
    GridLessons,
    Lesson,
    is_board_held_out,
    is_held_out,
)
from kolb.envs.grid_prompts import SYMBOLS, parse_action
from kolb.errors import RecipeError
from kolb.models.grids.start import vocabulary

DATA = Path(os.environ.get("KOLB_DATA", Path(__file__).parents[3] / "shared" / "data"))
ALL_SIZES = {"frozenlake_sizes": tuple(range(2, 10)), "sokoban_sizes": (5, 6, 7, 8)}


def lessons(kind: str, count: int, **options) -> list[list[str]]:
    source = GridLessons(shares={kind: 1.0}, **{**ALL_SIZES, **options})
    tasks = source.tasks("train")
    return [[m["content"] for m in source.demonstration(tasks[i])] for i in range(count)]


def test_the_same_task_always_gives_the_same_lesson():
    source = GridLessons()
    task = source.tasks("train")[7]
    assert source.demonstration(task) == source.demonstration(task)
    assert task.id == "lesson-train-7"
    assert task != source.tasks("test")[7]


def test_a_million_tasks_are_a_sequence_that_takes_no_room():
    tasks = GridLessons().tasks("train")
    assert len(tasks) == 1_000_000
    assert tasks[-1].id == "lesson-train-999999"
    assert [t.id for t in tasks[:2]] == ["lesson-train-0", "lesson-train-1"]
    with pytest.raises(IndexError):
        tasks[1_000_000]


def shown_boards(symbols: dict[str, str], game: str, text: str) -> list[tuple[str, ...]]:
    """Every board that a text shows, in the game's own notation."""
    marks = {"frozenlake": "SGHF", "sokoban": "@$.# "}[game]
    notation = {symbols[r]: m for r, m in zip(grid_cells.ROLES[game], marks, strict=True)}
    if game == "sokoban":
        notation[symbols["agent_on_goal"]] = "+"
    boards: list[list[str]] = []
    for line in text.split("\n"):
        cells = re.findall(r"\b([a-i])(\d)([A-La-l])\b", line)
        if cells and cells[0][1] == "1":
            boards.append([])
        if cells:
            boards[-1].append("".join(notation[s] for _, _, s in cells))
    return [tuple(b) for b in boards]


def stated_rules(text: str) -> list[tuple[str, dict[str, str]]]:
    """Every game whose rules a text states, true or not, and the symbols that it gives to the roles."""
    found = []
    for game, roles in grid_cells.ROLES.items():
        pattern = " ".join(rf"{role} ([A-L])" for role in roles)
        found += [(game, dict(zip(roles, m, strict=True))) for m in re.findall(pattern, text)]
    return found


def test_stated_rules_are_found_in_a_text():
    symbols = {"agent": "A", "goal": "B", "hole": "C", "frozen": "D"}
    rules = grid_cells.rules_text("frozenlake", symbols)
    said = f"goal c1 B <prompt> {rules} </prompt>"
    assert stated_rules(f"{rules}\n{said}") == [("frozenlake", symbols)] * 2


@pytest.mark.parametrize("kind", KINDS[:4])
def test_no_lesson_shows_a_held_out_board_or_a_held_out_assignment(kind: str):
    options = GridLessons(shares={kind: 1.0}, **ALL_SIZES)
    rng, seen = np.random.default_rng(3), Counter()
    for _ in range(400):
        lesson = Lesson(options, rng)
        assert not is_held_out(lesson.name, lesson.symbols)
        chat = [message["content"] for message in lesson.chat()]
        assert not any(is_held_out(game, rules) for game, rules in stated_rules("\n".join(chat)))
        for text in chat[:2]:
            for rows in shown_boards(lesson.symbols, lesson.name, text):
                assert not is_board_held_out(rows)
                seen[lesson.name] += 1
    assert min(seen.values()) > 100


def test_one_assignment_in_ten_is_held_out_and_the_papers_own():
    letters = np.array(list(LETTERS))
    rng = np.random.default_rng(0)
    for game, roles in grid_cells.ROLES.items():
        assert is_held_out(game, SYMBOLS[game])
        drawn = [dict(zip(roles, rng.permutation(letters), strict=False)) for _ in range(2000)]
        assert 0.08 < np.mean([is_held_out(game, d) for d in drawn]) < 0.12


@pytest.mark.skipif(not (DATA / "erl").is_dir(), reason=f"no paper's boards in {DATA}")
def test_the_papers_test_boards_are_held_out():
    for game in GAMES:
        boards = read_boards(game, str(DATA / "erl" / f"{game}_test.jsonl"))
        assert len(boards) == 100
        assert all(is_board_held_out(b.rows) for b in boards)


def test_with_the_rules_the_answer_is_a_best_move():
    for rules, board, answer in lessons("act", 300):
        game_name = "sokoban" if " box " in rules else "frozenlake"
        words = rules.split()
        symbols = dict(zip(words[::2], words[1::2], strict=True))
        symbols |= {"agent_on_goal": symbols["agent"].lower()}
        (rows,) = shown_boards(symbols, game_name, board)
        game = GAMES[game_name](rows)
        action = parse_action(answer, "cells")
        assert action is not None
        assert game.distance(game.move(game.start, action)) == game.distance(game.start) - 1


def test_a_guess_is_made_without_the_rules_and_rarely_believes_the_truth():
    rng, right = np.random.default_rng(1), []
    options = GridLessons(shares={"guess": 1.0}, sokoban=1.0)
    for _ in range(400):
        lesson = Lesson(options, rng)
        system, _, answer = (m["content"] for m in lesson.chat())
        assert system == grid_cells.UNKNOWN
        believed = answer.split()[0:6:2]
        right.append(believed == [lesson.symbols[r] for r in ("agent", "box", "goal")])
    assert 0.01 < np.mean(right) < 0.09  # 1 in 24 by chance


def test_a_reflection_is_the_truth_but_for_a_share_of_mistakes():
    rng, right = np.random.default_rng(2), []
    options = GridLessons(shares={"reflect": 1.0}, mistakes=0.2)
    for _ in range(500):
        lesson = Lesson(options, rng)
        system, _, answer = (m["content"] for m in lesson.chat())
        found = re.search(r"<prompt> (.*) </prompt>", answer)
        assert system == ASK_RULES
        assert found is not None
        right.append(found[1] == grid_cells.rules_text(lesson.name, lesson.symbols))
    assert 0.74 < np.mean(right) < 0.86


def shown_cells(text: str) -> dict[str, str]:
    return {word[:2]: word[2] for word in text.split() if len(word) == 3}


def test_a_drill_lists_where_every_symbol_is():
    for system, board, answer in lessons("where", 30):
        assert system == ASK_WHERE
        symbols, names = answer.split()[::2], answer.split()[1::2]
        assert dict(zip(names, symbols, strict=True)) == shown_cells(board)
        assert symbols == sorted(symbols)


def test_a_drill_tells_what_is_in_each_cell_that_is_asked_for():
    for _, user, answer in lessons("what", 30):
        asked = user.split("\n")[1].split()
        shown = shown_cells(user)
        assert answer == " ".join(f"{name} {shown[name]}" for name in asked)


def test_a_drill_tells_what_is_left_down_right_and_up():
    for _, user, answer in lessons("beside", 30):
        shown, words = shown_cells(user), answer.split()
        for i in range(0, len(words), 5):
            column, row = ord(words[i][0]), int(words[i][1])
            near = [(column - 1, row), (column, row + 1), (column + 1, row), (column, row - 1)]
            assert words[i + 1 : i + 5] == [
                shown.get(f"{chr(c)}{r}", grid_cells.EDGE) for c, r in near
            ]


def test_a_drill_in_planning_gives_a_best_move_for_every_position_of_one_lake():
    for system, user, answer in lessons("plan", 30, sokoban=0.0):
        words = system.split()[4:]
        symbols = dict(zip(words[::2], words[1::2], strict=True))
        marks = {symbols["goal"]: "G", symbols["hole"]: "H", symbols["frozen"]: "F"}
        *board, asked = user.split("\n")
        rows = tuple("".join(marks[w[2]] for w in line.split()) for line in board)
        replies = [answer.split()[i : i + 14] for i in range(0, len(answer.split()), 14)]
        assert [reply[1] for reply in replies] == asked.split()
        lake = GAMES["frozenlake"](rows)
        for reply in replies:
            cell = (int(reply[1][1]) - 1, ord(reply[1][0]) - ord("a"))
            assert not is_board_held_out(rows_at(lake, (cell,)))
            there = lake.move((cell,), reply[-1])
            assert lake.distance(there) == lake.distance((cell,)) - 1
            near = [
                symbols["goal"]
                if (n := shifted(cell, action)) == lake.goal
                else shown_cells(user).get(grid_cells.cell_name(n), grid_cells.EDGE)
                for action in ACTIONS
            ]
            assert reply[5:13:2] == near
            unsafe = (symbols["hole"], grid_cells.EDGE)
            assert reply[6:13:2] == ["no" if n in unsafe else "yes" for n in near]


def test_a_drill_in_planning_repeats_each_position_of_a_yard_with_a_push_and_a_move():
    for system, user, answer in lessons("plan", 30, sokoban=1.0, sokoban_sizes=(6,)):
        assert system == f"{ASK_PLAN} f6"
        words = answer.split()
        replies = [words[i : i + 9] for i in range(0, len(words), 9)]
        assert [" ".join(reply[:6]) for reply in replies] == user.split("\n")


def test_the_models_vocabulary_holds_every_word_of_every_lesson():
    from kolb.models.grids.start import WORDS

    symbols, names, cells = vocabulary()
    known = {*symbols, *names, *cells, *WORDS.split()}
    for kind in KINDS:
        for texts in lessons(kind, 200):
            assert set(" ".join(texts).split()) <= known


def test_lessons_cannot_be_acted_in():
    source = GridLessons()
    with pytest.raises(RecipeError, match="grid_text"):
        source.environment(source.tasks("train")[0])


def test_rows_of_a_shown_position_are_those_of_the_game():
    lake = GAMES["frozenlake"](("SFH", "FFF", "HFG"))
    assert rows_at(lake, ((1, 1),)) == ("FFH", "FSF", "HFG")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shares": {"acts": 1.0}}, "no lesson 'acts'; did you mean 'act'"),
        ({"shares": {"act": -1.0}}, "shares.act"),
        ({"shares": {"act": 0.0}}, "nothing is drawn"),
        ({"sokoban": 1.1}, "sokoban = 1.1"),
        ({"sokoban_sizes": (3,)}, "expected sizes of 4 to 9"),
        ({"frozenlake_sizes": (10,)}, "expected sizes of 2 to 9"),
        ({"mistakes": -0.1}, "mistakes"),
    ],
)
def test_options_that_make_no_lesson_are_refused(options, said):
    with pytest.raises(RecipeError, match=said):
        GridLessons(**options)
