"""What a problem is, and the worlds that are built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Message = dict[str, Any]
"""One chat message in OpenAI's form: ``{"role": "user", "content": "..."}``, tool calls included."""


@dataclass(frozen=True)
class Task:
    """A frozen statement of one problem.

    ``prompt`` is what may be shown, ``answer`` is what only the grader may see, ``data`` is what the
    environment needs to build its world (a board, the columns of a data row).

    >>> Task(id="sum-1", prompt=({"role": "user", "content": "2+3?"},), answer="5").seed
    0
    """

    id: str
    prompt: tuple[Message, ...] = ()
    answer: Any = None
    seed: int = 0
    tags: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """What an environment says back after one message.

    ``reward`` is added to the trajectory's ``reward`` score; ``None`` abstains (no opinion, which is
    not zero). ``scores`` are further named numbers, recorded and logged but not part of the reward.
    ``terminated`` means that the world ended; ``truncated`` that a limit cut it.
    """

    observation: tuple[Message, ...] = ()
    reward: float | None = 0.0
    terminated: bool = False
    truncated: bool = False
    feedback: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Environment(Protocol):
    """A single-use world built from one Task; deterministic given the Task and the messages."""

    async def reset(self) -> tuple[Message, ...]:
        """The first messages (system prompt included, if there is one). Called exactly once."""
        ...

    async def step(self, message: str) -> StepResult:
        """Answers the agent's message. After ``terminated`` or ``truncated`` it must not be called."""
        ...

    async def fork(self) -> Environment:
        """An independent copy in the same state: stepping either leaves the other as it was."""
        ...

    async def close(self) -> None: ...
