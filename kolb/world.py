"""LiveWorld: all that a method's ``collect`` may touch, for one step of the loop.

Everything runs in one thread and one event loop, in an order that only the inputs decide: with pure
environments the same seeds give the same tokens, whatever ``max_concurrent`` is. Every seed is derived from
(run seed, stage, step, task id, index, role, name), so two calls that agree in all of these sample alike:
tell them apart by ``name``.

What breaks outside (environment, reward, sampler, deadline) becomes a broken Episode in ``groups``, and only
there; every other error is a mistake of the user's or ours and stops the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from kolb.boundary import as_failure, checked_messages, guarded_call, users_lines
from kolb.credit.group_stats import broken_share, first_failure
from kolb.dialogue import Dialogue, given_turns, split_system
from kolb.engines.base import Sampler
from kolb.errors import (
    BoundaryError,
    DeadlineError,
    RecipeError,
    TooManyFailuresError,
    nearest,
)
from kolb.guarded import GuardedEnvironment, guarded_environment
from kolb.stage import Limits, Stage
from kolb.types import (
    Completion,
    Episode,
    EpisodeMaker,
    Group,
    Library,
    Message,
    SamplingParams,
    Status,
    StepResult,
    Task,
    Trajectory,
    Turn,
    derive_seed,
)


@dataclass
class LiveWorld:
    """Implements ``kolb.types.World``.

    ``stage`` gives roles, environment source, sampling and limits; ``samplers`` are by policy; ``seed``
    stands for (run seed, stage, step). ``tokens`` counts what each policy sampled, thrown-away tries
    included: they cost as much as the others; ``role_tokens`` the same by role.
    """

    stage: Stage
    samplers: Mapping[str, Sampler]
    library: Library
    seed: int = 0
    step: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    tokens: Counter[str] = field(default_factory=Counter)
    role_tokens: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for sampler in self.samplers.values():
            sampler.rest()  # a resumed run has nothing cached either

    # -------------------------------------------------------------------------------- groups

    async def groups(
        self, tasks: Sequence[Task], size: int, make: EpisodeMaker, *, kind: str = "attempt"
    ) -> list[Group]:
        """``size`` episodes of every task, at most ``max_concurrent`` at a time, in the order of ``tasks``.

        An episode that breaks is made again from the start, with the same seeds, ``retries`` times.
        """
        seats = asyncio.Semaphore(self.stage.limits.max_concurrent)
        jobs: list[list[asyncio.Task[Episode]]] = []
        first: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as running:
                for t in tasks:
                    episodes = (self._episode(t, i, make, seats) for i in range(size))
                    jobs.append([running.create_task(e) for e in episodes])
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        if first is not None:
            raise first  # Out here it keeps its own cause.
        return [
            Group(task, tuple(job.result() for job in row), kind)
            for task, row in zip(tasks, jobs, strict=True)
        ]

    async def _episode(
        self, task: Task, index: int, make: EpisodeMaker, seats: asyncio.Semaphore
    ) -> Episode:
        async with seats:
            for tries_left in range(self.stage.limits.retries, -1, -1):
                try:
                    return await self._in_time(make, task, index)
                except BoundaryError as error:
                    if not tries_left:
                        status, failure = as_failure(error)
                        return Episode(task.id, index, status=status, failure=failure)
        raise AssertionError("unreachable: the last try returns")

    async def _in_time(self, make: EpisodeMaker, task: Task, index: int) -> Episode:
        seconds = self.stage.limits.episode_timeout_s
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                return await make(task, index)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise DeadlineError(
                f"episode {task.id}/{index} took longer than episode_timeout_s = {seconds:g}"
            ) from error

    # -------------------------------------------------------------------------------- episodes

    async def play(
        self,
        task: Task,
        *,
        role: str = "solver",
        index: int = 0,
        system: str | None = None,
        name: str = "",
        library: Library | None = None,
    ) -> Episode:
        """One attempt of ``role`` in a fresh environment, shown the step's library or the given one.

        A completion that was cut by ``max_tokens`` goes to the environment like any other: what a
        half-finished message is worth is the environment's business. An attempt ends as ``truncated`` when
        the environment says so, after ``max_turns``, or when the context is full. Its reward is the sum
        of the rewards of its steps, without those that abstained; where all of them did, it has none. Of
        a named score that several steps gave, the last one counts.
        """
        seed = self.seed_of(task, index, role, name)
        async with self.environment(task) as environment:
            opening = await environment.reset()
            dialogue = self._dialogue(role, self._with_library(opening, system, library), task)
            steps: list[StepResult] = []
            for turn in range(self.stage.limits.max_turns):
                completion = await dialogue.say(self._params(seed, turn))
                if completion is None:
                    break
                self._count(role, completion)
                result = await environment.step(completion.text)
                steps.append(result)
                is_over = result.terminated or result.truncated
                dialogue.hear(result.observation, result.feedback, is_last=is_over)
                if is_over:
                    break
        return self._as_episode(task, index, self._trajectory(role, dialogue.turns, name), steps)

    async def demonstrate(self, task: Task, *, role: str = "solver", index: int = 0) -> Episode:
        """The source's own expert, written down as a trajectory of ``role``: the whole chat that
        ``source.demonstration(task)`` gives, or else the messages of ``source.expert(task)`` played through
        a fresh environment. RecipeError where the source has neither."""
        source: Any = self.stage.source
        seconds = self._environment_timeout_s
        if hasattr(source, "demonstration"):
            what = f"demonstration of task {task.id}"
            chat = await guarded_call(source.demonstration, task, what=what, seconds=seconds)
            turns = self._given(role, checked_messages(chat, what), task)
            return Episode(task.id, index, (self._trajectory(role, turns, ""),))
        if not hasattr(source, "expert"):
            raise RecipeError(
                f"environment {type(source).__name__} has neither expert(task) nor demonstration(task), so "
                "there is nothing to imitate; add one of them, or choose a method that explores"
            )
        what = f"expert on task {task.id}"
        actions = await guarded_call(source.expert, task, what=what, seconds=seconds)
        return await self._play_given(task, role, index, [str(a) for a in actions])

    async def _play_given(
        self, task: Task, role: str, index: int, actions: Sequence[str]
    ) -> Episode:
        async with self.environment(task) as environment:
            opening = await environment.reset()
            system, new = split_system(opening)
            chat: list[Message] = list(opening)
            turns: list[Turn] = []
            steps: list[StepResult] = []
            for action in actions:
                said: Message = {"role": "assistant", "content": action}
                result = await environment.step(action)
                steps.append(result)
                chat += [said]
                if self.stage.history == "last":
                    turns += self._given(role, (*system, *new, said), task)
                if result.terminated or result.truncated:
                    break
                new = result.observation
                chat += new
        if self.stage.history == "all":
            turns = list(self._given(role, chat, task))
        heard = tuple(replace(t, feedback=s.feedback) for t, s in zip(turns, steps, strict=True))
        return self._as_episode(task, index, self._trajectory(role, heard, ""), steps)

    # -------------------------------------------------------------------------------- single answers

    async def ask(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        task: Task,
        index: int = 0,
        name: str = "",
        **sampling: float | None,
    ) -> Trajectory:
        """One answer of ``role`` to exactly ``messages`` (the library is not added). It has no scores:
        whoever asked decides what it was worth. ``sampling`` takes the place of the stage's own, field by
        field, where it is not None."""
        dialogue = self._dialogue(role, messages)
        given = {field: value for field, value in sampling.items() if value is not None}
        params = replace(self._params(self.seed_of(task, index, role, name), 0), **given)
        completion = await dialogue.say(params)
        if completion is not None:
            self._count(role, completion)
        return self._trajectory(role, dialogue.turns, name)

    def transcribe(self, role: str, messages: Sequence[Message], *, name: str = "") -> Trajectory:
        """``messages`` as a trajectory of ``role``: assistant messages become targets."""
        return self._trajectory(role, given_turns(self._sampler(role).template, messages), name)

    def retell(
        self, trajectory: Trajectory, opening: Sequence[Message], *, task: Task, name: str = ""
    ) -> Trajectory:
        """What ``trajectory`` said and heard, after ``opening`` instead of its own first messages.

        The answers keep their tokens and become ``given``, without logprobs: nobody sampled them here.
        Scores and feedback stay. To distil a prompt into the weights, tell an attempt under that prompt
        again as if it had been made without it.
        """
        dialogue = self._dialogue(trajectory.role, opening, task)
        dialogue.repeat(trajectory.turns)
        return replace(trajectory, turns=dialogue.turns, name=name)

    # -------------------------------------------------------------------------------- parts

    def environment(self, task: Task) -> AbstractAsyncContextManager[GuardedEnvironment]:
        """A fresh environment of ``task`` behind the guard, closed whatever happens."""
        return guarded_environment(self.stage.source, task, self._environment_timeout_s)

    @property
    def _environment_timeout_s(self) -> float:
        return self.stage.limits.environment_timeout_s

    def seed_of(self, task: Task, index: int, role: str, name: str = "") -> int:
        return derive_seed(self.seed, task.id, index, role, name)

    def _params(self, seed: int, turn: int) -> SamplingParams:
        return replace(self.sampling, seed=derive_seed(seed, turn))

    def _policy(self, role: str) -> str:
        if role not in self.stage.roles:
            raise RecipeError(f"no policy plays role {role!r}{nearest(role, self.stage.roles)}")
        return self.stage.roles[role]

    def _sampler(self, role: str) -> Sampler:
        sampler: Any = self.samplers[self._policy(role)]
        return sampler.seat(role) if hasattr(sampler, "seat") else sampler

    def _dialogue(
        self, role: str, opening: Sequence[Message], task: Task | None = None
    ) -> Dialogue:
        """``task.data["tools"]`` are JSON schemas that the chat template shows to whoever attempts it."""
        tools = None if task is None else task.data.get("tools")
        return Dialogue(self._sampler(role), opening, history=self.stage.history, tools=tools)

    def _given(self, role: str, messages: Sequence[Message], task: Task) -> tuple[Turn, ...]:
        return given_turns(self._sampler(role).template, messages, task.data.get("tools"))

    def _count(self, role: str, completion: Completion) -> None:
        self.tokens[self._policy(role)] += completion.tokens
        self.role_tokens[role] += completion.tokens

    def _with_library(
        self, opening: Sequence[Message], system: str | None, library: Library | None
    ) -> tuple[Message, ...]:
        """The one place where the library enters a prompt: at the end of an attempt's system prompt, or
        where the method's ``place_library`` puts it.

        A ``system`` given by the method replaces the environment's whole, and the library with it: such
        a method has decided itself what the agent is to know. One with ``places_library`` always does.
        """
        before, rest = split_system(opening)
        if system is None:
            places_itself = getattr(self.stage.method, "places_library", False)
            chosen = self.library if library is None else library
            lessons = "" if places_itself else chosen.render()
            if lessons and hasattr(self.stage.method, "place_library"):
                place: Any = self.stage.method
                return tuple(place.place_library(opening, lessons))
            system = "\n\n".join(
                [*(str(m["content"]) for m in before), *([lessons] if lessons else [])]
            )
            if not lessons:
                return tuple(opening)
        return ({"role": "system", "content": system}, *rest) if system else rest

    def _trajectory(self, role: str, turns: Sequence[Turn], name: str) -> Trajectory:
        policy = self._policy(role)
        return Trajectory(role, policy, tuple(turns), learns=policy in self.stage.learn, name=name)

    def _as_episode(
        self, task: Task, index: int, trajectory: Trajectory, steps: Sequence[StepResult]
    ) -> Episode:
        rewards = [s.reward for s in steps if s.reward is not None]
        scores: dict[str, float] = {}
        for step in steps:
            scores.update(step.scores)
        if rewards or not steps:  # An attempt that never reached the environment earned nothing.
            scores["reward"] = float(sum(rewards))
        trajectory = replace(trajectory, scores=scores)
        status = Status.OK if steps and steps[-1].terminated else Status.TRUNCATED
        info = dict(steps[-1].info) if steps else {}
        return Episode(task.id, index, (trajectory,), trajectory.reward, status, info=info)


def stop_if_broken(groups: Sequence[Group], limits: Limits, where: str) -> None:
    """Raises TooManyFailuresError where more episodes broke than ``max_failure_share`` allows."""
    share = broken_share(groups)
    first = first_failure(groups)
    if first is None or share <= limits.max_failure_share:
        return
    episode, failure = first
    raise TooManyFailuresError(
        f"{where}: {share:.0%} of the episodes broke, more than max_failure_share = "
        f"{limits.max_failure_share:g}. The first was task {episode.task_id!r}, index {episode.index}, at "
        f"the {failure.boundary} boundary: {failure.message}\n\n{users_lines(failure.traceback)}",
        failure.traceback,
    )
