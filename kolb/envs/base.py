"""Where tasks come from and how a world is built: the one door for environments.

An environment module names a class in ``ENVIRONMENT``. It is a frozen dataclass whose fields are the
options a recipe may set; ``tasks(split)`` lists its Tasks and ``environment(task)`` builds the single-use
world of one of them. That is all: no registry, no base class to inherit from.

    @dataclass(frozen=True)
    class Guess:
        high: int = 10
        def tasks(self, split): return [Task(id=f"{split}-{i}", seed=i) for i in range(100)]
        def environment(self, task): return Replayable(lambda: GuessWorld(task, self.high))

    ENVIRONMENT = Guess

Optional further methods: ``expert(task)`` gives the agent messages of a solution, one per turn;
``demonstration(task)`` gives a whole chat; ``gold(task)`` a message that must score the full reward.
Any of them may raise RecipeError to say that there is none under these options.

Two wrappers save a world from writing the same things again. ``SingleUse`` holds the order of calls
(one reset, no step before it, none after the end). ``Replayable`` adds ``fork`` to a world that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from kolb.errors import EnvironmentFailure
from kolb.types import Environment, Message, StepResult, Task, derive_seed

SPLITS = ("train", "dev", "test")


def hashed_split(*words: str) -> str:
    """The split of a thing that its ``words`` identify, wherever it is met: 1 in 10 ``test``, 1 in 10 ``dev``."""
    return {0: "test", 1: "dev"}.get(derive_seed("split", *words) % 10, "train")


@runtime_checkable
class EnvironmentSource(Protocol):
    """A family of worlds. ``tasks`` is deterministic: the same split lists the same tasks in the same order.

    ``train`` may be learnt from, ``dev`` is for choosing, ``test`` is for reporting; they share no task.
    A split that these options leave empty raises RecipeError and says which option fills it.
    """

    def tasks(self, split: str) -> Sequence[Task]: ...
    def environment(self, task: Task) -> Environment: ...


class Playable(Protocol):
    """The least that a world must have: the wrappers below add the rest of ``Environment``."""

    async def reset(self) -> tuple[Message, ...]: ...
    async def step(self, message: str) -> StepResult: ...


_REFUSALS = {
    "new": "step was called before reset; call reset once, first",
    "ended": "step was called after the episode had ended; stop at terminated or truncated",
    "broken": "step was called after an earlier call had failed or while one was running",
}


class SingleUse:
    """Holds ``world`` to one reset and to no step before it or after the end (EnvironmentFailure)."""

    def __init__(self, world: Playable) -> None:
        self._world = world
        self._phase = "new"

    async def reset(self) -> tuple[Message, ...]:
        if self._phase != "new":
            raise EnvironmentFailure(
                "reset was called twice; an environment is single use: build another one of the task"
            )
        self._phase = "broken"
        messages = tuple(await self._world.reset())
        self._phase = "running"
        return messages

    async def step(self, message: str) -> StepResult:
        if self._phase != "running":
            raise EnvironmentFailure(_REFUSALS[self._phase])
        self._phase = "broken"
        result = await self._world.step(message)
        if not isinstance(result, StepResult):
            raise EnvironmentFailure(
                f"step must return a kolb.types.StepResult, not {type(result).__name__}"
            )
        self._phase = "ended" if result.terminated or result.truncated else "running"
        return result

    @property
    def can_fork(self) -> bool:
        return hasattr(self._world, "fork")

    async def fork(self) -> Environment:
        """A copy by the world's own ``fork``."""
        fork = getattr(self._world, "fork", None)
        if fork is None:
            raise EnvironmentFailure(
                f"{type(self._world).__name__} has no fork(); write one that copies its state, "
                "or wrap it in Replayable(lambda: ...)"
            )
        twin = SingleUse(await fork())
        twin._phase = self._phase
        return twin

    async def close(self) -> None:
        close = getattr(self._world, "close", None)
        if close is not None:
            await close()


class Replayable(SingleUse):
    """A deterministic world with ``fork``: a fresh instance from ``build`` hears the same messages again.

    Everything that the replay sees (observations, rewards, flags) must equal what was seen the first
    time; a difference raises EnvironmentFailure, because branching such a world would compare unlike states.
    """

    def __init__(self, build: Callable[[], Playable]) -> None:
        super().__init__(build())
        self._build = build
        self._start: tuple[Message, ...] = ()
        self._history: list[tuple[str, StepResult]] = []

    @property
    def can_fork(self) -> bool:
        return True

    async def reset(self) -> tuple[Message, ...]:
        self._start = await super().reset()
        return self._start

    async def step(self, message: str) -> StepResult:
        result = await super().step(message)
        self._history.append((message, result))
        return result

    async def fork(self) -> Environment:
        if self._phase == "broken":
            raise EnvironmentFailure(
                "fork was called after an earlier call had failed; nothing to copy"
            )
        twin = Replayable(self._build)
        if self._phase == "new":
            return twin
        try:
            _must_equal("first messages", self._start, await twin.reset(), "reset")
            for number, (message, seen) in enumerate(self._history, start=1):
                again = await twin.step(message)
                for what in ("observation", "reward", "terminated", "truncated"):
                    _must_equal(what, getattr(seen, what), getattr(again, what), f"step {number}")
        except BaseException:
            await twin.close()
            raise
        return twin


def _must_equal(what: str, first: object, again: object, where: str) -> None:
    if first != again:
        raise EnvironmentFailure(
            f"fork by replay failed at {where}: {what} was {shorten(first)} and is now {shorten(again)}; "
            "the world is not deterministic given the task and the messages: seed everything from task.seed, "
            "or write fork() by copying state"
        )


def can_fork(environment: Environment) -> bool:
    """Whether ``fork`` gives a copy: it is optional, and only methods that branch an episode call it."""
    return bool(getattr(environment, "can_fork", hasattr(environment, "fork")))


def shorten(value: object, limit: int = 200) -> str:
    """``repr`` cut to ``limit`` characters, for messages."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
