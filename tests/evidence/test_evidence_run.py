"""The runner of evidence: real ``kolb`` processes on a small world whose agent moves at random."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_toys import toy_evidence, toy_experiment, toy_quantity

from evidence.erl import EVIDENCE, symbols
from evidence.main import main
from evidence.measure import is_finished
from evidence.plan import Arm, Claim, Evidence, Experiment, ExtraSet
from evidence.run import extra_job, filled, keep_extra, run_all, training_job
from kolb import recipe as recipes
from kolb.envs.grid_lessons import is_held_out
from kolb.errors import RunDirectoryError
from kolb.loop import run
from kolb.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("KOLB_DATA", ROOT.parent / "shared" / "data"))

RECIPE = """
[engine]
use = "scripted"
answer = "./answers.py:answer"

[policies.agent]
base = "nothing"

[environments.lake]
use = "grid_text"
style = "short"
sizes = [2, 3]
train_tasks = 8
test_tasks = 6

[[stages]]
name = "rl"
steps = 30
token_budget = 250
tasks_per_step = 2
  [stages.method]
  use = "grpo"
  group_size = 2
  [stages.sampling]
  max_tokens = 16
  [stages.evaluation]
  at_start = true
  episodes = 6

[checkpoints]
every = 1
"""

ANSWERS = """
import time

def answer(messages, seed):
    return ("Up", "Down", "Left", "Right")[seed % 4]

def broken(messages, seed):
    raise ValueError("no words today")

def slow(messages, seed):
    time.sleep(0.3)
    return "Up"
