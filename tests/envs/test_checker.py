"""The checker finds planted faults, each by its name, and nothing in a sound environment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kolb.envs.base import Replayable, SingleUse
from kolb.envs.checker import Problem, check
from kolb.errors import RecipeError
from kolb.types import StepResult, Task

ASK = ({"role": "user", "content": "left or right ?"},)


class Walk:
    """A line from 0; ``right`` adds one, ``left`` takes one away. Won at 3, cut after 6 steps."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.at = [0]
        self.steps = 0

    async def reset(self):
        return ASK

    async def step(self, message):
        self.steps += 1
        self.at[0] += message.count("right") - message.count("left")
        is_won = self.at[0] >= 3
        return StepResult(
            ({"role": "user", "content": f"at {self.at[0]}"},),
            reward=float(is_won),
            terminated=is_won,
            truncated=not is_won and self.steps >= 6,
        )


@dataclass(frozen=True)
class Line:
    """A sound source; the planted faults below replace one part of it."""

    world: type = Walk
    splits: dict = field(default_factory=lambda: {"train": 6, "dev": 2, "test": 2})

    def tasks(self, split):
        return [
            Task(f"{split}-{i}", seed=i, data={"n": f"{split} {i}"})
            for i in range(self.splits[split])
        ]

    def environment(self, task):
        return Replayable(lambda: self.world(task))

    def expert(self, task):
        return ["right"] * 3


def names(source, **options) -> set[str]:
    return {problem.name for problem in check(source, tasks=3, **options)}


def test_a_sound_environment_has_no_problems():
    assert check(Line(), tasks=6) == []


def test_worlds_that_differ_between_instances_are_found():
    class Moody(Walk):
        async def reset(self):
            self.at[0] = -random.randrange(10**9)
            return ASK

    assert {"determinism", "fork"} <= names(Line(Moody))


def test_a_fork_that_shares_state_is_found():
    class Shared(Walk):
        async def fork(self):
            twin = Shared(self.task)
            twin.at, twin.steps = self.at, self.steps
            return twin

    @dataclass(frozen=True)
    class Source(Line):
        def environment(self, task):
            return SingleUse(Shared(task))

    assert names(Source()) == {"fork_independent", "fork_equal"}


def test_a_fork_that_starts_again_is_found():
    class Forgetful(Walk):
        async def fork(self):
            return Forgetful(self.task)

    @dataclass(frozen=True)
    class Source(Line):
        def environment(self, task):
            return SingleUse(Forgetful(task))

    assert names(Source()) == {"fork_equal"}


def test_a_world_without_any_guard_is_found():
    class Bare(Walk):
        async def fork(self):
            twin = Bare(self.task)
            twin.at, twin.steps = list(self.at), self.steps
            return twin

        async def close(self):
            pass

    @dataclass(frozen=True)
    class Source(Line):
        def environment(self, task):
            return Bare(task)

    [problem] = check(Source(), tasks=1)
    assert problem.name == "single_use"
    assert "SingleUse" in problem.expected


class BadReward(Walk):
    async def step(self, message):
        return StepResult(ASK, reward=float("nan"), truncated=True)


class BadFlag(Walk):
    async def step(self, message):
        return StepResult(ASK, terminated="yes")  # type: ignore[arg-type]


class BadType(Walk):
    async def step(self, message):
        return ASK, 0.0, True, False, {}


@pytest.mark.parametrize(
    ("world", "words"), [(BadReward, "nan"), (BadFlag, "True or False"), (BadType, "not tuple")]
)
def test_wrong_types_are_found_with_what_was_seen(world, words):
    problems = {p.name: p for p in check(Line(world), tasks=1)}
    assert words in problems["step_results"].seen


def test_raising_on_garbage_is_found_with_the_garbage():
    class Strict(Walk):
        async def step(self, message):
            if not message.isascii():
                raise UnicodeError("ascii only")
            return await super().step(message)

    [problem] = check(Line(Strict), tasks=2)
    assert problem.name == "garbage"
    assert "UnicodeError: ascii only" in problem.seen


def test_two_endings_at_once_and_silence_in_the_middle_are_found():
    class Both(Walk):
        async def step(self, message):
            return StepResult(terminated=True, truncated=True, reward=1.0)

    class Silent(Walk):
        async def step(self, message):
            return StepResult(truncated=(await super().step(message)).truncated)

    assert names(Line(Both)) == {"one_ending"}
    assert names(Line(Silent)) == {"observation", "expert"}


