"""What a run will ask for, in numbers that can be worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from kolb.engines.base import ModelSpec
from kolb.estimate import Amount, Estimate, estimate
from kolb.methods import erl, grpo, tf_grpo
from kolb.stage import Evaluation, Limits, PolicySpec, Recipe, Stage
from kolb.types import Calls, Message, SamplingParams, StepResult, Task


class Opening:
    """40 bytes of system prompt, 20 of a task; nobody may go further."""

    async def reset(self) -> tuple[Message, ...]:
        system: Message = {"role": "system", "content": "s" * 40}
        return system, {"role": "user", "content": "u" * 20}

    async def step(self, message: str) -> StepResult:
        raise AssertionError("an estimate takes no step")

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Openings:
    max_steps: int = 1

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}") for i in range(8)]

    def environment(self, task: Task) -> Any:
        return Opening()


def estimated(method: Any, max_steps: int = 1, **stage: Any) -> Estimate:
    roles = dict.fromkeys(method.roles, "agent")
    only = Stage(
        "only",
        method,
        Openings(max_steps),
        **{
            "steps": 3,
            "roles": roles,
            "tasks_per_step": 4,
            "sampling": SamplingParams(max_tokens=8),
            **stage,
        },
    )
    return asyncio.run(estimate(Recipe("r", {"agent": PolicySpec(ModelSpec())}, (only,))))


GRPO = replace(grpo.METHOD, group_size=2)


def test_single_turns_are_counted_and_measured() -> None:
    """3 steps of 4 tasks and 2 attempts: 24 requests with 60 bytes, 15 tokens, of prompt each."""
    found = estimated(GRPO)
    assert found.most == {("solver", "agent"): Amount(24, 24 * 15, 24 * 8)}
    assert found.likely == {("solver", "agent"): Amount(24, 24 * 15, 24 * 4)}


def test_a_turn_is_shown_all_before_it_and_with_history_last_only_the_newest() -> None:
    """Two turns at most, 1.5 likely; an environment says as much as the last message of its opening, 5 tokens."""
    one = Amount(1.5, 1.5 * 15 + (4 + 5) * 1.5 * 0.5 / 2, 1.5 * 4)
    found = estimated(GRPO, max_steps=2)
    assert found.most["solver", "agent"] == Amount(2, 2 * 15 + (8 + 5), 2 * 8) * 24
    assert found.likely["solver", "agent"] == one * 24
    last = estimated(GRPO, max_steps=2, history="last")
    assert last.most["solver", "agent"] == Amount(2, 2 * 15, 2 * 8) * 24


def test_a_stage_limits_the_turns_of_an_environment_that_sets_no_limit() -> None:
    found = estimated(GRPO, max_steps=0, limits=Limits(max_turns=3))
    assert found.most["solver", "agent"].requests == 3 * 24


@pytest.mark.parametrize(
    ("spec", "episodes"),
    [
        ({"episodes": 5}, 5),
        ({"episodes": 5, "at_start": True, "samples": 2}, 20),
        ({"episodes": 0, "every": 1}, 3 * 8),
        ({"episodes": 100, "every": 2, "at_start": True}, 3 * 8),
    ],
)
def test_evaluations_are_in_it(spec: Mapping[str, Any], episodes: int) -> None:
    found = estimated(GRPO, evaluation=Evaluation(**spec))
    assert found.most["solver", "agent"].requests == 24 + episodes


def test_refill_may_ask_for_as_many_further_batches() -> None:
    found = estimated(GRPO, refill=1)
    assert found.most["solver", "agent"].requests == 48
    assert found.likely["solver", "agent"].requests == 36


def counts(method: Any, tasks: int, step: int = 1) -> dict[str, tuple[int, int]]:
    return {role: (c.least, c.most) for role, c in method.calls(tasks, step).items()}


def test_training_free_grpo_asks_no_more_than_this() -> None:
    """With 2 of 4 groups kept it is 20 attempts, 10 summaries, 2 comparisons, 2 lists of proposals and 1 plan."""
    five = tf_grpo.METHOD
    assert counts(five, 4) == {
        "solver": (20, 20),
        "summarizer": (0, 20),
        "comparer": (0, 4),
        "editor": (0, 2 * 4 + 3),
    }
    unjudged = counts(replace(five, judged_by="nobody"), 4)
    assert (unjudged["summarizer"], unjudged["comparer"]) == ((20, 20), (4, 4))
    merging = counts(replace(five, style="merge", summarises=False, held_out=1), 4)
    assert merging == {"solver": (15, 25), "comparer": (0, 6), "editor": (0, 3)}


def test_the_library_grows_by_the_lessons_of_each_step_up_to_its_limit() -> None:
    """32 words a lesson, three tokens for two words, shown to every attempt."""
    method = replace(tf_grpo.METHOD, max_lessons=10)
    lessons = [method.calls(4, step)["solver"].lessons for step in (1, 2, 3, 4)]
    assert lessons == [0, 4 * 48, 8 * 48, 10 * 48]


def test_a_prompt_of_another_role_holds_the_task_and_what_it_is_shown() -> None:
    @dataclass(frozen=True)
    class Judged:
        name: ClassVar[str] = "judged"
        roles: ClassVar[tuple[str, ...]] = ("solver", "judge")
        needs: ClassVar[frozenset[str]] = frozenset()
        terms: ClassVar[tuple[Any, ...]] = ()

        def calls(self, tasks: int, step: int) -> dict[str, Calls]:
            shown = Calls(
                0, tasks, attempts=2, answers=1, instructions=100, lessons=50, max_tokens=20
            )
            return {"judge": shown}

        async def collect(self, *_: Any) -> Any: ...
        def credit(self, *_: Any) -> Any: ...

    found = estimated(Judged(), steps=1)
    # The instructions, the lessons, the opening, two attempts of one answer each, and an answer of its own kind.
    assert found.most["judge", "agent"] == Amount(1, 100 + 50 + 15 + 2 * 8 + 20, 20) * 4
    assert found.likely["judge", "agent"] == Amount(1, 100 + 25 + 15 + 2 * 4 + 10, 10) * 2


def test_erl_reflects_and_tries_again_at_most_once_for_each_attempt() -> None:
    assert counts(replace(erl.METHOD, group_size=2), 4) == {"solver": (8, 16), "reflector": (0, 8)}
    assert counts(replace(erl.RLVR, group_size=2), 4)["solver"] == (8, 8)


def test_a_method_that_does_not_say_how_often_it_asks_is_named() -> None:
    @dataclass(frozen=True)
    class Silent:
        name: ClassVar[str] = "silent"
        roles: ClassVar[tuple[str, ...]] = ("solver",)
        needs: ClassVar[frozenset[str]] = frozenset()
        terms: ClassVar[tuple[Any, ...]] = ()

        async def collect(self, *_: Any) -> Any: ...
        def credit(self, *_: Any) -> Any: ...

    found = estimated(Silent())
    assert (found.silent, found.most) == (["silent"], {})
