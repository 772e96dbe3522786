"""The recipes of Lp-Reg's paper: their numbers, the baselines that their comments name, and the rows they read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kolb import plugins, recipe
from kolb.errors import RecipeError
from kolb.methods import lp_reg
from kolb.methods.grpo import Grpo
from kolb.stage import Recipe
from kolb.terms import lp_reg as lp_reg_terms
from kolb.terms.entropy import Entropy
from kolb.terms.forking import ForkingTokens
from kolb.terms.gspo import Gspo
from kolb.terms.kl_cov import KlCov

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes" / "lp_reg").glob("*.toml"))
RHO = {"qwen2_5_32b": 0.005, "qwen3_14b": 0.01}
PERCENT = {"qwen2_5_32b": 0.02, "qwen3_14b": 0.2}

pytest.importorskip(
    "math_verify", reason="the recipes score with math-verify: pip install math-verify"
)


def read(path: Path, *sets: str) -> Recipe:
    rows = ROOT / "examples" / "math.jsonl"
    files = [f"environments.math.{key}={rows}" for key in ("path", "test_path")]
    return recipe.load(path, [*files, *sets])


def sets_of(path: Path) -> dict[str, str]:
    """The ``--set``s of the comments, by the ``use`` in their value where there is one, else by their key."""
    found = [a or b for a, b in re.findall(r"--set (?:'([^']+)'|(\S+))", path.read_text())]
    uses = [re.search(r'use = "(\w+)"', text) for text in found]
    return {
        use[1] if use else text.partition("=")[0]: text
        for text, use in zip(found, uses, strict=True)
    }


def test_there_are_the_two_models_of_the_paper():
    assert [p.stem for p in RECIPES] == ["qwen2_5_32b", "qwen3_14b"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_has_the_numbers_of_the_paper(path: Path):
    loaded = read(path)
    (stage,) = loaded.stages
    rho = RHO[path.stem]
    assert stage.method == replace(
        lp_reg.METHOD,
        grpo=replace(lp_reg.METHOD.grpo, importance_cap=0.0),
        lp_reg=replace(lp_reg.METHOD.lp_reg, rho=rho),
    )
    assert (stage.tasks_per_step, stage.method.grpo.group_size, stage.updates_per_step) == (
        256,
        8,
        8,
    )
    assert (stage.epochs, stage.schedule, stage.warmup_steps, stage.refill) == (1, "constant", 0, 0)
    sampling, spec = stage.sampling, stage.evaluation
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (
        8192,
        1,
        1,
        0,
    )
    assert spec is not None
    assert (spec.every, spec.samples, spec.temperature, spec.episodes) == (8, 16, 0.6, 0)
    adam = loaded.policies["agent"].optimizer
    assert (adam.lr, adam.weight_decay, adam.max_grad_norm) == (1e-6, 0.0, 1.0)
    assert loaded.policies["agent"].lora is None


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
@pytest.mark.parametrize("name", ["PAPER", "OFFICIAL"])
def test_the_paper_s_loss_and_the_code_s_are_one_set_away(path: Path, name: str):
    use = f"stages.rl.method.use=kolb.methods.lp_reg.{name}"
    assert use in path.read_text()
    preset = getattr(lp_reg, name)
    (stage,) = read(path, use).stages
    assert stage.method.lp_reg == replace(preset.lp_reg, rho=RHO[path.stem])
    assert stage.method.grpo == replace(preset.grpo, importance_cap=0.0)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_what_the_comments_set_makes_the_baselines_of_table_1(path: Path):
    sets = sets_of(path)
    (plain,) = read(path, sets["grpo"]).stages
    assert plain.method == Grpo(importance_cap=0.0)
    assert plain.updates_per_step == 8
    assert read(path, sets["stages.rl.updates_per_step"]).stages[0].updates_per_step == 1
    expected: dict[str, Any] = {
        "entropy": Entropy(0.001),
        "kl_cov": KlCov(percent=PERCENT[path.stem], importance_cap=0.0),
        "forking": ForkingTokens(importance_cap=0.0),
        "gspo": Gspo(importance_cap=0.0),
    }
    for name, term in expected.items():
        (stage,) = read(path, sets["grpo"], sets[name]).stages
        assert stage.terms == (term,), name
        assert len(stage.all_terms) == (2 if name == "entropy" else 1), name
    (higher,) = read(path, sets["grpo"], sets["stages.rl.method.clip_high"]).stages
    assert higher.method == Grpo(clip_high=0.28, importance_cap=0.0)


def test_without_the_data_a_recipe_says_which_file_it_lacks(tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"path = 'data/dapo-math-17k\.jsonl': there is no file"):
        recipe.load(RECIPES[0])


# ------------------------------------------------------------------------------------- the prompt, the rows


def test_the_prompt_is_the_plain_text_of_the_code_and_an_answer_ends_with_eos():
    from kolb.chat.templates import ChatTemplate
    from kolb.models.tokenizers import byte_tokenizer

    template = ChatTemplate(
        byte_tokenizer(), template=str(ROOT / "recipes" / "lp_reg" / "zero.jinja")
    )
    text = template.render([{"role": "user", "content": "2+3?"}])
    assert text.startswith("A conversation between User and Assistant. The user asks a question,")
    assert text.endswith(" User: 2+3?\nAssistant: Let me solve this step by step.\n<think>")
    assert template.turn_end_id == template.tokenizer.eos_token_id


def rows_module() -> Any:
    return plugins.load_file(ROOT / "examples" / "math_rows.py")


DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"content": "Solve it.\n\n2+3?", "role": "user"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "5", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "a"},
}


def test_rows_become_prompt_and_answer_and_duplicates_go():
    module = rows_module()
    again = {**DAPO, "extra_info": {"index": "b"}}
    bare = [{"problem": "1+1?", "answer": 2}, {"question": "1+1?", "answer": "2"}]
    assert module.distinct([DAPO, again, *bare]) == [
        {"prompt": "Solve it.\n\n2+3?", "answer": "5"},
        {"prompt": module.FORM.format("1+1?"), "answer": "2"},
    ]


def test_the_script_reads_parquet_and_jsonl_and_writes_what_dataset_reads(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist([DAPO, DAPO]), tmp_path / "d.parquet")
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    module = rows_module()
    module.main(str(tmp_path / "d.parquet"), str(tmp_path / "out" / "train.jsonl"))
    module.main(str(tmp_path / "a.jsonl"), str(tmp_path / "out" / "test.jsonl"))
    files = [f"environments.math.path={tmp_path}/out/train.jsonl"]
    files += [f"environments.math.test_path={tmp_path}/out/test.jsonl"]
    source = recipe.load(RECIPES[0], files).stages[0].source
    (train,), (test,) = source.tasks("train"), source.tasks("test")
    assert (train.prompt[0]["content"], train.answer) == ("Solve it.\n\n2+3?", "5")
    assert (test.prompt[0]["content"], test.answer) == (module.FORM.format("1+1?"), "2")


@pytest.mark.parametrize("preset", ["PAPER", "OFFICIAL"])
def test_a_preset_of_the_term_is_named_in_any_recipe_and_changed_there(preset: str) -> None:
    added = f'stages.learn.terms=[{{use = "kolb.terms.lp_reg.{preset}", rho = 0.2}}]'
    loaded = recipe.load(ROOT / "recipes" / "quickstart.toml", [added])
    (term,) = loaded.stages[0].terms
    assert term == replace(getattr(lp_reg_terms, preset), rho=0.2)
    assert recipe.parse(loaded.resolved).resolved == loaded.resolved
    assert loaded.stages[0].all_terms[-1].normalisation == "sequence-mean-token-sum"
