"""What the documents show exists: commands and options, files and links, recipes, snippets, keys, metrics."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer

from kolb import loop, plugins, recipe
from kolb.cli import app
from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.engines.endpoint.faults import FAULTS
from kolb.engines.endpoint.spending import Prices
from kolb.engines.openai_compat import OpenAICompat
from kolb.engines.scripted import Scripted
from kolb.engines.torch_local import TorchLocal
from kolb.envs.dataset import Dataset
from kolb.envs.grid_lessons import GridLessons
from kolb.envs.grid_text import GridText
from kolb.envs.gym_text import GymText
from kolb.envs.multihop_qa import MultihopQa
from kolb.methods import erl, grpo, lp_reg, tf_grpo
from kolb.methods.imitation import Imitation
from kolb.models.prepare import TokenizerTraining
from kolb.readers import TOP_KEYS
from kolb.runs.directory import RunDirectory
from kolb.stage import CheckpointSpec, Evaluation, Limits, PolicySpec, Stage
from kolb.tables import plain
from kolb.terms.cispo import Cispo
from kolb.terms.clip_cov import ClipCov
from kolb.terms.cross_entropy import CrossEntropy
from kolb.terms.entropy import Entropy
from kolb.terms.entropy_advantage import EntropyAdvantage
from kolb.terms.forking import ForkingTokens
from kolb.terms.gspo import Gspo
from kolb.terms.kl import KLToReference
from kolb.terms.kl_cov import KlCov
from kolb.terms.lp_reg import LpReg
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import SamplingParams

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\S*)(?P<marks>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(*languages: str) -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text[: match.start()].count("\n") + 1
            name = str(page.relative_to(ROOT))
            marks = tuple(match["marks"].split())
            found.append(Snippet(name, line, match["language"], marks, match["text"]))
    return [s for s in found if s.language in languages]


def commands() -> Iterator[tuple[str, list[str]]]:
    """(where, words) of every command line, comments taken off."""
    for snippet in snippets("sh", "bash", "console"):
        for number, line in enumerate(snippet.text.splitlines(), snippet.line + 1):
            if words := shlex.split(line.removeprefix("$ "), comments=True):
                yield f"{snippet.page}:{number}", words


COMMANDS = list(commands())
KOLB = [(where, words[1:]) for where, words in COMMANDS if Path(words[0]).name == "kolb"]


# ---------------------------------------------------------------------------------------- commands


def test_the_documents_show_every_verb() -> None:
    group: Any = typer.main.get_command(app)
    assert {words[0] for _, words in KOLB} == set(group.commands)


@pytest.mark.parametrize(("where", "words"), KOLB, ids=[w for w, _ in KOLB])
def test_a_documented_command_parses_and_names_files_that_exist(
    where: str, words: list[str]
) -> None:
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, f"{where}: no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    command.make_context("kolb", rest)  # raises for an unknown option or a missing argument
    for word in words:
        if word.startswith(("recipes/", "examples/")):
            assert (ROOT / word).is_file(), f"{where}: {word} does not exist"


@pytest.mark.parametrize(("where", "words"), KOLB, ids=[w for w, _ in KOLB])
def test_a_documented_recipe_takes_the_sets_that_are_shown(
    where: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    recipes = [w for w in words if w.endswith(".toml")]
    sets = [after for word, after in itertools.pairwise(words) if word == "--set"]
    for path in recipes:
        recipe.load(path, sets)


def test_every_make_target_that_is_shown_exists() -> None:
    shown = {word for _, words in COMMANDS if words[0] == "make" for word in words[1:]}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"quickstart", "test"} <= shown
    assert shown <= set(re.findall(r"^([a-z-]+):", makefile, re.M))


# ---------------------------------------------------------------------------------------- snippets

BASE = """
[policies.agent]
base = "some/model"
[environments.lake]
use = "grid_text"
[[stages]]
name = "rl"
method = "grpo"
steps = 1
"""


@pytest.mark.parametrize("snippet", snippets("toml"), ids=str)
def test_a_toml_snippet_is_a_recipe_or_fits_into_one(
    snippet: Snippet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = tomllib.loads(snippet.text)
    assert shown
    parsed = recipe.parse({**tomllib.loads(BASE), **shown})
    if "stages" in shown:
        assert [s.name for s in parsed.stages] == [s["name"] for s in shown["stages"]]


@pytest.mark.parametrize("snippet", snippets("python"), ids=str)
def test_a_python_snippet_compiles_and_runs_where_it_says_so(
    snippet: Snippet, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(snippet.text, str(snippet), "exec", flags=flags, dont_inherit=True)
    if "run" in snippet.marks:
        monkeypatch.chdir(ROOT)
        exec(code, {"__name__": "snippet"})


def test_the_loop_that_readme_quotes_is_the_loop() -> None:
    (quoted,) = [s for s in snippets("python") if "stage.method.collect" in s.text]
    wanted = {ast.unparse(node) for node in ast.parse(textwrap.dedent(quoted.text)).body}
    source = ast.parse(textwrap.dedent(inspect.getsource(loop.take_step)))
    have = {ast.unparse(node) for node in ast.walk(source) if isinstance(node, ast.stmt)}
    assert wanted - have == set()


def test_every_relative_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    # docs/log.md is written by whoever measures.
    assert [b for b in broken if not b.endswith("docs/log.md")] == []


def test_decisions_are_numbered_dated_and_say_what_was_rejected() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(p.name[:4]) for p in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.search(r"^# \d{4}\. .+\n\n\d{4}-\d\d-\d\d$", text, re.M), page.name
        assert "ejected" in text, page.name


# -------------------------------------------------------------------------------- keys and defaults

REQUIRED = "required"
TABLES: dict[str, Any] = {
    "[checkpoints]": CheckpointSpec,
    "[policies.NAME.tokenizer]": TokenizerTraining,
    "[policies.NAME.lora]": LoraSpec,
    "[policies.NAME.optimizer]": OptimizerSpec,
    "[stages.sampling]": SamplingParams,
    "[stages.evaluation]": Evaluation,
    "[stages.limits]": Limits,
    'method = "grpo"': grpo.Grpo,
    'method = "erl"': erl.METHOD,
    "[stages.method.prompts]": erl.METHOD.prompts,
    'method = "tf_grpo"': tf_grpo.METHOD,
    "[stages.method.prompts] (tf_grpo)": tf_grpo.METHOD.prompts,
    'method = "imitation"': Imitation,
    'use = "policy_gradient"': PolicyGradient,
    'use = "cross_entropy"': CrossEntropy,
    'use = "kl"': KLToReference,
    'use = "entropy"': Entropy,
    'method = "lp_reg"': lp_reg.METHOD,
    'use = "lp_reg"': LpReg,
    'use = "gspo"': Gspo,
    'use = "cispo"': Cispo,
    'use = "kl_cov"': KlCov,
    'use = "clip_cov"': ClipCov,
    'use = "forking"': ForkingTokens,
    'use = "entropy_advantage"': EntropyAdvantage,
    'engine = "torch_local"': TorchLocal,
    'engine = "openai_compat"': OpenAICompat,
    "[engine.prices.MODEL]": Prices,
    'engine = "scripted"': Scripted,
    'use = "dataset"': Dataset,
    'use = "grid_text"': GridText,
    'use = "gym_text"': GymText,
    'use = "multihop_qa"': MultihopQa,
    'use = "grid_lessons"': GridLessons,
}
NOT_FOR_RECIPES = {"scripted": {"learners"}, "stages": {"source"}}
ROW = re.compile(r"^\| `(?P<key>\w+)` \| *(?P<default>[^|]*?) *\|", re.M)


def guide_tables() -> dict[str, dict[str, str]]:
    """The tables of docs/guide/recipes.md: heading to key to default, as written."""
    text = (ROOT / "docs" / "guide" / "recipes.md").read_text(encoding="utf-8")
    parts = re.split(r"^### `(.+)`$", text, flags=re.M)[1:]
    return {
        title: {row["key"]: row["default"] for row in ROW.finditer(body)}
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def defaults(given: Any) -> dict[str, Any]:
    """Of a class, or of an instance that a recipe's table is laid over."""
    if not isinstance(given, type):
        return {f.name: getattr(given, f.name) for f in fields(given)}
    return {name: p.default for name, p in inspect.signature(given).parameters.items()}


