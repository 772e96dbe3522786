"""What an environment may do to a run: break its own episodes, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kolb.boundary import LARGEST, checked_messages, checked_number, guarded_call
from kolb.errors import EnvironmentFailure, RewardError


class SilentError(Exception):
    """Cannot say what it has to say."""

    def __str__(self) -> str:
        raise ValueError("no words")


@dataclass
class Call:
    """What is called, and what its failure says."""

    does: Callable[[], Any]
    says: str


def raises(error: BaseException) -> Callable[[], Any]:
    def call() -> None:
        raise error

    return call


async def awaits_a_cancelled_task() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(10))
    inner.cancel()
    await inner


@pytest.mark.parametrize(
    "call",
    [
        Call(raises(SilentError()), "step raised SilentError, whose message cannot be shown"),
        Call(raises(asyncio.CancelledError()), "step raised CancelledError"),
        Call(awaits_a_cancelled_task, "step raised CancelledError"),
        Call(raises(StopIteration()), "coroutine raised StopIteration"),
        Call(raises(RecursionError("deep")), "step raised RecursionError: deep"),
    ],
)
def test_odd_errors_become_failures_of_the_environment(call: Call) -> None:
    with pytest.raises(EnvironmentFailure, match=call.says):
        asyncio.run(guarded_call(call.does, what="step", seconds=5))


def test_a_cancellation_that_was_asked_of_us_passes_through() -> None:
    async def cancelled() -> bool:
        waiting = asyncio.ensure_future(guarded_call(asyncio.sleep, 10, what="step", seconds=5))
        await asyncio.sleep(0)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            return True
        return False

    assert asyncio.run(cancelled())


@pytest.mark.parametrize("content", [5, {"text": "hi"}, "half \ud800 a pair", [{"text": "\udfff"}]])
def test_content_that_no_tokenizer_could_encode_is_the_environments_failure(content: Any) -> None:
    with pytest.raises(EnvironmentFailure, match="reset"):
        checked_messages([{"role": "user", "content": content}], "reset()")


@pytest.mark.parametrize(
    "content", [None, "", "plain \U0001f600", [{"type": "text", "text": "hi"}]]
)
def test_every_content_of_openais_form_passes(content: Any) -> None:
    message = {"role": "user", "content": content}
    assert checked_messages([message], "reset()") == (message,)


def test_a_reward_that_would_overflow_is_refused_and_the_largest_is_not() -> None:
    assert checked_number(-LARGEST, "reward") == -1e30
    with pytest.raises(RewardError, match=r"reward is 1e\+31; beyond 1e\+30"):
        checked_number(1e31, "reward")