"""

LAKE = ExtraSet(
    "big", "Bigger boards", ("environments.lake.sizes=[4, 5]", "environments.lake.test_tasks=5"),
    samples=2, tag="size",
)  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Experiment:
    (tmp_path / "lake.toml").write_text(RECIPE)
    (tmp_path / "answers.py").write_text(ANSWERS)
    broken = f'engine.answer="{tmp_path / "answers.py"}:broken"'
    slow = f'engine.answer="{tmp_path / "answers.py"}:slow"'
    arms = (Arm("four", ("stages.rl.method.group_size=4",)), Arm("two"), Arm("broken", (broken,)),
            Arm("slow", (slow,)))  # fmt: skip
    return toy_experiment(
        tmp_path / "lake.toml", name="lake", arms=arms,
        quantities=(toy_quantity(claims=(Claim("lake", "four", "two"),)),),
        of_seed=lambda seed: (f"environments.lake.seed={seed + 100}",), extras=(LAKE,),
    )  # fmt: skip


def finish(experiment: Experiment, arm: Arm, seed: int, root: Path) -> None:
    """Runs it to its end, in this process."""
    run(
        recipes.load(experiment.recipe, experiment.sets(arm, seed)),
        experiment.folder(root, arm, seed),
    )


class Killer:
    """Ends a run after step 2, as a power cut would."""

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if step == 2:
            raise ConnectionAbortedError

    def activity(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


def lines_of(path: Path) -> list[dict[str, Any]]:
    lines = RunDirectory.open(path).metrics()
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def test_a_failing_arm_is_told_with_the_end_of_its_log_and_the_others_finish(
    tmp_path: Path, lake: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence, root = toy_evidence(tmp_path, lake), tmp_path / "runs"
    words = ["--runs", str(root), "--docs", str(tmp_path / "docs"), "--seeds", "1"]
    only = ["--only", "lake/two", "--only", "lake/broken"]
    assert main(evidence, [*words, *only]) == 1
    out = capsys.readouterr().out
    assert "FAILED: lake/broken/seed-1, whose log" in out
    assert "no words today" in out.split("ends with")[1]
    path = root / "lake/two/seed-1"
    assert is_finished(RunDirectory.open(path))
    assert RunDirectory.open(path).recipe()["environments"]["lake"]["seed"] == 101
    assert RunDirectory.open(path).recipe()["seed"] == 1
    assert lines_of(path)[-1]["tokens/stage"] >= 250 > lines_of(path)[-2]["tokens/stage"]
    assert "19 runs are missing" in out
    assert not (tmp_path / "docs").exists()

    before = (path / "metrics.jsonl").stat().st_mtime_ns
    assert main(evidence, [*words, "--only", "lake/two"]) == 0
    assert (path / "metrics.jsonl").stat().st_mtime_ns == before
    extra = json.loads((path / "evidence-big.json").read_text())
    assert {len(o) for o in extra["outcomes"].values()} == {2}
    assert set(extra["tags"].values()) <= {"4", "5"}
    assert set(extra["tags"]) == set(extra["outcomes"])
    assert not list(path.glob("eval-*.json"))


def test_an_interrupted_run_goes_on_and_ends_as_one_that_was_not(
    tmp_path: Path, lake: Experiment
) -> None:
    arm = lake.arms[0]
    finish(lake, arm, 0, tmp_path / "whole")
    made, cut = recipes.load(lake.recipe, lake.sets(arm, 0)), lake.folder(tmp_path / "cut", arm, 0)
    with pytest.raises(ConnectionAbortedError):
        run(made, cut, observer=Killer())
    job = training_job(lake, arm, 0, tmp_path / "cut")
    assert job is not None
    assert "--resume" in job.words
    assert [is_good for _, is_good in run_all([job], 1)] == [True]
    folders = [lake.folder(tmp_path / name, arm, 0) for name in ("whole", "cut")]
    assert lines_of(folders[0]) == lines_of(folders[1])
    assert training_job(lake, arm, 0, tmp_path / "cut") is None


def test_a_run_of_another_recipe_is_an_error_and_is_left_alone(
    tmp_path: Path, lake: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(lake, lake.arms[1], 0, tmp_path / "runs")
    lake.recipe.write_text(RECIPE.replace("token_budget = 250", "token_budget = 260"))
    with pytest.raises(RunDirectoryError, match="another recipe"):
        training_job(lake, lake.arms[1], 0, tmp_path / "runs")
    words = ["--runs", str(tmp_path / "runs"), "--only", "lake"]
    assert main(toy_evidence(tmp_path, lake), words) == 2
    assert "another recipe" in capsys.readouterr().err
    assert not (tmp_path / "runs/lake/four").exists()


def test_a_run_that_began_from_weights_that_were_replaced_is_an_error(
    tmp_path: Path, lake: Experiment
) -> None:
    base, arm, root = tmp_path / "base", lake.arms[1], tmp_path / "runs"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"old")
    lake.recipe.write_text(RECIPE.replace('"nothing"', f'"{base}"'))
    job = training_job(lake, arm, 0, root)
    assert job is not None
    assert [is_good for _, is_good in run_all([job], 1)] == [True]
    assert training_job(lake, arm, 0, root) is None
    (base / "model.safetensors").write_bytes(b"new")
    with pytest.raises(RunDirectoryError, match=r"began from other weights than are now in .*base"):
        training_job(lake, arm, 0, root)


def test_an_evaluation_whose_data_is_not_there_or_that_is_done_makes_no_job(
    tmp_path: Path, lake: Experiment
) -> None:
    arm, roots = lake.arms[1], (tmp_path / "runs", tmp_path / "data")
    assert extra_job(lake, arm, 0, LAKE, roots) is None
    finish(lake, arm, 0, tmp_path / "runs")
    needy = ExtraSet(
        "needy", "", ('environments.lake.boards={test = "{data}/b.jsonl"}',), "b.jsonl"
    )
    assert extra_job(lake, arm, 0, needy, roots) is None
    (tmp_path / "data").mkdir()
    board = {"board": ["SF", "FG"], "seed": 1, "size": 2, "p": 0.8}
    (tmp_path / "data/b.jsonl").write_text(json.dumps(board) + "\n")
    job = extra_job(lake, arm, 0, needy, roots)
    assert job is not None
    assert [is_good for _, is_good in run_all([job], 1)] == [True]
    keep_extra(job, needy, roots)
    assert extra_job(lake, arm, 0, needy, roots) is None


def test_what_is_stopped_leaves_no_process_behind_and_goes_on_later(
    tmp_path: Path, lake: Experiment
) -> None:
    jobs = [
        job for seed in (0, 1) if (job := training_job(lake, lake.arms[3], seed, tmp_path / "runs"))
    ]
    program = tmp_path / "stopped.py"
    program.write_text(
        "import signal, sys\nfrom pathlib import Path\nfrom evidence.run import Job, run_all\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"jobs = [Job(str(i), words, Path(log)) for i, (words, log) in enumerate({[(j.words, str(j.log)) for j in jobs]!r})]\n"
        "list(run_all(jobs, 2))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(
        [sys.executable, str(program)], env=environment, stderr=subprocess.PIPE
    )
    folders = [lake.folder(tmp_path / "runs", lake.arms[3], seed) for seed in (0, 1)]
    deadline = time.monotonic() + 60
    while not all((f / "env.json").exists() for f in folders) and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGTERM)
    _, err = parent.communicate(timeout=60)
    assert b"KeyboardInterrupt" in err
    for folder in folders:
        run_ = RunDirectory.open(folder, write=True)  # its lock is free: nobody writes it any more
        run_.close()
        assert not is_finished(run_)


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--seeds", "7-9"]])
def test_what_could_only_hang_or_do_nothing_is_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(toy_evidence(tmp_path, toy_experiment()), words) == 2
    assert "jobs" in (err := capsys.readouterr().err) or "(7, 8, 9)" in err


@pytest.mark.parametrize("seeds", ["four", "4-0", "-1"])
def test_seeds_that_are_none_are_refused_with_the_form_that_is_meant(
    tmp_path: Path, seeds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(toy_evidence(tmp_path, toy_experiment()), [f"--seeds={seeds}"])
    assert "write one seed, 3, or the first and the last, 0-4" in capsys.readouterr().err


def test_a_page_is_not_written_where_a_further_evaluation_failed(
    tmp_path: Path, lake: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    itself = toy_quantity(claims=(Claim("lake", "two", "two"),))
    one = replace(lake, arms=(Arm("two"),), quantities=(itself,),
                  extras=(ExtraSet("no", "", ("environments.lake.sizes=[1]",)),))  # fmt: skip
    for seed in one.seeds:
        finish(one, one.arms[0], seed, tmp_path / "runs")
    words = ["--runs", str(tmp_path / "runs"), "--docs", str(tmp_path / "docs")]
    assert main(toy_evidence(tmp_path, one), words) == 1
    out = capsys.readouterr().out
    assert "5 further evaluations failed, so nothing was written" in out
    assert "a side of at least 2" in out
    assert not (tmp_path / "docs").exists()


@pytest.mark.skipif(not (DATA / "erl").is_dir(), reason=f"no paper's boards in {DATA}")
def test_all_of_the_papers_test_boards_are_evaluated() -> None:
    for experiment in EVIDENCE.experiments:
        (extra,) = experiment.extras
        arm = experiment.arms[0]
        sets = (*experiment.sets(arm, 0), *filled(extra, (Path("runs"), DATA)))
        source = recipes.load(experiment.recipe, sets).stages[-1].source
        lines = (DATA / extra.needs).read_text().splitlines()
        assert len(source.tasks("test")) == len(lines) == 100


def test_what_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence: Evidence = toy_evidence(tmp_path, toy_experiment())
    assert main(evidence, ["--only", "toy/nwe"]) == 2
    assert (
        "--only toy/nwe: there is no such thing; known: toy, toy/new, toy/old_way"
        in capsys.readouterr().err
    )


def test_every_arm_and_seed_of_erl_is_a_recipe_with_one_budget_and_its_own_symbols() -> None:
    for experiment in EVIDENCE.experiments:
        assert [arm.name for arm in experiment.arms] == [
            "erl", "rlvr", "no_memory", "no_reflection", "no_distill", "no_gate",
        ]  # fmt: skip
        made = [recipes.load(experiment.recipe, experiment.sets(arm, 1)) for arm in experiment.arms]
        methods = {str(recipe.stages[-1].method) for recipe in made}
        assert len(methods) == 6
        assert len({recipe.stages[-1].token_budget for recipe in made}) == 1
        assert made[0].stages[-1].token_budget > 0
        game = experiment.name.removeprefix("erl_")
        assert len({str(symbols(game, seed)) for seed in experiment.seeds}) == 5
        assert all(is_held_out(game, symbols(game, seed)) for seed in experiment.seeds)
        assert recipes.load(experiment.recipe, experiment.sets(experiment.arms[0], 2)).stages[
            -1
        ].source.symbols == symbols(game, 2)


def test_nothing_is_written_while_a_run_of_an_older_recipe_is_among_the_finished(
    tmp_path: Path, lake: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = replace(lake, arms=lake.arms[:2], extras=())
    for arm in quick.arms:
        for seed in quick.seeds:
            finish(quick, arm, seed, tmp_path / "runs")
    words = ["--runs", str(tmp_path / "runs"), "--docs", str(tmp_path / "docs")]
    assert main(toy_evidence(tmp_path, quick), words) == 0
    assert sorted(p.name for p in (tmp_path / "docs").iterdir()) == [
        "lake.png",
        "toy.json",
        "toy.md",
    ]
    claim = json.loads((tmp_path / "docs/toy.json").read_text())["claims"][0]
    assert {arm: len(values) for arm, values in claim["arms"].items()} == {"four": 5, "two": 5}
    assert min(claim["tokens"]["four"]) >= 250
    capsys.readouterr()

    (tmp_path / "docs/toy.md").unlink()
    older = replace(quick.arms[1], sets=("stages.rl.method.group_size=3",))
    changed = replace(quick, arms=(quick.arms[0], older))
    assert main(toy_evidence(tmp_path, changed), [*words, "--only", "lake/four"]) == 2
    assert "another recipe" in capsys.readouterr().err
    assert not (tmp_path / "docs/toy.md").exists()
