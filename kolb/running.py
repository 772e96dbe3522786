"""A run that is under way: its learners, samplers, library and position, opened, saved and restored."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kolb.credit.group_stats import first_failure
from kolb.engines.base import Engine, Learner, Sampler
from kolb.errors import NonFiniteError, RecipeError, RunDirectoryError, TooManyFailuresError
from kolb.learning import PolicyReport, dump_batch, learning_rate, update_policy
from kolb.libraries import starting_library
from kolb.listeners import Listeners, why_nothing_was_learnt
from kolb.memory.library import ExperienceLibrary
from kolb.runs import checkpoints
from kolb.runs.checkpoints import Checkpoint
from kolb.runs.directory import RunDirectory
from kolb.stage import Recipe, Stage
from kolb.types import Group, Update, derive_seed
from kolb.world import LiveWorld, stop_if_broken

BOOKS = "usage.jsonl"
"""What an engine with a budget has spent, in a run's directory."""

REMARKS_IN_A_ROW = 3
"""So many steps a term must find fault with its own numbers before it is said: a single batch may be odd."""


@dataclass
class Position:
    """Where the run stands after a step, and what must be remembered from one step to the next."""

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    stage_refills: int = 0
    """Batches of tasks that this stage has taken so far beside the one of each step."""
    stage_tokens: int = 0
    """Sampled in this stage so far, thrown-away tries included."""
    method_state: Any = None
    bad_updates: int = 0
    """Updates in a row whose loss or gradient was not finite."""
    idle_steps: int = 0
    """Steps in a row that taught nothing."""
    restarts: int = 0
    """How often the run went back on purpose: part of the seeds, so that what is taken again is asked anew."""


