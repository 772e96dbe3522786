"""An attempt by given replies, for the tests of environments."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from kolb.types import Message, StepResult, Task


def play(
    source: Any, task: Task, replies: Iterable[str]
) -> tuple[tuple[Message, ...], list[StepResult]]:
    """The opening messages and the results of ``replies``, up to the end."""

    async def go() -> tuple[tuple[Message, ...], list[StepResult]]:
        world = source.environment(task)
        opening = await world.reset()
        results: list[StepResult] = []
        for reply in replies:
            results.append(await world.step(reply))
            if results[-1].terminated or results[-1].truncated:
                break
        await world.close()
        return opening, results

    return asyncio.run(go())
