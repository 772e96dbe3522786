"""The run directory: created once, appended to, reopened, rewound."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from fabricated_runs import attempt, broken, group

from kolb.errors import RunDirectoryError
from kolb.runs import rewind as rewinding
from kolb.runs.directory import RunDirectory, next_path
from kolb.runs.environment import commit_of

RECIPE = {"name": "lake", "stages": [{"name": "rl", "steps": 4}]}


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "lake-0001", RECIPE, command=["kolb", "run"]) as run:
        yield run


def snapshot(run):
    files = (p for p in run.path.rglob("*") if p.is_file())
    return {str(p.relative_to(run.path)): p.read_bytes() for p in files if p.name != "log.txt"}


def test_names_are_numbered_above_the_highest(tmp_path):
    assert next_path(tmp_path, "lake").name == "lake-0001"
    for name in ("lake-0002", "lake-0009", "lake-x", "lake-easy-0040"):
        (tmp_path / name).mkdir()
    assert next_path(tmp_path, "lake").name == "lake-0010"


def test_a_new_run_tells_what_it_ran_on(run):
    env = run.environment()
    assert env["schema"] == 1
    assert env["command"] == ["kolb", "run"]
    assert env["versions"]["numpy"] == np.__version__
    assert env["python"] == sys.version.split()[0]
    assert run.recipe() == RECIPE
    assert (run.path / "recipe.toml").read_text().startswith("# kolb recipe, schema 1\n")


def test_the_commit_is_marked_dirty_when_a_file_was_changed(tmp_path):
    def git(*words):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert commit_of(tmp_path) is None
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert commit_of(tmp_path) == head
    (tmp_path / "a").write_text("2")
    assert commit_of(tmp_path) == f"{head}-dirty"


def test_a_folder_with_anything_in_it_is_refused(tmp_path, run):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(RunDirectoryError, match="mine is not empty"):
        RunDirectory.create(tmp_path / "mine", RECIPE)
    with pytest.raises(RunDirectoryError, match=r"already holds a run; .*--resume"):
        RunDirectory.create(run.path, RECIPE)
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


def test_opening_says_what_is_wrong(tmp_path, run):
    with pytest.raises(RunDirectoryError, match="does not exist"):
        RunDirectory.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match=r"not a run directory: it has no env\.json"):
        RunDirectory.open(tmp_path / "empty")
    (run.path / "env.json").write_text(json.dumps({"schema": 2}))
    with pytest.raises(RunDirectoryError, match="schema 2, this kolb reads schema 1"):
        RunDirectory.open(run.path)


def test_a_recorded_step_reads_back(run):
    groups = [group(attempt(0), broken(1))]
    library = {"schema": 1, "experiences": [{"text": "look before you leap 你好"}]}
    run.record(1, groups, {"reward/mean": np.float32(0.5), "groups/dead": 2}, library, stage="rl")
    run.record(2, [], {"reward/mean": 1.0}, stage="rl")
    reader = RunDirectory.open(run.path)
    assert reader.metrics() == [
        {"step": 1, "stage": "rl", "reward/mean": 0.5, "groups/dead": 2},
        {"step": 2, "stage": "rl", "reward/mean": 1.0},
    ]
    assert reader.steps() == [1, 2]
    assert reader.episode_steps() == [1]
    assert [e.status.value for e in reader.episodes(1)[0].episodes] == ["ok", "env_error"]
    assert reader.library() == reader.library(2) == library
    assert reader.library(0) is None
    assert "你好" in (run.path / "memory" / "000001.json").read_text(encoding="utf-8")
    with pytest.raises(RunDirectoryError, match="no episodes of step 2; steps 1 to 1 have some"):
        reader.episodes(2)


def test_metrics_that_are_not_finite_become_null_and_are_counted(run):
    run.record(1, [], {"a/x": float("nan"), "a/y": -float("inf"), "a/z": 3, "a/ok": True})
    assert run.metrics() == [
        {"step": 1, "stage": "", "a/x": None, "a/y": None, "a/z": 3, "a/ok": 1}
        | {"errors/nonfinite_metrics": 2}
    ]


@pytest.mark.parametrize("value", ["0.5", None, [1.0]])
def test_a_metric_that_is_no_number_is_an_error_and_writes_nothing(run, value):
    with pytest.raises(RunDirectoryError, match=r"metric 'a/x' is .*; a metric is a number"):
        run.record(1, [group(attempt(0))], {"a/x": value})
    assert run.metrics() == []
    assert run.episode_steps() == []


def test_a_run_only_grows(run):
    run.record(2, [group(attempt(0))], {})
    run.record(2, [], {"eval/mean": 1.0})
    with pytest.raises(RunDirectoryError, match="step 1 after step 2"):
        run.record(1, [], {})
    with pytest.raises(RunDirectoryError, match="record all groups of a step at once"):
        run.record(2, [group(attempt(0))], {})
    with pytest.raises(RunDirectoryError, match="cannot be called 'step'"):
        run.record(3, [], {"step": 1.0})


def test_a_torn_last_line_is_ignored_by_readers_and_removed_by_the_next_writer(run):
    run.record(1, [], {"reward/mean": 1.0})
    whole = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(whole + b'{"schema":1,"step":2,"rew')
    assert RunDirectory.open(run.path).steps() == [1]
    run.close()
    with RunDirectory.open(run.path, write=True) as again:
        assert again.metrics_path.read_bytes() == whole
        again.record(2, [], {})
        assert again.steps() == [1, 2]


def test_the_next_writer_clears_files_that_were_never_finished(run):
    run.record(1, [group(attempt(0))], {})
    before = snapshot(run)
    run.close()
    for name in (
        "metrics.jsonl.tmp-7",
        "episodes/000002.jsonl.gz.tmp-7",
        "memory/000002.json.tmp-7",
    ):
        (run.path / name).write_text("half")
    with RunDirectory.open(run.path, write=True) as again:
        assert snapshot(again) == before


def test_a_run_that_is_too_damaged_to_write_is_not_left_locked(run):
    run.close()
    run.metrics_path.write_text('{"schema":9,"step":1}\n')
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match="schema 9"):
            RunDirectory.open(run.path, write=True)


def test_a_damaged_line_in_the_middle_is_named(run):
    for step in (1, 2, 3):
        run.record(step, [], {})
    lines = run.metrics_path.read_bytes().splitlines(keepends=True)
    run.metrics_path.write_bytes(lines[0] + b"{broken\n" + lines[2])
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl line 2 is not JSON"):
        run.metrics()


def test_the_log_keeps_lines_together_and_takes_any_text(run):
    run.log("two\nlines \ud800")
    last = (run.path / "log.txt").read_text(encoding="utf-8").splitlines()[-2:]
    assert last[0].endswith(" two")
    assert last[1] == "  lines \\ud800"


# ---------------------------------------------------------------------------------------- the lock


def test_a_second_writer_is_refused_and_a_reader_is_not(run):
    with pytest.raises(RunDirectoryError, match="written by this very process"):
        RunDirectory.open(run.path, write=True)
    reader = RunDirectory.open(run.path)
    with pytest.raises(RunDirectoryError, match="open for reading, so it cannot record a step"):
        reader.record(1, [], {})
    run.close()
    RunDirectory.open(run.path, write=True).close()


def hold(path, ready):
    RunDirectory.open(path, write=True)
    ready.send("held")
    signal.pause()


def test_a_living_writer_keeps_others_out_and_a_killed_one_does_not(run):
    run.close()
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=hold, args=(run.path, there))
    child.start()
    assert here.recv() == "held"
    with pytest.raises(RunDirectoryError, match=f"written by process {child.pid}"):
        RunDirectory.open(run.path, write=True)
    child.kill()
    child.join()
    RunDirectory.open(run.path, write=True).close()


@pytest.mark.parametrize(
    "content", ["", "{", '{"pid": 1, "host": "HERE", "started": "another boot"}']
)
def test_a_lock_that_no_living_process_can_own_is_taken_over(run, content):
    run.close()
    here = os.uname().nodename
    (run.path / "lock.json").write_text(content.replace("HERE", here))
    with RunDirectory.open(run.path, write=True):
        assert json.loads((run.path / "lock.json").read_text())["pid"] == os.getpid()
    assert not list(run.path.glob("lock*"))


def test_a_lock_of_another_host_is_left_to_the_user(run):
    run.close()
    (run.path / "lock.json").write_text('{"pid": 9, "host": "elsewhere", "started": ""}')
    with pytest.raises(RunDirectoryError, match=r"process 9 on elsewhere; .* delete .*lock\.json"):
        RunDirectory.open(run.path, write=True)


# -------------------------------------------------------------------------------------- rewinding


def fill(run, steps=4):
    for step in range(1, steps + 1):
        run.record(step, [group(attempt(step))], {"reward/mean": step / 10}, {"version": step})
        run.file("checkpoints", step).mkdir()
        (run.file("checkpoints", step) / "w").write_text(str(step))


def test_rewinding_keeps_the_past_and_sets_the_rest_aside(run):
    fill(run)
    lines = run.metrics_path.read_bytes().splitlines(keepends=True)
    run.rewind(2)
    assert run.metrics_path.read_bytes() == b"".join(lines[:2])
    assert (run.path / "metrics.discarded.jsonl").read_bytes() == b"".join(lines[2:])
    assert run.episode_steps() == run.numbered("memory") == run.numbered("checkpoints") == [1, 2]
    names = {str(p.relative_to(run.path)) for p in (run.path / "discarded").glob("*/*")}
    assert names == {
        f"discarded/{name}"
        for name in (
            "episodes/000003.1.jsonl.gz",
            "episodes/000004.1.jsonl.gz",
            "memory/000003.1.json",
            "memory/000004.1.json",
            "checkpoints/000003.1",
            "checkpoints/000004.1",
        )
    }
    run.record(3, [group(attempt(3))], {}, {"version": 3})
    run.rewind(2)
    assert (run.path / "discarded" / "memory" / "000003.2.json").exists()


def test_rewinding_to_zero_discards_every_step(run):
    fill(run, 2)
    run.rewind(0)
    assert run.metrics() == []
    run.record(1, [group(attempt(1))], {})


class Killed(BaseException):
    """Stands for a kill between two system calls."""


def test_a_rewind_killed_anywhere_and_repeated_ends_in_the_same_place(tmp_path, monkeypatch):
    def rewound(name, die_at):
        run = RunDirectory.create(tmp_path / name, RECIPE)
        fill(run)
        calls = iter(range(1000))

        def counted(real):
            def call(*args):
                if next(calls) == die_at:
                    raise Killed
                return real(*args)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", counted(os.rename))
            patch.setattr(os, "replace", counted(os.replace))
            patch.setattr(rewinding, "_keep_discarded", counted(rewinding._keep_discarded))
            died = False
            try:
                run.rewind(2)
            except Killed:
                died = True
        run.rewind(2)
        files = snapshot(run)
        for unlike in ("env.json", "lock.json"):
            del files[unlike]
        return died, {k: v for k, v in files.items() if ".tmp-" not in k}

    died, reference = rewound("whole", -1)
    assert not died
    deaths = 0
    for die_at in range(12):
        died, files = rewound(f"killed-{die_at}", die_at)
        deaths += died
        assert files == reference, die_at
    # Two checkpoints, episodes and libraries each, the discarded lines, two files in place.
    assert deaths == 9


def test_neither_runs_nor_progress_need_torch_and_rich_waits_for_a_terminal():
    code = (
        "import sys, kolb.runs.checkpoints, kolb.runs.trackers, kolb.runs.progress\n"
        "print([m for m in ('torch', 'transformers', 'rich', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
