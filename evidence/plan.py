"""What is measured: an Evidence holds Experiments, an Experiment compares Arms and makes Claims.

An arm is a recipe with some keys changed. Every arm meets the same seeds, and a seed may change the world as
well as the run (other symbols, other boards), so that arms are compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.stats import MOST_VALUES
from kolb.errors import RecipeError, nearest

Sets = tuple[str, ...]
"""Changes to a recipe as ``--set`` takes them: ``"stages.rl.steps=2"``."""

FEWEST_SEEDS = 5


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: what it changes in the experiment's recipe."""

    name: str
    sets: Sets = ()


def in_words(arm: str) -> str:
    return arm.replace("_", " ")


@dataclass(frozen=True)
class Claim:
    """The arm ``better`` is expected to be better than the arm ``worse``."""

    id: str
    better: str
    worse: str


@dataclass(frozen=True)
class ExtraSet:
    """A further evaluation of every finished run, on other tasks.

    ``sets`` change the run's recipe; ``{data}`` in them is the folder of data files. ``needs`` is a file in
    that folder: without it the evaluation is left out. ``tag`` of the tasks divides the result.
    """

    name: str
    title: str
    sets: Sets
    needs: str = ""
    samples: int = 1
    tag: str = ""

    @property
    def file_name(self) -> str:
        """Of the result, in the run's folder."""
        return f"evidence-{self.name}.json"

    @property
    def asked(self) -> dict[str, Any]:
        """What stands in that file, so that an evaluation of other settings does not pass for this one."""
        return {"sets": list(self.sets), "samples": self.samples, "tag": self.tag}


def no_sets(seed: int) -> Sets:
    """A seed that changes the run's seed alone."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """Arms on one recipe. ``of_seed`` gives what a seed changes beside the run's seed.

    The first claim is the main one: it is published with every arm. ``quantity`` names the evaluation metric
    that is compared (``eval/success``); ``metric`` and ``about`` say in words what it is and what was done.
    """

    name: str
    recipe: Path
    about: str
    metric: str
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]
    extras: tuple[ExtraSet, ...] = ()
    of_seed: Callable[[int], Sets] = no_sets
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    quantity: str = "success"
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        known = [arm.name for arm in self.arms]
        for name in (n for claim in self.claims for n in (claim.better, claim.worse)):
            if name not in known:
                raise RecipeError(f"{self.name}: a claim names arm {name!r}{nearest(name, known)}")
        if not self.claims or not FEWEST_SEEDS <= len(self.seeds) <= MOST_VALUES:
            raise RecipeError(
                f"{self.name}: {len(self.claims)} claims, {len(self.seeds)} seeds; expected at least one claim "
                f"and {FEWEST_SEEDS} to {MOST_VALUES} seeds"
            )

    def sets(self, arm: Arm, seed: int) -> Sets:
        return (*arm.sets, *self.of_seed(seed), f"seed={seed}")

    def label(self, arm: Arm, seed: int) -> str:
        """What the run of this arm and seed is called."""
        return f"{self.name}/{arm.name}/seed-{seed}"

    def folder(self, root: Path, arm: Arm, seed: int) -> Path:
        """Where it lives."""
        return root / self.label(arm, seed)

    def extra_file(self, root: Path, arm: Arm, seed: int, extra: ExtraSet) -> Path:
        return self.folder(root, arm, seed) / extra.file_name


@dataclass(frozen=True)
class Evidence:
    """All that one page of evidence rests on. ``paper`` is the paper's own table, rows of numbers by arm, and
    ``source`` says where it stands. ``notes`` is a file written by hand; it is put into the page as it is.
    """

    name: str
    title: str
    about: str
    source: str
    paper: Mapping[str, Mapping[str, float]]
    experiments: tuple[Experiment, ...]
    notes: Path

    @property
    def command(self) -> str:
        return f"make evidence-{self.name}"
