"""The words of the ``cells`` style, and what GridText does with them."""

from __future__ import annotations

import pytest
from playing import play

from kolb.envs import grid_cells
from kolb.envs.grid_games import FrozenLake, Sokoban, rows_at
from kolb.envs.grid_prompts import SYMBOLS, parse_action
from kolb.envs.grid_text import GridText
from kolb.errors import RecipeError

LAKE = FrozenLake(("SFH", "FFF", "HFG"))
YARD = Sokoban(("######", "#    #", "#@ $.#", "#    #", "######"))
FL, SOK = SYMBOLS["frozenlake"], SYMBOLS["sokoban"]


def test_every_cell_is_one_word_with_its_name_and_its_symbol():
    assert grid_cells.board_text(LAKE, LAKE.start, FL) == "a1A b1D c1C\na2D b2D c2D\na3C b3D c3B"


def test_the_agent_on_the_goal_shows_its_small_letter():
    yard = Sokoban(("######", "#+ $ #", "######"))
    assert grid_cells.board_text(yard, yard.start, SOK).split()[7] == "b2a"


def test_a_frozenlake_reply_names_and_judges_what_is_left_down_right_and_up():
    reply = grid_cells.reply_text(LAKE, ((1, 1),), "Down", FL)
    assert reply == "A b2 B c3 C D yes D yes D yes D yes Down"
    corner = grid_cells.reply_text(LAKE, LAKE.start, "Right", FL)
    assert corner == "A a1 B c3 C edge no D yes D yes edge no Right"


def test_a_sokoban_reply_names_the_next_push_and_where_to_stand_before_the_action():
    assert grid_cells.reply_text(YARD, YARD.start, "Right", SOK) == "A b3 B d3 C e3 Right c3 Right"
    below = ((3, 3), (2, 3))
    yard = Sokoban(("######", "#  . #", "#  $ #", "#@   #", "######"))
    assert grid_cells.reply_text(yard, yard.start, "Right", SOK) == "A b4 B d3 C d2 Up d4 Right"
    assert grid_cells.next_push(yard, below, "Up") == "Up"


def test_the_last_word_of_a_reply_is_the_action():
    assert parse_action("A b3 B d3 C e3 Right c3 Up", "cells") == "Up"
    assert parse_action("A b3 B d3", "cells") is None


def test_the_last_feedback_tells_what_stood_where_on_the_last_board_that_was_shown():
    after = YARD.move(YARD.start, "Right")
    said = grid_cells.final_text(YARD, YARD.start, "Right : moved to c3", truncated=True)
    assert after != YARD.start
    assert said == "Right : moved to c3 timeout : agent b3 box d3 goal e3"


def test_hidden_rules_show_no_symbol_and_visible_ones_all_of_them():
    task = GridText(style="cells", train_tasks=1).tasks("train")[0]
    hidden = play(GridText(style="cells"), task, [])[0][0]["content"]
    visible = GridText(style="cells", rules="visible")
    assert hidden == grid_cells.UNKNOWN
    assert not {"A", "B", "C", "D"} & set(hidden.split())
    shown = play(visible, task, [])[0][0]["content"]
    assert shown == "agent A goal B hole C frozen D"


@pytest.mark.parametrize(("game", "size"), [("frozenlake", 4), ("sokoban", 6)])
def test_the_experts_replies_win(game: str, size: int):
    source = GridText(game=game, style="cells", sizes=(size,), train_tasks=20)

    ends = [play(source, t, source.expert(t))[1][-1].reward for t in source.tasks("train")]
    assert ends == [1.0] * 20


def test_a_reply_without_an_action_is_said_to_be_invalid_and_costs_a_step():
    source = GridText(style="cells", max_steps=1, train_tasks=1)
    _, (result,) = play(source, source.tasks("train")[0], ["A b2"])
    assert result.truncated
    assert result.feedback.startswith("invalid timeout : agent ")


def test_rows_at_puts_the_player_on_the_goal_where_it_stands_there():
    yard = Sokoban(("######", "#@.$ #", "######"))
    assert rows_at(yard, yard.move(yard.start, "Right")) == ("######", "# +$ #", "######")


def test_an_unknown_style_names_the_known_ones():
    with pytest.raises(RecipeError, match="cells"):
        GridText(style="cell")
