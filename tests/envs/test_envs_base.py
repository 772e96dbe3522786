"""The wrappers that hold environments to the contract: single use, fork by replay."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kolb.envs.base import Replayable, SingleUse
from kolb.errors import EnvironmentFailure
from kolb.types import StepResult

ASK = ({"role": "user", "content": "say a number"},)


class Adder:
    """Sums the numbers it hears; over at 10. ``drift`` is added at every step."""

    def __init__(self, drift: float = 0.0) -> None:
        self.total = 0.0
        self.drift = drift
        self.is_closed = False

    async def reset(self):
        return ASK

    async def step(self, message):
        self.total += float(message) + self.drift
        return StepResult(ASK, reward=self.total, terminated=self.total >= 10)

    async def close(self):
        self.is_closed = True


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_second_reset_is_refused_in_words():
    async def go():
        world = SingleUse(Adder())
        assert await world.reset() == ASK
        await world.reset()

    with pytest.raises(EnvironmentFailure, match=r"reset was called twice.*single use"):
        run(go())


def test_a_step_before_reset_is_refused():
    with pytest.raises(EnvironmentFailure, match="before reset"):
        run(SingleUse(Adder()).step("1"))


def test_a_step_after_the_end_is_refused():
    async def go():
        world = SingleUse(Adder())
        await world.reset()
        assert (await world.step("10")).terminated
        await world.step("1")

    with pytest.raises(EnvironmentFailure, match="after the episode had ended"):
        run(go())


def test_a_world_that_failed_once_is_not_stepped_again():
    async def go():
        world = SingleUse(Adder())
        await world.reset()
        with pytest.raises(ValueError, match="could not convert"):
            await world.step("one")
        await world.step("1")

    with pytest.raises(EnvironmentFailure, match="earlier call had failed"):
        run(go())


def test_a_step_that_returns_a_tuple_names_the_type_that_was_expected():
    class Tuple(Adder):
        async def step(self, message):
            return ASK, 1.0, False, False, {}

    async def go():
        world = SingleUse(Tuple())
        await world.reset()
        await world.step("1")

    with pytest.raises(EnvironmentFailure, match=r"kolb\.types\.StepResult, not tuple"):
        run(go())


def test_single_use_says_how_to_get_a_fork_where_the_world_has_none():
    with pytest.raises(EnvironmentFailure, match=r"Replayable\(lambda"):
        run(SingleUse(Adder()).fork())


def test_a_replayed_fork_goes_on_as_the_original_and_leaves_it_alone():
    async def go():
        world = Replayable(Adder)
        await world.reset()
        await world.step("1")
        await world.step("2")
        twin = await world.fork()
        assert [(await twin.step("3")).reward, (await twin.step("4")).reward] == [6.0, 10.0]
        assert (await world.step("5")).reward == 8.0
        grandchild = await (await world.fork()).fork()
        assert (await grandchild.step("1")).reward == 9.0

    run(go())


def test_a_fork_of_an_ended_world_is_ended_and_one_of_a_new_world_is_new():
    async def go():
        new = await Replayable(Adder).fork()
        assert await new.reset() == ASK
        await new.step("10")
        with pytest.raises(EnvironmentFailure, match="had ended"):
            await (await new.fork()).step("1")

    run(go())


def test_a_replay_that_differs_raises_names_the_step_and_closes_the_copy():
    made = []
    drifts = itertools.count()

    def build():
        made.append(Adder(drift=next(drifts)))
        return made[-1]

    async def go():
        world = Replayable(build)
        await world.reset()
        await world.step("1")
        await world.fork()

    with pytest.raises(EnvironmentFailure, match=r"step 1: reward was 1\.0 and is now 2\.0"):
        run(go())
    assert [world.is_closed for world in made] == [False, True]


def test_close_reaches_the_world_and_is_not_required_of_it():
    class Bare:
        async def reset(self):
            return ASK

        async def step(self, message):
            return StepResult(ASK)

    adder = Adder()
    run(SingleUse(adder).close())
    run(SingleUse(Bare()).close())
    assert adder.is_closed
