"""GRPO: Group Relative Policy Optimization, the RLVR baseline. Shao et al., arXiv:2402.03300.

Followed: section 4.1 (equation 3, the clipped objective), 4.1.2 (outcome supervision: the reward of an
output, standardised within the group of outputs to the same question, is the advantage of each of its
tokens) and 4.1.1 with equation 4 (the k3 estimate of the KL to a reference, inside the loss).

Words: question = Task; output = Trajectory; reward model = the environment; the group of G outputs = Group.

Differences, each an option:
* ``normalisation``: the paper averages over the tokens of an output, then over outputs
  (``sequence-mean``). The default here is ``token-mean`` over the whole optimiser step (DAPO,
  arXiv:2503.14476, section 3.3): a long output is not discounted. ``constant`` with
  ``scale_by_std=False`` is Dr. GRPO (arXiv:2503.20783, section 3.2).
* ``kl`` is 0 where the paper has 0.04: with a verifiable reward there is no reward model to drift from.
* The clip bounds are separate (``clip_high`` above ``clip_low`` is Clip-Higher, arXiv:2503.14476, 3.1).
* ``overlong_limit`` adds the soft overlong punishment to each reward (arXiv:2503.14476, 3.4).
* ``importance_cap`` corrects for a sampler whose numbers differ from the learner's; at 1 it only damps.

Omitted: process supervision (4.1.3) and the iterated reward model and reference (4.1.4, Algorithm 1).

Presets: ``DAPO`` (arXiv:2503.14476) and ``DR_GRPO`` (arXiv:2503.20783), at the end of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Literal

from kolb.credit.advantages import centre, standardise
from kolb.credit.examples import to_examples
from kolb.credit.group_stats import group_metrics
from kolb.credit.overlong import soft_overlong
from kolb.errors import RecipeError
from kolb.terms.kl import KLToReference
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import Calls, Episode, Example, Group, Task, Trajectory, Update, World


@dataclass(frozen=True)
class Grpo:
    """The paper's numbers are in section 4.2 unless a field says otherwise."""

    group_size: int = 8
    """G, outputs per question; the paper samples 64."""
    scale_by_std: bool = True
    ddof: Literal[0, 1] = 1
    """1: sample deviation, as in the common trainers; 0: population. The paper does not say."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """Both are epsilon in equation 3; the paper gives no value, 0.2 is PPO's."""
    dual_clip: float | None = None
    importance_cap: float | None = 2.0
    normalisation: str = "token-mean"
    constant: float = 1.0
    """Divides the token sum when ``normalisation = "constant"``."""
    kl: float = 0.0
    """beta; the paper has 0.04."""
    overlong_limit: int = 0
    """Tokens of an output at which the punishment is -1; 0: there is none."""
    overlong_buffer: int = 0
    """Over so many tokens before the limit it grows from 0."""

    name: ClassVar[str] = "grpo"
    roles: ClassVar[tuple[str, ...]] = ("solver",)
    needs: ClassVar[frozenset[str]] = frozenset({"sample", "tokens", "logprobs", "train"})

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise RecipeError(
                f"grpo: group_size = {self.group_size}; a group is compared within itself, so at least 2"
            )
        if self.ddof not in (0, 1):
            raise RecipeError(
                f"grpo: ddof = {self.ddof}; 1 is the sample deviation, 0 the population's"
            )
        is_on = self.overlong_limit or self.overlong_buffer
        if is_on and not 1 <= self.overlong_buffer <= self.overlong_limit:
            raise RecipeError(
                f"grpo: overlong_limit = {self.overlong_limit}, overlong_buffer = {self.overlong_buffer}; both are "
                "tokens, the buffer is at least 1 and at most the limit, and 0 for both means no punishment"
            )

    @property
    def terms(self) -> tuple[Any, ...]:
        """Equation 3: the clipped ratio, and the KL to the reference where ``kl`` asks for it."""
        surrogate = PolicyGradient(
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            importance_cap=self.importance_cap,
            normalisation=self.normalisation,
            constant=self.constant,
        )
        if not self.kl:
            return (surrogate,)
        return surrogate, KLToReference(
            self.kl, normalisation=self.normalisation, constant=self.constant
        )

    def advantages(self, rewards: Sequence[float | None]) -> list[float | None]:
        """Section 4.1.2: ``(r - mean) / std``; without ``scale_by_std`` ``r - mean``. None stays None."""
        if not self.scale_by_std:
            return centre(rewards)
        return standardise(rewards, ddof=self.ddof, singleton="zero")

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        """G outputs for each question."""

        async def attempt(task: Task, index: int) -> Episode:
            return await world.play(task, role="solver", index=index)

        return await world.groups(tasks, self.group_size, attempt)

    def calls(self, tasks: int, step: int) -> dict[str, Calls]:
        return {"solver": Calls(tasks * self.group_size, tasks * self.group_size)}

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        """One advantage for all tokens of an output. Broken groups are left out whole."""
        examples: list[Example] = []
        metrics = group_metrics(groups)
        if self.overlong_limit:
            groups = [self.punished(group) for group in groups]
            metrics |= overlong_metrics(groups)
        for group in groups:
            if group.usable:
                examples += self.examples(group)
        return Update(tuple(examples), groups=tuple(groups), state=state, metrics=metrics)

    def punished(self, group: Group) -> Group:
        """``group`` with a further score ``overlong`` in every reward. Outcomes stay what they were: they are
        what is reported. A reward that abstained still does."""

        def scored(t: Trajectory) -> Trajectory:
            if t.reward is None:
                return t
            limit, buffer = self.overlong_limit, self.overlong_buffer
            worth = soft_overlong(t.sampled_tokens, limit=limit, buffer=buffer)
            return replace(
                t, scores={**t.scores, "overlong": worth}, weights={**t.weights, "overlong": 1.0}
            )

        episodes = (
            replace(e, trajectories=tuple(map(scored, e.trajectories))) for e in group.episodes
        )
        return replace(group, episodes=tuple(episodes))

    def examples(self, group: Group) -> list[Example]:
        """The examples of one usable group; a reward that abstained gives none. Those of a dead group have
        advantages of 0: as in the paper they count in the means, and feel the KL where there is one."""
        trajectories = [episode.trajectory("solver") for episode in group.episodes]
        advantages = self.advantages([t.reward for t in trajectories])
        return [
            example
            for index, (trajectory, advantage) in enumerate(
                zip(trajectories, advantages, strict=True)
            )
            if advantage is not None
            for example in to_examples(
                trajectory, advantage=advantage, sequence=f"{group.task.id}/{index}"
            )
        ]


def overlong_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """``overlong/share``: of the outputs of usable groups, how many were punished; none where no output is."""
    episodes = (e for group in groups if group.usable for e in group.episodes)
    scores = [
        t.scores["overlong"] for e in episodes for t in e.trajectories if "overlong" in t.scores
    ]
    return {"overlong/share": fmean(score < 0 for score in scores)} if scores else {}


METHOD = Grpo()

DAPO = Grpo(group_size=16, clip_high=0.28, overlong_limit=20480, overlong_buffer=4096)
"""Section 4.1 of arXiv:2503.14476, for outputs of at most 20480 tokens (their expected length of 16384 and the
buffer) and rewards of 1 and -1. Dynamic sampling, its other part, is the stage's ``refill``."""

DR_GRPO = Grpo(scale_by_std=False, normalisation="constant", constant=3000.0 * 128)
"""Section 3.2 of arXiv:2503.20783: no division by the deviation nor by lengths. The released code divides the
sum over an output by its token limit, 3000, and takes the mean over the 128 outputs of an optimiser step: the
constant is the product, and another setting has another. Under Adam it only scales what clipping sees."""
