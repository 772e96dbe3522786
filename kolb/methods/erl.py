"""ERL: Experiential Reinforcement Learning. Shi et al., arXiv:2602.13949.

Followed: Algorithm 2 (the gated one, which the experiments ran), section 3 (reflection, retry, memory,
internalisation), appendices A and C, and the released code where it says more than the paper. A failed attempt
is reflected upon, the reflection becomes the system prompt of a second attempt, and what succeeded there is
distilled into the prompt without it. Only that bare prompt is used in the end, so deployment costs nothing more.

Words: experience = the whole cycle, here one Episode of up to four trajectories (``SEGMENTS``); reflection
(Delta) = a new system prompt; memory (m) = one Experience of the library, which only the reflector is shown.

Where paper and code differ: memory is written at ``r2 >= tau`` (code; ``> 1`` never happens). One memory, frozen
during a step and then written by a rule, so that order does not matter (paper; the code's workers hold 1024: ``RELEASED``).
Distilled rows weigh their reward (code; 1 if above 0: ``PAPER``).

Differences: a reflection row counts once (the code has it twice in the grid games). The distilled row has the tokens
that were sampled, where the code encodes their text again. Reflections are sampled like all else (the launcher's
0.5 and top-p 0.9 are not what the update's logprobs are under). The record shows no name or seed of the
instance: its first observation is the instance.

Omitted: Algorithm 1 (no gate: ``is_gated = False`` is close), on-policy distillation (appendix A, not used there).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np

from kolb.credit.advantages import standardise
from kolb.credit.examples import to_examples
from kolb.credit.group_stats import group_metrics
from kolb.errors import RecipeError, nearest
from kolb.memory.render import fill
from kolb.terms.kl import KLToReference
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import (
    Calls,
    Edit,
    Episode,
    Example,
    Experience,
    Group,
    Library,
    Message,
    Task,
    Trajectory,
    Update,
    World,
)

SEGMENTS = ("first", "reflect", "second", "distill")


@dataclass(frozen=True)
class Prompts:
    """What the reflector reads, with names in braces to be filled in; defaults at the end of this file.

    ``reflector`` is its system prompt, U in table 4. ``record`` is R: {belief}, {reward}, {success}, {turns}; each
    ``turn``: {number}, {observation}, {reply}, {feedback}. ``retry`` is table 9's second system prompt without a
    reflection: {system}, {record}. ``reminder`` ends every second system prompt that does not end so already:
    the form of an answer, which a reflection may forget.
    """

    reflector: str
    record: str
    turn: str
    retry: str
    reminder: str = ""
    shown_turns: int = 0
    """The last so many turns of an attempt; 0: all."""
    shown_reply: Literal["whole", "last_line"] = "whole"
    """The paper shows the action by name: the last line, where replies end with it."""

    def record_of(self, belief: str, attempt: Trajectory, *, is_success: bool) -> str:
        """R: what was believed, how it went in numbers, and turn by turn what was seen, said and heard."""
        turns = [
            fill(
                self.turn,
                number=str(number),
                observation=text_of(m for m in turn.messages if m["role"] != "system"),
                reply=self._shown(turn.completion.text),
                feedback=turn.feedback,
            )
            for number, turn in enumerate(attempt.turns, start=1)
        ]
        reward, success = f"{attempt.reward:.4f}", f"{float(is_success):.4f}"
        shown = "\n\n".join(turns[-self.shown_turns :])
        return fill(self.record, belief=belief, reward=reward, success=success, turns=shown)

    def _shown(self, reply: str) -> str:
        lines = reply.strip().splitlines() if self.shown_reply == "last_line" else [reply.strip()]
        return lines[-1] if lines else ""

    def with_reminder(self, prompt: str) -> str:
        return prompt if prompt.endswith(self.reminder) else f"{prompt}\n\n{self.reminder}"


@dataclass(frozen=True)
class Erl:
    """The numbers are of appendix C unless a field says otherwise."""

    prompts: Prompts
    group_size: int = 4
    """n, cycles per task; RLVR has 10."""
    threshold: float = 1.0
    """tau: at this reward an attempt is a success."""
    is_gated: bool = True
    """False: successes are reflected upon too, which was unstable (section 3)."""
    reflects: bool = True
    """False: the second attempt is shown the record of the first instead (table 9). Nothing is remembered."""
    learns_from: tuple[str, ...] = SEGMENTS
    """Only ``first``: there are no second attempts at all, which is RLVR."""
    memory_slots: int = 1
    """Memories that the cycles take in turn; 0: none."""
    memory_rule: Literal["lowest", "best"] = "lowest"
    """Which success is remembered: the first in the order of tasks, or the one whose prompt earned most."""
    distill_weight: Literal["reward", "indicator", "success"] = "reward"
    """Of a second attempt: its reward, 1 if that is above 0, or 1 if it is a success."""
    distill_coefficient: float = 1.0
    """lambda_d; the paper gives none."""
    reflection_tokens: int = 1024
    """At most so many, so that the prompt leaves room for the attempt; 0: the stage's ``max_tokens``. Ours."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    importance_cap: float | None = None
    """The code does not correct for the sampler; 2 is usual where sampler and learner disagree."""
    normalisation: str = "sequence-mean-token-sum"
    """The code's: sums over tokens, mean over the rows of all segments together."""
    kl: float = 0.001
    """On every row, distilled ones too."""

    name: ClassVar[str] = "erl"
    roles: ClassVar[tuple[str, ...]] = ("solver", "reflector")
    needs: ClassVar[frozenset[str]] = frozenset({"sample", "tokens", "logprobs", "train"})
    places_library: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.group_size < 1 or self.memory_slots < 0:
            raise RecipeError(
                f"erl: group_size = {self.group_size}, memory_slots = {self.memory_slots}; expected at "
                "least 1 and at least 0"
            )
        given = [("learns_from", segment, SEGMENTS) for segment in self.learns_from]
        given += [("memory_rule", self.memory_rule, ("lowest", "best"))]
        given += [("distill_weight", self.distill_weight, ("reward", "indicator", "success"))]
        for what, value, known in given:
            if value not in known:
                raise RecipeError(f"erl: {what} has {value!r}{nearest(value, known)}")

    @property
    def terms(self) -> tuple[Any, ...]:
        """One clipped surrogate for the rows of all segments, and the KL to the initial weights."""
        surrogate = PolicyGradient(
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            importance_cap=self.importance_cap,
            normalisation=self.normalisation,
        )
        kl = KLToReference(self.kl, normalisation=self.normalisation)
        return (surrogate, kl) if self.kl else (surrogate,)

    def calls(self, tasks: int, step: int) -> dict[str, Calls]:
        """Each first attempt may lead to a reflection, which is shown it, and to a second one."""
        attempts = tasks * self.group_size
        again = 0 if self.learns_from == ("first",) else attempts
        reflector = Calls(0, again if self.reflects else 0, attempts=1)
        return {"solver": Calls(attempts, attempts + again), "reflector": reflector}

    # ------------------------------------------------------------------------------------- collect

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        """Algorithm 2, lines 2 to 17: n cycles of each task. All read the memory as it was before the step."""
        place = {task.id: number for number, task in enumerate(tasks)}

        async def cycle(task: Task, index: int) -> Episode:
            first = await world.play(task, role="solver", index=index, name="first")
            if not self.tries_again(first):
                return first
            number = ((world.step - 1) * len(tasks) + place[task.id]) * self.group_size + index
            slots = self.memory_slots if self.reflects else 0
            return await self.retry(first, task, number % slots if slots else None, world)

        return await world.groups(tasks, self.group_size, cycle)

    def tries_again(self, first: Episode) -> bool:
        """The gate. Nor is there a second attempt where the first was not scored or could not say a word."""
        has_words = bool(first.trajectories[0].turns)
        if first.outcome is None or not has_words or self.learns_from == ("first",):
            return False
        return not self.is_gated or first.outcome < self.threshold

    async def retry(self, first: Episode, task: Task, slot: int | None, world: World) -> Episode:
        """Lines 8 to 17. The second attempt is at the same task, in a fresh environment."""
        (attempt,) = first.trajectories
        opening = attempt.turns[0].messages
        bare = text_of(m for m in opening if m["role"] == "system")  # S0
        memory = recall(world.library, slot)
        belief = memory.text if memory else bare
        success = (first.outcome or 0.0) >= self.threshold
        record = self.prompts.record_of(belief, attempt, is_success=success)
        trajectories = [attempt]
        found: str | None = fill(self.prompts.retry, system=bare, record=record)
        if self.reflects:
            trajectories += [await self.reflect(record, task, first.index, world)]
            found = parse(trajectories[-1].text)
        prompt = self.prompts.with_reminder(belief if found is None else found)
        second = await world.play(
            task, role="solver", index=first.index, system=prompt, name="second"
        )
        if self.reflects and second.outcome is not None:
            trajectories[-1] = replace(trajectories[-1], scores={"reward": second.outcome})
        trajectories += second.trajectories
        if "distill" in self.learns_from:
            again = second.trajectories[0]
            trajectories += [world.retell(again, opening, task=task, name="distill")]
        retry = {
            "prompt": prompt,
            "is_parsed": found is not None,
            "reward": second.outcome,
            "slot": slot,
            "memory": memory.id if memory else "",
            "source": f"{task.id}@{world.step}#{slot}",
        }
        info = {**first.info, "retry": retry}
        return replace(first, trajectories=tuple(trajectories), info=info)

    async def reflect(self, record: str, task: Task, index: int, world: World) -> Trajectory:
        system: Message = {"role": "system", "content": self.prompts.reflector}
        asked = [system, {"role": "user", "content": record}]
        limit = self.reflection_tokens or None
        return await world.ask(
            "reflector", asked, task=task, index=index, name="reflect", max_tokens=limit
        )

    # -------------------------------------------------------------------------------------- credit

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        """Each segment of each task is compared within itself. The library is the only state."""
        examples: list[Example] = []
        metrics = self.metrics(groups) | {"groups/dead": 0.0}
        for group in groups:
            if group.usable:
                rows = self.examples(group)
                examples += rows
                metrics["groups/dead"] += not has_advantage(rows)
        return Update(tuple(examples), self.edits(groups), tuple(groups), state, metrics)

    def is_dead(self, group: Group) -> bool:
        """The first attempts may all have failed: what a second one gained is learnt from."""
        return not has_advantage(self.examples(group))

    def examples(self, group: Group) -> list[Example]:
        """The rows of one task's cycles. Rows of advantage 0 stay: they count in the mean and feel the KL."""
        examples: list[Example] = []
        for segment in self.learns_from:
            rows = [
                (e.index, t) for e in group.episodes for t in e.trajectories if t.name == segment
            ]
            advantages = self.advantages(segment, [t.reward for _, t in rows])
            for (index, trajectory), advantage in zip(rows, advantages, strict=True):
                if advantage is not None:
                    name = f"{group.task.id}/{index}/{segment}"
                    examples += to_examples(trajectory, advantage=advantage, sequence=name)
        return examples

    def advantages(self, segment: str, rewards: Sequence[float | None]) -> list[float | None]:
        """``(r - mean) / std`` of the sample, a lone row's is its reward. Distilled rows have no baseline
        (RAFT, arXiv:2304.06767): their advantage is their weight, at ratio 1 a reward-weighted imitation."""
        if segment != "distill":
            return standardise(rewards)
        return [None if r is None else self.distill_coefficient * self.weight(r) for r in rewards]

    def weight(self, reward: float) -> float:
        if self.distill_weight == "reward":
            return max(reward, 0.0)
        return float(reward >= self.threshold if self.distill_weight == "success" else reward > 0)

    def edits(self, groups: Sequence[Group]) -> tuple[Edit, ...]:
        """Line 18: in each slot a success of this step takes the place of what was remembered."""
        edits: list[Edit] = []
        retries = [r for r in retries_of(groups) if r["slot"] is not None]
        for slot in sorted({r["slot"] for r in retries}):
            chosen = self.remembered([r for r in retries if r["slot"] == slot])
            if chosen is not None:
                edits += [Edit("remove", id=chosen["memory"])] if chosen["memory"] else []
                edits.append(Edit("add", chosen["prompt"], sources=(chosen["source"],)))
        return tuple(edits)

    def remembered(self, retries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Of the successes the lowest in (task, rollout); or the one whose prompt, over all attempts under
        that very text, gained most above the mean: a lucky wrong prompt that was used often has also failed."""
        successes = [r for r in retries if r["reward"] >= self.threshold]
        if not successes or self.memory_rule == "lowest":
            return successes[0] if successes else None
        mean = fmean(r["reward"] for r in retries)
        gains = {
            s["prompt"]: fsum(r["reward"] - mean for r in retries if r["prompt"] == s["prompt"])
            for s in successes
        }
        return max(successes, key=lambda s: gains[s["prompt"]])

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """An episode's outcome is the first attempt's reward. What is told again is not counted as a turn."""
        metrics = group_metrics([without(group, "distill") for group in groups])
        retries = retries_of(groups)
        metrics["retries/total"] = len(retries)
        if retries:
            rewards = [r["reward"] for r in retries]
            metrics["retries/reward"] = fmean(rewards)
            metrics["retries/success"] = fmean(r >= self.threshold for r in rewards)
            if self.reflects:
                metrics["retries/parsed"] = fmean(r["is_parsed"] for r in retries)
        return metrics


def parse(reflection: str) -> str | None:
    """Delta: the text in the first ``<prompt>`` block; None where there is none or nothing in it."""
    found = re.search(r"<prompt>(.*?)</prompt>", reflection, re.DOTALL)
    return (found[1].strip() or None) if found else None


def recall(library: Library, slot: int | None) -> Experience | None:
    """What the slot holds. Its sources end with the slot; lessons of others do not."""
    own = [e for e in library.experiences if e.sources and e.sources[-1].endswith(f"#{slot}")]
    return own[-1] if own else None


def text_of(messages: Any) -> str:
    return "\n\n".join(str(m.get("content") or "") for m in messages)


def retries_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What ``retry`` noted, in the order of (task, rollout), where the second attempt was scored."""
    episodes = [e for g in groups if g.usable for e in g.episodes if "retry" in e.info]
    return [e.info["retry"] for e in episodes if e.info["retry"]["reward"] is not None]


def has_advantage(rows: Sequence[Example]) -> bool:
    return any(bool(np.any(row.advantages)) for row in rows)


def without(group: Group, segment: str) -> Group:
    episodes = [
        replace(e, trajectories=tuple(t for t in e.trajectories if t.name != segment))
        for e in group.episodes
    ]
    return replace(group, episodes=tuple(episodes))


# ----------------------------------------------------------------------- prompts, in our own words

GAME_PROMPTS = Prompts(
    reflector="""\
You are a strategist. From what agents tried and what came of it you distil the rulebook of an unknown game.

Work by contrast: what did the actions that helped have in common, and what the ones that did not? Write rules that \
hold in every instance of the game, never the moves of one instance. Be brief, and as certain as the evidence allows.

Give exactly one block, which will be the agent's whole system prompt:
<prompt>
<game_rules>
What each symbol means and which one is the agent; how to read an observation; how the world works; what each action \
does; what the aim is and when an attempt ends.
</game_rules>
<strategy>
The main strategy, then tactical advice.
</strategy>
</prompt>""",
    record="""\
# The agent's present prompt
It may be wrong or incomplete.

{belief}

# Results
Mean reward: {reward}
Success rate: {success}
Attempts: 1

# The attempt
{turns}

Total reward: {reward}

Think step by step about what this shows. Then write the improved prompt as one block in prompt tags.""",
    turn="## Turn {number}\n{observation}\n\nThe agent: {reply}\nOutcome: {feedback}",
    retry="""\
{system}

Below is what happened in an earlier attempt at this same task. Use it to act better this time, and keep to the form \
of answer asked for above.

{record}""",
)
"""After tables 4 and 9. A recipe may write its own: ``[stages.method.prompts]``."""

METHOD = Erl(GAME_PROMPTS)
PAPER = replace(METHOD, distill_weight="indicator")
RELEASED = replace(METHOD, memory_slots=1024)

NO_MEMORY = replace(METHOD, memory_slots=0)
NO_REFLECTION = replace(METHOD, reflects=False)
NO_DISTILL = replace(METHOD, learns_from=("first", "reflect", "second"))
NO_GATE = replace(METHOD, is_gated=False)
REFLECT_NOT_TRAINED = replace(METHOD, learns_from=("first", "second", "distill"))
DISTILL_ONLY = replace(METHOD, learns_from=("distill",))
RLVR = replace(METHOD, learns_from=("first",), group_size=10)
"""The ablations, and the baseline. In a recipe: ``use = "kolb.methods.erl.NO_GATE"``, or the field that it sets."""
