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

__all__ = ["Progress", "duration", "plot_png", "plot_text", "sparkline"]

PLAIN_EVERY_S = 5.0
TOKENS = ("tokens/sampled", "tokens/policy", "tokens/targets")
SUCCESS = ("success/mean", "outcome/mean", "eval/success", "eval/outcome")
RECENT_STEPS = 20
"""Time left is judged by this many steps, so that a change of stage is soon noticed."""


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
            self._times.append((step - 1, now - _number(metrics, ("time/step_s",), 0.0)))
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
        facts = self._facts(step, metrics)
        if self._live is not None:
            self._live.step(stage, step, facts)
            return
        is_due = (
            now - self._shown_at >= PLAIN_EVERY_S or step >= self._total or stage != self._stage
        )
        if is_due:
            self._shown_at, self._stage = now, stage
            self._print("  ".join([f"step {step}/{self._total}", stage, *facts]))

    def _facts(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Only what is known: reward, success, speed, time left."""
        (first, since), (last, until) = self._times[0], self._times[-1]
        seconds = (until - since) / max(last - first, 1)
        newest = until - self._times[-2][1]
        reward = _number(metrics, ("reward/mean",))
        success = _number(metrics, SUCCESS)
        tokens = _number(metrics, TOKENS)
        facts = [
            f"reward {reward:.3f}" if reward is not None else "",
            f"success {success:.0%}" if success is not None else "",
            f"{tokens / newest:,.0f} tok/s" if tokens and newest > 0 else "",
            f"{duration(seconds * (self._total - step))} left" if step < self._total else "",
        ]
        return [fact for fact in facts if fact]

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
    """The live line, drawn by rich: stage, bar, steps, facts, and what is going on now."""

    def __init__(self, total: int, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console(file=stream)
        columns: list[Any] = [
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TextColumn("{task.fields[activity]}", style="dim", markup=False),
        ]
        self._bar = Bar(*columns, console=self._console, refresh_per_second=4)
        self._task = self._bar.add_task("starting", total=total, facts="", activity="")
        self._bar.start()

    def step(self, stage: str, step: int, facts: list[str]) -> None:
        self._bar.update(
            self._task, completed=step, description=stage, facts=" · ".join(facts), activity=""
        )

    def activity(self, text: str) -> None:
        self._bar.update(self._task, activity=text)

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


def _number(
    metrics: Mapping[str, float], names: tuple[str, ...], default: float | None = None
) -> Any:
    """The first of ``names`` that has a finite value."""
    for name in names:
        value = metrics.get(name)
        if value is not None and math.isfinite(value):
            return value
    return default
