"""What every environment must keep, one rule per function; a rule that is broken says so on its Probe.

A KolbError that escapes from a rule is a breach too: then the rule's first sentence is what was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kolb.boundary import checked_messages, checked_step
from kolb.envs.base import can_fork, shorten
from kolb.envs.probe import Probe, compare, is_over, is_well_formed, seen_in
from kolb.errors import BoundaryError, EnvironmentFailure
from kolb.types import StepResult

GARBAGE = (
    "",
    " \n\t",
    "x" * 20_000,
    "\u4f60\u597d \u0645\u0631\u062d\u0628\u0627 \U0001f600 \u0000",
    '<tool_call>{"name": </tool_call> ```json\n{``` [[{{%',
    "-1 1e999 NaN",
)


async def environment(probe: Probe) -> None:
    """A world has reset, step and close."""
    await probe.new()


async def opening(probe: Probe) -> None:
    """Reset gives well-formed messages that end with something to answer."""
    _, messages = await probe.opened()
    expected = "messages with a known role and text, the last one not the assistant's"
    if not messages or messages[-1]["role"] == "assistant":
        probe.report("opening", shorten(messages), expected)
    for message in messages:
        if not is_well_formed(message):
            probe.report("opening", shorten(message), expected)


async def step_results(probe: Probe) -> None:
    """Every message is answered by a StepResult."""
    environment, messages = await probe.opened()
    for message in await probe.plan(messages):
        raw = await probe.call(environment.step, message)
        result = checked_step(raw, "step()")
        _judge_result(probe, result)
        if is_over(result):
            break


def _judge_result(probe: Probe, result: StepResult) -> None:
    if result.terminated and result.truncated:
        probe.report("one_ending", "terminated and truncated", "one of the two: terminated wins")
    if not is_over(result) and not result.observation:
        probe.report("observation", "none, in the middle of an episode", "messages to answer")
    for message in result.observation:
        if not is_well_formed(message):
            probe.report("observation", shorten(message), "messages with a known role and text")


async def determinism(probe: Probe) -> None:
    """The same messages get the same answers in two environments of one task."""
    first, opening_1 = await probe.opened()
    second, opening_2 = await probe.opened()
    compare(probe, "determinism", [opening_1], [opening_2], "the same opening in both")
    plan = await probe.plan(opening_1)
    results_1, results_2 = await probe.play(first, plan), await probe.play(second, plan)
    compare(probe, "determinism", seen_in(results_1), seen_in(results_2), "the same answer in both")


async def fork(probe: Probe) -> None:
    """A fork is equal to its original and independent of it."""
    reference, opening_ = await probe.opened()
    if not can_fork(reference):
        probe.note("fork", "there is none. Only methods that branch an episode need it")
        return
    plan = await probe.plan(opening_)
    whole = await probe.play(reference, plan)
    for before in sorted({0, len(whole) // 2}):
        original, _ = await probe.opened()
        await probe.play(original, plan[:before])
        astray = await probe.fork(original)
        await probe.play(astray, await probe.plan(opening_))
        twin = await probe.fork(original)
        rest = seen_in(whole[before:])
        after_fork = seen_in(await probe.play(original, plan[before:]))
        compare(
            probe,
            "fork_independent",
            rest,
            after_fork,
            "an original that does not feel its fork's steps",
        )
        in_twin = seen_in(await probe.play(twin, plan[before:]))
        compare(probe, "fork_equal", rest, in_twin, "a fork that continues as the original")


async def single_use(probe: Probe) -> None:
    """Calls in the wrong order raise EnvironmentFailure."""
    await _must_refuse(probe, (await probe.new()).step, "step before reset", "x")
    environment, messages = await probe.opened()
    await _must_refuse(probe, environment.reset, "a second reset")
    environment, messages = await probe.opened()
    results = await probe.play(environment, await probe.plan(messages))
    if results and is_over(results[-1]):
        await _must_refuse(probe, environment.step, "step after the end", "x")


async def _must_refuse(probe: Probe, function: Callable[..., Any], what: str, *args: Any) -> None:
    async def refused() -> bool:
        try:
            await function(*args)
        except EnvironmentFailure:
            return True
        return False

    if not await probe.call(refused):
        probe.report(
            "single_use", f"{what} was answered", "EnvironmentFailure (kolb.envs.base.SingleUse)"
        )


async def garbage(probe: Probe) -> None:
    """Any text is answered with a StepResult, never raised on."""
    for message in GARBAGE:
        environment, _ = await probe.opened()
        try:
            _judge_result(probe, await probe.step(environment, message))
        except BoundaryError as error:
            seen = f"{shorten(message, 40)} gave {error}"
            probe.report_error("garbage", error, seen, "a StepResult for any text")


async def expert(probe: Probe) -> None:
    """The expert's messages end the episode with a positive reward (or, in a world of penalties, with more
    than random messages earn)."""
    messages = await probe.expert()
    if messages is None:
        return
    environment, opening_ = await probe.opened()
    results = await probe.play(environment, messages)
    total = sum(r.reward or 0.0 for r in results)
    other, _ = await probe.opened()
    by_chance = sum(r.reward or 0.0 for r in await probe.play(other, await probe.plan(opening_)))
    if not results or not is_over(results[-1]) or total <= min(0.0, by_chance):
        seen = f"reward {total:g} after {len(results)} of {len(messages)} messages"
        probe.report("expert", seen, "an episode that ends with a positive reward")


async def gold(probe: Probe) -> None:
    """The gold answer scores."""
    answer = await probe.optional("gold")
    if answer is None:
        return
    environment, _ = await probe.opened()
    reward = (await probe.step(environment, str(answer))).reward
    if reward is None or reward <= 0:
        probe.report("gold", f"reward {reward} for {shorten(answer, 60)}", "a positive reward")


async def demonstration(probe: Probe) -> None:
    """A demonstration is a chat with at least one message of the assistant."""
    chat = await probe.optional("demonstration")
    if chat is None:
        return
    messages = checked_messages(chat, "demonstration()")
    if not any(m["role"] == "assistant" for m in messages):
        probe.report("demonstration", shorten(messages), "at least one message of the assistant")


RULES = (
    environment,
    opening,
    step_results,
    determinism,
    fork,
    single_use,
    garbage,
    expert,
    gold,
    demonstration,
)
