"""What a run shows while it runs: a live line on a terminal, a plain line now and then elsewhere.

Showing is a boundary: a closed pipe or a terminal that cannot print a character must not end a run, so
the first failure turns the display off.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self, TextIO

from kolb.runs.plots import plot_png, plot_text, sparkline
from kolb.runs.spent import Spent

__all__ = ["Progress", "duration", "plot_png", "plot_text", "sparkline"]

PLAIN_EVERY_S = 5.0
RECENT_STEPS = 20
"""Time left is judged by this many steps, so that a change of stage is soon noticed."""

ERRORS = ("errors", "eval_start/errors", "eval/errors")
"""Areas of metrics that count broken episodes."""


class Progress:
    """Progress over ``total_steps``; use it as a context manager, and call ``step`` after each step.

    ``quiet`` shows nothing at all. ``stream`` is standard output unless given.
    """

    def __init__(
        self,
        total_steps: int,
        quiet: bool = False,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._clock = clock
        self._quiet = quiet
        self._stream = stream or sys.stdout
        self._live: _Live | None = None
        self._times: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS + 1)
        self._shown_at = -math.inf
        self._stage = ""
        self._evaluated: float | None = None
        self._broken = 0.0
        self._spent = Spent()

    def __enter__(self) -> Self:
        self._try(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._try(self._live.stop)

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Shows that ``step`` (from 1, over all stages) of ``stage`` is done."""
        now = self._clock()
        if not self._times:
            self._times.append((step - 1, now - _number(metrics, "time/step_s", 0.0)))
        self._times.append((step, now))
        self._try(lambda: self._show(stage, step, metrics, now))

    def activity(self, text: str) -> None:
        """Shows what is going on now: collecting, updating, evaluating. Nothing when not on a terminal."""
        if self._live is not None:
            live = self._live
            self._try(lambda: live.activity(text))

    def note(self, text: str) -> None:
        """Prints ``text``, whatever it contains, above the live line."""
        self._try(lambda: self._print(text))

    def _open(self) -> None:
        if not self._quiet and self._stream.isatty():
            self._live = _Live(self._total, self._stream)

    def _show(self, stage: str, step: int, metrics: Mapping[str, float], now: float) -> None:
        facts, left = self._facts(metrics), self._time_left(step)
        if self._live is not None:
            self._live.step(stage, step, facts, left)
            return
        is_due = (
            now - self._shown_at >= PLAIN_EVERY_S or step >= self._total or stage != self._stage
        )
        if is_due:
            self._shown_at, self._stage = now, stage
            parts = [f"step {step}/{self._total}", stage, *facts, left]
            self._print("  ".join(part for part in parts if part))

    def _facts(self, metrics: Mapping[str, float]) -> list[str]:
        """Only what is known: reward and success of what was sampled (of an expert's, the loss says more), the
        mean outcome of the last evaluation, how many episodes broke and what was paid so far, speed."""
        seconds = self._times[-1][1] - self._times[-2][1]
        reward = _number(metrics, "reward/mean")
        success = _number(metrics, "success/mean")
        tokens = _number(metrics, "tokens/sampled")
        # Evaluation comes now and then; its last word stays on show.
        self._evaluated = _number(metrics, "eval/mean", self._evaluated)
        self._broken += sum(
            _number(metrics, name, 0.0) for name in metrics if name.rpartition("/")[0] in ERRORS
        )
        self._spent.add(metrics)
        losses = [
            f"loss {value:.3f}" for name, value in metrics.items() if name.startswith("loss/")
        ]
        earned = [f"reward {reward:.3f}"] if reward is not None else []
        earned += [f"success {success:.0%}"] if success is not None else []
        facts = [
            *(losses[:1] if tokens == 0 and losses else earned),
            f"eval {self._evaluated:.3f}" if self._evaluated is not None else "",
            f"broken {self._broken:.0f}" if self._broken else "",
            self._spent.words,
            f"{tokens / seconds:,.0f} tok/s" if tokens and seconds > 0 else "",
        ]
        return [fact for fact in facts if fact]

    def _time_left(self, step: int) -> str:
        (first, since), (last, until) = self._times[0], self._times[-1]
        seconds = (until - since) / max(last - first, 1) * (self._total - step)
        return f"{duration(seconds)} left" if step < self._total else ""

    def _print(self, text: str) -> None:
        if self._quiet:
            return
        if self._live is not None:
            self._live.print(text)
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        printable = text.encode(encoding, "backslashreplace").decode(encoding)
        print(printable, file=self._stream, flush=True)

    def _try(self, action: Callable[[], None]) -> None:
        if self._quiet:
            return
        try:
            action()
        except Exception:  # the boundary: a display that fails must not end a run
            self._quiet = True


class _Live:
    """Two live lines, drawn by rich: stage, what is going on, bar, steps, time left; facts below."""

    def __init__(self, total: int, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self._console = Console(file=stream)
        # Where space is short the words wrap; the bar and the numbers beside it stay whole.
        words, whole = Column(overflow="fold"), Column(no_wrap=True, min_width=10)
        columns: list[Any] = [
            TextColumn("{task.description}", markup=False, table_column=words),
            BarColumn(bar_width=10, table_column=whole),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", markup=False, table_column=Column(no_wrap=True)),
        ]
        self._stage, self._facts = "starting", ""
        self._bar = Bar(*columns, console=self._console, refresh_per_second=4)
        self._task = self._bar.add_task(self._stage, total=total, left="")
        self._bar.start()

    def step(self, stage: str, step: int, facts: list[str], left: str) -> None:
        self._stage, self._facts = stage, " · ".join(facts)
        self._bar.update(self._task, completed=step, description=self._words(""), left=left)

    def activity(self, text: str) -> None:
        self._bar.update(self._task, description=self._words(text))

    def _words(self, activity: str) -> str:
        first = f"{self._stage}: {activity}" if activity else self._stage
        return f"{first}\n{self._facts}" if self._facts else first

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        self._bar.stop()


def duration(seconds: float) -> str:
    """A time that reads at a glance.

    >>> duration(7), duration(95), duration(7260)
    ('7s', '1m35s', '2h01m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _number(metrics: Mapping[str, float], name: str, default: float | None = None) -> Any:
    """The metric where it is there and finite, else ``default``."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else default
