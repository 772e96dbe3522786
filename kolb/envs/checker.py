"""The contract of environments as code: ``check(source)`` lists what a source breaks.

It plays a few tasks with the expert's messages, with words of the prompt in random order and with garbage,
and compares what it sees. Nothing here is particular to one environment. A clean list is no proof: it says that
none of the mistakes below showed.

What must hold: tasks are the same at every call, have ids of their own and are in one split only. An
environment opens with well-formed messages, is deterministic given the messages, is used once, and answers every
message with a StepResult: finite reward or None, never both terminated and truncated, something to answer
while the episode goes on. Fork, where there is one, gives an equal, independent copy. Garbage is answered, not raised. The
expert wins, and the gold answer scores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kolb.envs.base import SPLITS, EnvironmentSource, shorten
from kolb.envs.contract import RULES
from kolb.envs.probe import Probe, Problem
from kolb.errors import DeadlineError, KolbError, RecipeError
from kolb.types import Task

__all__ = ["Problem", "check"]


def check(
    source: EnvironmentSource, *, tasks: int = 5, seed: int = 0, timeout_s: float = 60.0
) -> list[Problem]:
    """The problems of ``source``, the first of each kind; a list without any, or with notes only, is a pass.

    ``tasks`` tasks of the first split that has any are played; ``timeout_s`` bounds each call. Not to be
    called from a running event loop.
    """
    found: list[Problem] = []
    listed = list(_listed(source, found))
    everything = {split: items for split, items in listed if items}
    if not everything:
        if not found:
            found.append(
                Problem("tasks", "", "no task in any split", "tasks in train, dev or test")
            )
        return found
    found += _check_tasks(everything)
    sample = list(next(iter(everything.values())))[:tasks]
    found += asyncio.run(_check_worlds(source, sample, seed, timeout_s))
    return list({problem.name: problem for problem in reversed(found)}.values())[::-1]


# ------------------------------------------------------------------------------------------ the tasks


def _listed(
    source: EnvironmentSource, found: list[Problem]
) -> Iterator[tuple[str, Sequence[Task]]]:
    """Each split's tasks. A split may be empty, or say so with a RecipeError."""
    for split in SPLITS:
        try:
            first, second = list(source.tasks(split)), list(source.tasks(split))
        except RecipeError as error:
            if split == "train":
                found.append(Problem("tasks", "", str(error), "tasks in split 'train'"))
            continue
        except Exception as error:  # boundary: the user's code may raise anything
            found.append(Problem("tasks", "", _named(error), f"the tasks of split {split!r}"))
            continue
        strange = [t for t in first if not isinstance(t, Task)]
        if strange:
            found.append(Problem("tasks", "", shorten(strange[0]), "kolb.types.Task objects"))
            continue
        if list(map(repr, first)) != list(map(repr, second)):
            found.append(
                Problem(
                    "tasks_deterministic", "", f"two different lists for {split!r}", "the same list"
                )
            )
        yield split, first


def _check_tasks(splits: dict[str, Sequence[Task]]) -> list[Problem]:
    found = []
    ids: dict[str, str] = {}
    contents: dict[str, tuple[str, str]] = {}
    for split, tasks in splits.items():
        for task in tasks:
            if task.id in ids:
                seen = f"twice, in {ids[task.id]!r} and {split!r}"
                found.append(Problem("task_ids", task.id, seen, "an id of its own for every task"))
            ids[task.id] = split
            if not (task.prompt or task.data):
                continue
            content = repr((task.prompt, task.answer, task.data))
            other, name = contents.setdefault(content, (split, task.id))
            if other != split:
                seen = f"the same content as task {name} of split {other!r}"
                found.append(Problem("splits_disjoint", task.id, seen, "splits that share no task"))
    return found


# ----------------------------------------------------------------------------------------- the worlds


async def _check_worlds(
    source: EnvironmentSource, tasks: Sequence[Task], seed: int, timeout_s: float
) -> list[Problem]:
    found: list[Problem] = []
    for index, task in enumerate(tasks):
        probe = Probe(source, task, np.random.default_rng([seed, index]), timeout_s)
        for rule in RULES:
            try:
                await rule(probe)
            except KolbError as error:
                probe.report_error(rule.__name__, error, str(error), _promise(rule))
                if isinstance(error, DeadlineError):
                    return found + probe.problems  # what hangs once hangs in every rule
            finally:
                await probe.close_all()
        found += probe.problems
    return found


def _promise(rule: Callable[..., object]) -> str:
    """A rule's first sentence, as what was expected."""
    sentence = " ".join((rule.__doc__ or "").split(".")[0].split())
    return f"that {sentence[0].lower()}{sentence[1:]}"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
