"""Looking at runs in a terminal: a summary, a step's groups, an episode turn by turn, and browsing.

Everything is read from the run directory, while the run goes on or long after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kolb.errors import RunDirectoryError
from kolb.runs.directory import RunDirectory
from kolb.types import Status
from kolb.view.render import episode_view, group_view, number, safe
from kolb.view.spelling import spelling_of
from kolb.view.summary import print_summary

MAX_CHARS = 4000
HELP = (
    "n next episode, p previous, g N group, e N episode, s N step, l list the groups, "
    "i show the group, t tokens on/off, f whole texts on/off, r run summary, q quit"
)

Run = RunDirectory | Path | str


def summary(run: Run, console: Console | None = None) -> None:
    """Stages, curve, newest metrics, failures and the end of the log."""
    print_summary(_opened(run), console or Console())


def list_groups(run: Run, step: int | None = None, console: Console | None = None) -> None:
    """One line for each group of ``step`` (the newest one with episodes when None)."""
    run, out = _opened(run), console or Console()
    step = _newest(run) if step is None else step
    table = Table(
        box=None, pad_edge=False, header_style="dim", title_justify="left", title_style="bold"
    )
    table.title = f"groups of step {step}"
    for name in ("group", "kind", "episodes", "mean", "outcomes", "tokens", "broken", "task"):
        table.add_column(name, no_wrap=True)
    for position, entry in enumerate(run.episode_index(step)):
        outcomes = [o for o in entry["outcomes"] if o is not None]
        broken = Counter(s for s in entry["statuses"] if not Status(s).is_usable)
        table.add_row(
            str(position),
            safe(entry["kind"]),
            str(len(entry["statuses"])),
            number(sum(outcomes) / len(outcomes)) if outcomes else "-",
            " ".join(number(o) for o in entry["outcomes"][:8])
            + " …" * (len(entry["outcomes"]) > 8),
            str(entry["tokens"]),
            Text(", ".join(f"{n} {s}" for s, n in broken.items()), style="red"),
            safe(entry["task"]),
        )
    out.print(table)


def show_group(run: Run, step: int, group: int, console: Console | None = None) -> None:
    """The group's task, and a line for each of its episodes."""
    run, out = _opened(run), console or Console()
    out.print(f"step {step} · group {group}", style="bold", highlight=False)
    out.print(group_view(run.group(step, group)))


def show_episode(
    run: Run,
    step: int,
    group: int,
    episode: int,
    *,
    tokens: bool = False,
    max_chars: int = MAX_CHARS,
    console: Console | None = None,
) -> None:
    """Every turn of one episode; with ``tokens`` each with its probability too. ``max_chars=0``: whole texts."""
    run, out = _opened(run), console or Console()
    found = run.group(step, group)
    if not 0 <= episode < len(found.episodes):
        raise RunDirectoryError(
            f"group {group} of step {step} has {len(found.episodes)} episodes, so no episode {episode}"
        )
    title = f"step {step} · group {group} · episode {episode} of {len(found.episodes)} · task "
    out.print(Text(title, style="bold").append_text(safe(found.task.id)))
    spelling = spelling_of(run) if tokens else None
    shown = found.episodes[episode]
    out.print(episode_view(shown, tokens=tokens, max_chars=max_chars, spelling=spelling))


def _opened(run: Run) -> RunDirectory:
    return run if isinstance(run, RunDirectory) else RunDirectory.open(run)


def _newest(run: RunDirectory) -> int:
    steps = run.episode_steps()
    if not steps:
        raise RunDirectoryError(
            f"{run.path} has no episodes yet (or the recipe does not record them)"
        )
    return steps[-1]


# --------------------------------------------------------------------------------------- browsing


def browse(
    run: Run, console: Console | None = None, ask: Callable[[str], str] | None = None
) -> None:
    """Walks through a run by typed commands, one a line. Not on a terminal: summary and newest group."""
    run, out = _opened(run), console or Console()
    summary(run, out)
    if not run.episode_steps():
        return
    place = Place(run, _newest(run))
    if ask is None and not out.is_terminal:
        list_groups(run, place.step, out)
        show_group(run, place.step, len(run.episode_index(place.step)) - 1, out)
        return
    list_groups(run, place.step, out)
    out.print(HELP, style="dim", highlight=False)
    while _obey(place, _asked(ask or input, place), out):
        pass


