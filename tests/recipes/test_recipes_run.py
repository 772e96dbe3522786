"""Every recipe that kolb ships is read and run for two steps of each stage on a CPU, models made tiny."""

import json
import math
import tomllib
from pathlib import Path

import pytest

from kolb import recipe
from kolb.cli.running import start_run
from kolb.models.tokenizers import byte_tokenizer
from kolb.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path
    for path in (ROOT / "recipes").rglob("*.toml")
    if tomllib.loads(path.read_text())["engine"]["use"] != "openai_compat"
)
"""Those for endpoints are run against a server in tests/engines/test_endpoint_recipes.py."""
TINY = {
    "model_type": "llama",
    "vocab_size": 263,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    byte_tokenizer().save_pretrained(folder)
    return folder


def smaller(path: Path, tokenizer: Path) -> list[str]:
    """``--set``s that leave a recipe what it is, and make it small."""
    data = tomllib.loads(path.read_text())
    sets = ["record_episodes=true"]
    sets += ["engine.threads=1"] if data["engine"]["use"] == "torch_local" else []
    for name, table in data["policies"].items():
        policy = f"policies.{name}"
        if "base" in table:
            config = ", ".join(f"{key} = {json.dumps(value)}" for key, value in TINY.items())
            sets += [f"{policy}.base=", f"{policy}.build={{ {config} }}"]
            sets += [f"{policy}.tokenizer={tokenizer}"]
    for name, table in data["environments"].items():
        if table.get("train_tasks", 0) > 50:
            sets += [f"environments.{name}.train_tasks=50"]
        if table["use"] == "grid_lessons":
            sets += [f"environments.{name}.count=50"]
        if "questions" in table:  # a file that users bring
            sets += [f"environments.{name}.questions="]
        for key in ("path", "test_path"):
            if table.get(key, "").startswith("data/"):  # users bring these, too
                sets += [f"environments.{name}.{key}={ROOT / 'examples' / 'math.jsonl'}"]
    for stage in data["stages"]:
        sets += [f"stages.{stage['name']}.{key}=2" for key in ("steps", "tasks_per_step")]
        sets += [f"stages.{stage['name']}.limits.max_turns=3"]
        if stage.get("sampling", {}).get("max_tokens", 0) > 32:
            sets += [f"stages.{stage['name']}.sampling.max_tokens=32"]
        if stage["method"].get("group_size", 0) > 2:
            sets += [f"stages.{stage['name']}.method.group_size=2"]
        if "grpo" in stage["method"]:
            sets += [f"stages.{stage['name']}.method.grpo.group_size=2"]
        if "evaluation" in stage:
            sets += [
                f"stages.{stage['name']}.evaluation.{key}=2" for key in ("episodes", "samples")
            ]
    return sets


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT / "recipes")))
def test_a_shipped_recipe_runs_for_two_steps_of_each_stage(
    path: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    sets = smaller(path, tokenizer)
    expected = recipe.load(path, sets)
    assert recipe.parse(expected.resolved) == expected

    start_run(str(path), sets, tmp_path / "run", quiet=True)

    run = RunDirectory.open(tmp_path / "run")
    assert recipe.parse(run.recipe()) == expected
    lines = run.metrics()
    assert [line["stage"] for line in lines] == [s.name for s in expected.stages for _ in range(2)]
    assert run.episode_steps() == list(range(1, len(lines) + 1))
    assert run.numbered("checkpoints")[-1] == len(lines)
    for line in lines:
        broken = {k: v for k, v in line.items() if k.startswith("errors/") and v}
        assert not broken
        assert all(math.isfinite(v) for k, v in line.items() if k not in ("stage",))
        assert line.get("kl/sampler_learner", 0.0) < 1e-4
