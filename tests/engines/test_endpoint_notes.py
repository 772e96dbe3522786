"""Training-Free GRPO on an endpoint: counted by role, estimated, killed and resumed, taken again from a step."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Reply, said

from kolb.runs.directory import RunDirectory
from kolb.view.usage import usage_of

ROOT = Path(__file__).parents[2]
ROLES = ("solver", "summarizer", "comparer", "editor")
STEPS = 4
RECIPE = """
[engine]
use = "openai_compat"
base_url = "{url}"
cache = "on"
cache_folder = "./cache"
[engine.prices.small]
input = 2.0
output = 8.0
[policies.agent]
base = "small"
[environments.guess]
use = "{root}/examples/guess_number.py"
high = 4
max_steps = 2
[[stages]]
name = "notes"
steps = 4
tasks_per_step = 2
  [stages.method]
  use = "tf_grpo"
  group_size = 3
  gate = "none"
  [stages.sampling]
  max_tokens = 8
"""

Kolb = Callable[..., subprocess.CompletedProcess[str]]


def play(request: dict[str, Any], number: int) -> Reply:
    """Every role; what it says depends on all that it was asked, and on the seed."""
    system, asked = (request["messages"][i]["content"] for i in (0, -1))
    seen = json.dumps(request["messages"]) + str(request["seed"])
    word = hashlib.sha256(seen.encode()).hexdigest()[:6]
    if "<experiences>" in system:
        return Reply(said(f"<experiences>{word}</experiences>", request))
    if "```json" in system:
        ids = re.findall(r"\[(G\d+)\]", asked)
        change = {"operation": "UPDATE", "id": ids[0]} if ids and int(word, 16) % 2 else {}
        listed = json.dumps([{"operation": "ADD", "content": f"Lesson {word}", **change}])
        return Reply(said(f"```json{listed}```", request))
    return Reply(said(str(request["seed"] % 5), request))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultServer]:
    with FaultServer(play) as running:
        (tmp_path / "notes.toml").write_text(RECIPE.format(url=running.url, root=ROOT))
        yield running


@pytest.fixture
def kolb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Kolb:
    """``kolb`` commands in this process."""
    from kolb.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", ["kolb", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(caught.value.code or 0), *shown)

    return run


def libraries(run: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted((run / "memory").iterdir())}


# ------------------------------------------------------------------------------------------- counted


def test_tokens_and_cost_of_the_roles_add_up_to_those_of_the_policy(
    server: FaultServer, kolb: Kolb, tmp_path: Path
) -> None:
    done = kolb("run", "notes.toml", "--out", "run", "--quiet")
    lines = RunDirectory.open(tmp_path / "run").metrics()
    (agent,) = usage_of(lines).values()
    roles = usage_of(lines, "role")
    assert tuple(sorted(roles)) == tuple(sorted(ROLES))
    for name in ("requests", "prompt_tokens", "completion_tokens", "cost"):
        assert sum(roles[role][name] for role in ROLES) == pytest.approx(agent[name])
    assert roles["summarizer"]["requests"] == STEPS * 2 * 3
    assert roles["comparer"]["requests"] == STEPS * 2
    assert roles["editor"]["requests"] >= STEPS * (2 + 1)
    assert agent["requests"] == len(server.requests)
    for role in ROLES:
        sampled = sum(line[f"role/{role}/sampled"] for line in lines)
        assert sampled == roles[role]["completion_tokens"] > 0
        assert f"as {role}: {roles[role]['requests']:.0f} requests" in done.stdout


def test_a_token_budget_of_a_stage_counts_what_the_endpoint_counts(
    server: FaultServer, kolb: Kolb, tmp_path: Path
) -> None:
    kolb("run", "notes.toml", "--out", "whole", "--quiet")
    totals = [line["tokens/stage"] for line in RunDirectory.open(tmp_path / "whole").metrics()]
    kolb(
        "run",
        "notes.toml",
        "--out",
        "cut",
        "--quiet",
        "--set",
        f"stages.notes.token_budget={totals[1]}",
    )
    cut = RunDirectory.open(tmp_path / "cut").metrics()
    assert [line["tokens/stage"] for line in cut] == totals[:2]


# ------------------------------------------------------------------------------------------ estimated


def test_a_dry_run_says_what_may_be_asked_and_asks_nothing(
    server: FaultServer, kolb: Kolb, tmp_path: Path
) -> None:
    done = kolb("run", "notes.toml", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "summarizer: 24 requests (24)" in done.stdout  # every group teaches: 4 x 2 x 3
    assert "comparer: 8 requests (8)" in done.stdout
    assert "cost" in done.stdout
    assert not server.requests
    assert not (tmp_path / "runs").exists()


def test_no_role_asks_for_more_than_the_most_that_was_estimated(
    server: FaultServer, kolb: Kolb, tmp_path: Path
) -> None:
    shown = kolb("run", "notes.toml", "--out", "run").stdout
    most = {m[1]: int(m[2]) for m in re.finditer(r"^  (\w+): \d+ requests \((\d+)\)", shown, re.M)}
    roles = usage_of(RunDirectory.open(tmp_path / "run").metrics(), "role")
    assert set(most) == {*ROLES, "all"}
    assert all(roles[role]["requests"] <= most[role] for role in ROLES)
    assert shown.index("estimate") < shown.index("run: run")


def test_missing_prices_and_small_budgets_are_told_and_stop_nothing(
    server: FaultServer, kolb: Kolb
) -> None:
    free = ["--set", "engine.prices={}"]
    done = kolb("run", "notes.toml", "--dry-run", *free)
    assert "No price of 'small'" in done.stdout
    done = kolb("run", "notes.toml", "--dry-run", "--set", "engine.max_cost=0.0001")
    assert (
        "max_cost = 0.0001 is less than the estimate, so the run will probably end" in done.stdout
    )
    done = kolb("run", "notes.toml", "--dry-run", "--set", "engine.max_cost=100")
    assert "is less than" not in done.stdout
    assert done.returncode == 0


# --------------------------------------------------------------------------------------- taken again


@pytest.mark.parametrize(("after", "again"), [(2, {3, 4}), (0, {1, 2, 3, 4}), (None, set())])
def test_steps_behind_a_step_are_asked_again_and_those_before_it_are_kept(
    server: FaultServer, kolb: Kolb, tmp_path: Path, after: int | None, again: set[int]
) -> None:
    """Four steps are there. Each asks for 2 x 3 attempts at least; the cache holds what was asked before."""
    kolb("run", "notes.toml", "--out", "run", "--quiet")
    run = tmp_path / "run"
    before, asked = libraries(run), len(server.requests)
    lines = RunDirectory.open(run).metrics()
    option = [] if after is None else ["--after", after]
    assert kolb("run", "--resume", "run", "--quiet", *option).returncode == 0
    now = RunDirectory.open(run).metrics()
    assert [line["step"] for line in now] == [1, 2, 3, 4]
    kept = [line for line in now if line["step"] not in again]
    assert kept == [line for line in lines if line["step"] not in again]
    requests = sum(line["usage/agent/requests"] for line in now if line["step"] in again)
    assert len(server.requests) - asked == requests
    assert sum(line["usage/agent/cache_hits"] for line in now) == 0
    changed = {name for name, data in libraries(run).items() if data != before[name]}
    assert changed == {f"{step:06d}.json" for step in again}
    assert len(list(run.glob("discarded/memory/*"))) == len(again)


def test_a_restart_that_is_killed_goes_on_as_a_restart(
    server: FaultServer, kolb: Kolb, tmp_path: Path
) -> None:
    """Two restarts, each asks anew; the second one is cut back to its step 2, resumed, and ends as it had."""
    kolb("run", "notes.toml", "--out", "run", "--quiet")
    seen = [libraries(tmp_path / "run")]
    for _ in range(2):
        kolb("run", "--resume", "run", "--after", 1, "--quiet")
        seen.append(libraries(tmp_path / "run"))
    assert len({library["000004.json"] for library in seen}) == 3
    assert len({library["000001.json"] for library in seen}) == 1
    run = RunDirectory.open(tmp_path / "run", write=True)
    run.rewind(2)  # as if killed in step 3
    run.close()
    asked = len(server.requests)
    assert kolb("run", "--resume", "run", "--quiet").returncode == 0
    assert libraries(tmp_path / "run") == seen[-1]
    assert len(server.requests) == asked, "all of it was asked before"


def test_going_back_to_a_step_that_has_no_checkpoint_says_which_have(
    server: FaultServer, kolb: Kolb
) -> None:
    kolb("run", "notes.toml", "--out", "run", "--quiet")
    done = kolb("run", "--resume", "run", "--after", 7)
    assert done.returncode == 2
    assert "no checkpoint of step 7; it has [1, 2, 3, 4]" in done.stderr
    assert kolb("run", "notes.toml", "--after", 1).returncode == 2


# ------------------------------------------------------------------------------------------- killed


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kill -9 needs a Unix")
def test_killed_with_requests_under_way_a_run_ends_with_the_same_library_byte_for_byte(
    server: FaultServer, kolb: Kolb, tmp_path: Path
) -> None:
    kolb("run", "notes.toml", "--out", "whole", "--quiet", "--set", "engine.cache_folder=./first")
    asked = len(server.requests)
    processes: list[subprocess.Popen[bytes]] = []
    deadly = {asked + n for n in (5, 25, 60)}

    def dying(request: dict[str, Any], number: int) -> Reply:
        if number in deadly:
            processes[-1].kill()
        return play(request, number)

    server.answer = dying
    words = ["notes.toml", "--out", "killed"]
    codes: list[int] = []
    while not codes or codes[-1] == -signal.SIGKILL:
        command = [sys.executable, "-m", "kolb", "run", *words, "--quiet"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment))
        codes.append(processes[-1].wait())
        words = ["--resume", "killed"]
    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert libraries(tmp_path / "killed") == libraries(tmp_path / "whole")
    assert len(libraries(tmp_path / "whole")) == STEPS
