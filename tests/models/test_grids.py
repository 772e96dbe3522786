"""The embedded base model: what it can do on assignments and boards that it was not taught with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kolb import recipe
from kolb.cli.opened import opened_samplers, read_source
from kolb.envs.grid_lessons import held_out_symbols, is_held_out
from kolb.evaluate import evaluate
from kolb.models.fetch import EMBEDDED, resolve
from kolb.models.grids import start

FOLDER = EMBEDDED["grids"]
RECIPE = """
[engine]
use = "torch_local"
threads = 1

[policies.agent]
base = "grids"

[environments.grid]
use = "grid_text"
game = "{game}"
style = "cells"
rules = "{rules}"
symbols = {{{symbols}}}
sizes = [{size}]
train_tasks = 10
test_tasks = 80

[[stages]]
name = "look"
method = "imitation"
steps = 1
history = "last"
  [stages.sampling]
  max_tokens = 18
  [stages.evaluation]
  episodes = 80
"""


def success(game: str, rules: str, size: int, folder: Path) -> float:
    """On 80 held-out boards under a held-out assignment, sampling at temperature 1."""
    symbols = held_out_symbols(game, range(1000, 2000))
    table = ", ".join(f'{k} = "{v}"' for k, v in symbols.items())
    path = folder / f"{game}-{rules}.toml"
    path.write_text(RECIPE.format(game=game, rules=rules, symbols=table, size=size))
    source = read_source(str(path))
    stage = source.stage("")
    assert stage.evaluation is not None
    with opened_samplers(source, stage) as samplers:
        result = asyncio.run(evaluate(stage, stage.evaluation, samplers, source.library))
    assert result.success is not None
    return result.success


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "size", "least", "most"), [("frozenlake", 4, 0.85, 0.35), ("sokoban", 6, 0.75, 0.15)]
)
def test_it_acts_when_the_rules_are_stated_and_weakly_when_they_are_not(
    game: str, size: int, least: float, most: float, tmp_path: Path
) -> None:
    assert success(game, "visible", size, tmp_path) >= least
    assert success(game, "hidden", size, tmp_path) <= most


def test_it_comes_with_kolb_and_is_small() -> None:
    assert resolve("grids") == str(FOLDER)
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) < 12_000_000
    assert (FOLDER / "README.md").is_file()


def test_its_vocabulary_is_the_one_that_the_start_has() -> None:
    symbols, names, cells = start.vocabulary()
    known = json.loads((FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    assert set(known) >= {*symbols, *names, *cells, *start.WORDS.split()}
    assert json.loads((FOLDER / "config.json").read_text())["vocab_size"] == len(known)


def test_the_start_is_the_same_whenever_it_is_written(tmp_path: Path) -> None:
    for name in ("one", "two"):
        start.write_start(tmp_path / name)
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "two"))
    assert one == two


def test_the_word_of_a_cell_starts_as_the_sum_of_its_parts(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    start.write_start(tmp_path)
    table = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    ids = AutoTokenizer.from_pretrained(tmp_path).get_vocab()
    assert (table[ids["b4K"]] == table[ids["b4"]] + table[ids["K"]]).all()
    assert (table[ids["b4"]] * table[ids["K"]] == 0).all()


def test_recipes_of_the_base_model_parse_once_its_start_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start.write_start(tmp_path)
    path = Path(__file__).parents[2] / "recipes" / "base" / "grids.toml"
    loaded = recipe.load(path, [f"policies.agent.base={tmp_path}"])
    assert [stage.name for stage in loaded.stages] == ["read", "play"]


def test_the_quickstart_hides_symbols_that_the_model_was_not_taught_with() -> None:
    path = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
    (stage,) = recipe.load(path).stages
    assert stage.source.rules == "hidden"
    assert is_held_out("sokoban", stage.source.symbols_of(stage.source.tasks("test")[0]))
