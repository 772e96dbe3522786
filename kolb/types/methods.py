"""What a method is, and all that it may see and touch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kolb.types.learning import Edit, Experience, Update
from kolb.types.samples import Episode, Group, Trajectory
from kolb.types.worlds import Message, Task


@dataclass(frozen=True)
class Calls:
    """How often a step asks a role, at least and at most, and how large a prompt is: what a method says of itself so
    that the cost of a run can be estimated. The first role's calls are whole attempts, those of others single answers.

    ``attempts`` and ``answers``: how many attempts, and answers of other roles, a prompt shows. ``instructions``: the
    method's own tokens in it; ``lessons``: those of the library at most. ``max_tokens`` of an answer; 0: the stage's.
    """

    least: int
    most: int
    attempts: int = 0
    answers: int = 0
    instructions: int = 0
    lessons: int = 0
    max_tokens: int = 0


class Library(Protocol):
    """What a method may see of the ExperienceLibrary: lessons in order, and their rendering."""

    @property
    def version(self) -> int: ...
    @property
    def experiences(self) -> tuple[Experience, ...]: ...
    def apply(self, edits: Iterable[Edit]) -> Library: ...
    def render(self, budget: int | None = None) -> str: ...


EpisodeMaker = Callable[[Task, int], Awaitable[Episode]]


class World(Protocol):
    """All that ``collect`` may touch. Everything random in it is derived from (run seed, step, task, index)."""

    @property
    def step(self) -> int: ...
    @property
    def library(self) -> Library: ...

    async def groups(
        self, tasks: Sequence[Task], size: int, make: EpisodeMaker, *, kind: str = "attempt"
    ) -> list[Group]:
        """``size`` episodes of every task, all at once. A failure in ``make`` (environment, reward,
        sampler, deadline) is retried with fresh worlds and then recorded as a broken episode."""
        ...

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
        """One attempt of ``role`` in a fresh environment. ``system`` replaces the system prompt; without
        it the library stands at the end of the environment's own. ``library`` takes the place of the
        step's, to try another."""
        ...

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
        """One answer of ``role`` to ``messages``: reflections, judgements, summaries, predictions.
        ``sampling`` are fields of SamplingParams (``max_tokens``) in place of the stage's own; None
        leaves that as it is."""
        ...

    def retell(
        self, trajectory: Trajectory, opening: Sequence[Message], *, task: Task, name: str = ""
    ) -> Trajectory:
        """What ``trajectory`` said, token for token, after another ``opening``: context distillation."""
        ...

    def transcribe(self, role: str, messages: Sequence[Message], *, name: str = "") -> Trajectory:
        """``messages`` as a trajectory of ``role``: assistant messages become targets that can be learnt."""
        ...

    async def demonstrate(self, task: Task, *, role: str = "solver", index: int = 0) -> Episode:
        """The environment's own expert on ``task``, written down as a trajectory of ``role``."""
        ...


@runtime_checkable
class Method(Protocol):
    """One paper. A frozen dataclass whose fields are the paper's numbers; ``METHOD`` is its default.

    ``roles`` name the seats that ``collect`` fills; ``needs`` the engine capabilities that it takes.

    A method may also say ``places_library = True``: then attempts, those of evaluation included, are shown
    nothing of the library but what the method itself puts into a prompt. ``place_library(opening, lessons)`` gives
    the first messages of an attempt with the rendered library in them, where the end of the system prompt is not
    its place. ``takes_refill = False``: a stage with ``refill`` is refused. ``needs_expert = True``: it takes
    an environment that can demonstrate. ``evaluate_episode(task, index, world)``: what an evaluation is.
    ``is_dead(group)``: that there is nothing to compare in a usable group, which else means that all outcomes
    are equal; a stage with ``refill`` asks it. ``calls(tasks, step)``: a mapping of roles to the Calls that step
    number ``step`` of a stage (from 1) makes with so many tasks, for estimates. ``remark(metrics)``: from a step's
    metrics, in words, why it taught nothing; empty where all is well.
    """

    @property
    def name(self) -> str: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def terms(self) -> tuple[Any, ...]: ...
    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]: ...
    def credit(self, groups: Sequence[Group], state: Any) -> Update: ...
