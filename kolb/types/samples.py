"""What was sampled: from one Completion to the Group of Episodes that is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kolb.types.arrays import NO_FLOATS, NO_IDS, Floats, Ids
from kolb.types.worlds import Message, Task


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
