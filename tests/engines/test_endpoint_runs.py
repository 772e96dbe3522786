"""Whole commands on an endpoint: run, eval and play, a budget that ends a run, a run that goes on, no key on disk."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Reply, said

from kolb.engines.endpoint import client
from kolb.runs.directory import RunDirectory
from kolb.view.usage import usage_lines, usage_of

SECRET = "sk-very-secret-0123456789"
RECIPE = """
name = "sums"

[engine]
use = "openai_compat"
base_url = "{url}"
api_key_env = "MY_KEY"
cache = "on"
cache_folder = "./cache"
{engine}

[engine.prices.small]
input = 2.0
cached = 0.5
output = 8.0

[policies.agent]
base = "small"

[policies.judge]
base = "small"

[environments.sums]
use = "dataset"
path = "./sums.jsonl"
reward = "exact_match"
test_fraction = 0.5

[[stages]]
name = "measure"
method = "grpo"
steps = 3
tasks_per_step = 2
learn = []
roles = {{ solver = "agent" }}
  [stages.sampling]
  max_tokens = 8
  [stages.evaluation]
  episodes = 4
  samples = 2

[checkpoints]
every = 1
"""

Command = Callable[..., int]


def solve(request: dict[str, Any], number: int) -> Reply:
    """Adds; now and then the first try is refused, and one question in four is answered wrongly."""
    if number % 5 == 0:
        return Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "0"})
    a, b = map(int, re.findall(r"\d+", request["messages"][-1]["content"]))
    reply = said(str(a + b if request["seed"] % 4 else 0), request)
    reply["usage"]["prompt_tokens"] = 300
    return Reply(reply)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    async def at_once(seconds: float) -> None:
        """Nothing is waited for."""

    monkeypatch.setattr(client, "sleep", at_once)
    with FaultServer(solve) as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FaultServer) -> Path:
    rows = [{"prompt": f"{a} + {b} = ?", "answer": str(a + b)} for a in range(4) for b in range(5)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "sums.toml").write_text(RECIPE.format(url=server.url, engine=""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", SECRET)
    return tmp_path


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            yield path, gzip.decompress(data) if path.suffix == ".gz" else data


def test_a_run_on_an_endpoint_measures_counts_and_prints_what_it_cost(
    here: Path, kolb: Command, server: FaultServer, capsys: Any
) -> None:
    assert kolb("run", "sums.toml", "--out", "run", "--quiet") == 0  # no picture: it takes longest
    run = RunDirectory.open(here / "run")
    lines = run.metrics()
    usage = usage_of(lines)["agent"]
    answered = [n for n in range(len(server.requests)) if n % 5]
    assert len(lines) == 3
    assert usage["requests"] == len(server.requests)
    assert usage["rate_limited"] == usage["retries"] == len(server.requests) - len(answered)
    # 3 steps of 2 tasks and 8 attempts, an evaluation of 4 tasks and 2 attempts; a token each.
    assert usage["completion_tokens"] == len(answered) == 3 * 16 + 8
    assert sum(line["tokens/sampled"] for line in lines) == 48
    books = [json.loads(line) for line in (here / "run/usage.jsonl").read_text().splitlines()]
    assert sum(b["cost"] for b in books) == pytest.approx(usage["cost"])
    out = capsys.readouterr().out
    assert f"agent: {usage['requests']:.0f} requests ({usage['retries']:.0f} again)" in out
    assert f"cost {usage['cost']:.4f}" in out


def test_eval_and_play_work_on_a_run_and_on_a_recipe(
    here: Path, kolb: Command, server: FaultServer, capsys: Any
) -> None:
    assert kolb("run", "sums.toml", "--out", "run", "--quiet") == 0
    asked = len(server.requests)
    capsys.readouterr()
    assert kolb("eval", "run") == 0
    out = capsys.readouterr().out
    assert len(server.requests) == asked  # the run's own evaluation, from the cache
    assert "agent: 0 requests (8 more from the cache)" in out
    mean = RunDirectory.open(here / "run").metrics()[-1]["eval/mean"]
    assert f"mean outcome  {mean:.3f}" in out
    assert kolb("play", "sums.toml", "--set", "engine.cache=off") == 0
    assert "[agent]" in capsys.readouterr().out
    assert len(server.requests) > asked


def test_a_budget_ends_a_run_which_goes_on_with_a_higher_one_and_pays_nothing_twice(
    here: Path, kolb: Command, server: FaultServer, capsys: Any
) -> None:
    assert kolb("run", "sums.toml", "--out", "whole", "--quiet") == 0
    cost = usage_of(RunDirectory.open(here / "whole").metrics())["agent"]["cost"]
    asked = len(server.requests)

    options = ["--set", f"engine.max_cost={cost * 0.6}", "--set", "engine.cache_folder=again"]
    capsys.readouterr()
    assert kolb("run", "sums.toml", "--out", "cut", "--quiet", *options) == 2
    said_at_the_end = capsys.readouterr().err
    assert "the budget of the endpoint is spent" in said_at_the_end
    cut = RunDirectory.open(here / "cut")
    books = [json.loads(line)["cost"] for line in (here / "cut/usage.jsonl").open()]
    assert 0 < sum(books) <= cost * 0.6
    assert len(cut.metrics()) < 3
    assert kolb("run", "--resume", "cut", "--quiet") == 2  # nothing has changed

    recipe = here / "cut" / "recipe.toml"
    text = recipe.read_text()
    recipe.write_text(re.sub(r"max_cost = .*", f"max_cost = {cost * 2}", text))
    assert kolb("run", "--resume", "cut", "--quiet") == 0
    books = [json.loads(line)["cost"] for line in (here / "cut/usage.jsonl").open()]
    assert sum(books) == pytest.approx(cost)
    answered = sum(bool(n % 5) for n in range(asked, len(server.requests)))
    assert answered == sum(bool(n % 5) for n in range(asked))
    rewards = [
        [line["reward/mean"] for line in RunDirectory.open(here / name).metrics()]
        for name in ("whole", "cut")
    ]
    assert rewards[0] == rewards[1]


def test_a_refusal_ends_a_run_at_once_and_what_came_before_is_kept(
    here: Path, kolb: Command, server: FaultServer, capsys: Any
) -> None:
    def answer(request: dict[str, Any], number: int) -> Reply:
        return Reply({"error": "no credit"}, 402) if number >= 20 else solve(request, number)

    server.answer = answer
    options = ["--set", "checkpoints.every=0", "--set", "engine.max_requests=1"]
    assert kolb("run", "sums.toml", "--out", "run", "--quiet", *options) == 2
    assert "no credit left" in capsys.readouterr().err
    run = RunDirectory.open(here / "run")
    assert (len(run.metrics()), run.numbered("checkpoints")) == (1, [1])
    assert len(server.requests) == 21
    server.answer = solve
    assert kolb("run", "--resume", "run", "--quiet") == 0
    assert [line["step"] for line in run.metrics()] == [1, 2, 3]


def test_a_wrong_key_ends_a_run_before_its_first_step_and_leaves_nothing(
    here: Path, kolb: Command, server: FaultServer, capsys: Any
) -> None:
    server.answer = lambda request, n: Reply({"error": f"bad key {SECRET}"}, 401)
    assert kolb("run", "sums.toml", "--out", "run") == 2
    shown = capsys.readouterr()
    assert "environment variable MY_KEY" in shown.err
    assert SECRET not in shown.out + shown.err
    assert not (here / "run").exists()


def test_the_key_is_nowhere_on_disk_and_in_no_message(
    here: Path, kolb: Command, server: FaultServer, capsys: Any
) -> None:
    def answer(request: dict[str, Any], number: int) -> Reply:
        if request["seed"] % 3 == 0:
            return Reply({"error": {"message": f"context length; key {SECRET}"}}, 400)
        if request["seed"] % 3 == 1:
            return Reply(said(f"I know {SECRET}", request, reasoning_content=SECRET))
        return Reply({"error": SECRET}, 500, {"Retry-After": "0"})

    server.answer = answer
    options = ["--set", "stages.measure.limits.max_failure_share=1", "--set", "engine.retries=1"]
    assert kolb("run", "sums.toml", "--out", "run", *options) == 0
    assert kolb("eval", "run", "--set", "stages.measure.limits.max_failure_share=1") == 0
    assert kolb("view", "run", "--step", "1", "--group", "0", "--episode", "0") == 0
    shown = capsys.readouterr()
    assert "[api key]" in shown.out
    assert SECRET not in shown.out + shown.err
    found = dict(contents(here))
    assert any(b"context length; key [api key]" in data for data in found.values())
    assert any(path.name == "log.txt" for path in found)
    assert [path for path, data in found.items() if SECRET.encode() in data] == []
    assert all(headers["authorization"] == f"Bearer {SECRET}" for _, headers, _ in server.requests)


def test_two_policies_of_one_model_are_counted_apart() -> None:
    lines = [
        {"usage/agent/requests": 2, "usage/agent/cost": 0.5, "usage/judge/requests": 1},
        {"usage/agent/requests": 3, "usage/agent/cost": 0.25, "usage/judge/cost": 0.125},
        {"usage/idle/requests": 0, "reward/mean": 1.0, "step": 2},
    ]
    assert list(usage_lines(usage_of(lines))) == [
        "agent: 5 requests, 0 prompt tokens, 0 sampled, cost 0.7500",
        "judge: 1 requests, 0 prompt tokens, 0 sampled, cost 0.1250",
        "cost of all policies: 0.8750",
    ]
