"""Who may import whom. One table; the code is read as syntax trees, functions included."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kolb

ROOT = Path(kolb.__file__).parent

CONTRACTS = "types errors engines.base envs.base"
WORLD = f"{CONTRACTS} stage credit boundary guarded dialogue"

ALLOWED = {
    # the vocabulary, and the contracts between layers
    "errors": "",
    "types": "",
    "engines.base": "types errors",
    "envs.base": "types errors",
    # the pure core
    "credit": "types errors",
    "memory": "types errors",
    "terms": "types errors",
    "methods": "types errors credit memory terms",
    # the shell around it
    "plugins": "errors",
    "boundary": "types errors",
    "chat": "types errors engines.base",
    "runs": "types errors",
    "envs": "types errors envs.base plugins boundary",
    "engines": "types errors engines.base terms chat plugins models",
    "stage": CONTRACTS,
    "models": f"{CONTRACTS} stage boundary envs methods memory",
    # the loop
    "guarded": "types errors envs.base boundary",
    "dialogue": "types errors engines.base",
    "world": WORLD,
    "libraries": "types errors stage memory runs",
    "evaluate": f"{WORLD} world",
    "estimate": "types errors stage guarded",
    "checks": f"{CONTRACTS} stage plugins terms",
    "order": "types errors stage",
    "learning": "types errors engines.base stage terms",
    "listeners": "types errors stage credit runs",
    "running": f"{WORLD} world learning listeners libraries memory runs",
    "collected": f"{CONTRACTS} stage credit order",
    "loop": f"{WORLD} world evaluate checks order collected learning listeners running memory runs models",
    # recipes, reports, commands
    "tables": "errors",
    "overrides": "errors",
    "readers": f"{CONTRACTS} stage plugins tables models",
    "recipe": f"{CONTRACTS} stage plugins tables overrides readers checks models libraries",
    "view": "types errors runs",
    "report": "types errors credit loop runs view",
}
"""``kolb.engines.base`` and ``kolb.envs.base`` are contracts, and stand for themselves. The commands
(``cli``, ``__main__``) and the package itself may import anything."""

TORCH = ("kolb.terms", "kolb.engines", "kolb.chat.batching", "kolb.methods.lp_reg", "kolb.models")
TRANSFORMERS = ("kolb.engines", "kolb.chat", "kolb.models")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(("kolb", *path.relative_to(ROOT).with_suffix("").parts))
        yield name.removesuffix(".__init__"), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere; ``from kolb import x`` counts as ``kolb.x``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            packages = ("kolb", "kolb.engines", "kolb.envs")
            names = [f"{module}.{a.name}" for a in node.names] if module in packages else [module]
            yield from names


def unit(module: str) -> str:
    """The part of kolb that a module belongs to: a row of the table."""
    parts = module.split(".")[1:]
    return (
        ".".join(parts) if parts in (["engines", "base"], ["envs", "base"]) else (parts or [""])[0]
    )


def under(module: str, homes: tuple[str, ...]) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def test_every_part_imports_only_what_the_table_allows() -> None:
    wrong = []
    for name, tree in modules():
        mine = unit(name)
        if mine in ("", "cli", "__main__"):
            continue
        assert mine in ALLOWED, f"{name}: say in the table what kolb.{mine} may import"
        allowed = {*ALLOWED[mine].split(), mine}
        wrong += [
            f"{name} imports {other}"
            for other in imports(tree)
            if other.startswith("kolb.") and unit(other) not in allowed
        ]
    assert wrong == []


def test_the_table_has_no_cycle_and_no_stale_names() -> None:
    table = {part: set(row.split()) for part, row in ALLOWED.items()}
    list(graphlib.TopologicalSorter(table).static_order())
    parts = {unit(name) for name, _ in modules()}
    assert set(ALLOWED) - parts == set()
    assert {name for row in table.values() for name in row} - set(ALLOWED) == set()


def test_methods_know_neither_engines_nor_environments_nor_runs() -> None:
    row = set(ALLOWED["methods"].split())
    assert row == {"types", "errors", "credit", "memory", "terms"}


@pytest.mark.parametrize(("library", "homes"), [("torch", TORCH), ("transformers", TRANSFORMERS)])
def test_a_heavy_library_stays_where_it_belongs(library: str, homes: tuple[str, ...]) -> None:
    users = [
        name for name, tree in modules() if any(i.split(".")[0] == library for i in imports(tree))
    ]
    assert users, "the test must see at least one user"
    assert [name for name in users if not under(name, homes)] == []


@pytest.mark.parametrize(
    "names",
    [
        "kolb, kolb.cli",
        "kolb.types, kolb.stage, kolb.recipe",
        "kolb.world, kolb.evaluate, kolb.checks",
        "kolb.loop, kolb.methods.tf_grpo",
        "kolb.engines.scripted, kolb.engines.torch_local, kolb.memory.library, kolb.view",
        "kolb.engines.openai_compat, kolb.engines.endpoint.prompts",
    ],
)
def test_importing_does_not_load_torch_or_transformers(names: str) -> None:
    code = f"import sys, {names}; print(sorted({{'torch', 'transformers', 'peft'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
