"""From a lesson back to what was tried: the groups that its sources name, as the run recorded them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kolb.errors import RunDirectoryError
from kolb.libraries import NamedLibrary
from kolb.memory.origins import Origin, origin_of
from kolb.runs.directory import RunDirectory
from kolb.types import Episode, Group

WORDS = 60
"""Of what was said, from its end."""
OF_STEP = "reconciliation"
"""The kind of a step's one plan, which stands under the first task that was compared."""


def traces(named: NamedLibrary, sources: Sequence[str]) -> Iterator[str]:
    """What each source is, step by step; the plan of a step behind its groups."""
    if not sources:
        yield "its source was not noted"
    by_step: dict[tuple[str, int], list[Origin]] = {}
    for source in sources:
        origin = origin_of(source)
        if origin is None:
            yield source
        else:
            by_step.setdefault((origin.run, origin.step), []).append(origin)
    for (run, step), origins in by_step.items():
        yield from step_lines(named, run, step, origins)


def step_lines(
    named: NamedLibrary, run: str, step: int, origins: Sequence[Origin]
) -> Iterator[str]:
    tasks = ", ".join(o.task for o in origins)
    directory = named.run
    where = run or named.name
    try:
        directory = RunDirectory.open(run) if run else directory
        if directory is None:
            yield f"step {step} of a run that the file does not name, tasks {tasks}; give the run's folder to see them"
            return
        index = directory.episode_index(step)
    except RunDirectoryError as error:
        yield f"step {step} of {where}, tasks {tasks}, which cannot be shown: {error}"
        return
    for origin in origins:
        yield f"step {step} of {where}, task {origin.task}"
        places = [
            n for n, g in enumerate(index) if g["task"] == origin.task and g["kind"] != OF_STEP
        ]
        yield from group_lines(directory, where, step, places, origin.episodes)
        if not places:
            yield "  no episode of this task was recorded"
    yield from plan_lines(directory, where, step)


def plan_of(named: NamedLibrary, step: int) -> Iterator[str]:
    """What decided on the changes of a step of the library's own run, as far as it was recorded."""
    assert named.run is not None
    yield f"the edits of step {step}: kolb view {named.name} --step {step}"
    if step in named.run.episode_steps():
        yield from plan_lines(named.run, named.name, step)


def plan_lines(run: RunDirectory, name: str, step: int) -> Iterator[str]:
    plans = [n for n, g in enumerate(run.episode_index(step)) if g["kind"] == OF_STEP]
    if plans:
        yield f"step {step} of {name}, one plan from all that was proposed"
        yield from group_lines(run, name, step, plans, ())


def group_lines(
    run: RunDirectory, name: str, step: int, places: Iterable[int], chosen: Sequence[int]
) -> Iterator[str]:
    """Each group: its kind, how to view it, and what its episodes came to; ``chosen`` indices of them where it has
    them (a comparison is one episode, whatever it compares)."""
    for place in places:
        group = run.group(step, place)
        yield f"  {group.kind}  (kolb view {name} --step {step} --group {place})"
        for episode in compared(group, chosen):
            number = f"{episode.index}  " if len(group.episodes) > 1 else ""
            yield from (f"    {number}{line}" for line in in_words(episode))


def compared(group: Group, chosen: Sequence[int]) -> Sequence[Episode]:
    spoken = [e for e in group.episodes if e.trajectories or e.failure]
    own = [e for e in spoken if e.index in chosen]
    return own if own and len(group.episodes) > 1 else spoken


def in_words(episode: Episode) -> Iterator[str]:
    """The reward, and the end of each thing that was said."""
    if episode.failure is not None:
        yield f"broke: {episode.failure.message}"
    reward = "" if episode.outcome is None else f"reward {episode.outcome:g}  "
    for t in (t for t in episode.trajectories if t.turns):
        name = f"{t.name}: " if t.name and len(episode.trajectories) > 1 else ""
        yield f"{reward}{name}{shortened(t.turns[-1].completion.text)}"


def shortened(text: str) -> str:
    words = text.split()
    return " ".join(words) if len(words) <= WORDS else f"... {' '.join(words[-WORDS:])}"
