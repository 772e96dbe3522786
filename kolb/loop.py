"""The one loop: collect -> credit -> update -> record. ``run`` is the way in.

Everything random derives from seeds, so the state between two steps is small: the position, the method's
own state, the library, and what each learner saves. A run that is stopped anywhere and resumed goes on from
its last checkpoint and ends with the same weights, metrics and library as one that was never stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kolb.checks import check_groups, check_recipe, check_update, open_engine
from kolb.collected import Collected
from kolb.credit.group_stats import failure_metrics
from kolb.engines.base import Engine
from kolb.errors import BudgetSpentError, RecipeError, TooManyFailuresError
from kolb.evaluate import EvaluationResult, choose_tasks, evaluate
from kolb.listeners import Listeners, Observer
from kolb.memory.library import ExperienceLibrary
from kolb.models.prepare import prepared
from kolb.order import TaskOrder
from kolb.running import Clock, Running, opened
from kolb.stage import Recipe, Stage


@dataclass
class Result:
    """What a run left: its directory, the last step's metrics, and the evaluations of this process."""

    directory: Path
    steps: int
    library: ExperienceLibrary
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: list[tuple[int, EvaluationResult]] = field(default_factory=list)
    was_finished: bool = False
    """There was nothing left to do: the run that was to be resumed had ended."""


def run(
    recipe: Recipe,
    directory: Path | str,
    *,
    resume: bool = False,
    after: int | None = None,
    observer: Observer | None = None,
    engine: Engine | None = None,
) -> Result:
    """Runs ``recipe`` in the new ``directory``, or goes on with the run that is there.

    With ``resume``, ``after`` goes back to the end of that step (0: to the start) and takes those behind it again, asking
    anew. ``engine`` takes the place of the one that the recipe names, and is not closed. Raises RecipeError
    before anything expensive starts, TooManyFailuresError and NonFiniteError as the stage's limits say,
    and RunDirectoryError for a directory that is in the way, missing or foreign.
    """
    if is_in_a_loop():
        raise RecipeError(
            "an event loop is running already (a notebook?): `await run_async(...)` there"
        )
    return asyncio.run(
        run_async(recipe, directory, resume=resume, after=after, observer=observer, engine=engine)
    )


def is_in_a_loop() -> bool:
    # A function of its own: whatever runs inside an `except` drags that exception into its tracebacks.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def run_async(
    recipe: Recipe,
    directory: Path | str,
    *,
    resume: bool = False,
    after: int | None = None,
    observer: Observer | None = None,
    engine: Engine | None = None,
) -> Result:
    """``run`` for those who are in an event loop already, such as a notebook."""
    chosen = open_engine(recipe) if engine is None else engine
    try:
        check_recipe(recipe, chosen)
        orders = check_tasks(recipe)
        with (
            opened(recipe, directory, resume) as folder,
            Listeners(recipe, folder, observer) as listeners,
        ):
            ready = await prepared(recipe, folder.path)
            running = Running(ready, chosen, folder, listeners)
            running.start(resume=resume, after=after)
            try:
                return await run_stages(running, orders)
            except TooManyFailuresError as error:
                folder.log(error.traceback)
                where = f"The whole traceback is in {folder.path / 'log.txt'}."
                raise TooManyFailuresError(f"{error}\n\n{where}", error.traceback) from None
    finally:
        if engine is None:
            chosen.close()


def check_tasks(recipe: Recipe) -> dict[str, TaskOrder]:
    """The task order of every stage; RecipeError where tasks are missing, for evaluation too."""
    for stage in recipe.stages:
        if stage.evaluation is not None:
            choose_tasks(stage, stage.evaluation)
    return {stage.name: TaskOrder(stage, recipe.seed) for stage in recipe.stages}


async def run_stages(running: Running, orders: Mapping[str, TaskOrder]) -> Result:
    result = Result(running.directory.path, running.at.step, running.library)
    result.was_finished = running.is_finished
    for stage in running.stages_left():
        while not running.is_over(stage):
            try:
                result.metrics = await take_step(running, stage, orders[stage.name], result)
            except (BudgetSpentError, RecipeError):  # an endpoint refuses: what was learnt is kept
                running.save_if_whole(stage)
                raise
    result.steps, result.library = running.at.step, running.library
    return result


async def take_step(
    running: Running, stage: Stage, order: TaskOrder, result: Result
) -> dict[str, float]:
    """One pass of the loop; gives its metrics."""
    clock = Clock()
    metrics: dict[str, float] = {}
    if running.at.stage_step == 0 and stage.evaluation and stage.evaluation.at_start:
        with clock("evaluate"):
            metrics |= await take_stock(running, stage, result, area="eval_start")

    world = running.world(stage)
    running.listeners.activity("collecting")
    collected = Collected(stage)
    for tasks in collected.batches(order, running.next_batch):
        with clock("collect"):
            groups = await stage.method.collect(tasks, world)
        check_groups(groups, stage.method)
        collected.add(groups)
        running.stop_if_broken(collected.groups, stage)

    groups = collected.kept
    update = stage.method.credit(groups, running.at.method_state)
    check_update(update, stage.method)
    groups = update.groups or groups

    running.listeners.activity("updating")
    with clock("update"):
        running.note_remark(update, stage)
        reports = running.learn(stage, update, groups)
    with clock("publish"):
        running.publish(reports)
    running.library = running.library.apply(update.edits)

    running.advance(stage, update, world, collected.refilled)
    if running.is_evaluation_due(stage):
        with clock("evaluate"):
            metrics |= await take_stock(running, stage, result)
    metrics |= failure_metrics(groups)  # counted whatever the method measures
    metrics |= running.metrics_of(stage, update, reports, world)
    metrics |= collected.metrics() | clock.metrics()
    groups = [*groups, *collected.thrown_away]
    running.record(stage, groups, metrics)
    return metrics


async def take_stock(
    running: Running, stage: Stage, result: Result, *, area: str = "eval"
) -> dict[str, float]:
    """Evaluates the current policies on the stage's evaluation tasks."""
    assert stage.evaluation is not None
    running.listeners.activity("evaluating")
    evaluation = await evaluate(
        stage, stage.evaluation, running.samplers, running.library, step=running.at.step
    )
    running.note_failure(evaluation.groups, f"evaluation after step {running.at.step}")
    result.evaluations.append((running.at.step, evaluation))
    return evaluation.metrics(area)