@pytest.mark.parametrize("title", list(TABLES))
def test_the_guide_lists_every_key_with_its_default(title: str) -> None:
    written = guide_tables()[title]
    code = defaults(TABLES[title])
    for hidden in NOT_FOR_RECIPES.get(title.split('"')[-2] if '"' in title else "", ()):
        del code[hidden]
    assert set(written) == set(code)
    for key, default in code.items():
        says = written[key]
        if default is inspect.Parameter.empty:
            assert says == REQUIRED, key
        elif default is None:
            assert says == "none", key
        elif says.startswith("`") and not says.startswith("`{"):
            assert tomllib.loads(f"x = {says.strip('`')}")["x"] == plain(default), key


def test_the_guide_lists_every_key_of_the_tables_that_recipes_read_by_hand() -> None:
    written = guide_tables()
    assert set(written["the top of the recipe"]) == set(TOP_KEYS)
    stage = set(defaults(Stage)) - NOT_FOR_RECIPES["stages"]
    assert set(written["[[stages]]"]) == stage
    policy = {*defaults(ModelSpec), *defaults(PolicySpec)} - {"model"}
    assert set(written["[policies.NAME]"]) == policy
    known = {*TABLES, "the top of the recipe", "[[stages]]", "[policies.NAME]"}
    assert set(written) == known


