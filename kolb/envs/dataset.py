"""Single-turn tasks from the user's own JSONL, with the user's own reward; also demonstrations to imitate.

The formats that are read are in ``rows``, the way a reward function is called in ``rewards``. Relative paths
start at the current directory. The agent's one message ends the episode.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from kolb.envs.base import SPLITS, SingleUse
from kolb.envs.rewards import EXACT_MATCH, MATH_ANSWER, OURS, Sample, load_reward, score
from kolb.envs.rows import read_row, read_rows
from kolb.errors import RecipeError, nearest
from kolb.types import Environment, Message, StepResult, Task, derive_seed

NOT_COLUMNS = ("prompt", "completion", "completion_ids")
"""What TRL does not pass on as a column."""


@dataclass(frozen=True)
class Dataset:
    """Options of a data file.

    ``reward`` names a function (``"file.py:function"``, ``"package.module.function"``), several, or several
    with weights: ``{"rewards.py:correct" = 1.0, "rewards.py:short" = 0.1}``. ``"exact_match"`` compares the
    completion with ``answer_column``, ``"math_answer"`` what the completion has in a box. Files of demonstrations
    need none. The reward of an episode is the weighted sum of the functions that did not abstain.
    ``answer_column`` reaches them as ``answer``, too.

    ``path`` is the train split. ``test_fraction`` and ``dev_fraction`` of it are set aside by a hash of the
    row, so that a row stays where it is when others come or go; ``test_path`` is a file of its own.
    """

    path: str
    reward: str | Mapping[str, float] | tuple[str, ...] = ""
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    system: str = ""
    test_path: str = ""
    test_fraction: float = 0.0
    dev_fraction: float = 0.0

    max_steps: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for what in ("path", "test_path"):
            value = getattr(self, what)
            if value and not Path(value).expanduser().is_file():
                raise RecipeError(
                    f"{what} = {value!r}: there is no file {Path(value).expanduser().absolute()}"
                )
        for what in ("test_fraction", "dev_fraction"):
            if not 0 <= getattr(self, what) < 1:
                raise RecipeError(f"{what} = {getattr(self, what)}: expected 0 <= {what} < 1")
        if self.test_fraction + self.dev_fraction >= 1:
            raise RecipeError("test_fraction + dev_fraction leave nothing to train on")
        if self.test_path and self.test_fraction:
            raise RecipeError("give either test_path or test_fraction, not both")
        for name in self.weights:
            load_reward(name)

    @cached_property
    def weights(self) -> dict[str, float]:
        """Reward functions by name, with their weights."""
        if isinstance(self.reward, Mapping):
            return {name: float(weight) for name, weight in self.reward.items()}
        names = (self.reward,) if isinstance(self.reward, str) else tuple(self.reward)
        return {name: 1.0 for name in names if name}

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise RecipeError(f"no split {split!r}{nearest(split, SPLITS)}")
        tasks = self._splits[split]
        if not tasks:
            if split == "test" and self.test_path:
                raise RecipeError(
                    f"split 'test' is empty: test_path = {self.test_path!r} has no rows"
                )
            if not any(self._splits.values()):
                raise RecipeError(f"split {split!r} is empty: {self.path} has no rows")
            fraction = {"dev": self.dev_fraction, "test": self.test_fraction}.get(split)
            if fraction:
                raise RecipeError(
                    f"split {split!r} of {self.path} is empty: of its few rows none fell into "
                    f"{split}_fraction = {fraction:g}; give more rows, a larger share or test_path"
                )
            ways = {
                "train": f"{self.path} has no rows left for it",
                "dev": "set dev_fraction",
                "test": "set test_path or test_fraction",
            }
            raise RecipeError(f"split {split!r} of {self.path} is empty: {ways[split]}")
        return tasks

    def environment(self, task: Task) -> Environment:
        if not self.weights:
            raise RecipeError(
                f"{self.path} has no reward, so it can be imitated and no more; set reward = "
                f"'file.py:function', {' or '.join(map(repr, OURS))}"
            )
        return SingleUse(DatasetWorld(self, task))

    def demonstration(self, task: Task) -> list[Message]:
        """The whole chat of the row."""
        chat = task.data["demonstration"]
        if not chat:
            raise RecipeError(
                f"task {task.id} has no demonstration; rows to imitate have 'messages', 'completion', "
                "'conversations' or 'output', and end with the assistant"
            )
        return list(chat)

    def gold(self, task: Task) -> str:
        """The answer column, where the reward is to match it; in a box for ``math_answer``."""
        if list(self.weights) == [EXACT_MATCH]:
            return str(task.answer)
        if list(self.weights) == [MATH_ANSWER]:
            return f"\\boxed{{{task.answer}}}"
        raise RecipeError(
            f"which answer scores in full is known only for reward = {' or '.join(map(repr, OURS))}"
        )

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        splits: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for line, row in read_rows(Path(self.path).expanduser()):
            split = self._split_of(row)
            splits[split].append(self._task(self.path, line, row, split))
        if self.test_path:
            for line, row in read_rows(Path(self.test_path).expanduser()):
                splits["test"].append(self._task(self.test_path, line, row, "test"))
        return splits

    def _split_of(self, row: Mapping[str, Any]) -> str:
        if not self.test_fraction and not self.dev_fraction:
            return "train"
        place = derive_seed("split", json.dumps(row, sort_keys=True)) / 2**63
        if place < self.test_fraction:
            return "test"
        return "dev" if place < self.test_fraction + self.dev_fraction else "train"

    def _task(self, path: str, line: int, row: Mapping[str, Any], split: str) -> Task:
        where = f"{path}:{line}"
        found = read_row(row, self.prompt_column, self.system, where)
        ours = next((name for name in OURS if name in self.weights), None)
        if ours and self.answer_column not in row:
            raise RecipeError(
                f"{where}: reward = '{ours}' needs the column {self.answer_column!r}; the row has "
                f"{sorted(row)} (set answer_column)"
            )
        return Task(
            id=f"{split}/{Path(path).stem}:{line}",
            prompt=found.prompt,
            answer=row.get(self.answer_column),
            seed=derive_seed(json.dumps(row, sort_keys=True)),
            data={
                "row": dict(row),
                "demonstration": found.demonstration,
                "is_text": found.is_text,
                **({"tools": _tools(row["tools"], where)} if row.get("tools") else {}),
            },
        )


ENVIRONMENT = Dataset


def _tools(tools: Any, where: str) -> Any:
    """LLaMA-Factory keeps the tools' schemas as JSON in a string."""
    if not isinstance(tools, str):
        return tools
    try:
        return json.loads(tools)
    except json.JSONDecodeError as error:
        raise RecipeError(f"{where}: tools is not JSON: {error.msg}") from error


