"""A whole environment in one file: guess a number between 1 and ``high`` from "Higher" and "Lower".

Check it: ``kolb check examples/guess_number.py``. In a recipe: ``use = "examples/guess_number.py"``.
"""

import re
from dataclasses import dataclass

from kolb.envs.base import Replayable
from kolb.types import StepResult, Task, derive_seed


@dataclass(frozen=True)
class GuessNumber:
    high: int = 100
    max_steps: int = 8

    # The splits differ in their seeds and share the secrets, of which there are only ``high``: "test" measures
    # how well the agent guesses, not whether it would find a number that it never met.
    def tasks(self, split: str) -> list[Task]:
        return [Task(id=f"guess-{split}-{i}", seed=derive_seed(split, i)) for i in range(50)]

    def environment(self, task: Task) -> Replayable:
        return Replayable(lambda: GuessWorld(self, self.secret(task)))

    def secret(self, task: Task) -> int:
        return 1 + task.seed % self.high

    def expert(self, task: Task) -> list[str]:
        low, high, guesses = 1, self.high, []
        while self.secret(task) not in guesses:
            guess = (low + high) // 2
            low, high = (guess + 1, high) if guess < self.secret(task) else (low, guess - 1)
            guesses.append(guess)
        return [str(guess) for guess in guesses]


@dataclass
class GuessWorld:
    options: GuessNumber
    secret: int
    steps: int = 0

    async def reset(self):
        return ({"role": "user", "content": f"Guess my number, 1 to {self.options.high}."},)

    async def step(self, message: str) -> StepResult:
        self.steps += 1
        numbers = re.findall(r"\d{1,9}", message)
        guess = int(numbers[-1]) if numbers else None
        if guess == self.secret:
            return StepResult(reward=1.0, terminated=True)
        hint = "Say a number." if guess is None else "Higher." if guess < self.secret else "Lower."
        reply = {"role": "user", "content": hint}
        return StepResult((reply,), truncated=self.steps >= self.options.max_steps, feedback=hint)


ENVIRONMENT = GuessNumber
