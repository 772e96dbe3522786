"""The controlled task of the Lp-Reg evidence: a rare word that is useful, beside rare words that are not.

A problem starts from a symbol and applies three or four operators, each a fixed permutation of ten symbols. The prompt
shows a hint, which is right in about a third of the problems. There are two kinds of prompt:

    Q h x o1 o2 o3 o4 ?           the agent says an answer d and then goes on as it likes
    R h x o1 o2 o3 o4 ? d wait    a forced re-check: d and the word ``wait`` are given

An answer to Q is ``d``, or ``d`` and a fork: ``wait`` and the symbols after each operator (a re-check), a filler
(harmless) or junk (a failure). An answer to R is the re-check alone. The last symbol counts; a problem of three
operators has the word ``I`` in place of the fourth.

Models are first taught by imitation of a corpus (``demonstration``) in which ``wait`` is said in one answer of twenty and a
step of a re-check is right with a chance of ``accuracy``, errors carried on. So at first ``wait`` fails more
often than copying the hint (0.1 against 0.37 at ``accuracy = 0.4``), and is pushed down; once the re-checks of R have become right, it
would be worth more. Whoever still says it then takes off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

from evidence.drawn import DrawnTasks
from kolb.envs.base import Replayable, hashed_split
from kolb.errors import RecipeError
from kolb.types import Environment, Message, StepResult, Task, derive_seed

SYMBOLS = tuple("0123456789")
OPERATORS = tuple("ABCD")
FILLERS = tuple(f"f{i}" for i in range(48))
JUNK = tuple(f"j{i}" for i in range(16))
IDENTITY, WAIT = "I", "wait"
WORDS = (*SYMBOLS, *OPERATORS, *FILLERS, *JUNK, IDENTITY, WAIT, "Q", "R", "?")
STEPS = (3, 4)

HINT_IS_RIGHT = 0.3
"""Beyond this share hints are uniform, and so right one time in ten."""

COPIES_HINT, FORK_WAIT, FORK_JUNK, FORK_FILLER, STEP_JUNK = 0.6, 0.05, 0.01, 0.25, 0.01
"""Of the corpus: the first answer is the hint (else uniform); what follows it; junk in a step of a re-check."""

MOST_WORDS = 2 + max(STEPS)


def permutations(seed: int = 5) -> dict[str, tuple[str, ...]]:
    """What each operator makes of the symbols, in their order. They are the same in every run."""
    rng = Random(seed)
    return {name: tuple(rng.sample(SYMBOLS, len(SYMBOLS))) for name in OPERATORS}


TABLE = permutations()


def apply(operator: str, symbol: str) -> str:
    return TABLE[operator][SYMBOLS.index(symbol)]


@dataclass(frozen=True)
class Problem:
    """A start, its operators and the hint that is shown."""

    start: str
    operators: tuple[str, ...]
    hint: str

    @cached_property
    def answer(self) -> str:
        symbol = self.start
        for operator in self.operators:
            symbol = apply(operator, symbol)
        return symbol

    @property
    def text(self) -> str:
        padding = (IDENTITY,) * (max(STEPS) - len(self.operators))
        return " ".join((self.hint, self.start, *self.operators, *padding, "?"))


@dataclass(frozen=True)
class Spark(DrawnTasks):
    """``recheck_share`` of the prompts are R, but in ``test`` all are Q. Problems (start and operators) are divided
    among the splits, so none of ``test`` is ever trained on, not in the corpus either. Scores beside the reward:
    ``wait``, ``filler`` and ``junk`` at the fork of Q, ``recheck`` (the success of R).
    """

    accuracy: float = 0.4
    """The chance that a step of a re-check in the corpus is right."""
    recheck_share: float = 0.25
    train_tasks: int = 4000
    dev_tasks: int = 600
    test_tasks: int = 600
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("accuracy", "recheck_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise RecipeError(f"{name} = {getattr(self, name)}: expected a share, 0 to 1")
        self.check_counts()

    def environment(self, task: Task) -> Environment:
        return Replayable(lambda: SparkWorld(Prompt.of(task, self.recheck_share)))

    def gold(self, task: Task) -> str:
        return Prompt.of(task, self.recheck_share).problem.answer

    def demonstration(self, task: Task) -> list[Message]:
        """A chat of the corpus."""
        prompt = Prompt.of(task, self.recheck_share)
        rng = Random(derive_seed(task.seed, "corpus"))
        return [
            {"role": "user", "content": prompt.text},
            {"role": "assistant", "content": " ".join(prompt.corpus_answer(rng, self.accuracy))},
        ]


ENVIRONMENT = Spark


@dataclass(frozen=True)
class Prompt:
    """A problem as it is shown. ``given`` is the first answer of a forced re-check, empty for Q."""

    problem: Problem
    given: str = ""

    @classmethod
    def of(cls, task: Task, recheck_share: float) -> Prompt:
        """The task's prompt, drawn from its seed."""
        return drawn(task.seed, task.tags["split"], recheck_share)

    @property
    def text(self) -> str:
        return (
            f"R {self.problem.text} {self.given} {WAIT}" if self.given else f"Q {self.problem.text}"
        )

    def corpus_answer(self, rng: Random, accuracy: float) -> list[str]:
        if self.given:
            return recheck(rng, self.problem, accuracy)
        said, draw = [first_answer(rng, self.problem.hint)], rng.random()
        if draw < FORK_WAIT:
            return [*said, WAIT, *recheck(rng, self.problem, accuracy)]
        if draw < FORK_WAIT + FORK_JUNK:
            return [*said, rng.choice(JUNK)]
        if draw < FORK_WAIT + FORK_JUNK + FORK_FILLER:
            return [*said, rng.choice(FILLERS)]
        return said


