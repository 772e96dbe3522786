"""An environment behind the guard: every call has its deadline, every answer is checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from kolb.boundary import checked_environment, checked_messages, checked_step, guarded_call
from kolb.envs.base import EnvironmentSource, can_fork
from kolb.errors import BoundaryError, EnvironmentFailure
from kolb.types import Environment, Message, StepResult, Task


class GuardedEnvironment:
    """Implements ``kolb.types.Environment`` around the user's.

    Each method raises EnvironmentFailure, RewardError or DeadlineError and nothing else that is the
    environment's doing.
    """

    def __init__(self, inner: Environment, task: Task, timeout_s: float) -> None:
        self._inner = inner
        self._task = task
        self._timeout_s = timeout_s

    async def reset(self) -> tuple[Message, ...]:
        opening = checked_messages(await self._call(self._inner.reset, "reset()"), "reset()")
        if not opening:
            raise EnvironmentFailure("reset() gave no messages; the agent needs at least one")
        return opening

    async def step(self, message: str) -> StepResult:
        result = checked_step(await self._call(self._inner.step, "step()", message), "step()")
        if not (result.terminated or result.truncated or result.observation):
            raise EnvironmentFailure(
                "step() gave no observation although the episode goes on; the agent needs something to "
                "answer, or one of terminated and truncated must be True"
            )
        return result

    async def fork(self) -> GuardedEnvironment:
        if not can_fork(self._inner):
            raise EnvironmentFailure(
                f"the environment of task {self._task.id} has no fork(); wrap its world in "
                "Replayable(lambda: ...) of kolb.envs.base, or write one that copies its state"
            )
        copy = await self._call(self._inner.fork, "fork()")
        return GuardedEnvironment(copy, self._task, self._timeout_s)

    async def close(self) -> None:
        await self._call(self._inner.close, "close()")

    async def _call(self, method: Any, what: str, *args: Any) -> Any:
        what = f"{what} of task {self._task.id}"
        return await guarded_call(method, *args, what=what, seconds=self._timeout_s)


@asynccontextmanager
async def guarded_environment(
    source: EnvironmentSource, task: Task, timeout_s: float
) -> AsyncIterator[GuardedEnvironment]:
    """A fresh environment of ``task``, closed whatever happens. A ``close`` that fails counts only where
    nothing failed before it."""
    what = f"environment of task {task.id}"
    inner = await guarded_call(source.environment, task, what=what, seconds=timeout_s)
    environment = GuardedEnvironment(checked_environment(inner), task, timeout_s)
    try:
        yield environment
    except BaseException:
        with suppress(BoundaryError):
            await environment.close()
        raise
    await environment.close()