@pytest.mark.parametrize("opening", [(), ({"role": "oracle", "content": "x"},), ("hello",)])
def test_malformed_opening_messages_are_found(opening):
    class Odd(Walk):
        async def reset(self):
            return opening

    assert "opening" in names(Line(Odd))


def test_an_expert_that_does_not_win_is_found():
    @dataclass(frozen=True)
    class Source(Line):
        def expert(self, task):
            return ["left"] * 6

    [problem] = check(Source(), tasks=2)
    assert problem == Problem(
        "expert",
        "train-0",
        "reward 0 after 6 of 6 messages",
        "an episode that ends with a positive reward",
    )


def test_a_gold_answer_that_does_not_score_is_found_and_a_refusal_is_none():
    @dataclass(frozen=True)
    class Source(Line):
        answer: str = ""

        def gold(self, task):
            if not self.answer:
                raise RecipeError("there is no gold answer")
            return self.answer

    assert names(Source()) == set()
    assert names(Source(answer="right")) == {"gold"}
    assert names(Source(answer="right right right")) == set()


def test_tasks_that_change_repeat_or_leak_are_found():
    @dataclass(frozen=True)
    class Fresh(Line):
        def tasks(self, split):
            return [Task(f"{split}-{i}", data={"n": random.random()}) for i in range(3)]

    @dataclass(frozen=True)
    class Repeats(Line):
        def tasks(self, split):
            return [Task(split)] * 2

    @dataclass(frozen=True)
    class Leaks(Line):
        def tasks(self, split):
            return [Task(f"{split}-{i}", data={"n": i}) for i in range(3)]

    assert names(Fresh()) == {"tasks_deterministic"}
    assert names(Repeats()) == {"task_ids"}
    assert names(Leaks()) == {"splits_disjoint"}


def test_a_world_that_hangs_is_reported_and_not_waited_for():
    class Stuck(Walk):
        async def reset(self):
            while True:
                pass

    problems = {p.name: p for p in check(Line(Stuck), tasks=1, timeout_s=0.05)}
    assert "longer than 0.05 s" in problems["opening"].seen


def test_a_source_that_raises_or_lists_nothing_is_reported():
    @dataclass(frozen=True)
    class Broken(Line):
        def tasks(self, split):
            raise OSError("no disk")

    assert "OSError: no disk" in check(Broken())[0].seen
    assert check(Line(splits={"train": 0, "dev": 0, "test": 0}))[0].seen == "no task in any split"


def test_a_problem_reads_as_a_sentence():
    problem = Problem("expert", "t-1", "reward 0", "a win")
    assert str(problem) == "expert (task t-1): reward 0; expected a win"


def test_a_bare_world_is_told_how_to_wrap_it_once():
    @dataclass(frozen=True)
    class Source(Line):
        def environment(self, task):
            return Walk(task)

    [problem] = check(Source(), tasks=3)
    assert problem.name == "environment"
    assert "gave Walk without close; wrap it: SingleUse(...) or Replayable(" in problem.seen


def test_a_missing_fork_is_a_note_and_no_breach():
    @dataclass(frozen=True)
    class Source(Line):
        def environment(self, task):
            return SingleUse(Walk(task))

    [note] = check(Source(), tasks=3)
    assert (note.name, note.is_note) == ("fork", True)
    assert str(note).startswith("fork (task train-0): there is none.")


def test_one_fault_is_one_problem_with_its_line():
    class Raises(Walk):
        async def step(self, message):
            return StepResult(ASK, reward=1 / 0)

    [problem] = check(Line(Raises), tasks=3)
    assert problem.name == "step_results"
    assert "ZeroDivisionError" in problem.seen
    assert "test_checker.py, line " in problem.seen
    assert problem.expected == "that every message is answered by a StepResult"


def test_tasks_that_are_no_list_and_an_expert_that_is_none_are_found():
    @dataclass(frozen=True)
    class NoTasks(Line):
        def tasks(self, split):
            return None

    @dataclass(frozen=True)
    class OddExpert(Line):
        def expert(self, task):
            return 5

    assert "NoneType" in check(NoTasks())[0].seen
    assert "expert(task) gave 5" in check(OddExpert(), tasks=1)[0].seen
