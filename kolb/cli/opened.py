"""A run or a recipe with its policies open for sampling: what eval, play and export start from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kolb import recipe as recipes
from kolb.checks import open_engine
from kolb.engines.base import Engine, Learner, Sampler
from kolb.errors import RecipeError, nearest
from kolb.libraries import starting_library
from kolb.memory.library import ExperienceLibrary
from kolb.models.prepare import prepare_models
from kolb.overrides import apply_sets
from kolb.runs import checkpoints
from kolb.runs.checkpoints import Checkpoint
from kolb.runs.directory import RunDirectory
from kolb.stage import Recipe, Stage


@dataclass(frozen=True)
class Source:
    """A recipe, and the run and checkpoint that it comes from (None: the policies as they start)."""

    recipe: Recipe
    run: RunDirectory | None = None
    checkpoint: Checkpoint | None = None

    @property
    def step(self) -> int:
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def library(self) -> ExperienceLibrary:
        """The checkpoint's, or what the recipe starts from; a library given by --set goes before both."""
        if self.run is not None and self.recipe.library != self.run.recipe().get("library", ""):
            return starting_library(self.recipe)
        text = self.checkpoint.state.get("library") if self.checkpoint else None
        return (
            ExperienceLibrary.from_json(text) if text else starting_library(self.recipe, self.run)
        )

    def stage(self, name: str = "") -> Stage:
        """The stage called ``name``; the last one by default."""
        stages = {stage.name: stage for stage in self.recipe.stages}
        if name and name not in stages:
            raise RecipeError(f"no stage {name!r}{nearest(name, stages)}")
        return stages[name] if name else self.recipe.stages[-1]


def read_source(source: str, *, checkpoint: int | None = None, sets: Sequence[str] = ()) -> Source:
    """``source`` is a run's folder or a recipe's file. ``checkpoint`` names a step of the run."""
    if not Path(source).is_dir():
        if checkpoint is not None:
            raise RecipeError(
                f"{source} is a recipe, which has no checkpoints; give a run's folder"
            )
        return Source(recipes.load(source, sets))
    run = RunDirectory.open(source)
    recipe = recipes.parse(apply_sets(run.recipe(), sets))
    return Source(recipe, run, find_checkpoint(run, checkpoint))


def find_checkpoint(run: RunDirectory, step: int | None) -> Checkpoint | None:
    if step is None:
        return checkpoints.latest(run)
    return checkpoints.of_step(run, step)


@contextmanager
def opened_samplers(source: Source, stage: Stage) -> Iterator[dict[str, Sampler]]:
    """Samplers of every policy that plays in ``stage``, with the weights of the checkpoint."""
    with opened_engine(source) as (engine, recipe):
        samplers: dict[str, Sampler] = {}
        for name in dict.fromkeys(stage.roles.values()):
            if name in learning(recipe):
                samplers[name] = open_learner(engine, recipe, name, source.checkpoint).publish()
            else:
                samplers[name] = engine.open_sampler(recipe.policies[name].model)
        yield samplers


@contextmanager
def opened_engine(source: Source) -> Iterator[tuple[Engine, Recipe]]:
    """The engine, and the recipe with its models prepared: in the run, or for a recipe in passing."""
    with ExitStack() as stack:
        if source.run is not None:
            folder = source.run.path
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kolb-")))
        recipe = prepare_models(source.recipe, folder)
        engine = open_engine(recipe)
        stack.callback(engine.close)
        yield engine, recipe


def usages(samplers: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """The usage of those samplers that count theirs, by policy."""
    return {name: s.usage for name, s in samplers.items() if hasattr(s, "usage")}


def learning(recipe: Recipe) -> list[str]:
    """The policies that some stage trains: those that a checkpoint holds."""
    return [name for name in recipe.policies if any(name in s.learn for s in recipe.stages)]


def open_learner(
    engine: Engine, recipe: Recipe, name: str, checkpoint: Checkpoint | None
) -> Learner:
    spec = recipe.policies[name]
    learner = engine.open_policy(name, spec.model, lora=spec.lora, optimizer=spec.optimizer)
    if checkpoint is not None:
        checkpoint.restore({name: learner})
    return learner