class DatasetWorld:
    """One row: the prompt, one completion, its reward."""

    def __init__(self, options: Dataset, task: Task) -> None:
        self._options = options
        self._task = task

    async def reset(self) -> tuple[Message, ...]:
        return self._task.prompt

    async def step(self, message: str) -> StepResult:
        sample = self._sample(message)
        scores: dict[str, float] = {}
        for name in self._options.weights:
            value = await score(name, sample)
            if value is not None:
                scores[name] = value
        total = sum(self._options.weights[name] * value for name, value in scores.items())
        named = scores if len(self._options.weights) > 1 else {}
        return StepResult(reward=float(total) if scores else None, terminated=True, scores=named)

    async def fork(self) -> DatasetWorld:
        return copy.copy(self)

    def _sample(self, message: str) -> Sample:
        row, options = self._task.data["row"], self._options
        columns = {k: v for k, v in row.items() if k not in (*NOT_COLUMNS, options.prompt_column)}
        if options.answer_column in row:
            columns["answer"] = row[options.answer_column]
        # Copies: a reward function that changes its arguments must not change the task.
        columns = copy.deepcopy(columns)
        if self._task.data["is_text"]:
            return Sample(self._task.prompt[-1]["content"], message, columns, self._task.id)
        prompt = copy.deepcopy(row.get(options.prompt_column, list(self._task.prompt)))
        return Sample(prompt, [{"role": "assistant", "content": message}], columns, self._task.id)
