"""Boards: generators, splits, files, shortest paths, and the dynamics against gymnasium's FrozenLake."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from kolb.envs.base import SPLITS
from kolb.envs.grid_boards import (
    LONGEST,
    SIZES,
    BoardRequest,
    generate,
    read_boards,
    shortest,
    split_of,
)
from kolb.envs.grid_games import ACTIONS, GAMES, FrozenLake, Sokoban, solve
from kolb.errors import RecipeError

DATA = Path(os.environ.get("KOLB_DATA", Path(__file__).parents[3] / "shared" / "data")) / "erl"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no boards of the ERL paper at {DATA}; set KOLB_DATA"
)


def boards(game: str, split: str = "train", count: int = 300, **options):
    request = BoardRequest(game, split, count, SIZES[game], LONGEST[game], **options)
    return generate(request)


# ----------------------------------------------------------------------------------- the generators


def test_golden_boards_of_seed_0():
    """Byte for byte: a change here changes every recorded experiment."""
    assert boards("frozenlake", "train", 20)[2].rows == GOLDEN_LAKE
    assert boards("sokoban", "test", 2)[1].rows == GOLDEN_SOKOBAN


GOLDEN_LAKE = ("HHFHFH", "FFFFFF", "FSFFHG", "HFFHHH", "FHFHFH", "FFHHFF")
GOLDEN_SOKOBAN = ("#######", "#  @  #", "#  .  #", "#   $ #", "#     #", "#     #", "#######")


@pytest.mark.parametrize("game", GAMES)
def test_the_first_boards_do_not_depend_on_how_many_are_asked_for(game):
    assert boards(game, count=20) == boards(game, count=50)[:20]
    assert boards(game, count=20) != boards(game, count=20, seed=1)


@pytest.mark.parametrize("game", GAMES)
def test_splits_share_no_board(game):
    rows = {split: {b.rows for b in boards(game, split)} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not rows[one] & rows[other]
    assert all(split_of(r) == split for split, group in rows.items() for r in group)


def test_no_sokoban_board_comes_twice():
    assert len({b.rows for b in boards("sokoban", count=1000)}) == 1000


def test_asking_for_more_boards_than_there_are_says_so():
    request = BoardRequest("sokoban", "test", 10, (4,), 8)
    with pytest.raises(RecipeError, match="ask for fewer tasks or allow more sizes"):
        generate(request)


def test_frozenlake_boards_follow_the_papers_distribution():
    drawn = boards("frozenlake", count=2000)
    sizes = Counter(b.tags["size"] for b in drawn)
    assert set(sizes) == set(range(2, 10))
    assert all(0.09 < count / 2000 < 0.16 for count in sizes.values())  # uniform: 0.125
    assert all(0.60 <= b.tags["p"] < 0.85 for b in drawn)
    big = [b for b in drawn if b.tags["size"] >= 7]
    ice = sum("".join(b.rows).count("F") for b in big) / sum(b.tags["size"] ** 2 - 2 for b in big)
    assert 0.69 < ice < 0.78  # mean of U(0.60, 0.85) is 0.725; solvable boards have a little more
    assert max(b.tags["shortest_path"] for b in drawn) == 6


def test_sokoban_boards_have_border_walls_only_and_one_of_each_piece():
    for board in boards("sokoban"):
        size = len(board.rows)
        inside = "".join(row[1:-1] for row in board.rows[1:-1])
        assert board.rows[0] == board.rows[-1] == "#" * size
        assert all(row[0] == row[-1] == "#" for row in board.rows)
        assert Counter(inside) == {" ": (size - 2) ** 2 - 3, "@": 1, "$": 1, ".": 1}
        assert 1 <= board.tags["shortest_path"] <= 8


# --------------------------------------------------------------------------- rules and shortest paths


def test_frozenlake_moves_equal_gymnasiums_for_every_state_and_action():
    gymnasium = pytest.importorskip("gymnasium")
    for board in boards("frozenlake", count=40):
        game, size = FrozenLake(board.rows), len(board.rows)
        env = gymnasium.make("FrozenLake-v1", desc=list(board.rows), is_slippery=False)
        for row, column in itertools.product(range(size), repeat=2):
            state = ((row, column),)
            if game.is_won(state) or game.is_lost(state):
                continue
            for number, action in enumerate(ACTIONS):
                [(chance, after, reward, is_over)] = env.unwrapped.P[row * size + column][number]
                ours = game.move(state, action)
                assert chance == 1.0
                assert ours == (divmod(after, size),)
                assert (game.is_won(ours), game.is_won(ours) or game.is_lost(ours)) == (
                    reward == 1,
                    is_over,
                )


def test_sokoban_pushes_moves_and_blocks_by_the_rules():
    game = Sokoban(("######", "#    #", "# @$.#", "#    #", "######"))
    start = ((2, 2), (2, 3))
    assert game.start == start
    assert game.move(game.start, "Right") == ((2, 3), (2, 4))  # a push, onto the goal
    assert game.is_won(((2, 3), (2, 4)))
    assert game.move(game.start, "Left") == ((2, 1), (2, 3))  # a step, no pull
    assert game.move(((2, 1), (2, 3)), "Left") == ((2, 1), (2, 3))  # a wall
    against_the_wall = ((2, 2), (2, 1))
    assert game.move(against_the_wall, "Left") == against_the_wall  # a box against a wall
    assert game.distance(((2, 2), (1, 1))) is None  # a box in a corner


def test_every_distance_table_agrees_with_a_forward_search():
    for game in (
        Sokoban(boards("sokoban", count=1)[0].rows),
        FrozenLake(boards("frozenlake", count=9)[8].rows),
    ):
        seen = {game.start}
        frontier = [game.start]
        for depth in range(9):
            if any(game.is_won(s) for s in frontier):
                assert game.distance(game.start) == depth
                break
            alive = [s for s in frontier if not game.is_lost(s)]
            frontier = list({game.move(s, a) for s in alive for a in ACTIONS} - seen)
            seen.update(frontier)
        else:
            pytest.fail("the forward search found no win in 8 moves")


@pytest.mark.parametrize("game", GAMES)
def test_solutions_win_in_exactly_the_shortest_number_of_moves(game):
    for board in boards(game, "test", 100):
        world = GAMES[game](board.rows)
        state = world.start
        actions = solve(world)
        assert actions is not None
        for number, action in enumerate(actions):
            assert not world.is_won(state), number
            state = world.move(state, action)
        assert world.is_won(state)
        assert len(actions) == board.tags["shortest_path"] <= LONGEST[game]


def test_an_unsolvable_board_has_no_distance_and_no_solution():
    assert shortest("frozenlake", ("SH", "HG")) is None
    assert solve(FrozenLake(("SH", "HG"))) is None


# ------------------------------------------------------------------------------------- board files


@needs_data
@pytest.mark.parametrize(
    ("game", "histogram"),
    [
        ("frozenlake", {1: 25, 2: 15, 3: 22, 4: 22, 5: 6, 6: 10}),
        ("sokoban", {1: 2, 2: 4, 3: 9, 4: 12, 5: 12, 6: 19, 7: 18, 8: 24}),
    ],
)
def test_the_papers_test_boards_have_their_published_shortest_paths(game, histogram):
    drawn = read_boards(game, str(DATA / f"{game}_test.jsonl"))
    assert Counter(b.tags["shortest_path"] for b in drawn) == histogram


@needs_data
def test_the_papers_own_shortest_paths_equal_ours_on_ten_thousand_boards():
    path = DATA / "frozenlake_train.jsonl"
    stated = [json.loads(line)["shortest_path"] for line in path.read_text().splitlines()]
    assert [b.tags["shortest_path"] for b in read_boards("frozenlake", str(path))] == stated
    assert len(stated) == 10_000


@needs_data
def test_the_papers_sokoban_boards_are_all_solvable_in_eight():
    drawn = read_boards("sokoban", str(DATA / "sokoban_train.jsonl"))
    assert len(drawn) == 10_000
    assert {len(b.rows) for b in drawn} == {6, 7, 8}
    assert all(1 <= b.tags["shortest_path"] <= 8 for b in drawn)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", "not JSON"),
        ("[1]", "expected a list of strings"),
        ('{"board": ["SF", "FF"]}', "exactly one of 'G', found 0"),
        ('{"board": ["SFG", "FF"]}', "different lengths"),
        ('{"board": ["SX", "FG"]}', "not 'X'"),
    ],
)
def test_a_bad_line_of_a_board_file_is_named_with_its_number(tmp_path, line, words):
    path = tmp_path / "boards.jsonl"
    path.write_text('{"board": ["SF", "FG"]}\n' + line + "\n")
    with pytest.raises(RecipeError, match=words) as caught:
        read_boards("frozenlake", str(path))
    assert f"{path}:2" in str(caught.value)
