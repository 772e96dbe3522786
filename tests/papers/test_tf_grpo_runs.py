"""Training-Free GRPO in whole runs: frozen weights, without torch, killed and resumed, carried to evaluation."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tf_grpo_toys import Words

from kolb import recipe
from kolb.engines.base import ModelSpec
from kolb.engines.scripted import Scripted
from kolb.engines.torch_local import TorchLocal
from kolb.evaluate import summarise
from kolb.loop import run
from kolb.methods.tf_grpo import METHOD
from kolb.models.tokenizers import byte_tokenizer
from kolb.runs.directory import RunDirectory
from kolb.stage import Evaluation, PolicySpec, Recipe, Stage
from kolb.types import Episode, Group, SamplingParams, Task

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "recipes" / "smoke" / "tf_grpo_guess.toml"


def python(code: str, *argv: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "peft"), None))  # as if not installed
from kolb import recipe
from kolb.loop import run
result = run(recipe.load(sys.argv[1]), sys.argv[2])
means = [e.mean for _, e in result.evaluations]
print(len(result.library.experiences), means[0] < 0.6, means[1:])
"""


def test_a_whole_run_needs_no_torch_and_what_is_learnt_helps_in_evaluation(tmp_path: Path) -> None:
    done = python(WITHOUT_TORCH, SMOKE, tmp_path / "run")
    assert (done.stdout, done.stderr) == ("1 True [1.0, 1.0, 1.0]\n", "")


def test_nothing_learns_and_the_weights_stay_bit_for_bit(tmp_path: Path) -> None:
    """A random model babbles in every role: nothing that it says raises, and nothing moves."""
    byte_tokenizer().save_pretrained(tmp_path / "bytes")
    config = {
        **{"model_type": "llama", "vocab_size": 263, "hidden_size": 32, "intermediate_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 8192},
    }
    spec = ModelSpec(build=config, tokenizer=str(tmp_path / "bytes"), template="plain", seed=1)
    method = replace(METHOD, group_size=2, judged_by="nobody", note_tokens=12)
    only = Stage(
        "notes",
        method,
        Words({"t": [1, 0], "u": [0, 1]}),
        2,
        dict.fromkeys(METHOD.roles, "agent"),
        tasks_per_step=2,
        sampling=SamplingParams(max_tokens=6),
    )
    engine = TorchLocal(device="cpu", threads=1)

    def digest() -> str:
        engine.open_sampler(spec)
        (local,) = engine._shared.values()
        state = sorted(local.hf.state_dict().items())
        return hashlib.sha256(b"".join(v.numpy().tobytes() for _, v in state)).hexdigest()

    before = digest()
    result = run(
        Recipe("frozen", {"agent": PolicySpec(spec)}, (only,)), tmp_path / "run", engine=engine
    )
    assert digest() == before
    assert (result.steps, result.library.version) == (2, 0)
    assert (result.metrics["groups/compared"], result.metrics["lessons/no_lesson"]) == (2, 2)
    assert not (tmp_path / "run" / "checkpoints" / "000002" / "learners").exists()


def test_no_learner_is_opened(tmp_path: Path) -> None:
    engine = Scripted(recipe.load(SMOKE).engine_options["answer"], gives_tokens=False)
    run(recipe.load(SMOKE, ["stages.notes.steps=1"]), tmp_path / "run", engine=engine)
    assert engine.learners == {}


# ---------------------------------------------------------------------------- killed and resumed

DYING = r"""
import hashlib, json, os, re, signal
from pathlib import Path

def answer(messages, seed):
    calls, dies_at = Path("calls.txt"), Path("dies_at.txt")
    with calls.open("a") as file:
        file.write("x")
    if dies_at.exists() and calls.stat().st_size == int(dies_at.read_text()):
        os.kill(os.getpid(), signal.SIGKILL)
    system, asked = messages[0]["content"], messages[-1]["content"]
    lesson = hashlib.sha256((asked + str(seed)).encode()).hexdigest()[:6]
    if "<experiences>" in system:
        return f"<experiences>{lesson}</experiences>"
    if "```json" in system:
        ids = re.findall(r"\[(G\d+)\]", asked)
        change = {"operation": "UPDATE", "id": ids[0]} if ids and seed % 2 else {"operation": "ADD"}
        return "```json" + json.dumps([{**change, "content": "Lesson " + lesson}]) + "```"
    return str(seed % 5)
"""

RECIPE = """
[engine]
use = "scripted"
answer = "./dying.py:answer"
gives_tokens = false
[policies.agent]
base = "nobody"
[environments.guess]
use = "./guess_number.py"
high = 4
max_steps = 2
[[stages]]
name = "notes"
method = "tf_grpo"
steps = 4
tasks_per_step = 4
[checkpoints]
every = 1
keep = 0
"""


def fingerprint(folder: Path) -> dict[str, str]:
    """Every library, checkpoint and episode file, hashed."""
    files = [
        f for name in ("memory", "checkpoints", "episodes") for f in (folder / name).rglob("*")
    ]
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in files
        if f.is_file()
    }


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL needs a Unix")
def test_a_run_that_was_killed_in_every_phase_ends_with_the_same_library_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.toml").write_text(RECIPE)
    (tmp_path / "dying.py").write_text(DYING)
    guess = (ROOT / "examples" / "guess_number.py").read_text()
    (tmp_path / "guess_number.py").write_text(guess)
    code = "from kolb.cli import main; main()"

    def kolb(*argv: object, dies_at: int = 0) -> int:
        Path("calls.txt").unlink(missing_ok=True)
        Path("dies_at.txt").write_text(str(dies_at))
        return python(code, "run", *argv, "--quiet").returncode

    assert kolb("notes.toml", "--out", "whole") == 0
    calls = Path("calls.txt").stat().st_size
    whole = fingerprint(tmp_path / "whole")
    versions = [json.loads(f.read_text()) for f in sorted(tmp_path.glob("whole/memory/*"))]
    assert [v["version"] for v in versions] == [1, 2, 3, 4], "every step changes the library"

    assert kolb("notes.toml", "--out", "killed", dies_at=calls // 6) == -signal.SIGKILL
    kills = 1
    while (code_of := kolb("--resume", "killed", dies_at=calls // 3)) == -signal.SIGKILL:
        kills += 1
        assert kills < 20
    assert code_of == 0
    assert kills >= 3
    assert fingerprint(tmp_path / "killed") == whole


# ---------------------------------------------------------------------------------------- numbers


def test_mean_and_pass_at_three_of_two_problems() -> None:
    def group(name: str, outcomes: list[float]) -> Group:
        return Group(Task(name), tuple(Episode(name, i, outcome=o) for i, o in enumerate(outcomes)))

    rows = [group("p1", [1, 0, 1]), group("p2", [0, 0, 0])]
    result = summarise(rows, Evaluation(samples=3))
    assert (round(result.mean or 0, 4), result.pass_at[3]) == (0.3333, 0.5)


def test_the_smoke_recipe_says_where_each_lesson_comes_from(tmp_path: Path) -> None:
    result = run(recipe.load(SMOKE, ["stages.notes.steps=1"]), tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    (lesson,) = result.library.experiences
    comparisons = {
        g.episodes[0].info["source"] for g in groups_of(directory, 1) if g.kind == "comparison"
    }
    assert set(lesson.sources) == comparisons
    saved: Any = json.loads((tmp_path / "run" / "memory" / "000001.json").read_text())
    assert saved["experiences"][0]["sources"] == list(lesson.sources)


def groups_of(directory: RunDirectory, step: int) -> list[Group]:
    return [directory.group(step, n) for n in range(len(directory.episode_index(step)))]
