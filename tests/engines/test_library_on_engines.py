"""``kolb library eval`` on an endpoint with prices, and on weights in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Reply, said

from kolb.models.tokenizers import byte_tokenizer

SUMS = """
[environments.sums]
use = "dataset"
path = "./sums.jsonl"
reward = "exact_match"
test_fraction = 0.5

[[stages]]
name = "sums"
method = "tf_grpo"
steps = 1
tasks_per_step = 2
  [stages.sampling]
  max_tokens = 4
"""
ENDPOINT = """
[engine]
use = "openai_compat"
base_url = "{url}"
[engine.prices.small]
input = 2.0
output = 8.0
[policies.agent]
base = "small"
"""
WEIGHTS = """
[engine]
use = "torch_local"
threads = 1
[policies.agent]
tokenizer = "./bytes"
template = "plain"
frozen = true
  [policies.agent.build]
  model_type = "llama"
  vocab_size = 263
  hidden_size = 32
  intermediate_size = 64
  num_hidden_layers = 2
  num_attention_heads = 2
  max_position_embeddings = 512
"""


def adds_if_told(request: dict[str, Any], number: int) -> Reply:
    first, last = request["messages"][0], request["messages"][-1]
    a, b = map(int, last["content"].split(" = ")[0].split(" + "))
    answer = said(str(a + b) if "add the numbers" in first["content"] else "0", request)
    answer["usage"] = {"prompt_tokens": 500 if first is not last else 100, "completion_tokens": 10}
    return Reply(answer)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(adds_if_told) as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [
        {"prompt": f"{a} + {b} = ?", "answer": str(a + b)} for a in range(1, 5) for b in range(5)
    ]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tips.md").write_text("- Sums: add the numbers.\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(recipe: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    from kolb.cli import main

    Path("sums.toml").write_text(recipe + SUMS)
    words = ["kolb", "library", "eval", "tips.md", "sums.toml", "--samples", "2", "--to", "ab.json"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    return json.loads(Path("ab.json").read_text())


def test_an_endpoint_is_paid_for_each_side_and_both_costs_are_told(
    here: Path, server: FaultServer, monkeypatch, capsys
):
    found = compared(ENDPOINT.format(url=server.url), monkeypatch)
    without, with_ = found["sides"]
    asked = sum(len(row) for row in with_["outcomes"].values())
    assert len(server.requests) == 2 * asked
    assert (without["mean"], with_["mean"], found["difference"]["is_clear"]) == (0.0, 1.0, True)
    assert without["usage"]["agent"]["prompt_tokens"] == 100 * asked
    assert with_["usage"]["agent"]["prompt_tokens"] == 500 * asked
    assert without["cost"] == pytest.approx(asked * (100 * 2 + 10 * 8) / 1e6)
    assert with_["cost"] == pytest.approx(asked * (500 * 2 + 10 * 8) / 1e6)
    out = capsys.readouterr().out
    assert f"tips.md: agent: {asked} requests, {500 * asked:,} prompt tokens" in out
    assert f"{with_['cost']:.4f}" in out


def test_weights_in_this_process_sample_on_both_sides(here: Path, monkeypatch, capsys):
    byte_tokenizer().save_pretrained("bytes")
    found = compared(WEIGHTS, monkeypatch)
    without, with_ = found["sides"]
    assert without["tokens"] > 0 < with_["tokens"]
    assert list(without["outcomes"]) == list(with_["outcomes"])
    assert "95% interval" in capsys.readouterr().out
