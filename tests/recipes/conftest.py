"""A recipe folder whose method, environment and engine are files beside the recipe."""

from pathlib import Path

import pytest

METHOD = """
from dataclasses import dataclass
from kolb.types import Update

@dataclass(frozen=True)
class Inner:
    depth: int = 2

@dataclass(frozen=True)
class Toy:
    group_size: int = 4
    inner: Inner = Inner(depth=3)
    name = "toy"
    roles = ("solver", "judge")
    needs = frozenset({"sample", "train"})
    terms = ()

    async def collect(self, tasks, world):
        return []

    def credit(self, groups, state):
        return Update()

METHOD = Toy(group_size=8)
"""

ENVIRONMENT = """
from __future__ import annotations
from dataclasses import dataclass
from kolb.types import Task

@dataclass(frozen=True)
class Guess:
    high: int = 10
    hint: float | None = None
    words: tuple[str, ...] = ("warm", "cold")
    file: str = ""

    def tasks(self, split):
        return [Task(id=f"{split}-{i}", seed=i) for i in range(4)]

    def environment(self, task):
        raise AssertionError("no test plays this")

ENVIRONMENT = Guess
"""

ENGINE = """
class Fake:
    provides = frozenset({"sample", "train", "logprobs", "tokens", "full_ft", "lora", "policies"})

    def __init__(self, *, answer: str = "left", delay_s: float = 0.0):
        self.answer, self.delay_s = answer, delay_s

    def close(self):
        pass

ENGINE = Fake
"""

RECIPE = """
seed = 3
engine = "./engine.py"

[policies.agent]
base = "some/model"
  [policies.agent.lora]
  rank = 8
  [policies.agent.optimizer]
  lr = 1e-4
  betas = [0.9, 0.95]

[environments.guess]
use = "./guess.py"
high = 20
file = "./numbers.jsonl"

[[stages]]
name = "rl"
steps = 5
  [stages.method]
  use = "./method.py"
  group_size = 2
  [stages.sampling]
  max_tokens = 16
  [stages.evaluation]
  every = 2

[checkpoints]
every = 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``lake.toml`` and its plug-ins."""
    files = {
        "method.py": METHOD,
        "guess.py": ENVIRONMENT,
        "engine.py": ENGINE,
        "lake.toml": RECIPE,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path
