"""Training-Free GRPO: a frozen model that learns by keeping notes. Cai et al., arXiv:2510.08191.

Followed: the method section (groups of attempts, the semantic advantage, edits of an experience library in place of
gradient steps), and the released code, which says more: its present branch by default, its branch of the paper's time
by ``style = "merge"``. The model and its prompt's shape stay; what changes is the library, which every attempt reads.

Words: experience library (E) = ExperienceLibrary; an experience = Experience, a lesson; rollout = attempt; semantic
advantage (A_text) = the comparer's lesson; operation = Proposal, and once it is applied Edit.

A step: G attempts at each task, under the same library; where they differ in reward, a summary of each attempt, one
comparison per task, and proposals against that same library; then one reconciliation of all proposals. The one model
plays all roles in the paper; here roles are named, and a recipe may give them to several.

Where paper and code differ: the comparison sees the library (paper; ``comparer_sees_library``). Groups are told apart
by ``max > min`` (paper; the code asks for a mean between 0 and 1: ``gate = "mean"``). A removal needs no text (paper;
the code loses those without: ``removes_without_text = False``).

Differences: ids are names for life, the code numbers anew after every step. The library stands in the system prompt
in learning and in use (the code: user prompt in learning, system prompt in use). Nothing is asked where nothing was
proposed. Each lesson names the groups and attempts behind it. A lesson that holds an answer is refused. The
library's size and a lesson's length have limits. Attempts are in order, not as they arrive. All roles sample as the
stage says; at the paper's time those who write notes did so at temperature 0 (``note_temperature``). Without ground
truth the environment's feedback is hidden too. ``vote`` and ``held_out`` are ours.

Omitted: the judge of the web tasks (an environment scores).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Literal

from kolb.credit.group_stats import group_metrics
from kolb.credit.votes import final_answer, majority
from kolb.errors import RecipeError, at_least, nearest
from kolb.memory.proposals import json_list
from kolb.memory.reconciling import as_listed
from kolb.methods.tf_grpo_edits import LEFT_OUT, Rules, gains_of, is_worse
from kolb.methods.tf_grpo_prompts import (
    HIDDEN,
    PROMPTS,
    UNREADABLE,
    Attempt,
    Prompts,
    block,
    filled,
    lessons_in,
    placed,
    with_note,
)
from kolb.types import (
    Calls,
    Episode,
    Group,
    Library,
    Message,
    Task,
    Trajectory,
    Update,
    World,
)

INSTRUCTIONS = 350
"""Tokens of a prompt's own words, about."""

Compared = Sequence[tuple[Task, Sequence[Attempt]]]


