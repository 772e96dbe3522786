"""The embedded model that keeps notes: what it can do on assignments and boards that it was not taught with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kolb import recipe
from kolb.envs.grid_lessons import held_out_symbols, is_held_out
from kolb.loop import run
from kolb.models.fetch import EMBEDDED, resolve
from kolb.models.notes import start
from kolb.models.notes.prompts import NOTES

FOLDER = EMBEDDED["notes"]
ROOT = Path(__file__).parents[2]
LEARNS = ROOT / "recipes" / "tf_grpo" / "frozenlake_notes.toml"


def test_it_comes_with_kolb_and_is_small() -> None:
    assert resolve("notes") == str(FOLDER)
    assert (FOLDER / "model.safetensors").stat().st_size < 2_000_000
    assert (FOLDER / "README.md").is_file()


def test_its_vocabulary_is_that_of_grids_with_words_behind_it() -> None:
    known, base = (
        json.loads((EMBEDDED[name] / "tokenizer.json").read_text())["model"]["vocab"]
        for name in ("notes", "grids")
    )
    assert {word: known[word] for word in base} == base
    assert set(known) == {*base, *start.new_words()}


def test_the_start_is_the_same_whenever_it_is_written_and_knows_what_grids_knows(
    tmp_path: Path,
) -> None:
    from safetensors.torch import load_file

    for name in ("one", "two"):
        start.write_start(tmp_path / name)
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "two"))
    assert one == two
    table = "model.embed_tokens.weight"
    base = load_file(EMBEDDED["grids"] / "model.safetensors")[table]
    assert (load_file(tmp_path / "one" / "model.safetensors")[table][: len(base)] == base).all()


def test_words_that_belong_together_start_alike(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    start.write_start(tmp_path)
    table = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    ids = AutoTokenizer.from_pretrained(tmp_path).get_vocab()
    half = table.shape[1] // 2
    for one, other in (("[G7].", '"G7",'), ("7", "(7)"), ("7", "7.")):
        assert (table[ids[one], :half] == table[ids[other], :half]).all()
    assert (table[ids["[G7]."], half:] == table[ids["[G8]."], half:]).all()
    assert (table[ids["[G7]."], :half] != table[ids["[G8]."], :half]).any()


def test_the_recipe_asks_in_the_words_of_the_corpus_and_hides_symbols_that_it_never_showed() -> (
    None
):
    (stage,) = recipe.load(LEARNS).stages
    method, source = stage.method, stage.source
    assert [getattr(method.prompts, n) for n in ("heading", "summary", "comparison", "proposals", "plan")] == [
        NOTES.heading, NOTES.summary, NOTES.comparison, NOTES.proposals, NOTES.plan,
    ]  # fmt: skip
    assert is_held_out("frozenlake", source.symbols_of(source.tasks("test")[0]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000, 2000])
def test_it_learns_the_rules_of_a_lake_without_a_change_of_weights(
    seed: int, tmp_path: Path
) -> None:
    symbols = held_out_symbols("frozenlake", range(seed, seed + 1000))
    table = ", ".join(f'{k} = "{v}"' for k, v in symbols.items())
    run(recipe.load(LEARNS, [f"environments.lake.symbols={{{table}}}"]), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    assert metrics[0]["eval_start/success"] < 0.35
    assert metrics[-1]["eval/success"] > 0.7