PRESET = re.compile(
    r'^\| `"kolb\.methods\.(?P<method>\w+)\.(?P<name>\w+)"` \| (?P<sets>.+) \|$', re.M
)


@pytest.mark.parametrize("method", [erl, grpo, tf_grpo], ids=lambda m: m.__name__)
def test_the_guide_lists_every_variant_of_a_method_with_what_it_sets(method: Any) -> None:
    text = (ROOT / "docs" / "guide" / "recipes.md").read_text(encoding="utf-8")
    mine = method.__name__.rpartition(".")[2]
    written = {r["name"]: r["sets"] for r in PRESET.finditer(text) if r["method"] == mine}
    kind = type(method.METHOD)
    presets = {n: v for n, v in vars(method).items() if isinstance(v, kind) and n != "METHOD"}
    assert set(written) == set(presets)
    for name, sets in written.items():
        values = tomllib.loads("\n".join(re.findall(r"`(.+?)`", sets)))
        changes = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        assert replace(method.METHOD, **changes) == presets[name], name


def test_the_guide_names_every_term_by_its_short_name() -> None:
    modules = {p.stem for p in (ROOT / "kolb" / "terms").glob("*.py")} - {
        "__init__",
        "base",
        "selection",
    }
    for name in modules:
        assert plugins.load(name, "kolb.terms", "TERM") is TABLES[f'use = "{name}"']


# ------------------------------------------------------------------------------------------ metrics