class Place:
    """Where the reader is. Moving over the end of a group enters the next one, and the next step."""

    def __init__(self, run: RunDirectory, step: int) -> None:
        self.run = run
        self.step, self.group, self.episode = step, 0, -1
        self.tokens, self.whole = False, False

    def go(self, *, step: int | None = None, group: int = 0, episode: int = 0) -> None:
        """Moves there if there is such a place, else RunDirectoryError, and stays."""
        step = self.step if step is None else step
        sizes = [len(entry["statuses"]) for entry in self.run.episode_index(step)]
        if not 0 <= group < len(sizes):
            raise RunDirectoryError(f"step {step} has groups 0 to {len(sizes) - 1}, not {group}")
        if not 0 <= episode < sizes[group]:
            raise RunDirectoryError(
                f"group {group} has episodes 0 to {sizes[group] - 1}, not {episode}"
            )
        self.step, self.group, self.episode = step, group, episode

    def move(self, by: int) -> None:
        """To the next (+1) or previous (-1) episode of the whole run."""
        here, at = self._episodes(self.step), (self.group, self.episode)
        reached = sum(place < at for place in here) + (by if self.episode >= 0 else min(by, 0))
        if 0 <= reached < len(here):
            self.group, self.episode = here[reached]
            return
        steps = [s for s in self.run.episode_steps() if (s - self.step) * by > 0]
        for step in steps[::by]:
            if there := self._episodes(step):
                group, episode = there[0 if by > 0 else -1]
                self.go(step=step, group=group, episode=episode)
                return
        raise RunDirectoryError(f"there is no {'later' if by > 0 else 'earlier'} episode")

    def _episodes(self, step: int) -> list[tuple[int, int]]:
        """(group, episode) of every episode of a step."""
        index = self.run.episode_index(step)
        return [(g, e) for g, entry in enumerate(index) for e in range(len(entry["statuses"]))]

    def show(self, out: Console) -> None:
        self.episode = max(self.episode, 0)
        limit = 0 if self.whole else MAX_CHARS
        where = (self.step, self.group, self.episode)
        show_episode(self.run, *where, tokens=self.tokens, max_chars=limit, console=out)


def _asked(ask: Callable[[str], str], place: Place) -> list[str]:
    where = f"step {place.step}"
    if place.episode >= 0:
        where += f" group {place.group} episode {place.episode}"
    try:
        return ask(f"[{where}] > ").split() or ["n"]
    except (EOFError, KeyboardInterrupt):
        return ["q"]


def _obey(place: Place, words: Sequence[str], out: Console) -> bool:
    """Carries out one command; False when it was to quit. A mistake is answered in words."""
    try:
        return _command(place, words[0].lower(), words[1:], out)
    except RunDirectoryError as error:
        out.print(safe(error, "red"))
    except ValueError:
        out.print(safe(f"{' '.join(words)!r}: expected a whole number after the letter", "red"))
    return True


def _command(place: Place, letter: str, rest: Sequence[str], out: Console) -> bool:
    if letter == "q":
        return False
    if letter in ("n", "p"):
        place.move(1 if letter == "n" else -1)
    elif letter in ("g", "e", "s"):
        value = int(rest[0]) if rest else 0
        target = {
            "g": {"group": value},
            "e": {"group": place.group, "episode": value},
            "s": {"step": value},
        }
        place.go(**target[letter])
    elif letter == "t":
        place.tokens = not place.tokens
    elif letter == "f":
        place.whole = not place.whole
    else:
        _overview(place, letter, out)
        return True
    place.show(out)
    return True


def _overview(place: Place, letter: str, out: Console) -> None:
    if letter == "l":
        list_groups(place.run, place.step, out)
    elif letter == "i":
        show_group(place.run, place.step, place.group, out)
    elif letter == "r":
        summary(place.run, out)
    else:
        out.print(HELP, style="dim", highlight=False)
