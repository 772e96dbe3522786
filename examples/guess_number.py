"""A whole environment in one file: guess a number between 1 and ``high`` from "higher" and "lower".

Check it: ``kolb check examples/guess_number.py``. Use it in a recipe: ``use = "examples/guess_number.py"``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kolb.envs.base import Replayable
from kolb.types import Environment, Message, StepResult, Task, derive_seed


@dataclass(frozen=True)
class GuessNumber:
    high: int = 100
    max_steps: int = 8

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"guess-{split}-{i}", seed=derive_seed(split, i)) for i in range(50)]

    def environment(self, task: Task) -> Environment:
        return Replayable(lambda: GuessWorld(self, self.secret(task)))

    def secret(self, task: Task) -> int:
        return 1 + task.seed % self.high

    def expert(self, task: Task) -> list[str]:
        low, high, guesses = 1, self.high, []
        while not guesses or guesses[-1] != self.secret(task):
            guesses.append((low + high) // 2)
            low, high = (
                (guesses[-1] + 1, high)
                if guesses[-1] < self.secret(task)
                else (low, guesses[-1] - 1)
            )
        return [str(guess) for guess in guesses]


@dataclass
class GuessWorld:
    options: GuessNumber
    secret: int
    steps: int = 0

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "user", "content": f"Guess my number, 1 to {self.options.high}."},)

    async def step(self, message: str) -> StepResult:
        self.steps += 1
        numbers = re.findall(r"\d{1,9}", message)
        if numbers and int(numbers[-1]) == self.secret:
            return StepResult(reward=1.0, terminated=True)
        hint = (
            "Say a number."
            if not numbers
            else "Higher."
            if int(numbers[-1]) < self.secret
            else "Lower."
        )
        observation: Message = {"role": "user", "content": hint}
        return StepResult(
            (observation,), truncated=self.steps >= self.options.max_steps, feedback=hint
        )


ENVIRONMENT = GuessNumber