RUNS = """
seed = 1
[policies.agent]
base = "nothing"
[environments.guess]
use = "examples/guess_number.py"
high = 4
max_steps = 2
[[stages]]
name = "imitate"
method = "imitation"
steps = 1
[[stages]]
name = "rl"
steps = 2
updates_per_step = 2
refill = 1
terms = ["entropy"]
  [stages.method]
  use = "grpo"
  kl = 0.1
  overlong_limit = 8
  overlong_buffer = 4
  [stages.evaluation]
  at_start = true
  episodes = 4
  samples = 2
[[stages]]
name = "reflect"
method = "erl"
steps = 2
[[stages]]
name = "notes"
steps = 1
  [stages.method]
  use = "tf_grpo"
  held_out = 2
[[stages]]
name = "protect"
steps = 2
  [stages.method]
  use = "lp_reg"
  lp_reg.rho = 0.5
[[stages]]
name = "covariance"
method = "grpo"
steps = 1
terms = ["kl_cov"]
[[stages]]
name = "covariance, clipped"
method = "grpo"
steps = 1
terms = ["clip_cov"]
[[stages]]
name = "bonus"
method = "grpo"
steps = 1
terms = ["entropy_advantage"]
"""
ENDPOINTS = {
    f"usage/POLICY/{name}"
    for name in (
        *("requests", "retries", "cache_hits", "unmetered", "cut", "cost"),
        *("prompt_tokens", "cached_tokens", "completion_tokens"),
        *FAULTS,
    )
}
"""Of the glossary: what only an endpoint counts."""

ONLY_SOMETIMES = {
    "eval/errors/BOUNDARY",
    "entropy/mean",
    "score/NAME",
    "eval/score/NAME",
    *ENDPOINTS,
}
"""Of the glossary: what needs an evaluation in which something breaks, an engine with a distribution (the
scripted one has none), or an environment that gives scores beside the reward."""

PLACEHOLDERS = {
    "POLICY": "agent",
    "TERM": "(policy_gradient|cross_entropy|kl_to_reference|entropy|lp_reg)",
    "STREAM": "(policy|imitation)",
    "ROLE": r"\w+",
    "K": r"\d+",
    "NAME": r"\w+",
    "BOUNDARY": "(environment|reward|sampler|deadline)",
}


def glossary() -> set[str]:
    text = (ROOT / "docs" / "guide" / "metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.M))


def pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"([A-Z]+)", re.escape(name))
    return re.compile("".join(PLACEHOLDERS.get(part, part) for part in parts))


def metrics_of_a_run(folder: Path) -> set[str]:
    def answer(messages: Any, seed: int) -> str:
        is_reflector = messages[0]["content"] == erl.METHOD.prompts.reflector
        if "<experiences>" in messages[0]["content"]:
            return "<experiences>Guess twice.</experiences>"
        if "```json" in messages[0]["content"]:
            return '[{"operation": "ADD", "content": "Guess twice."}]'
        return "<prompt>Guess again.</prompt>" if is_reflector else str(1 + seed % 4)

    loop.run(recipe.parse(tomllib.loads(RUNS)), folder, engine=Scripted(answer))
    lines = RunDirectory.open(folder).metrics()
    return {name for line in lines for name in line} - {"step", "stage"}


def test_the_glossary_and_a_real_run_name_the_same_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    seen = {n.replace("eval_start/", "eval/") for n in metrics_of_a_run(tmp_path / "run")}
    known = {name: pattern(name) for name in glossary()}
    unknown = [n for n in sorted(seen) if not any(p.fullmatch(n) for p in known.values())]
    assert unknown == []
    never = [n for n, p in known.items() if not any(p.fullmatch(s) for s in seen)]
    assert set(never) == ONLY_SOMETIMES


# ---------------------------------------------------------------------------------- import direction


def test_the_decision_on_import_direction_lists_the_table_that_the_test_holds() -> None:
    tree = ast.parse((ROOT / "tests/invariants/test_import_direction.py").read_text())
    names = ("CONTRACTS", "WORLD", "ALLOWED")
    wanted = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names
    ]
    values: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), "table", "exec"), values)
    table = "\n".join(f"{part} <- {row}".rstrip() for part, row in values["ALLOWED"].items())
    page = next((ROOT / "docs" / "decisions").glob("0002-*.md")).read_text(encoding="utf-8")
    assert f"```text\n{table}\n```" in page, f"0002 should list:\n{table}"
