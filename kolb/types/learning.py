"""What is learnt from Groups: Examples for the weights, Edits for the library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from kolb.types.arrays import Floats, Ids
from kolb.types.samples import Group


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
