"""``kolb play``: one episode on the screen while it happens, by the model or by hand."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import typer

from kolb.cli.opened import Source, opened_samplers, read_source, usages
from kolb.engines.base import Sampler
from kolb.envs.base import SPLITS, EnvironmentSource
from kolb.errors import RecipeError, SamplerError, nearest
from kolb.stage import Stage
from kolb.types import Completion, Environment, Episode, Message, SamplingParams, StepResult, Task
from kolb.view.usage import usage_lines
from kolb.world import LiveWorld


def play_source(
    name: str,
    task: str,
    *,
    by_hand: bool = False,
    split: str = "test",
    seed: int = 0,
    opened: Mapping[str, Any],
) -> Episode:
    """Plays and prints. ``opened``: checkpoint, stage and sets, as for ``kolb eval``."""
    source = read_source(name, checkpoint=opened["checkpoint"], sets=opened["sets"])
    stage = source.stage(opened["stage"])
    chosen = find_task(stage.source, split, task)
    by_policy = {policy: Hand() for policy in stage.roles.values()}
    say(
        f"task {chosen.id}, {'by hand' if by_hand else f'by the policies after step {source.step}'}\n"
    )
    try:
        with nullcontext(by_policy) if by_hand else opened_samplers(source, stage) as samplers:
            episode = asyncio.run(play_once(source, stage, chosen, samplers, seed))
    except KeyboardInterrupt:
        say("\nstopped")
        raise typer.Exit(130) from None
    outcome = "none" if episode.outcome is None else f"{episode.outcome:g}"
    say(f"the end: status {episode.status.value}, outcome {outcome}")
    for line in usage_lines(usages(samplers)):
        say(line)
    return episode


async def play_once(
    source: Source, stage: Stage, task: Task, samplers: Mapping[str, Sampler], seed: int
) -> Episode:
    watched = replace(stage, source=Watched(stage.source))
    world = LiveWorld(watched, samplers, source.library, seed, source.step, stage.sampling)
    own = getattr(stage.method, "evaluate_episode", None)
    if own is not None:
        return await own(task, 0, world)
    return await world.play(task, role=stage.method.roles[0])


def find_task(source: EnvironmentSource, split: str, wanted: str) -> Task:
    """By id, or by its number in the split."""
    if split not in SPLITS:
        raise RecipeError(f"split = {split!r}{nearest(split, SPLITS)}")
    tasks = source.tasks(split)
    ids = {task.id: task for task in tasks}
    if wanted in ids:
        return ids[wanted]
    if wanted.isdigit() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    numbers = f"; give a number from 0 to {len(tasks) - 1}, or an id such as {tasks[0].id!r}"
    raise RecipeError(
        f"split {split!r} has {len(tasks)} tasks and none is {wanted!r}{numbers if tasks else ''}"
    )


# --------------------------------------------------------------------------------------- the screen


@dataclass(frozen=True)
class Watched:
    """An environment source whose worlds print what they hear and say."""

    inner: EnvironmentSource

    def tasks(self, split: str) -> Sequence[Task]:
        return self.inner.tasks(split)

    def environment(self, task: Task) -> Environment:
        return WatchedWorld(self.inner.environment(task))


class WatchedWorld:
    def __init__(self, inner: Environment) -> None:
        self.inner = inner

    async def reset(self) -> tuple[Message, ...]:
        messages = await self.inner.reset()
        show(messages)
        return messages

    async def step(self, message: str) -> StepResult:
        show([{"role": "agent", "content": message}])
        result = await self.inner.step(message)
        show(result.observation)
        if result.feedback:
            show([{"role": "feedback", "content": result.feedback}])
        if result.reward:
            say(f"reward {result.reward:g}\n")
        return result

    async def fork(self) -> Environment:
        return WatchedWorld(await self.inner.fork())

    async def close(self) -> None:
        await self.inner.close()


def show(messages: Sequence[Message]) -> None:
    from kolb.view.render import message_text

    for message in messages:
        text = printable(message_text(message)).replace("\n", "\n  ")
        say(f"[{message['role']}]\n  {text}\n")


def say(text: str) -> None:
    """Prints. When the reader has gone (``| head``) there is nobody to play for: the command ends quietly,
    past everything that would take it for a failure of the environment."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still buffered must go somewhere when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def printable(text: str) -> str:
    """Without control characters: what a model says must not drive the terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


class Hand:
    """A Sampler that asks whoever sits at the keyboard."""

    version = 0
    template = None

    def rest(self) -> None:
        """Nothing is kept between answers."""

    async def sample(self, prompt: Any, params: SamplingParams, n: int = 1) -> list[Completion]:
        try:
            with interruptible():
                return [Completion(input("your move> ")) for _ in range(n)]
        except EOFError as error:
            raise SamplerError("the input ended before the episode did") from error

    async def score(self, tokens: Any, start: int = 1) -> Any:
        raise SamplerError("a hand gives no logprobs")


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts what is inside. asyncio's own handler only asks its task to stop, and that is not
    heard while ``input`` waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
