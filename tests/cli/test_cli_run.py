"""``kolb run``: a run with its report, mistakes in one message, interruption and resumption."""

from pathlib import Path

import pytest

from kolb import __version__
from kolb.runs.directory import RunDirectory


def test_a_run_says_where_it_is_what_it_reached_and_what_to_do_next(here: Path, kolb, capsys):
    assert kolb("run", "lake.toml") == 0
    out = capsys.readouterr().out
    assert out.startswith("run: runs/lake-0001\n")
    assert "explore: success on test 0." in out
    assert "before" in out
    assert "after" in out
    assert "a failed episode: task frozenlake-test-" in out
    assert "a solved episode: task frozenlake-test-" in out
    assert "kolb view runs/lake-0001" in out
    assert RunDirectory.open(here / "runs/lake-0001").steps() == [1, 2, 3, 4]
    assert (here / "runs/lake-0001/curve.png").read_bytes()[:4] == b"\x89PNG"


def test_the_second_run_gets_its_own_folder(here: Path, kolb, capsys):
    assert kolb("run", "lake.toml", "--set", "stages.explore.steps=1", "--quiet") == 0
    assert kolb("run", "lake.toml", "--set", "stages.explore.steps=1") == 0
    assert "run: runs/lake-0002" in capsys.readouterr().out
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["lake-0001", "lake-0002"]


def test_quiet_prints_the_result_and_the_folder_only(here: Path, kolb, capsys):
    assert kolb("run", "lake.toml", "--quiet", "--out", here / "mine") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("explore: success on test")
    assert lines[1] == f"run: {here / 'mine'}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "lake.toml", "--set", "stages.explore.stepz=1"], "did you mean 'steps'?"),
        (["run", "laky.toml"], "no recipe at laky.toml"),
        (["run"], "give a recipe"),
        (["run", "lake.toml", "--resume", "x"], "--resume goes on with a run's own recipe"),
        (["run", "--resume", "nowhere"], "nowhere does not exist"),
        (["eval", "lake.toml", "--checkpoint", "3"], "a recipe, which has no checkpoints"),
        (["eval", "lake.toml", "--split", "tset"], "tset"),
        (["play", "lake.toml", "--task", "lake-9"], "give a number from 0 to 5, or an id such as"),
        (["play", "lake.toml", "--split", "tset"], "did you mean 'test'?"),
        (["view", "nowhere"], "nowhere does not exist"),
        (["check", "grid_txt"], "did you mean 'grid_text'?"),
        (["models", "get", "smollm"], "did you mean 'smollm2-135m'?"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(here: Path, kolb, capsys, words, message):
    assert kolb(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("kolb: ")
    assert message in error
    assert "Traceback" not in error


def test_a_bug_is_not_hidden(here: Path, kolb, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("kolb.cli.running.start_run", broken)
    with pytest.raises(ZeroDivisionError):
        kolb("run", "lake.toml")


def test_ctrl_c_leaves_a_run_that_resumes_to_the_same_end(here: Path, kolb, capsys, monkeypatch):
    assert kolb("run", "lake.toml", "--quiet", "--out", "whole") == 0

    from kolb.runs.progress import Progress

    def interrupted(self, stage, step, metrics):
        if step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "step", interrupted)
        assert kolb("run", "lake.toml", "--quiet", "--out", "cut") == 130
    assert capsys.readouterr().err == (
        "\nstopped. The run goes on from its checkpoint of step 1, with\n  kolb run --resume cut\n"
    )
    assert RunDirectory.open("cut").steps()[-1] < 4

    assert kolb("run", "--resume", "cut", "--quiet") == 0
    assert numbers("cut") == numbers("whole")
    weights = "checkpoints/000004/learners/agent/scripted.json"
    assert Path("cut", weights).read_bytes() == Path("whole", weights).read_bytes()


def test_ctrl_c_before_any_checkpoint_does_not_promise_one(here: Path, kolb, capsys, monkeypatch):
    from kolb.runs.progress import Progress

    def interrupted(self, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "step", interrupted)
    assert kolb("run", "lake.toml", "--set", "checkpoints.every=0", "--out", "cut") == 130
    assert "from the start: it has no checkpoint yet, with" in capsys.readouterr().err
    monkeypatch.setattr(Progress, "__enter__", interrupted)
    assert kolb("run", "lake.toml", "--out", "never") == 130
    assert capsys.readouterr().err == "\nstopped. Nothing was written yet.\n"


def test_the_version_is_told(kolb, capsys):
    assert kolb("--version") == 0
    assert capsys.readouterr().out == f"kolb {__version__}\n"


def numbers(run: str) -> list[dict[str, object]]:
    """Everything that was measured but the clock."""
    return [
        {k: v for k, v in line.items() if not k.startswith("time/")}
        for line in RunDirectory.open(run).metrics()
    ]


def test_resuming_a_finished_run_reports_it_again(here: Path, kolb, capsys):
    assert kolb("run", "lake.toml", "--quiet", "--out", "done") == 0
    assert kolb("run", "--resume", "done") == 0
    out = capsys.readouterr().out
    assert "nothing is left to do" in out
    assert "a solved episode" in out
