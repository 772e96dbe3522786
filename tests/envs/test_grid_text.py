"""FrozenLake and Sokoban as an agent meets them: prompts, replies, limits, feedback, chance level."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from playing import play

from kolb.envs.grid_games import ACTIONS
from kolb.envs.grid_prompts import SYMBOLS, parse_action
from kolb.envs.grid_text import GridText
from kolb.errors import RecipeError
from kolb.types import Task, derive_seed

LAKE = Task("lake", data={"board": ("SFF", "HFF", "FFG")})
ROOM = Task("room", data={"board": ("######", "#  . #", "#    #", "# @$ #", "#    #", "######")})

SEMANTIC = re.compile(
    r"goal|hole|frozen|ice\b|lake|sokoban|box|wall|floor|push|pull|reward|player|target|win\b|puzzle",
    re.IGNORECASE,
)


def fenced(*actions):
    return [f"```{action}```" for action in actions]


SHORT_LAKE = GridText(style="short")
SHORT_ROOM = GridText(game="sokoban", style="short")


# ------------------------------------------------------------------------------------ what is shown


def test_the_paper_style_shows_step_grid_request_and_moves_left():
    (system, user), _ = play(GridText(), LAKE, [])
    assert user["content"] == (
        "Step 0\n A \t D \t D \t\n C \t D \t D \t\n D \t D \t B \t\n"
        "The goal is not achieved yet. Choose the next action.\nMoves remaining: 8"
    )
    assert system["role"] == "system"
    for part in ("<reason>", "</reason>", "1. **", "2. **", "3. **", "```Up```"):
        assert part in system["content"]
    assert "Up, Down, Left, Right" in system["content"]


def test_the_short_style_shows_symbols_and_nothing_else():
    (_, user), [after] = play(SHORT_LAKE, LAKE, ["Right"])
    assert user["content"] == "A D D\nC D D\nD D B"
    assert after.observation == ({"role": "user", "content": "D A D\nC D D\nD D B"},)


def test_a_move_that_changed_nothing_is_warned_about_in_the_next_turn_only():
    _, results = play(GridText(), LAKE, fenced("Up", "Right"))
    warned, moved = (r.observation[0]["content"] for r in results)
    assert "changed nothing" in warned
    assert "Moves remaining: 7" in warned
    assert "changed nothing" not in moved
    assert "Step 2" in moved


def test_sokoban_marks_box_and_player_on_the_goal_with_small_letters():
    _, results = play(SHORT_ROOM, ROOM, ["Up", "Up", "Right"])
    assert results[-1].observation[0]["content"].splitlines()[1] == "E D D a D E"
    solved = ("####", "#. #", "#$ #", "#@ #", "####")
    _, [result] = play(SHORT_ROOM, Task("t", data={"board": solved}), ["Up"])
    assert result.terminated
    assert result.observation[0]["content"].splitlines()[1] == "E b D E"


@pytest.mark.parametrize("game", ["frozenlake", "sokoban"])
@pytest.mark.parametrize("style", ["paper", "short"])
@pytest.mark.parametrize("symbols", [{}, "random"])
def test_hidden_rules_leave_no_meaning_in_the_system_prompt(game, style, symbols):
    source = GridText(game=game, style=style, symbols=symbols, train_tasks=8)
    prompts = {play(source, task, [])[0][0]["content"] for task in source.tasks("train")}
    assert len(prompts) == 1, "one prompt for all tasks: it cannot depend on the symbols"
    assert not SEMANTIC.findall(prompts.pop())


@pytest.mark.parametrize("game", ["frozenlake", "sokoban"])
@pytest.mark.parametrize("style", ["paper", "short"])
def test_visible_rules_state_the_meaning_of_every_symbol_of_this_task(game, style):
    source = GridText(game=game, style=style, rules="visible", symbols="random", train_tasks=4)
    for task in source.tasks("train"):
        legend = play(source, task, [])[0][0]["content"].rpartition("The symbols: ")[2]
        symbols = source.symbols_of(task)
        named = {"frozenlake": ("agent", "goal", "hole", "frozen")}.get(game, tuple(symbols))
        for role in named:
            assert re.search(rf"\b{symbols[role]}\b", legend)


def test_random_symbols_differ_between_tasks_and_never_clash():
    for game in ("frozenlake", "sokoban"):
        source = GridText(game=game, symbols="random", train_tasks=30)
        drawn = [source.symbols_of(task) for task in source.tasks("train")]
        assert len({tuple(s.values()) for s in drawn}) == 30
        assert all(len(set(s.values())) == len(SYMBOLS[game]) for s in drawn)
        assert drawn == [source.symbols_of(task) for task in source.tasks("train")]


def test_given_symbols_replace_the_papers_and_the_rest_stays():
    source = GridText(style="short", symbols={"agent": "P", "goal": "*"})
    assert play(source, LAKE, [])[0][1]["content"] == "P D D\nC D D\nD D *"


# ------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("reply", "paper", "short"),
    [
        ("```Up```", "Up", "Up"),
        ("first ```Up```, no: ``` left\n```", "Left", "Left"),
        ("```1```", "Left", "Left"),
        ("```2```", "Down", "Down"),
        ("```3```", "Right", "Right"),
        ("```4```", "Up", "Up"),
        ("```5```", None, None),
        ("```go up```", None, None),
        ("Down", None, "Down"),
        ("that is right, so: down.", None, "Down"),
        ("4", None, "Up"),
        ("14", None, None),
        ("upward", None, None),
        ("```Up", None, "Up"),
        ("", None, None),
    ],
)
def test_the_last_fenced_action_counts_and_in_the_short_style_the_last_word(reply, paper, short):
    assert parse_action(reply, "paper") == paper
    assert parse_action(reply, "short") == short


# ------------------------------------------------------------------------------------ what happens


def test_reaching_the_goal_terminates_with_reward_1():
    _, results = play(SHORT_LAKE, LAKE, ["Right", "Down", "Right", "Down"])
    assert [r.reward for r in results] == [0, 0, 0, 1]
    assert [r.terminated for r in results] == [False, False, False, True]
    assert not any(r.truncated for r in results)
    assert results[-1].feedback == (
        "The agent reached the goal. Last action: Down. Final state (row, column): agent at (2, 2), "
        "goal at (2, 2). Reward=1.0, steps=4."
    )


def test_a_hole_terminates_with_reward_0():
    _, [result] = play(SHORT_LAKE, LAKE, ["Down"])
    assert (result.reward, result.terminated, result.truncated) == (0.0, True, False)
    assert result.feedback.startswith("The agent fell into a hole. Last action: Down.")
    assert result.info["position"] == [1, 0]


def test_moving_off_the_board_changes_nothing_and_costs_a_step():
    _, results = play(GridText(), LAKE, fenced("Left"))
    assert results[0].info == {
        "action": "Left",
        "had_effect": False,
        "outcome": "The agent did not move: the edge of the grid is there.",
        "position": [0, 0],
    }
    assert results[0].feedback == results[0].info["outcome"]
    assert "Moves remaining: 7" in results[0].observation[0]["content"]


def test_the_eighth_step_truncates_and_the_closing_line_counts_the_waste():
    replies = ["Right", "hello", *["Up"] * 6, "Down"]
    _, results = play(SHORT_LAKE, LAKE, replies)
    assert len(results) == 8
    assert [r.truncated for r in results] == [False] * 7 + [True]
    assert (results[-1].reward, results[-1].terminated) == (0.0, False)
    assert results[1].info["action"] is None
    assert results[1].feedback == "There was no valid action in the reply, so nothing changed."
    assert results[-1].feedback == (
        "The step limit was hit before the goal was reached. 7 of 8 actions had no effect. "
        "The last 7 actions in a row did nothing. Last action: Up. Final state (row, column): "
        "agent at (0, 1), goal at (2, 2). Reward=0.0, steps=8."
    )


def test_winning_with_the_last_step_terminates_and_does_not_truncate():
    replies = ["Up"] * 4 + ["Right", "Down", "Right", "Down"]
    _, results = play(SHORT_LAKE, LAKE, replies)
    assert (results[-1].reward, results[-1].terminated, results[-1].truncated) == (1.0, True, False)


def test_max_steps_is_an_option():
    _, results = play(GridText(style="short", max_steps=2), LAKE, ["Up"] * 9)
    assert len(results) == 2
    assert results[-1].truncated


def test_a_blocked_push_changes_nothing():
    _, results = play(SHORT_ROOM, ROOM, ["Right", "Right"])
    pushed, blocked = results
    assert (pushed.info["box"], pushed.info["position"]) == ([3, 4], [3, 3])
    assert "pushed the box" in pushed.feedback
    assert (blocked.info["box"], blocked.info["had_effect"]) == ([3, 4], False)
    assert "did not move" in blocked.feedback
    assert blocked.observation == pushed.observation


@pytest.mark.parametrize("game", ["frozenlake", "sokoban"])
@pytest.mark.parametrize("style", ["paper", "short"])
def test_the_expert_wins_every_board_in_its_shortest_number_of_turns(game, style):
    source = GridText(game=game, style=style, symbols="random", test_tasks=60)
    for task in source.tasks("test"):
        replies = source.expert(task)
        _, results = play(source, task, replies)
        assert results[-1].reward == 1.0
        assert len(results) == len(replies) == task.tags["shortest_path"]


def test_the_expert_writes_the_skeleton_that_the_prompt_asks_for():
    reply = GridText().expert(LAKE)[0]
    assert re.fullmatch(
        r"<reason>\n1\. \*\*State analysis:\*\* .+\n2\. \*\*Value:\*\* (High|Medium|Low), .+\n"
        r"3\. \*\*Consequences:\*\* .+\n</reason>\n```Right```",
        reply,
    )
    assert not SEMANTIC.findall(reply)


def test_the_expert_says_so_where_nothing_wins():
    with pytest.raises(RecipeError, match="cannot be won"):
        GridText().expert(Task("t", data={"board": ("SH", "HG")}))


def success_of_chance(game: str, count: int) -> float:
    source = GridText(game=game, style="short", train_tasks=count)
    wins = 0.0
    for task in source.tasks("train"):
        rng = random.Random(derive_seed("chance", task.id))
        _, results = play(source, task, [rng.choice(ACTIONS) for _ in range(8)])
        wins += results[-1].reward
    return wins / count


def test_a_random_policy_solves_frozenlake_as_often_as_the_paper_starts():
    assert 0.15 <= success_of_chance("frozenlake", 1500) <= 0.27


def test_a_random_policy_hardly_ever_solves_sokoban():
    assert 0.01 <= success_of_chance("sokoban", 1500) <= 0.05


def test_a_fork_shares_nothing_with_its_original():
    async def go():
        world = SHORT_ROOM.environment(ROOM)
        await world.reset()
        await world.step("Up")
        twin = await world.fork()
        away = [await twin.step(a) for a in ("Left", "Left", "Down")]
        back = await world.step("Down")
        assert back.info["position"] == [3, 2]
        assert away[-1].info["position"] == [3, 1]
        steps = [await world.step("Up") for _ in range(6)]
        assert steps[-1].truncated, "the original has made 8 steps, its fork's do not count"

    asyncio.run(go())


# --------------------------------------------------------------------------------------- options


def test_boards_come_from_a_file_per_split(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"board": ["SG", "FF"], "seed": 7}\n' * 3)
    (tmp_path / "b.jsonl").write_text('{"board": ["SF", "FG"]}\n')
    files = {"train": str(tmp_path / "a.jsonl"), "test": str(tmp_path / "b.jsonl")}
    source = GridText(boards=files, train_tasks=2)
    assert [t.id for t in source.tasks("train")] == ["frozenlake-train-0", "frozenlake-train-1"]
    assert source.tasks("train")[0].tags == {"size": 2, "seed": 7, "shortest_path": 1}
    assert source.tasks("test")[0].data == {"board": ("SF", "FG")}
    with pytest.raises(RecipeError, match="no boards for split 'dev'"):
        source.tasks("dev")


def test_one_board_file_is_divided_by_a_hash_of_the_boards(tmp_path):
    drawn = GridText(train_tasks=30, dev_tasks=4, test_tasks=5)
    rows = {s: [t.data["board"] for t in drawn.tasks(s)] for s in ("train", "dev", "test")}
    lines = [f'{{"board": {list(b)}}}'.replace("'", '"') for s in rows for b in rows[s]]
    path = tmp_path / "boards.jsonl"
    path.write_text("\n".join(reversed(lines)))
    read = GridText(boards=str(path))
    for split, expected in rows.items():
        assert sorted(t.data["board"] for t in read.tasks(split)) == sorted(expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"game": "frozenlak"}, "did you mean 'frozenlake'"),
        ({"style": "long"}, "style = 'long'"),
        ({"rules": "hiden"}, "did you mean 'hidden'"),
        ({"symbols": "rando"}, "or 'random'"),
        ({"symbols": {"agnt": "X"}}, "did you mean 'agent'"),
        ({"symbols": {"agent": "D"}}, "look alike"),
        ({"symbols": {"agent": " "}}, "without spaces"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"sizes": (1,)}, "at least 2"),
        ({"frozen": (0.9, 0.1)}, "low <= high"),
        ({"boards": {"trian": "x"}}, "did you mean 'train'"),
        ({"boards": "nowhere.jsonl"}, "there is no file"),
    ],
)
def test_a_mistaken_option_is_refused_and_named(options, words):
    with pytest.raises(RecipeError, match=words):
        GridText(**options).tasks("train")