@dataclass(frozen=True)
class TfGrpo:
    """Numbers are those of the paper's mathematics setting unless a field says otherwise."""

    prompts: Prompts
    group_size: int = 5
    """G; 3 on web tasks. 1 needs ``gate = "none"``; with 0 lessons are written without any attempt."""
    judged_by: Literal["ground_truth", "nobody", "vote"] = "ground_truth"
    """What the comparer is told: answer, rewards and feedback; none of these, and then every group is compared; or
    which attempts agree with the group's majority (ours)."""
    gate: Literal["contrast", "mean", "none"] = "contrast"
    """Which groups teach: ``max > min``, ``0 < mean < 1``, or all."""
    style: Literal["update", "merge"] = "update"
    """``merge``: the comparison proposes by itself, additions enter before the reconciliation, which revises and
    merges and never removes."""
    summarises: bool = True
    """False: the comparison reads the attempts themselves, where they are short. Ours."""
    comparer_sees_library: bool = False
    """The paper's does; the code leaves it to the proposals."""
    lessons_per_group: int = 1
    """2 on web tasks."""
    max_lessons: int = 64
    """Of the library; the published ones have 27 and 46. Ours."""
    max_words: int = 32
    """Asked of a lesson (paper-era code); one of more than twice as many is refused."""
    tries: int = 3
    """Of the reconciliation, until it can be read and fits (code)."""
    note_tokens: int = 2048
    """Of one summary, comparison or list at most; 0: the stage's ``max_tokens``."""
    note_temperature: float | None = None
    """At which they are sampled; None: the stage's."""
    site: Literal["system", "user"] = "system"
    """Where the library stands: behind the system prompt, or before the task."""
    removes_without_text: bool = True
    held_out: int = 0
    """The last so many tasks of each step are not learnt from: there the new library is tried against the old one, and
    refused where it is worse by more than one standard error. Ours."""

    name: ClassVar[str] = "tf_grpo"
    roles: ClassVar[tuple[str, ...]] = ("solver", "summarizer", "comparer", "editor")
    needs: ClassVar[frozenset[str]] = frozenset({"sample"})
    terms: ClassVar[tuple[Any, ...]] = ()
    takes_refill: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for least, names in (
            (1, ("lessons_per_group", "max_lessons", "max_words", "tries")),
            (0, ("group_size", "held_out", "note_tokens", "note_temperature")),
        ):
            at_least(least, **{name: getattr(self, name) or 0 for name in names})
        for what, known in (
            ("judged_by", ("ground_truth", "nobody", "vote")),
            ("gate", ("contrast", "mean", "none")),
            ("style", ("update", "merge")),
            ("site", ("system", "user")),
        ):
            if (value := getattr(self, what)) not in known:
                raise RecipeError(f"tf_grpo: {what} = {value!r}{nearest(str(value), known)}")
        if not self.group_size and (self.style == "merge" or self.held_out):
            raise RecipeError(
                'tf_grpo: group_size = 0 makes no attempts, which style = "merge" criticises and held_out tries the '
                'library by; set style = "update" and held_out = 0, or a larger group'
            )
        if self.group_size == 1 and self.gate != "none" and self.judged_by != "nobody":
            raise RecipeError(
                'tf_grpo: group_size = 1 leaves nothing to compare; set gate = "none", or a larger group'
            )
        if self.judged_by == "vote" and self.group_size < 3:
            raise RecipeError(
                f"tf_grpo: group_size = {self.group_size} gives no majority that leaves anybody out; a vote takes 3 or "
                "more attempts"
            )
        if self.held_out and self.judged_by != "ground_truth":
            raise RecipeError(
                f"tf_grpo: held_out = {self.held_out} compares rewards, which judged_by = {self.judged_by!r} does "
                "without; set held_out = 0"
            )

    def calls(self, tasks: int, step: int) -> dict[str, Calls]:
        """B G attempts (and twice those at held-out tasks); where all groups teach B G summaries, B comparisons and
        lists of proposals, and the reconciliation. A list, and the merge style's comparison, may be asked for again."""
        groups, merges = tasks - self.held_out, self.style == "merge"
        attempts, trial = groups * self.group_size, 2 * self.held_out * self.group_size
        lessons = min((step - 1) * groups * self.lessons_per_group, self.max_lessons)
        known = 3 * lessons * self.max_words // 2  # tokens: one and a half a word
        every = self.gate == "none" or self.judged_by == "nobody" or not self.group_size
        one = Calls(0, 0, instructions=INSTRUCTIONS, lessons=known, max_tokens=self.note_tokens)
        shown = {"answers" if self.summarises else "attempts": self.group_size}
        found = {"solver": Calls(attempts, attempts + trial, lessons=known)}
        if self.summarises:
            least = attempts if every else 0
            found["summarizer"] = replace(one, least=least, most=attempts, attempts=1, lessons=0)
        most = 2 * groups if merges else groups
        found["comparer"] = replace(one, least=groups if every else 0, most=most, **shown)
        proposed = 0 if merges else 2 * groups
        found["editor"] = replace(one, most=proposed + self.tries, answers=self.lessons_per_group)
        return found

    # ---------------------------------------------------------------------------- what is compared

    def attempts(self, group: Group) -> list[Attempt]:
        """What may be compared in a group, in the order of its attempts: nothing where one of them broke."""
        if not group.usable:
            return []
        spoken = [e for e in group.episodes if e.trajectories[0].turns]
        if self.judged_by == "nobody":
            return [Attempt(e.index, e.trajectories[0], None) for e in spoken]
        rewards = [e.outcome for e in spoken]
        if self.judged_by == "vote":
            rewards = majority([final_answer(e.trajectories[0]) for e in spoken])
        return [
            Attempt(e.index, e.trajectories[0], reward)
            for e, reward in zip(spoken, rewards, strict=True)
            if reward is not None
        ]

    def teaches(self, attempts: Sequence[Attempt]) -> bool:
        """The gate, on rewards of any range."""
        rewards = [a.reward for a in attempts if a.reward is not None]
        if not rewards or self.gate == "none":
            return bool(attempts)
        if self.gate == "mean":
            return 0 < fmean(rewards) < 1
        return max(rewards) > min(rewards)

    # ------------------------------------------------------------------------------- what is shown

    def place_library(self, opening: Sequence[Message], lessons: str) -> tuple[Message, ...]:
        """The same place in learning, evaluation and use: see ``site``."""
        return placed(opening, self.shown_library(lessons), self.site)

    def shown_library(self, lessons: str) -> str:
        return f"{self.prompts.heading}\n{lessons}".strip()

    def about(self, task: Task, attempt: Attempt, world: World) -> str:
        """The task as the agent was given it, without the library, and the answer where it may be known."""
        given = attempt.opening.replace(self.shown_library(world.library.render()), "").strip()
        answer = "[not given]" if task.answer is None else str(task.answer)
        told = answer if self.judged_by == "ground_truth" else HIDDEN
        return f"{block('task', given)}\n\n{block('answer', told)}"

    def judged(self, attempt: Attempt) -> str:
        if self.judged_by == "vote":
            return "its answer is the majority's" if attempt.reward else "its answer is another"
        return f"reward {HIDDEN if attempt.reward is None else f'{attempt.reward:g}'}"

    def turns_of(self, attempt: Attempt) -> str:
        """The environment's feedback tells as much as a reward, and is shown where that is."""
        return attempt.turns(with_feedback=self.judged_by == "ground_truth")

    def compared(self, task: Task, attempts: Sequence[Attempt], world: World) -> list[str]:
        """Without attempts nothing of the task is shown either: such lessons rest on the prompt alone."""
        if not attempts:
            return [block("attempt", "None")]
        told = [
            f"Attempt {n} ({self.judged(a)}):\n{a.summary or self.turns_of(a)}"
            for n, a in enumerate(attempts, start=1)
        ]
        return [self.about(task, attempts[0], world), *(block("attempt", text) for text in told)]

    def message(self, system: str, *parts: str) -> list[Message]:
        numbers = {
            "lessons": self.lessons_per_group,
            "words": self.max_words,
            "most": self.max_lessons,
        }
        user = "\n\n".join(part for part in parts if part)
        return [
            {"role": "system", "content": filled(system, self.prompts, numbers)},
            {"role": "user", "content": user},
        ]

    # ------------------------------------------------------------------------------------- collect

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        """Attempts, summaries, comparisons, the reconciliation, and the trial of what came of it, as groups of
        these kinds. Every call reads the library as it was before the step."""
        last = len(tasks) - self.held_out
        if last < 1:
            raise RecipeError(
                f"tf_grpo: held_out = {self.held_out} of {len(tasks)} tasks in a step leaves none to learn from; "
                "raise tasks_per_step, or lower held_out"
            )
        groups, kept = await self.attempted(tasks[:last], world)
        comparisons = await self.comparisons(kept, world)
        groups += [*comparisons, *await self.reconciliation(comparisons, world)]
        return groups + await self.trial(tasks[last:], groups, world)

    async def attempted(self, tasks: Sequence[Task], world: World) -> tuple[list[Group], Compared]:
        """The attempts with their summaries, and those of them that are to be compared."""
        if not self.group_size:
            return [], [(task, ()) for task in tasks]
        groups = await self.played(tasks, world)
        kept = [(g.task, found) for g in groups if self.teaches(found := self.attempts(g))]
        if not self.summarises:
            return groups, kept
        summaries = await self.summaries(kept, world)
        return groups + summaries, self.summarised(kept, summaries)

    async def played(
        self,
        tasks: Sequence[Task],
        world: World,
        kind: str = "attempt",
        library: Library | None = None,
    ) -> list[Group]:
        async def attempt(task: Task, index: int) -> Episode:
            name = "" if kind == "attempt" else kind
            return await world.play(task, index=index, name=name, library=library)

        return await world.groups(tasks, self.group_size, attempt, kind=kind)

    async def ask(
        self,
        role: str,
        asked: Sequence[Message],
        task: Task,
        world: World,
        name: str,
        index: int = 0,
    ) -> Trajectory:
        own = {"max_tokens": self.note_tokens or None, "temperature": self.note_temperature}
        return await world.ask(role, asked, task=task, index=index, name=name, **own)

    async def summaries(self, kept: Compared, world: World) -> list[Group]:
        """s_i for every attempt o_i of the groups that teach."""
        known = {(task.id, a.index): a for task, attempts in kept for a in attempts}

        async def summary(task: Task, index: int) -> Episode:
            attempt = known.get((task.id, index))
            if attempt is None:
                return Episode(task.id, index)
            shown = block("result", self.judged(attempt)), block("attempt", self.turns_of(attempt))
            asked = self.message(self.prompts.summary, self.about(task, attempt, world), *shown)
            said = await self.ask("summarizer", asked, task, world, "summary", index)
            return Episode(task.id, index, (said,))

        tasks = [task for task, _ in kept]
        return await world.groups(tasks, self.group_size, summary, kind="summary")

    def summarised(self, kept: Compared, groups: Sequence[Group]) -> Compared:
        """An attempt whose summary broke or is empty is left out, and then the gate is asked again."""
        again: list[tuple[Task, Sequence[Attempt]]] = []
        for (task, attempts), group in zip(kept, groups, strict=True):
            texts = {e.index: t.text.strip() for e in group.episodes for t in e.trajectories}
            left = [replace(a, summary=texts[a.index]) for a in attempts if texts.get(a.index)]
            again += [(task, left)] if self.teaches(left) else []
        return again

    async def comparisons(self, kept: Compared, world: World) -> list[Group]:
        """A_text of each group, and what it proposes to change in the library."""
        found = {task.id: attempts for task, attempts in kept}
        library = block("library", world.library.render() or "None")

        async def comparison(task: Task, _: int) -> Episode:
            attempts = found[task.id]
            parts = self.compared(task, attempts, world)
            if self.style == "merge":
                asked = self.message(self.prompts.critique, *parts, library)
                said = await self.list_from("comparer", asked, task, world)
            else:
                seen = library if self.comparer_sees_library else ""
                prompt = self.prompts.comparison if attempts else self.prompts.tips
                asked = self.message(prompt, *parts, seen)
                said = [await self.ask("comparer", asked, task, world, "lessons")]
                if new := lessons_in(said[0].text):
                    asked = self.message(self.prompts.proposals, library, block("lessons", new))
                    said += await self.list_from("editor", asked, task, world)
            behind = ",".join(str(a.index) for a in attempts)
            source = f"{task.id}@{world.step}{':' * bool(behind)}{behind}"
            known = [e.id for e in world.library.experiences]
            return Episode(task.id, 0, tuple(said), info={"source": source, "known": known})

        return await world.groups([task for task, _ in kept], 1, comparison, kind="comparison")

    async def list_from(
        self, role: str, asked: list[Message], task: Task, world: World
    ) -> list[Trajectory]:
        """A JSON list, asked for once more where the first answer holds none."""
        said = [await self.ask(role, asked, task, world, "proposals")]
        if json_list(said[0].text) is None:
            again = with_note(asked, UNREADABLE)
            said.append(await self.ask(role, again, task, world, "proposals-again"))
        return said

    async def reconciliation(self, comparisons: Sequence[Group], world: World) -> list[Group]:
        """One plan from all proposals of the step; nothing is asked where there are none."""
        proposals, _ = self.rules.proposals(comparisons)
        if not proposals:
            return []
        merges = self.style == "merge"
        lessons = world.library.experiences
        known = {e.id: list(e.sources) for e in lessons}
        listed, new = as_listed(lessons, proposals, merges=merges)
        prompt = self.prompts.merging if merges else self.prompts.plan
        asked = self.message(prompt, block("library", listed), block("new", new))

        async def plan(task: Task, _: int) -> Episode:
            said: list[Trajectory] = []
            note = ""
            for number in range(1, self.tries + 1):
                again = with_note(asked, note)
                said.append(await self.ask("editor", again, task, world, f"plan-{number}"))
                note = self.rules.objection(said[-1].text, known, proposals)
                if not note:
                    break
            return Episode(task.id, 0, tuple(said), info={"known": known})

        return await world.groups([comparisons[0].task], 1, plan, kind="reconciliation")

    async def trial(
        self, tasks: Sequence[Task], groups: Sequence[Group], world: World
    ) -> list[Group]:
        """The held-out tasks under the old library and under the new one, as ``credit`` will make it: their own
        answers are kept out of it, too."""
        if not tasks:
            return []
        edits, _ = self.rules.edits([*groups, *(Group(task, (), kind="before") for task in tasks)])
        if not edits:
            return []
        before = await self.played(tasks, world, "before")
        return before + await self.played(tasks, world, "after", world.library.apply(edits))

    # -------------------------------------------------------------------------------------- credit

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        """Nothing but edits: what the collected answers say, checked. No examples, and no state."""
        edits, faults = self.rules.edits(groups)
        gains = gains_of(groups)
        is_untried = bool(self.held_out and edits and not gains)
        is_refused = is_untried or is_worse(gains)
        if is_refused:
            edits = ()
        metrics = group_metrics([g for g in groups if g.kind == "attempt"])
        metrics["groups/compared"] = sum(g.kind == "comparison" and g.usable for g in groups)
        metrics["lessons/proposed"] = len(self.rules.proposals(groups)[0])
        metrics["lessons/edits"] = len(edits)
        metrics |= {f"lessons/{name}": faults[name] for name in LEFT_OUT}
        if gains:
            metrics["held_out/gain"] = fmean(gains)
        if gains or is_untried:
            metrics["held_out/refused"] = float(is_refused)
        return Update((), edits, tuple(groups), state, metrics)

    def remark(self, metrics: Mapping[str, float]) -> str:
        """What kept a step from teaching anything, in words; empty where nothing is wrong."""
        if metrics["lessons/edits"]:
            return ""
        if not metrics["groups/compared"]:
            return "no group was compared: there were none whose attempts differ in reward (groups/dead), or all of them broke"
        counts = {name: metrics[f"lessons/{name}"] for name in LEFT_OUT}
        left_out = [f"{name} {count:g}" for name, count in counts.items() if count]
        if not left_out:
            return ""
        return (
            f"{metrics['groups/compared']:g} comparisons changed nothing in the library. Left out: {', '.join(left_out)} "
            "(docs/guide/metrics.md says what each is; kolb view shows the answers)"
        )

    @property
    def rules(self) -> Rules:
        return Rules(
            self.style == "merge",
            self.lessons_per_group,
            self.max_lessons,
            self.max_words,
            self.removes_without_text,
        )


METHOD = TfGrpo(PROMPTS)
PAPER = replace(METHOD, comparer_sees_library=True)
RELEASED = replace(METHOD, gate="mean", removes_without_text=False, site="user")
PAPER_ERA = replace(METHOD, style="merge", site="user", note_temperature=0.0)
WEB = replace(METHOD, group_size=3, lessons_per_group=2)

NO_GROUND_TRUTH = replace(METHOD, judged_by="nobody")
VOTE = replace(METHOD, judged_by="vote")
SINGLE = replace(METHOD, group_size=1, gate="none")
TIPS = replace(METHOD, group_size=0)
"""The ablations; the vote is ours. In a recipe: ``use = "kolb.methods.tf_grpo.SINGLE"``, or the field that it sets."""
