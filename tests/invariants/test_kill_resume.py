"""Killed anywhere with kill -9 and resumed, a run ends as one that was never stopped, bit for bit.

The recipe is small and real: a tokenizer trained on the environment, a llama built from nothing, imitation,
then GRPO with a method state and a library that grow, evaluations and checkpoints in between.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kolb.runs.directory import RunDirectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kill -9 and fork need a Unix"),
]

ROOT = Path(__file__).parents[2]

WALL_CLOCK = ("time/",)
"""How the metrics begin that tell how long something took: the only ones that two runs may differ in."""

STEPS = 11

RECIPE = """
seed = 3

[engine]
use = "torch_local"
threads = 1

[policies.agent]
tokenizer = { train_on = "lake", vocab_size = 300, tasks = 8 }
  [policies.agent.build]
  model_type = "llama"
  hidden_size = 32
  intermediate_size = 64
  num_hidden_layers = 2
  num_attention_heads = 2
  num_key_value_heads = 2
  max_position_embeddings = 512
  tie_word_embeddings = true
  [policies.agent.optimizer]
  lr = 5e-3

[environments.lake]
use = "grid_text"
style = "short"
sizes = [2, 3]
train_tasks = 10
test_tasks = 3
max_steps = 3

[[stages]]
name = "imitate"
steps = 5
tasks_per_step = 6
schedule = "cosine"
warmup_steps = 2
  [stages.method]
  use = "imitation"
  [stages.sampling]
  max_tokens = 4

[[stages]]
name = "explore"
steps = 6
tasks_per_step = 3
refill = 1
updates_per_step = 2
epochs = 2
  [stages.method]
  use = "./teller.py"
  group_size = 4
  [stages.sampling]
  max_tokens = 3
  [stages.evaluation]
  every = 3
  at_start = true
  episodes = 3

[checkpoints]
every = 2
"""

TELLER = '''
"""GRPO that also writes down a lesson at every second step and counts its steps."""

from dataclasses import dataclass, replace
from typing import ClassVar

from kolb.methods.grpo import Grpo
from kolb.types import Edit


@dataclass(frozen=True)
class Teller(Grpo):
    name: ClassVar[str] = "teller"

    def credit(self, groups, state):
        count = (state or {"count": 0})["count"] + 1
        update = super().credit(groups, None)
        edits = (Edit("add", f"Lesson {count}.", sources=(groups[0].task.id,)),) if count % 2 else ()
        return replace(update, edits=edits, state={"count": count, "half": count / 3})


METHOD = Teller()
'''


# ------------------------------------------------------------------------------- what must be equal


def fingerprint(run: Path) -> dict[str, str]:
    """Every file that a run leaves, hashed; the metrics without the clock's."""
    found = {"metrics.jsonl": "\n".join(map(json.dumps, metrics(run)))}
    files = [run / "recipe.toml", *run.glob("models/**/*")]
    for folder in ("checkpoints", "episodes", "memory"):
        files += (run / folder).rglob("*")
    for file in files:
        if file.is_file():
            name = str(file.relative_to(run))
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(WALL_CLOCK)} for line in lines]


def assert_same(run: Path, whole: dict[str, str]) -> None:
    mine = fingerprint(run)
    assert mine.keys() == whole.keys()
    assert [name for name in whole if mine[name] != whole[name]] == []