@lru_cache(maxsize=4096)  # a task is attempted many times
def drawn(seed: int, split: str, recheck_share: float) -> Prompt:
    rng = Random(seed)
    is_recheck = split != "test" and rng.random() < recheck_share
    problem = draw_problem(rng, split)
    return Prompt(problem, first_answer(rng, problem.hint) if is_recheck else "")


def draw_problem(rng: Random, split: str) -> Problem:
    """One of the problems of ``split``, with a hint."""
    while True:
        start = rng.choice(SYMBOLS)
        operators = tuple(rng.choices(OPERATORS, k=rng.choice(STEPS)))
        if hashed_split("spark", start, *operators) == split:
            break
    answer = Problem(start, operators, "").answer
    hint = answer if rng.random() < HINT_IS_RIGHT else rng.choice(SYMBOLS)
    return Problem(start, operators, hint)


def first_answer(rng: Random, hint: str) -> str:
    return hint if rng.random() < COPIES_HINT else rng.choice(SYMBOLS)


def recheck(rng: Random, problem: Problem, accuracy: float) -> list[str]:
    """The symbols after each operator. A wrong one is any of the other nine, and is gone on from."""
    said: list[str] = []
    symbol = problem.start
    for operator in problem.operators:
        if rng.random() < STEP_JUNK:
            return [*said, rng.choice(JUNK)]
        right = apply(operator, symbol)
        others = [s for s in SYMBOLS if s != right]
        symbol = right if rng.random() < accuracy else rng.choice(others)
        said.append(symbol)
    return said


class SparkWorld:
    """One prompt and one answer, whose last word counts."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "user", "content": self._prompt.text},)

    async def step(self, message: str) -> StepResult:
        words = message.split()
        is_right = success(words, self._prompt.problem.answer)
        scores = {"recheck": float(is_right)} if self._prompt.given else fork_of(words)
        return StepResult(reward=float(is_right), terminated=True, scores=scores)


def success(words: Sequence[str], answer: str) -> bool:
    """Whether the last word that is no filler is the answer. More than six words are an answer that never ended."""
    said = [word for word in words if word not in FILLERS]
    return len(words) <= MOST_WORDS and bool(said) and said[-1] == answer


def fork_of(words: Sequence[str]) -> dict[str, float]:
    """What followed the first answer, as scores of 0 or 1; all are 0 where the answer ended there."""
    word = words[1] if len(words) > 1 else ""
    return {
        "wait": float(word == WAIT),
        "filler": float(word in FILLERS),
        "junk": float(word in JUNK),
    }