class Clock:
    """Seconds by name; ``with clock("collect"):`` adds to ``time/collect_s``."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        seconds = self._seconds | {"step": time.perf_counter() - self._start}
        return {f"time/{name}_s": value for name, value in seconds.items()}


@contextmanager
def opened(recipe: Recipe, path: Path | str, resume: bool) -> Iterator[RunDirectory]:
    """The run directory, locked: a new one, or the one to go on with. A new one in which a mistake of the
    recipe came to light before its first step (a base that is not there, say) is taken away again."""
    if resume:
        directory = RunDirectory.open(path, write=True)
    else:
        plain = dict(recipe.resolved) or {"name": recipe.name, "seed": recipe.seed}
        directory = RunDirectory.create(path, plain, command=sys.argv)
    try:
        with directory:
            yield directory
    except RecipeError:
        if not resume and not directory.metrics():
            shutil.rmtree(directory.path)
        raise


class Running:
    """The state of a run and what is done with it; ``kolb.loop`` says in which order."""

    def __init__(
        self, recipe: Recipe, engine: Engine, directory: RunDirectory, listeners: Listeners
    ) -> None:
        self.recipe = recipe
        self.engine = engine
        self.directory = directory
        self.listeners = listeners
        self.learners: dict[str, Learner] = {}
        self.samplers: dict[str, Sampler] = {}
        self.library = ExperienceLibrary()
        self.at = Position()
        self._recorded_library = 0
        self._recorded_step = 0
        self._usage: dict[str, Mapping[str, float]] = {}
        self._remarks: dict[tuple[str, str, str], int] = {}
        self._has_told_of_failures = False

    # -------------------------------------------------------------------------- opening, restoring

    def start(self, *, resume: bool, after: int | None = None) -> None:
        """Opens every policy that some stage uses, and goes to the last checkpoint when resuming, or back to the
        end of step ``after``."""
        self.library = starting_library(self.recipe, self.directory)
        self._recorded_library = self.library.version
        if self.library.experiences:
            self.directory.write_library(0, json.loads(self.library.to_json()))
        if hasattr(self.engine, "keep_books"):
            self.engine.keep_books(self.directory.path / BOOKS)  # pyright: ignore[reportAttributeAccessIssue]
        used = {p for s in self.recipe.stages for p in (*s.roles.values(), *s.learn)}
        for name, spec in self.recipe.policies.items():
            if name not in used:
                continue
            stages = [s for s in self.recipe.stages if name in s.learn]
            if not stages:
                self.samplers[name] = self.engine.open_sampler(spec.model)
                continue
            keep_base = any("base" in term.needs for s in stages for term in s.all_terms)
            self.learners[name] = self.engine.open_policy(
                name, spec.model, lora=spec.lora, optimizer=spec.optimizer, keep_base=keep_base
            )
        if resume:
            newest = checkpoints.latest(self.directory)
            if after is None:
                self._restore(newest)
            else:
                self._go_back(newest, after)
        self._publish(self.learners)

    def _go_back(self, newest: Checkpoint | None, step: int) -> None:
        """To the end of ``step``. That is saved as a restart before anything is set aside, so a run that is killed
        meanwhile is either as it was or goes on from here."""
        restarts = Position(**newest.state["position"]).restarts if newest else 0
        if step:
            self._take_up(checkpoints.of_step(self.directory, step))
        self.at.restarts = restarts + 1
        self.save(self.recipe.stages[self.at.stage])
        self.directory.rewind(step)
        self.listeners.note(f"went back on purpose: what comes after step {step} is taken again")

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        self.directory.rewind(checkpoint.step if checkpoint else 0)
        if checkpoint is None:
            self.listeners.note("resumed from the start: no checkpoint had been written")
            return
        self._take_up(checkpoint)
        self._prune()  # killed before it could
        ending = "; the run is finished, nothing is left to do" if self.is_finished else ""
        self.listeners.note(f"resumed after step {self.at.step}{ending}")

    def _take_up(self, checkpoint: Checkpoint) -> None:
        self.at = Position(**checkpoint.state["position"])
        self._recorded_step = self.at.step
        names = [stage.name for stage in self.recipe.stages]
        if names[self.at.stage : self.at.stage + 1] != [checkpoint.state["stage"]]:
            raise RunDirectoryError(
                f"{checkpoint.path} is of stage {checkpoint.state['stage']!r}, number {self.at.stage + 1}, but "
                f"the recipe's stages are {names}; resume with the recipe of the run"
            )
        checkpoint.restore(self.learners)
        self.library = ExperienceLibrary.from_json(checkpoint.state["library"])
        self._recorded_library = self.library.version

    @property
    def is_finished(self) -> bool:
        last = len(self.recipe.stages) - 1
        return self.at.stage == last and self.is_over(self.recipe.stages[last])

    def is_over(self, stage: Stage) -> bool:
        """Whether the stage under way has taken its steps or spent its tokens."""
        return self.at.stage_step >= stage.steps or self.is_spent(stage)

    def is_spent(self, stage: Stage) -> bool:
        return 0 < stage.token_budget <= self.at.stage_tokens

    def stages_left(self) -> Iterator[Stage]:
        """From the current stage on; a new stage starts with a fresh method state."""
        for number in range(self.at.stage, len(self.recipe.stages)):
            if number > self.at.stage:
                self.at = Position(self.at.step, number, restarts=self.at.restarts)
            yield self.recipe.stages[number]

    # -------------------------------------------------------------------------- the parts of a step

    @property
    def next_batch(self) -> int:
        """Which batch of the stage's task order is the first of the next step."""
        return self.at.stage_step + self.at.stage_refills

    def world(self, stage: Stage) -> LiveWorld:
        step = self.at.step + 1
        again = (self.at.restarts,) if self.at.restarts else ()
        seed = derive_seed(self.recipe.seed, stage.name, step, *again)
        return LiveWorld(stage, self.samplers, self.library, seed, step, stage.sampling)

    def stop_if_broken(self, groups: Sequence[Group], stage: Stage) -> None:
        """TooManyFailuresError above the allowed share; the steps before are saved first."""
        try:
            stop_if_broken(groups, stage.limits, f"stage {stage.name!r}, step {self.at.step + 1}")
        except TooManyFailuresError as error:
            self.listeners.note(str(error))
            self.save(stage)
            raise
        self.note_failure(groups, f"step {self.at.step + 1}")

    def note_failure(self, groups: Sequence[Group], where: str) -> None:
        """Tells of the first episode that breaks; the later ones are only counted."""
        first = first_failure(groups)
        if first is None or self._has_told_of_failures:
            return
        self._has_told_of_failures = True
        episode, failure = first
        self.listeners.note(
            f"{where}: an episode broke and is left out: task {episode.task_id!r}, index {episode.index}, at "
            f"the {failure.boundary} boundary: {failure.message} (later ones are counted as broken; "
            f"`kolb view {self.directory.path}` shows them)"
        )

    def learn(self, stage: Stage, update: Update, groups: Sequence[Group]) -> list[PolicyReport]:
        """All optimiser steps of this step, policy by policy. Only policies in ``learn`` move."""
        reports: list[PolicyReport] = []
        for policy in stage.learn:
            examples = [e for e in update.examples if e.policy == policy]
            lr = learning_rate(stage, self.recipe.policies[policy].optimizer, self.at.stage_step)
            seed = derive_seed(self.recipe.seed, stage.name, self.at.step + 1, policy, "batches")
            report = update_policy(self.learners[policy], examples, stage, lr=lr, seed=seed)
            self._note_skipped(report, policy, stage)
            if report.too_long:
                self.listeners.note(
                    f"step {self.at.step + 1}: {report.too_long} examples of {policy!r} are longer than its context of "
                    f"{self.learners[policy].context_length} tokens and were left out"
                )
            self._note_remarks(report, stage)
            if report.examples:
                reports.append(report)
        if stage.learn:
            self._note_idle(groups, was_idle=not reports)
        return reports

    def _note_remarks(self, report: PolicyReport, stage: Stage) -> None:
        """What a term has to say about its own numbers, once it has said so some steps in a row."""
        numbers = report.report.means()
        for term in stage.all_terms:
            said = term.remark(numbers) if hasattr(term, "remark") else ""
            if self._in_a_row((stage.name, report.policy, term.name), said) == REMARKS_IN_A_ROW:
                self.listeners.note(f"step {self.at.step + 1}, {REMARKS_IN_A_ROW} in a row: {said}")

    def note_remark(self, update: Update, stage: Stage) -> None:
        """What a method has to say about its own numbers, at the first of the steps in a row in which it does."""
        method: Any = stage.method
        said = method.remark(update.metrics) if hasattr(method, "remark") else ""
        if self._in_a_row((stage.name, "", method.name), said) == 1:
            self.listeners.note(f"step {self.at.step + 1}: {said}")

    def _in_a_row(self, who: tuple[str, str, str], said: str) -> int:
        """In how many steps up to this one ``who`` had something to say."""
        self._remarks[who] = self._remarks.get(who, 0) + 1 if said else 0
        return self._remarks[who]

    def _note_idle(self, groups: Sequence[Group], *, was_idle: bool) -> None:
        self.at.idle_steps = self.at.idle_steps + 1 if was_idle else 0
        if was_idle:
            why = why_nothing_was_learnt(groups, self.at.idle_steps)
            self.listeners.note(f"step {self.at.step + 1}: {why}")

    def _note_skipped(self, report: PolicyReport, policy: str, stage: Stage) -> None:
        """Skipped updates are dumped, counted, and end the run when there are too many in a row."""
        step = self.at.step + 1
        for number, (error, batch) in enumerate(report.skipped):
            folder = self.directory.path / "bad_batches"
            path = dump_batch(folder, f"{step:06d}-{policy}-{number}", error, batch)
            self.listeners.note(
                f"step {step}: an update of {policy!r} was skipped: {error}; its examples are in {path}"
            )
        for is_done in report.outcomes:
            self.at.bad_updates = 0 if is_done else self.at.bad_updates + 1
            if self.at.bad_updates >= stage.limits.max_bad_updates:
                raise NonFiniteError(
                    f"stage {stage.name!r}, step {step}: {self.at.bad_updates} updates in a row were not finite "
                    f"(max_bad_updates = {stage.limits.max_bad_updates}); the last: {report.skipped[-1][0]}. The "
                    "weights are those before them. Lower the learning rate, or look at the rewards and at "
                    "bad_batches/ in the run"
                )

    def publish(self, reports: Sequence[PolicyReport]) -> None:
        """New samplers for the policies whose weights moved."""
        self._publish([r.policy for r in reports if r.grad_norms])

    def _publish(self, policies: Sequence[str] | Mapping[str, Learner]) -> None:
        for policy in policies:
            self.samplers[policy] = self.learners[policy].publish()

    def advance(self, stage: Stage, update: Update, world: LiveWorld, refilled: int) -> None:
        """The step is done: the position moves on, with the method's state as JSON would give it back, so
        that a resumed run meets the same state as an uninterrupted one."""
        self.at.step += 1
        self.at.stage_step += 1
        self.at.stage_refills += refilled
        self.at.stage_tokens += world.tokens.total()
        if self.is_spent(stage) and self.at.stage_step < stage.steps:
            self.listeners.note(
                f"stage {stage.name!r} ends with step {self.at.stage_step} of {stage.steps}: "
                f"{self.at.stage_tokens} tokens were sampled in it (token_budget = {stage.token_budget})"
            )
        try:
            self.at.method_state = json.loads(json.dumps(update.state))
        except (TypeError, ValueError) as error:
            raise RecipeError(
                f"method {stage.method.name!r} returned a state that JSON cannot hold: {error}; use dicts, "
                "lists, numbers and text"
            ) from error

    def is_evaluation_due(self, stage: Stage) -> bool:
        if stage.evaluation is None:
            return False
        every = stage.evaluation.every
        return self.is_over(stage) or (every > 0 and self.at.stage_step % every == 0)

    def metrics_of(
        self, stage: Stage, update: Update, reports: Sequence[PolicyReport], world: LiveWorld
    ) -> dict[str, float]:
        metrics = dict(update.metrics)
        for report in reports:
            metrics |= report.metrics(f"/{report.policy}" if len(stage.learn) > 1 else "")
        metrics |= {f"tokens/{policy}": world.tokens[policy] for policy in sorted(world.tokens)}
        metrics["tokens/sampled"] = world.tokens.total()
        metrics["tokens/stage"] = self.at.stage_tokens
        metrics["updates/skipped"] = sum(len(r.skipped) for r in reports)
        metrics |= self._new_usage() | self._new_role_usage(stage, world)
        if self.library.version:
            metrics["library/version"] = self.library.version
            metrics["library/size"] = len(self.library.experiences)
        return metrics

    def _new_usage(self) -> dict[str, float]:
        """What the samplers that count their usage have added since the last step."""
        metrics: dict[str, float] = {}
        for policy, sampler in sorted(self.samplers.items()):
            added = self._added(policy, getattr(sampler, "usage", {}))
            metrics |= {f"usage/{policy}/{name}": value for name, value in added.items()}
        return metrics

    def _new_role_usage(self, stage: Stage, world: LiveWorld) -> dict[str, float]:
        """The same by role, where a stage has several: what they sampled, and what their seats count."""
        metrics: dict[str, float] = {}
        for role, policy in stage.roles.items() if len(stage.roles) > 1 else ():
            metrics[f"role/{role}/sampled"] = world.role_tokens[role]
            seats: Mapping[str, Any] = getattr(self.samplers[policy], "seats", {})
            added = self._added(f"{policy}/{role}", seats[role].usage) if role in seats else {}
            metrics |= {f"role/{role}/{name}": value for name, value in added.items()}
        return metrics

    def _added(self, who: str, now: Mapping[str, float]) -> dict[str, float]:
        """What ``now`` has beyond the last time that ``who`` was asked about."""
        before, self._usage[who] = self._usage.get(who, {}), dict(now)
        return {name: value - before.get(name, 0) for name, value in now.items()}

    def record(self, stage: Stage, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """Writes the step down, tells the listeners, and saves a checkpoint where one is due."""
        changed = self.library.version != self._recorded_library
        self.directory.record(
            self.at.step,
            groups if self.recipe.record_episodes else (),
            metrics,
            json.loads(self.library.to_json()) if changed else None,
            stage=stage.name,
        )
        self._recorded_library = self.library.version
        self._recorded_step = self.at.step
        self.listeners.step(stage.name, self.at.step, metrics)
        every = self.recipe.checkpoints.every if self.learners else 1
        if self.is_over(stage) or (every > 0 and self.at.step % every == 0):
            self.save(stage)
            self._prune()

    def _prune(self) -> None:
        """Without weights a checkpoint is small, and what was paid for is all there is: every step keeps its own."""
        if self.learners:
            checkpoints.prune(self.directory, self.recipe.checkpoints.keep)

    def save_if_whole(self, stage: Stage) -> None:
        """A checkpoint of the last recorded step, unless the next one is half taken."""
        if 0 < self.at.step == self._recorded_step:
            self.save(stage)

    def save(self, stage: Stage) -> None:
        state = {
            "stage": stage.name,
            "position": asdict(self.at),
            "library": self.library.to_json(),
        }
        checkpoints.save(self.directory, self.at.step, learners=self.learners, state=state)
