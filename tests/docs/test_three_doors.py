"""The three doors of CONTRIBUTING.md: a method, an environment, an engine. One file each, and each works.

(The engine is also one of the CASES of tests/contracts/test_engine_contract.py, and the environment goes
through tests/contracts/test_environment_contract.py.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kolb import plugins, recipe
from kolb.engines.scripted import Scripted
from kolb.errors import CapabilityError
from kolb.loop import run
from kolb.models.prepare import prepare_models
from kolb.runs.directory import RunDirectory
from kolb.types import Completion, Episode, Failure, Group, Method, Status, Task, Trajectory, Turn

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RAFT = str(EXAMPLES / "raft.py")

Command = Callable[..., int]


@pytest.fixture
def kolb(monkeypatch: pytest.MonkeyPatch) -> Command:
    """``kolb("check", ...)`` from the root of the repository; gives the exit code."""
    from kolb.cli import main

    def command(*words: object) -> int:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr("sys.argv", ["kolb", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    return command


# ----------------------------------------------------------------------------------------- a method


def raft(**options: Any) -> Any:
    return type(plugins.load(RAFT, "kolb.methods", "METHOD"))(**options)


def group(*rewards: float | None, broken: bool = False) -> Group:
    """Episodes whose only token is their index, with these rewards."""
    episodes = []
    for index, reward in enumerate(rewards):
        said = Completion(str(index), np.array([index], np.int32), -np.ones(1, np.float32))
        turn = Turn((), said, np.array([9], np.int32), starts_segment=True)
        scores = {} if reward is None else {"reward": reward}
        episodes.append(
            Episode("t", index, (Trajectory("solver", "agent", (turn,), scores),), reward)
        )
    if broken:
        failure = Failure("environment", "it broke")
        episodes[-1] = Episode("t", len(episodes), status=Status.ENV_ERROR, failure=failure)
    return Group(Task("t"), tuple(episodes))


def kept(update: Any) -> list[int]:
    return [int(example.target_ids[0]) for example in update.examples]


def test_the_example_method_keeps_the_best_answer_of_each_group() -> None:
    update = raft().credit([group(0.2, 0.9, 0.5), group(1.0, 0.0)], None)
    assert kept(update) == [1, 0]
    assert [e.weights["imitation"].tolist() for e in update.examples] == [[1.0], [1.0]]
    assert update.metrics["raft/kept"] == 2


def test_it_keeps_the_first_of_equals_and_nothing_that_earned_too_little_or_broke() -> None:
    groups = [
        group(0.0, 1.0, 1.0),
        group(0.0, 0.0),
        group(None, None),
        group(1.0, 1.0, broken=True),
    ]
    assert kept(raft().credit(groups, None)) == [1]
    assert kept(raft(above=-1.0).credit(groups, None)) == [1, 0]


def test_the_example_method_is_a_method_and_collects_k_answers_per_prompt() -> None:
    assert isinstance(raft(), Method)
    asked: list[tuple[str, int]] = []

    class FakeWorld:
        async def play(self, task: Task, *, role: str, index: int) -> Episode:
            asked.append((task.id, index))
            return Episode(task.id, index)

        async def groups(self, tasks: Any, size: int, make: Any) -> list[Group]:
            return [Group(t, tuple([await make(t, i) for i in range(size)])) for t in tasks]

    world: Any = FakeWorld()
    groups = asyncio.run(raft(group_size=3).collect([Task("a"), Task("b")], world))
    assert [len(g.episodes) for g in groups] == [3, 3]
    assert asked == [(task, i) for task in "ab" for i in range(3)]


def small(*sets: str) -> list[str]:
    """``--set``s for two steps of each stage of examples/guess_number.toml."""
    stages = ("imitate", "best_of_8")
    both = {"steps": 2, "tasks_per_step": 3, "evaluation.episodes": 3, "sampling.max_tokens": 4}
    changes = [f"stages.{stage}.{key}={value}" for stage in stages for key, value in both.items()]
    return [*changes, "stages.best_of_8.method.group_size=3", *sets]


def test_the_example_method_runs_on_the_scripted_engine(tmp_path: Path) -> None:
    def answer(messages: Any, seed: int) -> str:
        return str(1 + seed % 20)

    engine = Scripted(answer)
    loaded = recipe.load(EXAMPLES / "guess_number.toml", small("stages.best_of_8.tasks_per_step=9"))
    result = run(loaded, tmp_path / "run", engine=engine)
    lines = RunDirectory.open(tmp_path / "run").metrics()
    assert [line["stage"] for line in lines] == ["imitate"] * 2 + ["best_of_8"] * 2
    assert all(line["raft/kept"] >= 1 for line in lines[2:])
    assert [line["examples/agent"] for line in lines[2:]] == [
        line["raft/kept"] for line in lines[2:]
    ]
    assert (result.steps, engine.learners["agent"].version) == (4, 4)


def test_the_example_method_trains_a_model_by_a_recipe_with_the_path_of_its_file(
    tmp_path: Path,
) -> None:
    sets = small(
        "engine.threads=1",
        "policies.agent.build.hidden_size=32",
        "policies.agent.build.intermediate_size=48",
        "policies.agent.build.num_hidden_layers=2",
        # Nobody guesses right after two steps of imitation; so that there is something to train on:
        "stages.best_of_8.method.above=-1.0",
    )
    loaded = recipe.load(EXAMPLES / "guess_number.toml", sets)
    run(prepare_models(loaded, tmp_path), tmp_path / "run")
    lines = RunDirectory.open(tmp_path / "run").metrics()
    assert [line["raft/kept"] for line in lines[2:]] == [3, 3]
    for line in lines:
        assert line["updates/agent"] == 1
        assert line["grad_norm/agent"] > 0
        assert line["updates/skipped"] == 0


# ------------------------------------------------------------------------------------ an environment


def test_the_example_environment_passes_kolb_check(kolb: Command, capsys: Any) -> None:
    assert kolb("check", "examples/guess_number.py", "high=20", "max_steps=5") == 0
    assert "no problem found" in capsys.readouterr().out


def test_a_world_without_fork_passes_kolb_check_with_a_note(
    kolb: Command, capsys: Any, tmp_path: Path
) -> None:
    text = (EXAMPLES / "guess_number.py").read_text()
    text = text.replace("Replayable(lambda: ", "SingleUse(").replace("Replayable", "SingleUse")
    (tmp_path / "once.py").write_text(text)
    assert kolb("check", tmp_path / "once.py") == 0
    assert "note: fork (task guess-train-0): there is none" in capsys.readouterr().out


def test_its_expert_finds_the_number_in_as_many_guesses_as_bisection_takes() -> None:
    source = plugins.load(str(EXAMPLES / "guess_number.py"), "kolb.envs", "ENVIRONMENT")(high=20)
    lengths = [len(source.expert(task)) for task in source.tasks("train")]
    assert max(lengths) == 5
    assert all(source.expert(t)[-1] == str(source.secret(t)) for t in source.tasks("train"))


# -------------------------------------------------------------------------------------------- an engine


def test_the_example_engine_is_measured_by_kolb_eval(kolb: Command, capsys: Any) -> None:
    assert kolb("eval", "examples/bisect.toml", "--episodes", 10, "--samples", 2) == 0
    shown = capsys.readouterr().out
    assert "10 tasks of split 'test', 20 episodes" in shown
    # A random guess among what is left open finds 1 of 100 in 8 tries more often than not.
    success = next(line for line in shown.splitlines() if line.startswith("success"))
    assert float(success.split()[1].rstrip("%")) > 50


def test_the_example_engine_is_watched_by_kolb_play(kolb: Command, capsys: Any) -> None:
    assert kolb("play", "examples/bisect.toml", "--task", 3) == 0
    shown = capsys.readouterr().out
    assert "Guess my number, 1 to 100." in shown
    assert "the end: status" in shown


def test_a_recipe_that_trains_is_refused_on_the_example_engine_before_anything_starts() -> None:
    with pytest.raises(CapabilityError, match="Bisect provides only sample"):
        recipe.load(EXAMPLES / "guess_number.toml", [f"engine={EXAMPLES / 'bisect_engine.py'}"])