# --------------------------------------------------------------------------------- how runs are run


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(*argv: str | Path) -> subprocess.Popen[bytes]:
    """``python -m kolb ARGV``."""
    return subprocess.Popen(
        [sys.executable, "-m", "kolb", *map(str, argv)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class Forks:
    """``kolb`` commands as forks of a process that has imported everything (``kill_zygote``)."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "output.txt"
        self._count = folder / "calls.txt"
        self._zygote = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_zygote.py")), folder / "lake.toml"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, request: Any) -> int:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        return int(self._zygote.stdout.readline())

    def start(self, *argv: str | Path, dies_at: int | None = None) -> int:
        self.log.unlink(missing_ok=True)
        names = {"log": str(self.log), "count": str(self._count)}
        return self._ask({"argv": [str(a) for a in argv], "dies_at": dies_at, **names})

    def wait(self) -> int:
        return self._ask("wait")

    def run(self, *argv: str | Path, dies_at: int | None = None) -> int:
        """The exit code; minus 9 when it killed itself."""
        self.start(*argv, dies_at=dies_at)
        return self.wait()

    @property
    def calls(self) -> int:
        """How many calls that change the disk the last command made, which ended by itself."""
        return int(self._count.read_text())

    @property
    def output(self) -> str:
        return self.log.read_text()

    def close(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait(timeout=30)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    (folder / "lake.toml").write_text(RECIPE)
    (folder / "teller.py").write_text(TELLER)
    return folder


@pytest.fixture(scope="module")
def forks(here: Path) -> Iterator[Forks]:
    made = Forks(here)
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(here: Path) -> dict[str, str]:
    """An uninterrupted run, by ``python -m kolb run``; its folder is ``here/whole``."""
    assert start("run", here / "lake.toml", "--out", here / "whole").wait() == 0
    lines = metrics(here / "whole")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[-1]["library/version"] == 3
    assert sum(line.get("grad_norm/agent", 0.0) > 0 for line in lines) >= STEPS - 3
    assert sum(line.get("groups/refilled", 0) for line in lines) > 0
    return fingerprint(here / "whole")


@pytest.fixture
def run(here: Path, request: pytest.FixtureRequest) -> Path:
    return here / request.node.name.split("[")[0][:40]


def step_of(run: Path) -> int:
    """The last step that has its metrics line."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def finish(forks: Forks, run: Path) -> None:
    assert forks.run("run", "--resume", run, "--quiet") == 0, forks.output


# ----------------------------------------------------------------------------------------- the kills


def test_the_command_killed_in_the_middle_and_within_a_checkpoint_ends_the_same(
    here: Path, whole: dict[str, str], run: Path
) -> None:
    """``python -m kolb``, killed by its parent: once while a checkpoint is being written."""

    def kill_when(process: subprocess.Popen[bytes], is_time: Callable[[], object]) -> None:
        while not is_time():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(1e-4)
        process.kill()
        assert process.wait() == -signal.SIGKILL

    first = start("run", here / "lake.toml", "--out", run, "--quiet")
    kill_when(first, lambda: step_of(run) >= 3)
    second = start("run", "--resume", run, "--quiet")
    kill_when(second, lambda: list(run.glob("checkpoints/*.tmp-*")))
    assert start("run", "--resume", run, "--quiet").wait() == 0
    assert_same(run, whole)


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_again_and_again_at_random_times_a_run_ends_the_same(
    forks: Forks, here: Path, whole: dict[str, str], run: Path, seed: int
) -> None:
    """Six kills for each seed, each a random while after the run went beyond where it was killed last.

    A while of 0 kills it before it has reached its last checkpoint again: twice in a row while resuming.
    """
    shutil.rmtree(run, ignore_errors=True)
    rng = random.Random(seed)
    argv: tuple[str | Path, ...] = ("run", here / "lake.toml", "--out", run, "--quiet")
    kills = 0
    for target in sorted(rng.choices(range(STEPS - 1), k=6)):
        pid = forks.start(*argv)
        while not (run / "env.json").exists() or step_of(run) < target:
            time.sleep(1e-3)
        time.sleep(rng.random() * 0.15)
        os.kill(pid, signal.SIGKILL)
        kills += forks.wait() == -signal.SIGKILL
        argv = ("run", "--resume", run, "--quiet")
    assert kills >= 5
    finish(forks, run)
    assert_same(run, whole)


def test_killed_at_any_call_that_changes_the_disk_a_run_ends_the_same(
    forks: Forks, here: Path, whole: dict[str, str], run: Path
) -> None:
    """Renames, fsyncs, removals: the write of checkpoints, metrics, episodes, library, and their pruning.

    The run dies at the n-th such call and is resumed, to die at a later one again, until it gets through.
    """
    assert forks.run("run", here / "lake.toml", "--out", run, "--quiet") == 0, forks.output
    assert_same(run, whole)
    total = forks.calls
    assert total > 150
    rng = random.Random(7)
    for lap in range(3):
        shutil.rmtree(run)
        done = forks.run("run", here / "lake.toml", "--out", run, dies_at=rng.randrange(30, 60))
        assert done == -signal.SIGKILL
        kills = 1
        # A resumed run needs some calls to get to where it was: fewer than this would never end.
        while forks.run("run", "--resume", run, dies_at=rng.randrange(45, 90)):
            kills += 1
            assert kills < 40, f"lap {lap}: it does not get on: {forks.output}"
        assert kills >= 3
        assert_same(run, whole)


def test_killed_twice_in_a_row_while_resuming_it_still_ends_the_same(
    forks: Forks, here: Path, whole: dict[str, str], run: Path
) -> None:
    """From a run cut off beyond its last checkpoint: every call of opening, sweeping and rewinding."""
    pid = forks.start("run", here / "lake.toml", "--out", run)
    while step_of(run) < 7:
        time.sleep(1e-3)
    os.kill(pid, signal.SIGKILL)
    forks.wait()
    for dies_at in range(1, 24, 2):
        assert forks.run("run", "--resume", run, dies_at=dies_at) == -signal.SIGKILL
    finish(forks, run)
    assert_same(run, whole)


def test_a_run_killed_while_its_folder_is_made_is_resumed_or_started_again(
    forks: Forks, here: Path, whole: dict[str, str], run: Path
) -> None:
    """Before env.json is there nothing has happened: the error says so, and the same command works."""
    refused = resumed = 0
    for dies_at in (1, 2, 3, 5, 7, 8, 9, 10, 12, 14):
        shutil.rmtree(run, ignore_errors=True)
        argv = ("run", here / "lake.toml", "--out", run, "--quiet")
        assert forks.run(*argv, dies_at=dies_at) == -signal.SIGKILL
        if (run / "env.json").exists():
            resumed += 1
            assert forks.run("run", "--resume", run, "--quiet", dies_at=25) == -signal.SIGKILL
        else:
            refused += 1
            assert forks.run("run", "--resume", run, "--quiet") == 2
            assert "start it again" in forks.output or "does not exist" in forks.output
            assert forks.run(*argv, dies_at=25) == -signal.SIGKILL
        assert (run / "env.json").exists()
    assert refused >= 3
    assert resumed >= 2
    finish(forks, run)
    assert_same(run, whole)


def test_killed_during_the_evaluation_it_is_evaluated_again_with_the_same_numbers(
    forks: Forks, here: Path, whole: dict[str, str], run: Path
) -> None:
    """The environment kills its own process at its n-th evaluation episode: 3 at the start of the stage,
    3 in its middle, 3 at its end. A file counts them over all lives of the run."""
    (here / "killing.py").write_text(KILLING.format(count=str(here / "evaluated.txt")))
    recipe = here / "killing.toml"
    recipe.write_text(RECIPE.replace('use = "grid_text"', 'use = "./killing.py"'))
    argv: tuple[str | Path, ...] = ("run", recipe, "--out", run, "--quiet")
    kills = 0
    while (code := forks.run(*argv)) == -signal.SIGKILL:
        kills += 1
        argv = ("run", "--resume", run, "--quiet")
    assert code == 0, forks.output
    assert kills == 4
    assert metrics(run) == metrics(here / "whole")
    learnt = {k: v for k, v in fingerprint(run).items() if k.startswith("checkpoints/")}
    assert learnt == {k: v for k, v in whole.items() if k.startswith("checkpoints/")}


KILLING = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from kolb.envs.grid_text import GridText

COUNT = Path({count!r})

@dataclass(frozen=True)
class Killing(GridText):
    def environment(self, task):
        if "-test-" in task.id:
            number = len(COUNT.read_text()) + 1 if COUNT.exists() else 1
            COUNT.write_text("x" * number)
            if number in (1, 3, 8, 14):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().environment(task)

ENVIRONMENT = Killing
"""


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "empty manifest"])
def test_a_damaged_newest_checkpoint_falls_back_and_ends_the_same(
    forks: Forks, here: Path, whole: dict[str, str], run: Path, damage: str
) -> None:
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(here / "whole", run)
    newest = run / "checkpoints" / f"{STEPS:06d}"
    weights = newest / "learners" / "agent" / "weights.safetensors"
    content = weights.read_bytes()
    match damage:
        case "truncated":
            weights.write_bytes(content[:-100])
        case "flipped":
            weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "missing":
            weights.unlink()
        case "empty manifest":
            (newest / "manifest.json").write_bytes(b"")
    finish(forks, run)
    assert "refused, trying the one before" in (run / "log.txt").read_text()
    assert "went back to step 10: 1 metrics lines set aside" in (run / "log.txt").read_text()
    assert_same(run, whole)


def test_a_torn_metrics_line_and_a_torn_checkpoint_are_cleared_away(
    forks: Forks, here: Path, whole: dict[str, str], run: Path
) -> None:
    """What a power cut may leave, which a kill cannot."""
    shutil.copytree(here / "whole", run)
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"schema":1,"step":12,"st')
    (run / "checkpoints" / "000012.tmp-77").mkdir()
    (run / "episodes" / "000012.jsonl.gz.tmp-77").write_bytes(b"\x1f")
    finish(forks, run)
    assert RunDirectory.open(run).steps() == list(range(1, STEPS + 1))
    assert_same(run, whole)
