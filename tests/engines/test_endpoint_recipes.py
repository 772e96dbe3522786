"""The recipes for an API and for a local server: their numbers, what their comments promise, and whole runs of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Reply, said

from kolb import plugins, recipe
from kolb.cli.running import start_run
from kolb.errors import RecipeError
from kolb.methods import tf_grpo
from kolb.runs.directory import RunDirectory
from kolb.stage import Recipe
from kolb.view.usage import usage_of

ROOT = Path(__file__).parents[2]
HOSTED = ROOT / "recipes" / "tf_grpo" / "aime_hosted.toml"
LOCAL = ROOT / "recipes" / "tf_grpo" / "llamacpp_local.toml"
FIRST = ROOT / "recipes" / "tf_grpo" / "guess_hosted.toml"
LESSON = "Check: When the answer is found, put it into the question again."
KEY = "sk-for-a-test-0123456789"

is_scoring = pytest.mark.usefixtures("math_verify")


@pytest.fixture
def math_verify() -> None:
    pytest.importorskip("math_verify", reason="the recipe scores with it: pip install math-verify")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    with FaultServer(learner) as running:
        yield running


def learner(request: dict[str, Any], number: int) -> Reply:
    """Plays every role. An attempt is right where its seed is even, and always once the lesson is in its prompt."""
    system = "".join(m["content"] for m in request["messages"] if m["role"] == "system")
    asked = request["messages"][-1]["content"]
    if "<experiences>" in system:
        return Reply(said(f"They differ.\n<experiences>\n1. {LESSON}\n</experiences>", request))
    if "```json" in system:
        action = "NONE" if LESSON in asked.partition("</library>")[0] else "ADD"
        numbers = [int(n) for n in re.findall(r"^\((\d+)\)", asked, re.MULTILINE)]
        plan = [{"operation": action, "content": LESSON, "from": numbers}]
        return Reply(said(f"```json\n{json.dumps(plan)}\n```", request))
    if "<attempt>" in asked:
        return Reply(said("It added and answered.", request))
    is_right = LESSON in system or request["seed"] % 2 == 0
    return Reply(said(f"Answer: {answer_to(asked) if is_right else -1}", request))


def answer_to(question: str) -> int:
    if sum_ := re.search(r"(\d+) (plus|minus) (\d+)", question):
        return int(sum_[1]) + int(sum_[3]) * (1 if sum_[2] == "plus" else -1)
    rows = map(json.loads, (ROOT / "examples" / "math.jsonl").read_text().splitlines())
    return next(int(row["answer"]) for row in rows if row["prompt"] == question)


def hosted(*sets: str) -> Recipe:
    rows = ROOT / "examples" / "math.jsonl"
    files = [f"environments.math.{key}={rows}" for key in ("path", "test_path")]
    return recipe.load(HOSTED, [*files, *sets])


def shown_sets(path: Path, marker: str) -> list[str]:
    """The ``--set``s of the one comment of ``path`` that holds ``marker``."""
    (line,) = [line for line in path.read_text().splitlines() if marker in line and "--set" in line]
    return re.findall(r"--set (\S+)", line)


# --------------------------------------------------------------------------------------- the numbers


@is_scoring
def test_the_hosted_recipe_has_the_numbers_of_the_paper():
    loaded = hosted()
    (stage,) = loaded.stages
    method: Any = stage.method
    assert method == replace(tf_grpo.PAPER, note_tokens=8192, prompts=method.prompts)
    assert (stage.steps, stage.tasks_per_step, method.group_size) == (3, 100, 5)
    assert (stage.sampling.temperature, stage.sampling.max_tokens) == (0.7, 8192)
    spec = stage.evaluation
    assert spec is not None
    assert (spec.samples, spec.temperature, spec.top_p, spec.episodes) == (32, 0.3, 0.95, 0)
    assert spec.at_start
    assert stage.limits.max_concurrent == loaded.resolved["engine"]["max_requests"]


CALLS = re.compile(r"^#   \w+ +(\d+) x \((\d+), (\d+)\)$", re.M)


def charges(calls: list[tuple[str, ...]]) -> tuple[float, float, float]:
    """Millions of prompt tokens and of sampled ones, and dollars at the prices of the recipes."""
    prices = recipe.load(FIRST).resolved["engine"]["prices"]["deepseek-flash"]
    prompt, sampled = (sum(int(c[0]) * int(c[i]) for c in calls) / 1e6 for i in (1, 2))
    return prompt, sampled, prompt * prices["input"] + sampled * prices["output"]


@is_scoring
def test_the_expected_cost_is_what_its_table_of_calls_comes_to():
    text = HOSTED.read_text()
    calls = CALLS.findall(text)
    (step, evaluation) = charges(calls[:-1]), charges(calls[-1:])
    prompt, sampled, cost = step
    assert f"A step: {prompt:.2f}M prompt tokens, {sampled:.2f}M sampled, ${cost:.2f}." in text
    assert f"Three steps: ${3 * cost:.2f}." in text
    prompt, sampled, measured = evaluation
    assert (
        f"An evaluation: {prompt:.2f}M prompt tokens, {sampled:.2f}M sampled, ${measured:.2f}."
        in text
    )
    assert f"Before and after: ${2 * measured:.2f}." in text
    assert f"Together ${3 * cost + 2 * measured:.2f} at the peak prices" in text
    assert f"evaluation.samples = 8 makes it ${2 * measured / 4:.2f}" in text
    paper = charges([("1", "38000000", "6600000")])[2]
    assert f"The same tokens cost ${paper:.2f} at the prices below" in text
    engine = hosted().resolved["engine"]
    assert engine["prices"] == recipe.load(FIRST).resolved["engine"]["prices"]
    assert 3 * cost + 2 * measured < engine["max_cost"]


def test_the_first_recipe_costs_what_its_table_comes_to():
    text = FIRST.read_text()
    prompt, sampled, cost = charges(CALLS.findall(text))
    assert f"{prompt:.2f}M prompt tokens, {sampled:.2f}M sampled, ${cost:.2f};" in text
    most = recipe.load(FIRST).resolved["engine"]["max_cost"]
    assert f"it ends before ${most:.2f}." in text
    assert cost < most


@is_scoring
def test_the_small_variant_is_expected_to_cost_less_than_the_dollar_that_it_may():
    sets = shown_sets(HOSTED, "engine.max_cost=1")
    loaded = hosted(*sets)
    (stage,) = loaded.stages
    calls = CALLS.findall(HOSTED.read_text())
    step, evaluation = charges(calls[:-1])[2], charges(calls[-1:])[2]
    expected = 3 * step * stage.tasks_per_step / 100 + 2 * evaluation / 32
    assert (stage.tasks_per_step, stage.evaluation and stage.evaluation.samples) == (5, 1)
    assert 0.85 < expected < loaded.resolved["engine"]["max_cost"] == 1


@is_scoring
def test_the_released_code_s_setting_is_three_sets_away():
    (stage,) = hosted(*shown_sets(HOSTED, "RELEASED")).stages
    method: Any = stage.method
    assert (stage.steps, stage.tasks_per_step) == (2, 50)
    assert (method.gate, method.site, method.note_tokens) == ("mean", "user", 8192)


@is_scoring
def test_without_the_data_or_the_key_the_hosted_recipe_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"path = 'data/dapo100\.jsonl': there is no file"):
        recipe.load(HOSTED)
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    rows = ROOT / "examples" / "math.jsonl"
    sets = [f"environments.math.{key}={rows}" for key in ("path", "test_path")]
    sets += ["stages.notes.tasks_per_step=3"]
    with pytest.raises(RecipeError, match=r"export DEEPSEEK_API_KEY=\.\.\."):
        start_run(str(HOSTED), sets, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def math_rows() -> Any:
    return plugins.load_file(ROOT / "examples" / "math_rows.py")


GSM8K = {"question": "Two and two?", "answer": "2+2 = <<2+2=4>>4 in all.\n#### 4"}


def test_gsm8k_rows_are_answered_by_what_stands_behind_the_mark():
    row = math_rows().convert(GSM8K)
    assert (row["answer"], "Two and two?" in row["prompt"]) == ("4", True)


def test_the_same_rows_are_drawn_every_time_and_all_where_there_are_no_more(tmp_path: Path):
    lines = [json.dumps({"problem": f"{n}?", "answer": n}) for n in range(50)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    found = []
    for name, count in [("a", "5"), ("b", "5"), ("c", "50"), ("d", "60"), ("e", "0")]:
        math_rows().main(str(tmp_path / "all.jsonl"), str(tmp_path / name), count)
        found.append((tmp_path / name).read_text().splitlines())
    assert [len(rows) for rows in found] == [5, 5, 50, 50, 50]
    assert found[0] == found[1] != found[2][:5]


@is_scoring
def test_the_local_recipe_reads_word_problems_by_the_sets_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "train.jsonl").write_text(json.dumps(GSM8K))
    monkeypatch.chdir(tmp_path)
    math_rows().main("train.jsonl", "data/gsm8k.jsonl")
    (stage,) = recipe.load(LOCAL, shown_sets(LOCAL, "gsm8k")).stages
    source: Any = stage.source
    assert (stage.sampling.max_tokens, source.reward) == (512, "math_answer")


# ------------------------------------------------------------------------------------------ the runs


def run_on(server: FaultServer, path: Path, folder: Path, *sets: str) -> RunDirectory:
    common = [f"engine.base_url={server.url}", f"engine.cache_folder={folder / 'cache'}"]
    start_run(str(path), [*common, *sets], folder / "run", quiet=True)
    return RunDirectory.open(folder / "run")


def attempts_of(server: FaultServer) -> list[dict[str, Any]]:
    return [b for b in server.bodies if "<attempt>" not in str(b) and "```json" not in str(b)]


@is_scoring
def test_the_hosted_recipe_learns_from_three_problems_within_its_budget(
    tmp_path: Path, server: FaultServer
):
    rows = ROOT / "examples" / "math.jsonl"
    files = [f"environments.math.{key}={rows}" for key in ("path", "test_path")]
    small = ["stages.notes.tasks_per_step=3", "stages.notes.evaluation.samples=4"]
    run = run_on(server, HOSTED, tmp_path, *files, *small)
    lines = run.metrics()
    assert lines[-1]["library/size"] == 1
    assert 0 < lines[0]["eval_start/mean"] < 1
    assert lines[-1]["eval/mean"] == 1.0
    usage = usage_of(lines)["agent"]
    assert usage["requests"] == len(server.requests)
    books = [
        json.loads(line)["cost"] for line in (run.path / "usage.jsonl").read_text().splitlines()
    ]
    assert sum(books) == pytest.approx(usage["cost"])
    assert all(body["thinking"] == {"type": "disabled"} for body in server.bodies)
    learning = [b for b in attempts_of(server) if b["temperature"] == 0.7]
    measuring = [b for b in attempts_of(server) if b["temperature"] == 0.3]
    assert (len(learning), len(measuring)) == (3 * 3 * 5, 2 * 3 * 4)
    assert {b["top_p"] for b in measuring} == {0.95}
    assert {h["authorization"] for _, h, _ in server.requests} == {f"Bearer {KEY}"}


def test_the_first_recipe_learns_to_guess_from_what_a_function_says(
    tmp_path: Path, server: FaultServer
):
    taker = plugins.load_file(ROOT / "examples" / "note_taker.py")
    server.answer = lambda body, n: Reply(said(taker.answer(body["messages"], body["seed"]), body))
    lines = run_on(server, FIRST, tmp_path).metrics()
    assert lines[-1]["library/size"] == 1
    assert lines[0]["eval_start/mean"] < 0.3 < 0.5 < lines[-1]["eval/mean"]


def test_the_local_recipe_learns_sums_without_a_key_and_without_a_price(
    tmp_path: Path, server: FaultServer
):
    run = run_on(server, LOCAL, tmp_path)
    lines = run.metrics()
    assert lines[-1]["library/size"] == 1
    assert lines[0]["eval_start/mean"] < 1 == lines[-1]["eval/mean"]
    usage = usage_of(lines)["agent"]
    assert usage["requests"] == len(server.requests)
    assert "cost" not in usage
    assert server.most_at_once <= 2
    assert not any("authorization" in headers for _, headers, _ in server.requests)


@pytest.mark.parametrize("path", [HOSTED, LOCAL, FIRST], ids=lambda p: p.stem)
def test_an_endpoint_recipe_is_the_same_once_it_is_written_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    read: Callable[[], Recipe] = hosted if path == HOSTED else lambda: recipe.load(path)
    if path == HOSTED:
        pytest.importorskip("math_verify", reason="pip install math-verify")
    assert recipe.parse(read().resolved) == read()
