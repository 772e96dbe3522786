"""The vocabulary of kolb: frozen dataclasses and the protocols between its layers.

One word, one meaning (docs/vocabulary.md). Nothing here does I/O and nothing here needs torch:
token ids are int32 and per-token numbers are float32 numpy arrays, ragged, never padded.

    Task --Environment--> Turns --> Trajectory --> Episode --> Group --credit--> Update --> Examples
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Message = dict[str, Any]
"""One chat message in OpenAI's form: ``{"role": "user", "content": "..."}``, tool calls included."""

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]

NO_IDS: Ids = np.zeros(0, np.int32)
NO_FLOATS: Floats = np.zeros(0, np.float32)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any mix of numbers and strings; the same parts give the same seed anywhere.

    >>> derive_seed(0, 12, "lake-7", 3) == derive_seed(0, 12, "lake-7", 3)
    True
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


# --------------------------------------------------------------------------------------- the world


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


# ------------------------------------------------------------------------------------- the samples


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. Training needs the full support: ``top_p=1``, ``top_k=0``.

    ``temperature=0`` is greedy. ``stop`` strings end a completion after the token that completes them
    (the string stays in the text: tokens are the record). ``max_tokens`` counts sampled tokens.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = {
            "max_tokens": self.max_tokens < 1,
            "temperature": not 0.0 <= self.temperature < float("inf"),
            "top_p": not 0.0 < self.top_p <= 1.0,
            "top_k": self.top_k < 0,
            "stop": "" in self.stop,
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            raise ValueError(
                f"{name} = {getattr(self, name)!r}: max_tokens is at least 1, temperature 0 or more, top_p above 0 "
                "and at most 1, top_k 0 (off) or more, and no stop string is empty"
            )

    @property
    def has_full_support(self) -> bool:
        return self.top_p >= 1.0 and self.top_k == 0


@dataclass(frozen=True)
class Completion:
    """One output of a sampler.

    ``token_ids`` int32 [N] holds every sampled token, the stop token included; ``logprobs`` float32 [N]
    is under the sampling temperature and the full support (temperature 1 when greedy). Both are empty
    where an endpoint gives only text: such a completion can be read and scored, never trained on.
    ``version`` names the weights that sampled it. ``stop_reason``: ``stop`` (end token or stop string),
    ``length`` (cut by ``max_tokens`` or by the context window), or ``given`` (written by somebody, as in
    a demonstration; ``logprobs`` is then empty).

    ``token_count`` is what an endpoint counts where it gives no ids, and ``reasoning`` what its model thought
    before ``text``: it is recorded, and nobody is shown it.
    """

    text: str
    token_ids: Ids = field(default_factory=lambda: NO_IDS)
    logprobs: Floats = field(default_factory=lambda: NO_FLOATS)
    stop_reason: str = "stop"
    version: int = 0
    token_count: int = 0
    reasoning: str = ""

    @property
    def tokens(self) -> int:
        """How many tokens were sampled, by their ids or by the endpoint's count."""
        return len(self.token_ids) or self.token_count


@dataclass(frozen=True)
class Turn:
    """What a Role was shown, what it said, and what it heard back.

    ``messages`` are the messages that are new since the last turn and ``context_ids`` [C] are exactly
    their tokens, template included. Tokens append: the full prompt of a turn is every ``context_ids``
    and ``completion.token_ids`` before it, back to the last turn with ``starts_segment``, plus its own
    ``context_ids``. A segment starts anew where a chat template rewrites history.
    """

    messages: tuple[Message, ...]
    completion: Completion
    context_ids: Ids = field(default_factory=lambda: NO_IDS)
    starts_segment: bool = False
    feedback: str = ""


@dataclass(frozen=True)
class Trajectory:
    """One Role's Turns in one Episode.

    ``scores`` are named; the reward is their sum weighted by ``weights`` (a score that is not named
    there counts zero: it is logged and nothing more). An abstaining grader leaves no score.

    >>> Trajectory("solver", scores={"reward": 1.0, "format": 1.0}, weights={"reward": 1.0, "format": 0.1}).reward
    1.1
    """

    role: str
    policy: str = ""
    turns: tuple[Turn, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=lambda: {"reward": 1.0})
    learns: bool = True
    name: str = ""
    """Tells trajectories of one role apart (``first``, ``second``); empty where there is one."""

    @property
    def reward(self) -> float | None:
        """The weighted sum of the scores; None when every grader abstained."""
        parts = [w * self.scores[name] for name, w in self.weights.items() if name in self.scores]
        return float(sum(parts)) if parts else None

    @property
    def text(self) -> str:
        return "\n".join(turn.completion.text for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        return sum(t.completion.tokens for t in self.turns if t.completion.stop_reason != "given")


class Status(StrEnum):
    """How an Episode ended. Only ``ok`` and ``truncated`` may be trained on."""

    OK = "ok"
    TRUNCATED = "truncated"
    ENV_ERROR = "env_error"
    REWARD_ERROR = "reward_error"
    SAMPLER_ERROR = "sampler_error"
    TIMEOUT = "timeout"

    @property
    def is_usable(self) -> bool:
        return self in (Status.OK, Status.TRUNCATED)


@dataclass(frozen=True)
class Failure:
    """Why an Episode has no result: the boundary that broke, in words, and the traceback."""

    boundary: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Episode:
    """Everything that happened on a Task once. ``outcome`` is the number that evaluation reports."""

    task_id: str
    index: int
    trajectories: tuple[Trajectory, ...] = ()
    outcome: float | None = None
    status: Status = Status.OK
    failure: Failure | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def trajectory(self, role: str = "", name: str = "") -> Trajectory:
        """The first trajectory of that role (and name); KeyError when there is none."""
        for t in self.trajectories:
            if (not role or t.role == role) and (not name or t.name == name):
                return t
        raise KeyError(
            f"episode {self.task_id}/{self.index} has no trajectory role={role!r} name={name!r}"
        )


@dataclass(frozen=True)
class Group:
    """Episodes of one Task collected to be compared. ``kind`` tells sibling groups of a task apart."""

    task: Task
    episodes: tuple[Episode, ...]
    kind: str = "attempt"

    @property
    def usable(self) -> bool:
        """A group with any broken episode is dropped whole: what remains would be biased."""
        return bool(self.episodes) and all(e.status.is_usable for e in self.episodes)

    @property
    def outcomes(self) -> list[float]:
        return [e.outcome for e in self.episodes if e.outcome is not None]


# ------------------------------------------------------------------------------------- the learning


@dataclass(frozen=True)
class MinP:
    """Which tokens a filtered distribution keeps: those with ``p >= kappa * max p`` (min-p), or with
    ``p >= tau`` where ``tau`` is given. ``strict``: above, not at. The likeliest token is always kept.

    >>> MinP(0.02).keeps(np.log([0.6, 0.012, 0.011]), np.log(0.6)).tolist()
    [True, True, False]
    """

    kappa: float = 0.02
    tau: float | None = None
    strict: bool = False

    SLACK: ClassVar[float] = 1e-6
    """In nats, so that rounding does not decide about a token that is exactly at the threshold."""

    def keeps(self, logprobs: Any, max_logprob: Any) -> Any:
        """Booleans for ``logprobs`` of a distribution whose likeliest token has ``max_logprob``; arrays or tensors."""
        fixed = self.tau is not None
        ratio = self.tau if self.tau is not None else self.kappa
        threshold = (0.0 if fixed else max_logprob) + (math.log(ratio) if ratio > 0 else -math.inf)
        is_above = logprobs > threshold + self.SLACK
        is_likeliest = logprobs >= max_logprob - self.SLACK
        return is_likeliest | (is_above if self.strict else logprobs >= threshold - self.SLACK)


@dataclass(frozen=True)
class Example:
    """One training record: a prompt, the tokens after it, and what each of them is worth.

    ``target_ids`` [N] are all tokens after the prompt, environment tokens included; ``weights`` gives
    for each stream (``policy``, ``imitation``, ...) a float32 [N] that is zero where nothing is learnt.
    ``extras`` are further per-token arrays [N] that a Term may ask for (``ref_logprobs``, ...).
    ``sequence`` names the trajectory, so that a trajectory of several segments counts as one sequence.

    >>> e = Example("agent", np.array([5, 6], np.int32), np.array([7, 8], np.int32),
    ...             weights={"policy": np.array([1, 0], np.float32)})
    >>> float(e.weights["policy"].sum())
    1.0
    """

    policy: str
    prompt_ids: Ids
    target_ids: Ids
    weights: Mapping[str, Floats]
    advantages: Floats | None = None
    sampler_logprobs: Floats | None = None
    old_logprobs: Floats | None = None
    extras: Mapping[str, Floats] = field(default_factory=dict)
    sequence: str = ""

    def with_extras(self, **arrays: Floats) -> Example:
        return replace(self, extras={**self.extras, **arrays})

    @property
    def has_weight(self) -> bool:
        return any(bool(np.any(w)) for w in self.weights.values())


@dataclass(frozen=True)
class Experience:
    """One reusable lesson in words. ``sources`` name the groups (``task@step``) that taught it.

    A method may say more behind that: ``task@step:0,2`` names the group's episodes, too.
    """

    id: str
    text: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Edit:
    """A change to the ExperienceLibrary: ``add``, ``revise`` or ``remove``, with the groups behind it."""

    action: str
    text: str = ""
    id: str = ""
    sources: tuple[str, ...] = ()

    ACTIONS: ClassVar[tuple[str, ...]] = ("add", "revise", "remove")

    def __post_init__(self) -> None:
        if self.action not in self.ACTIONS:
            raise ValueError(f"an Edit's action is one of {self.ACTIONS}, not {self.action!r}")


@dataclass(frozen=True)
class Update:
    """What ``credit`` returns. ``state`` must survive JSON: it is checkpointed with the weights."""

    examples: tuple[Example, ...] = ()
    edits: tuple[Edit, ...] = ()
    groups: tuple[Group, ...] = ()
    state: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)


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


# ------------------------------------------------------------------------------------- the protocols


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
    number ``step`` of a stage (from 1) makes with so many tasks, for estimates.
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
