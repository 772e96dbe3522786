"""Every environment of kolb, and the one that the docs show, keeps the contract."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import kolb.envs
from kolb import plugins
from kolb.envs.checker import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "guess_number.py"

OPTIONS: dict[str, list[dict]] = {
    "grid_text": [
        {"train_tasks": 40},
        {"style": "short", "train_tasks": 40},
        {"style": "cells", "train_tasks": 40},
        {"game": "sokoban", "rules": "visible", "symbols": "random", "train_tasks": 40},
        {"game": "sokoban", "style": "short", "max_steps": 5, "train_tasks": 40},
    ],
    "gym_text": [
        {},
        {"kwargs": {"is_slippery": True, "render_mode": "ansi"}, "max_steps": 12},
        {"env_id": "CliffWalking-v1", "kwargs": {}, "max_steps": 30},
        {"env_id": "Taxi-v4", "kwargs": {"render_mode": "ansi"}},
    ],
    "dataset": [{"path": "rows.jsonl", "reward": "exact_match", "test_fraction": 0.2}],
    "multihop_qa": [{}, {"top_k": 1, "max_steps": 2}],
}
"""What each environment is checked with; one that is not here is checked with its defaults."""


def found() -> list[str]:
    """The modules of kolb.envs that name an ENVIRONMENT."""
    names = [module.name for module in pkgutil.iter_modules(kolb.envs.__path__)]
    return [n for n in names if hasattr(importlib.import_module(f"kolb.envs.{n}"), "ENVIRONMENT")]


TAUGHT = {"grid_lessons"}
"""Sources of demonstrations that nobody can act in: they have tests of their own."""

CASES = [
    (name, options) for name in found() if name not in TAUGHT for options in OPTIONS.get(name, [{}])
]


def test_the_environments_of_this_release_are_all_found():
    assert {"grid_text", "gym_text", "dataset", "multihop_qa"} <= set(found())
    assert set(OPTIONS) <= set(found())


@pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)]
)
def test_the_environment_keeps_the_contract(name, options, tmp_path, monkeypatch):
    if name == "gym_text":
        pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{i} + 1 = ?", "answer": i + 1} for i in range(20)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = plugins.load(name, "kolb.envs", "ENVIRONMENT")(**options)
    assert [str(problem) for problem in check(source, tasks=3)] == []


def test_the_example_environment_keeps_the_contract():
    source = plugins.load(str(EXAMPLE), "kolb.envs", "ENVIRONMENT")()
    assert [str(problem) for problem in check(source, tasks=5)] == []


def test_the_example_environment_stays_short_enough_to_read_at_once():
    assert len(EXAMPLE.read_text().splitlines()) < 60
