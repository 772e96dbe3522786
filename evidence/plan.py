"""What is measured: an Evidence holds Experiments, an Experiment compares Arms by Quantities and makes Claims.

An arm is a recipe with some keys changed. Every arm meets the same seeds, and a seed may change the world as
well as the run (other symbols, other boards, another base), so that arms are compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.stats import MOST_VALUES
from kolb.errors import RecipeError, nearest

Sets = tuple[str, ...]
"""Changes to a recipe as ``--set`` takes them: ``"stages.rl.steps=2"``."""

Curve = Sequence[tuple[int, float]]
"""(tokens sampled in training, value) of every evaluation of a run, in order."""

FEWEST_SEEDS = 5
BASES = "bases"
"""The folder of the bases, among the runs."""


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


def placed(sets: Sets, root: Path) -> Sets:
    """``sets`` with the folder of the bases filled in, for runs that live in ``root``."""
    return tuple(text.replace("{bases}", str((root / BASES).resolve())) for text in sets)


def last(curve: Curve) -> float:
    """The value at the end of the run."""
    return curve[-1][1]


@dataclass(frozen=True)
class Quantity:
    """What a run is worth, in one number, and what is claimed about it.

    ``read`` takes it from the curve of an evaluation metric (``eval/success``: ``curve = "success"``) or of a metric of
    every step (``library/size``). With ``extra`` it is the success in the further evaluation of that name. ``metric`` says
    in words what it is, and ``axis`` what the curve shows, where that is something else. The first claim
    is the main one: it is published with every arm.
    """

    metric: str
    claims: tuple[Claim, ...] = ()
    curve: str = "success"
    read: Callable[[Curve], float] = last
    higher_is_better: bool = True
    axis: str = ""
    extra: str = ""


@dataclass(frozen=True)
class Base:
    """A model that runs start from, built where it is missing, by ``python -m MODULE FOLDER SETS``.

    That leaves the run of ``recipe``, changed by ``sets``, in ``FOLDER/run`` and, last of all, a model in ``FOLDER/model``.
    ``{bases}`` in the sets of bases and arms is the folder that holds a folder of each name.
    """

    name: str
    module: str
    recipe: Path
    sets: Sets

    def folder(self, root: Path) -> Path:
        return root / BASES / self.name


@dataclass(frozen=True)
class ExtraSet:
    """A further evaluation of every finished run, on other tasks.

    ``sets`` change the run's recipe; ``{data}`` in them is the folder of data files, ``{bases}`` that of the bases.
    ``needs`` is a file in the first: without it the evaluation is left out. ``tag`` of the tasks divides the result.
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
    """Arms on one recipe, compared by ``quantities``, the main one first. ``about`` says what was done, and ``of_seed``
    gives what a seed changes beside the run's seed. ``budget`` says what arms have in common that take different
    numbers of steps; else they end by one budget. ``tells_roles``: the page says what each role sampled."""

    name: str
    recipe: Path
    about: str
    arms: tuple[Arm, ...]
    quantities: tuple[Quantity, ...]
    extras: tuple[ExtraSet, ...] = ()
    of_seed: Callable[[int], Sets] = no_sets
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    budget: str = ""
    tells_roles: bool = False

    def __post_init__(self) -> None:
        named = [extra.name for extra in self.extras]
        for name in (q.extra for q in self.quantities if q.extra and q.extra not in named):
            raise RecipeError(f"{self.name}: a quantity names extra {name!r}{nearest(name, named)}")
        known = [arm.name for arm in self.arms]
        for name in (n for claim in self.claims for n in (claim.better, claim.worse)):
            if name not in known:
                raise RecipeError(f"{self.name}: a claim names arm {name!r}{nearest(name, known)}")
        main = self.quantities[:1]
        is_first_claimed = bool(main and main[0].claims and not main[0].extra)
        if not is_first_claimed or not FEWEST_SEEDS <= len(self.seeds) <= MOST_VALUES:
            raise RecipeError(
                f"{self.name}: {len(self.claims)} claims, {len(self.seeds)} seeds; expected at least one claim "
                f"about the first quantity, which a curve gives, and {FEWEST_SEEDS} to {MOST_VALUES} seeds"
            )

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for quantity in self.quantities for claim in quantity.claims)

    @property
    def reference(self) -> str:
        """The arm that the others are compared with: the one that is expected to be best."""
        return self.quantities[0].claims[0].better

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
    ``bases`` are built before the first run.
    """

    name: str
    title: str
    about: str
    source: str
    paper: Mapping[str, Mapping[str, float]]
    experiments: tuple[Experiment, ...]
    notes: Path
    bases: tuple[Base, ...] = ()

    @property
    def command(self) -> str:
        return f"make evidence-{self.name.replace('_', '-')}"
