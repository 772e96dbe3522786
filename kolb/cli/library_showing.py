"""``kolb library show`` and ``diff``: the lessons in words, with their history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kolb.cli.counting import say
from kolb.cli.library_tracing import plan_of, traces
from kolb.errors import RecipeError, nearest
from kolb.libraries import NamedLibrary, Version, of_run, open_library
from kolb.memory.changes import Change, changes, changes_in_run
from kolb.memory.exporting import size
from kolb.memory.library import ExperienceLibrary
from kolb.memory.origins import origin_of

Past = Sequence[tuple[Version, Change]]
SHOWN_SOURCES = 4


def show_library(source: str) -> None:
    named = open_library(source)
    say("\n".join(listing(named, source)))


def listing(named: NamedLibrary, source: str) -> Iterator[str]:
    lessons = named.library.experiences
    histories_by_id = histories(named)
    when = f", {named.versions[-1].when}" if named.versions else ""
    yield f"{named.name}: version {named.library.version}{when}: {size(named.library)}"
    for e in lessons:
        past = [f"{event(v, c)} version {v.number}" for v, c in histories_by_id.get(e.id, ())]
        yield f"\n[{e.id}] {indented(e.text)}"
        yield f"    {'; '.join([*past, sources_in_words(e.sources)])}"
    if len(named.versions) > 1:
        yield "\nversions"
        yield from (f"  {line}" for line in version_lines(named.versions))
    if lessons:
        yield f"\nwhy a lesson is there: kolb library show {source} --why {lessons[-1].id}"


def version_lines(versions: Sequence[Version]) -> Iterator[str]:
    before = versions[0].library
    for v in versions:
        counts = tally(changes_in_run(before, v.library))
        yield f"{v.number}  {v.when}: {size(v.library)}{f' ({counts})' if counts else ''}"
        before = v.library


def tally(found: Sequence[Change]) -> str:
    kinds = [c.action for c in found]
    return ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))


def histories(named: NamedLibrary) -> dict[str, Past]:
    """By id: every change of the lesson in the run, oldest first, and that it was there at the start."""
    found: dict[str, list[tuple[Version, Change]]] = {}
    before = ExperienceLibrary()
    for version in named.versions:
        for change in changes_in_run(before, version.library):
            found.setdefault(change.id, []).append((version, change))
        before = version.library
    return {id: tuple(past) for id, past in found.items()}


def event(version: Version, change: Change) -> str:
    return f"{change.action} in" if version.step else "there from the start,"


def sources_in_words(sources: Sequence[str]) -> str:
    if not sources:
        return "its source was not noted"
    shown = ", ".join(map(in_short, sources[:SHOWN_SOURCES]))
    more = f" and {len(sources) - SHOWN_SOURCES} more" if len(sources) > SHOWN_SOURCES else ""
    if any(origin_of(s) is None for s in sources):
        return f"{shown}{more}"
    runs = sorted({o.run or "this run" for s in sources if (o := origin_of(s)) is not None})
    where = f" of {', '.join(runs)}" if runs != ["this run"] else ""
    return f"from {len(sources)} group{'s' * (len(sources) > 1)}{where} (task@step): {shown}{more}"


def in_short(source: str) -> str:
    origin = origin_of(source)
    return source if origin is None else f"{origin.task}@{origin.step}"


def indented(text: str) -> str:
    return text.replace("\n", "\n    ")


# ---------------------------------------------------------------------------------------------- why


def show_why(source: str, id: str) -> None:
    """One lesson: its history, and what each of its sources is."""
    named = open_library(source)
    id = id.strip("[]")
    past = histories(named).get(id, ())
    lesson = next((e for e in named.library.experiences if e.id == id), None)
    if lesson is None and not past:
        known = [e.id for e in named.library.experiences]
        raise RecipeError(f"{named.title} has no lesson {id!r}{nearest(id, known)}")
    lines = [
        f"[{id}] {indented(lesson.text)}" if lesson else f"[{id}] is not in {named.title} any more"
    ]
    if past:
        lines += ["", "its history", *(f"  {line}" for v, c in past for line in change_lines(v, c))]
    last = lesson or next(c.before for _, c in reversed(past) if c.before)
    lines += ["", "where it comes from", *(f"  {line}" for line in traces(named, last.sources))]
    for version in (v for v, c in past if c.action == "removed"):
        lines += ["", "why it was removed", *(f"  {line}" for line in plan_of(named, version.step))]
    say("\n".join(lines))


def change_lines(version: Version, change: Change) -> Iterator[str]:
    text = f": {indented(change.marked)}" if change.action == "revised" else ""
    verb = "there" if version.step == 0 else change.action
    yield f"version {version.number}, {version.when}: {verb}{text}"


# --------------------------------------------------------------------------------------------- diff


def show_changes(one: str, other: str = "") -> None:
    before, after = pair(one, other)
    old, new = before.library, after.library
    is_one_run = before.run is not None and before.name == after.name
    found = changes_in_run(old, new) if is_one_run else changes(before.outside, after.outside)
    known = histories(after) if is_one_run else {}
    say(f"{before.title}: {size(old)}\n{after.title}: {size(new)}\n")
    for change in found:
        say("\n".join(difference(change, after, change.id in known)))
    stay = len(new.experiences) - sum(c.after is not None for c in found)
    say(f"{tally(found) or 'no difference'}; {stay} the same")


def pair(one: str, other: str) -> tuple[NamedLibrary, NamedLibrary]:
    """The two libraries to compare; for one name alone, the version before it and that version."""
    if other:
        return open_library(one), open_library(other)
    after = open_library(one)
    if after.run is None:
        raise RecipeError(
            f"{one} is a file, which has no versions; give a second library to compare with"
        )
    if len(after.versions) < 2:
        raise RecipeError(
            f"{after.title} is the first version of its run; give a second library to compare with"
        )
    return of_run(after.run, after.name, str(after.versions[-2].number)), after


def difference(change: Change, after: NamedLibrary, was_there: bool) -> Iterator[str]:
    """The change, and how to ask why: of a removed lesson only where an earlier version of ``after`` had it."""
    yield f"{change.action} [{change.id}]  {indented(change.marked)}"
    if change.sources:
        yield f"    {sources_in_words(change.sources)}"
    if change.after is not None or was_there:
        yield f"    kolb library show {after.title} --why {change.id}"
    yield ""
