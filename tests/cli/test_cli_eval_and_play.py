"""``kolb eval`` is the evaluator of training; ``kolb play`` shows or takes one episode."""

import io
import json
import os
from pathlib import Path

import pytest

from kolb.envs.grid_text import GridText
from kolb.runs.directory import RunDirectory


@pytest.fixture
def run(here: Path, kolb, capsys) -> Path:
    assert kolb("run", "lake.toml", "--quiet", "--out", here / "run") == 0
    capsys.readouterr()
    return here / "run"


def evaluations(run: Path) -> list[dict]:
    return [json.loads(p.read_text()) for p in sorted(run.glob("eval-*.json"))]


def test_eval_repeats_the_numbers_of_training(run: Path, kolb, capsys):
    assert kolb("eval", run) == 0
    trained = RunDirectory.open(run).metrics()[-1]
    (found,) = evaluations(run)
    expected = {k: v for k, v in trained.items() if k.startswith("eval/")}
    assert expected["eval/episodes"] == 10
    assert found["metrics"] == expected
    assert (found["step"], found["stage"], found["evaluation"]["seed"]) == (4, "explore", 1)
    out = capsys.readouterr().out
    assert f"mean outcome  {expected['eval/mean']:.3f}  (95% interval " in out
    assert "pass@2" in out


def test_eval_of_a_recipe_measures_the_weights_that_it_starts_from(run: Path, kolb, capsys):
    assert kolb("eval", "lake.toml") == 0
    start = RunDirectory.open(run).metrics()[0]
    assert f"mean outcome  {start['eval_start/mean']:.3f}  " in capsys.readouterr().out
    assert evaluations(run) == []


def test_eval_takes_split_size_samples_seed_and_checkpoint(run: Path, kolb, capsys):
    words = ["--split", "dev", "--episodes", 3, "--samples", 4, "--seed", 7, "--checkpoint", 3]
    assert kolb("eval", run, *words, "--temperature", 0.5) == 0
    (found,) = evaluations(run)
    assert found["step"] == 3
    assert len(found["outcomes"]) == 3
    assert [len(v) for v in found["outcomes"].values()] == [4, 4, 4]
    assert found["evaluation"]["temperature"] == 0.5
    assert "3 tasks of split 'dev', 12 episodes, seed 7" in capsys.readouterr().out


def test_a_checkpoint_that_is_gone_is_named_with_those_that_are_there(run: Path, kolb, capsys):
    assert kolb("eval", run, "--checkpoint", 1) == 2
    assert "has no checkpoint of step 1; it has [3, 4]" in capsys.readouterr().err


def test_play_shows_every_turn_and_the_outcome(run: Path, kolb, capsys):
    assert kolb("play", run, "--task", "frozenlake-test-2") == 0
    out = capsys.readouterr().out
    assert out.startswith("task frozenlake-test-2, by the policies after step 4")
    assert "[system]\n  Grid game." in out
    assert out.count("[agent]") == out.count("[user]") - 1
    assert "the end: status " in out


def test_play_by_hand_wins_with_the_experts_moves(here: Path, kolb, capsys, monkeypatch):
    lake = GridText(style="short", sizes=(2, 3), train_tasks=40, dev_tasks=4, test_tasks=6)
    moves = lake.expert(lake.tasks("test")[1])
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{move}\n" for move in moves)))
    assert kolb("play", "lake.toml", "--task", "1", "--by-hand") == 0
    out = capsys.readouterr().out
    assert "by hand" in out
    assert out.endswith("the end: status ok, outcome 1\n")


def test_a_hand_that_leaves_ends_the_episode_in_words(here: Path, kolb, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert kolb("play", "lake.toml", "--by-hand") == 2
    assert "the input ended before the episode did" in capsys.readouterr().err


def test_control_characters_of_a_model_do_not_reach_the_terminal(here: Path, kolb, capsys):
    (here / "answers.py").write_text("def answer(messages, seed):\n    return 'Up\\x1b[2J'\n")
    assert kolb("play", "lake.toml") == 0
    assert "\x1b" not in capsys.readouterr().out


def test_view_walks_from_a_step_to_an_episode(run: Path, kolb, capsys):
    assert kolb("view", run) == 0
    assert "explore" in capsys.readouterr().out
    assert kolb("view", run, "--step", 2) == 0
    assert "groups of step 2" in capsys.readouterr().out
    assert kolb("view", run, "--step", 2, "--group", 1) == 0
    assert "step 2 · group 1" in capsys.readouterr().out
    assert kolb("view", run, "--step", 2, "--group", 1, "--episode", 3, "--tokens") == 0
    assert "episode 3 of 4" in capsys.readouterr().out
    assert kolb("view", run, "--group", 1) == 2


def test_export_writes_the_policy_of_the_checkpoint_into_a_new_folder(run: Path, kolb, capsys):
    assert kolb("export", run, "out", "--checkpoint", 3) == 0
    state = json.loads(Path("out/scripted.json").read_text())
    saved = json.loads((run / "checkpoints/000003/learners/agent/scripted.json").read_text())
    assert state == saved
    if os.name == "posix":
        fresh = Path("fresh")
        fresh.touch()
        assert {f.stat().st_mode for f in Path("out").iterdir()} == {fresh.stat().st_mode}
    assert kolb("export", run, "out") == 2
    assert "out is there and not empty" in capsys.readouterr().err
    assert kolb("export", run, "other", "--policy", "agnt") == 2
    assert "did you mean 'agent'?" in capsys.readouterr().err


def test_check_passes_a_good_environment_and_fails_a_bad_one(here: Path, kolb, capsys):
    assert kolb("check", "grid_text", "game=sokoban", "train_tasks=6", "test_tasks=2") == 0
    assert "grid_text: no problem found" in capsys.readouterr().out
    (here / "coin.py").write_text(COIN)
    assert kolb("check", "./coin.py", "sides=3") == 1
    assert "determinism" in capsys.readouterr().out
    assert kolb("check", "./coin.py", "side=3") == 2
    assert "did you mean 'sides'?" in capsys.readouterr().err


COIN = """
import random
from dataclasses import dataclass
from kolb.envs.base import Replayable
from kolb.types import StepResult, Task

@dataclass(frozen=True)
class Coin:
    sides: int = 2

    def tasks(self, split):
        return [Task(id=f"{split}-{i}", seed=i) for i in range(3)]

    def environment(self, task):
        return Replayable(lambda: Toss(self.sides))

class Toss:
    def __init__(self, sides):
        self.sides = sides

    async def reset(self):
        return ({"role": "user", "content": f"heads or tails? {random.random()}"},)

    async def step(self, message):
        return StepResult(reward=random.random(), terminated=True)

ENVIRONMENT = Coin
"""
