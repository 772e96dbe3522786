"""A small recipe whose agent moves at random."""

from pathlib import Path

import pytest

RECIPE = """
[engine]
use = "scripted"
answer = "./answers.py:answer"

[policies.agent]
base = "nothing"

[environments.lake]
use = "grid_text"
style = "short"
sizes = [2, 3]
train_tasks = 40
dev_tasks = 4
test_tasks = 6

[[stages]]
name = "explore"
steps = 4
tasks_per_step = 2
  [stages.method]
  use = "grpo"
  group_size = 4
  [stages.sampling]
  max_tokens = 16
  [stages.evaluation]
  at_start = true
  episodes = 5
  samples = 2

[checkpoints]
every = 1
"""

ANSWERS = """
def answer(messages, seed):
    return ("Up", "Down", "Left", "Right")[seed % 4]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with ``lake.toml`` in it."""
    (tmp_path / "lake.toml").write_text(RECIPE)
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path
