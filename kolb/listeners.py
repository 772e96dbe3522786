"""Who hears about a run while it runs: its log, its observer on the screen, its trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from kolb.credit.group_stats import is_dead
from kolb.runs.directory import RunDirectory
from kolb.runs.trackers import open_tracker
from kolb.stage import Recipe
from kolb.types import Group

REMEDIES_AFTER = 3
"""Steps in a row that taught nothing, after which the log says what can be done."""

REMEDIES = (
    "What helps: tasks that are solved sometimes and not always (easier ones where all rewards are low, harder "
    "ones where all are high), a larger group, a higher temperature, a reward with more steps between its ends, "
    "or a stage of imitation before this one."
)


class Observer(Protocol):
    """Anything that shows a run: ``kolb.runs.progress.Progress`` is one."""

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None: ...
    def activity(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class Listeners:
    """Passes everything on. A context manager: trackers are closed at its end."""

    def __init__(self, recipe: Recipe, directory: RunDirectory, observer: Observer | None) -> None:
        self._directory = directory
        self._observer = observer
        self._trackers = [
            open_tracker(name, directory.path, recipe.name, recipe.resolved)
            for name in recipe.trackers
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for tracker in self._trackers:
            tracker.close()

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, metrics)
        if self._observer is not None:
            self._observer.step(stage, step, metrics)

    def activity(self, text: str) -> None:
        if self._observer is not None:
            self._observer.activity(text)

    def note(self, text: str) -> None:
        self._directory.log(text)
        if self._observer is not None:
            self._observer.note(text)


def why_nothing_was_learnt(groups: Sequence[Group], steps_in_a_row: int) -> str:
    """In words: why a step had nothing to learn from, and from the third in a row what to do."""
    dropped = sum(not g.usable for g in groups)
    dead = sum(is_dead(g) for g in groups)
    usable = [e for g in groups if g.usable for e in g.episodes]
    outcomes = sorted({e.outcome for e in usable if e.outcome is not None})
    if not groups:
        why = "the method collected no groups"
    elif not usable:
        why = "every group had a broken episode and was dropped"
    elif not any(t.turns for e in usable for t in e.trajectories):
        why = "every prompt fills the model's context, so nothing was said; shorten it, or take a model with a longer one"
    elif not outcomes:
        why = "every grader abstained, so no attempt has a reward"
    elif dead + dropped == len(groups):
        same = (
            f"all are {outcomes[0]:g}" if len(outcomes) == 1 else "from group to group they differ"
        )
        why = f"in each of {dead} groups all rewards are equal ({same}), so there is nothing to compare"
    else:
        why = "the method gave no token any weight"
    again = f" ({steps_in_a_row} steps in a row)" if steps_in_a_row > 1 else ""
    text = f"nothing was learnt in this step{again}: {why}. The weights stay as they are."
    return (
        f"{text} {REMEDIES}" if steps_in_a_row >= REMEDIES_AFTER and "to compare" in why else text
    )
