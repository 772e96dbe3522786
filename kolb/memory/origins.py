"""Where a lesson comes from, as its sources say it. A source is text that a method wrote:

lake-7@3           the group of task ``lake-7`` in step 3 of the run that the library is in
lake-7@3:0,2       ... and which of its episodes were compared (``tf_grpo``)
lake-7@3#1         ... and something of the method's own behind that (the slot of ``erl``)
RUN > lake-7@3     the same, in another run: the library has left it
imported from FILE
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kolb.memory.library import ExperienceLibrary

IMPORTED = "imported from "
FORM = re.compile(
    r"(?:(?P<run>.+) > )?(?P<task>.+)@(?P<step>\d{1,18})(?::(?P<episodes>\d{1,18}(?:,\d{1,18})*))?(?:#\w*)?"
)


@dataclass(frozen=True)
class Origin:
    """A group of a run. ``run`` is empty for the run that the library is in; ``episodes`` are indices
    within the group, none where the source names none.

    >>> origin_of("runs/a-0001 > lake-7@3:0,2")
    Origin(run='runs/a-0001', task='lake-7', step=3, episodes=(0, 2))
    >>> origin_of("imported from notes.md") is None
    True
    """

    run: str
    task: str
    step: int
    episodes: tuple[int, ...] = ()


def origin_of(source: str) -> Origin | None:
    """The group that ``source`` names; None where it names none."""
    found = None if source.startswith(IMPORTED) else FORM.fullmatch(source)
    if found is None:
        return None
    episodes = tuple(int(i) for i in (found["episodes"] or "").split(",") if i)
    return Origin(found["run"] or "", found["task"], int(found["step"]), episodes)


def outside(library: ExperienceLibrary, run: str) -> ExperienceLibrary:
    """``library`` as it may be read outside ``run``: its sources say which run they are of."""

    def named(source: str) -> str:
        origin = origin_of(source)
        return f"{run} > {source}" if origin is not None and not origin.run else source

    lessons = [replace(e, sources=tuple(map(named, e.sources))) for e in library.experiences]
    return replace(library, experiences=tuple(lessons))
