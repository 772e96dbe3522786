"""Where torch and what belongs to it are not installed: whole commands, and an error where it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_server import FaultServer

from kolb.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "recipes" / "smoke"

COMMANDS = """
import json, sys
from importlib.machinery import PathFinder

LOCAL = {"torch", "transformers", "tokenizers", "safetensors", "peft"}
find = PathFinder.find_spec

def without(name, path=None, target=None):
    return None if name.partition(".")[0] in LOCAL else find(name, path, target)

PathFinder.find_spec = without
from kolb.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["kolb", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
assert not LOCAL & set(sys.modules)
"""

ENDPOINT = """
[engine]
use = "openai_compat"
base_url = "{url}"
[policies.agent]
base = "small"
[environments.sums]
use = "dataset"
path = "{sums}"
reward = "exact_match"
[[stages]]
name = "measure"
method = "grpo"
steps = 1
tasks_per_step = 2
learn = []
"""

Kolb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kolb(tmp_path: Path) -> Kolb:
    """``kolb`` commands, one after the other in one process that has no torch."""

    def run(*commands: str) -> subprocess.CompletedProcess[str]:
        words = json.dumps([command.split() for command in commands])
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-c", COMMANDS, words]
        return subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_notes_are_kept_viewed_and_measured(kolb: Kolb, tmp_path: Path) -> None:
    done = kolb(
        f"run {SMOKE / 'tf_grpo_guess.toml'} --out run",
        "view run --step 1 --group 0 --episode 0",
        "eval run --samples 2",
        "play run",
        "words run halving",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "notes: success on test" in done.stdout, "the report of the run"
    assert "mean outcome  1.000" in done.stdout, "what was learnt helps"
    assert "halving" in done.stdout
    assert RunDirectory.open(tmp_path / "run").steps() == [1, 2, 3]


def test_an_endpoint_plays_a_method_that_elsewhere_trains(kolb: Kolb, tmp_path: Path) -> None:
    with FaultServer() as server:
        recipe = ENDPOINT.format(url=server.url, sums=ROOT / "examples" / "arithmetic.jsonl")
        (tmp_path / "sums.toml").write_text(recipe)
        done = kolb("run sums.toml --out run --quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(server.requests) == 2 * 8


@pytest.mark.parametrize(
    ("recipe", "who"),
    [
        ("recipes/smoke/own_jsonl.toml", "engine 'torch_local'"),
        ("recipes/quickstart.toml", "engine 'torch_local'"),
        ("recipes/smoke/own_jsonl.toml --set stages.rl.terms=[{use='gspo'}]", "gspo"),
    ],
)
def test_what_needs_it_says_so_and_names_the_way_out(kolb: Kolb, recipe: str, who: str) -> None:
    done = kolb(f"run {ROOT / recipe}")
    assert done.returncode == 2
    assert done.stderr.startswith("kolb: ")
    assert f"{who} needs torch, transformers, tokenizers," in done.stderr
    assert "pip install -e '.[local]'" in done.stderr
    assert "Traceback" not in done.stderr
