"""The tokenizer of a policy that is built from nothing: trained once, kept in the run, fitted to the config."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kolb import recipe
from kolb.errors import RecipeError
from kolb.models.prepare import prepare_models

DATA = {
    "engine": {"use": "torch_local"},
    "policies": {
        "agent": {
            "build": {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2},
            "tokenizer": {"train_on": "lake", "vocab_size": 320, "tasks": 40},
        }
    },
    "environments": {
        "lake": {"use": "grid_text", "style": "short", "train_tasks": 40, "sizes": [3]}
    },
    "stages": [{"name": "rl", "steps": 1, "method": "grpo"}],
}


def changed(**build: object) -> dict:
    agent = DATA["policies"]["agent"]
    return {**DATA, "policies": {"agent": {**agent, "build": {**agent["build"], **build}}}}


def test_the_config_gets_the_tokenizers_size_and_special_tokens(tmp_path: Path):
    r = prepare_models(recipe.parse(DATA), tmp_path)
    model = r.policies["agent"].model
    tokenizer = AutoTokenizer.from_pretrained(model.tokenizer)
    assert model.tokenizer == str(tmp_path / "models" / "agent")
    assert model.build["vocab_size"] == len(tokenizer) <= 320
    assert (model.build["pad_token_id"], model.build["eos_token_id"]) == (0, 2)
    assert model.build["hidden_size"] == 16
    assert r.resolved == recipe.parse(DATA).resolved


def test_what_the_expert_says_is_in_the_vocabulary(tmp_path: Path):
    model = prepare_models(recipe.parse(DATA), tmp_path).policies["agent"].model
    tokenizer = AutoTokenizer.from_pretrained(model.tokenizer)
    source = recipe.parse(DATA).stages[0].source
    moves = {m for task in source.tasks("train")[:40] for m in source.expert(task)}
    assert {move: len(tokenizer.encode(move)) for move in moves} == dict.fromkeys(moves, 1)


def test_a_tokenizer_that_is_there_is_kept(tmp_path: Path):
    prepare_models(recipe.parse(DATA), tmp_path)
    file = tmp_path / "models" / "agent" / "tokenizer.json"
    before, time = file.read_bytes(), file.stat().st_mtime_ns
    prepare_models(recipe.parse(DATA), tmp_path)
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (before, time)
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["agent"]


def test_a_config_too_small_for_its_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"vocab_size = 100, but its tokenizer has \d+ tokens"):
        prepare_models(recipe.parse(changed(vocab_size=100)), tmp_path)
    larger = prepare_models(recipe.parse(changed(vocab_size=512)), tmp_path)
    assert larger.policies["agent"].model.build["vocab_size"] == 512


def test_a_tokenizer_needs_an_environment_of_a_stage():
    agent = {**DATA["policies"]["agent"], "tokenizer": {"train_on": "lak"}}
    with pytest.raises(RecipeError, match="train_on = 'lak' is no environment of a stage; did you"):
        recipe.parse({**DATA, "policies": {"agent": agent}})
    agent = {"build": {"model_type": "llama"}}
    with pytest.raises(RecipeError, match="built from nothing needs a tokenizer"):
        recipe.parse({**DATA, "policies": {"agent": agent}})


def test_a_config_that_makes_no_model_is_refused_by_its_table(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"^\[policies.agent.build\]: .*hidden size \(17\)"):
        prepare_models(recipe.parse(changed(hidden_size=17)), tmp_path)


def on_file(file: Path, table: dict) -> dict:
    agent = {**DATA["policies"]["agent"], "tokenizer": {"train_on": "mine", "vocab_size": 300}}
    return {
        **DATA,
        "policies": {"agent": agent},
        "environments": {"mine": {"use": str(file), **table}},
    }


def test_rows_of_prompt_and_answer_are_text_to_train_on(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "zebra zebra", "answer": "quagga"}\n' * 2)
    table = {"use": "dataset", "path": str(rows), "reward": "exact_match"}
    data = {**on_file(rows, {}), "environments": {"mine": table}}
    model = prepare_models(recipe.parse(data), tmp_path / "run").policies["agent"].model
    tokenizer = AutoTokenizer.from_pretrained(model.tokenizer)
    assert [len(tokenizer.encode(word)) for word in ("zebra", "quagga")] == [1, 1]


def test_a_world_that_raises_is_named_with_task_and_line(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from kolb.types import Task\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    def tasks(self, split): return [Task(f'{split}-0')]\n"
        "    def environment(self, task): return 1 / 0\n"
        "ENVIRONMENT = Mine\n"
    )
    said = (
        r"^\[policies.agent.tokenizer\] train_on = 'mine': environment of task train-0 raised "
        r"ZeroDivisionError: .*mine.py, line 6"
    )
    with pytest.raises(RecipeError, match=said):
        prepare_models(recipe.parse(on_file(file, {})), tmp_path / "run")
