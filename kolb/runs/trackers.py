"""Trackers: where metrics go besides the run directory.

A tracker is an outside service, so this is a boundary: when one breaks during a run, a warning says so
once, that tracker goes silent, and the run goes on. metrics.jsonl holds everything anyway.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from kolb.errors import RecipeError, nearest

PROJECT = "kolb"


class Tracker(Protocol):
    """Takes a step's metrics: flat ``area/name`` numbers."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


def open_tracker(
    name: str, run_dir: Path, run_name: str, config: Mapping[str, Any] | None = None
) -> Tracker:
    """The tracker ``jsonl``, ``tensorboard``, ``wandb`` or ``trackio``; ``config`` is the resolved recipe.

    A resumed run goes on in the same place. RecipeError for an unknown name and for a package that is
    not installed.
    """
    if name not in TRACKERS:
        raise RecipeError(f"no tracker {name!r}{nearest(name, TRACKERS)}")
    return _Guarded(name, TRACKERS[name](Path(run_dir), run_name, dict(config or {})))


class _Guarded:
    """Keeps a failing tracker from stopping the run."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker: Tracker | None = tracker

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        tracker = self._tracker
        if tracker is not None:
            self._try(lambda: tracker.log(step, dict(metrics)))

    def close(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            self._try(tracker.close)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # the boundary: a service that is down must not end a run
            self._tracker = None
            warnings.warn(
                f"tracker {self._name} failed and is off for the rest of this run: {error!r}; "
                "metrics.jsonl goes on",
                RuntimeWarning,
                stacklevel=3,
            )


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(
            f"tracker {extra!r} needs a package that is missing ({error}); "
            f"pip install {extra}, or take it out of trackers"
        ) from error


def _unique(run_dir: Path, run_name: str) -> str:
    """The run's name and a mark that another run of this name, elsewhere, does not share."""
    birth = run_dir / "env.json"
    origin = birth.read_bytes() if birth.exists() else str(run_dir.resolve()).encode()
    mark = hashlib.blake2b(origin, digest_size=4).hexdigest()
    return re.sub(r"[^\w-]", "-", f"{run_name}-{mark}")


class _Jsonl:
    """Nothing to do: the run directory writes metrics.jsonl in any case."""

    def __init__(self, run_dir: Path, run_name: str, config: dict[str, Any]) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class _TensorBoard:
    """Event files in ``tensorboard/`` of the run, by TensorBoard's own writer, which needs no torch."""

    def __init__(self, run_dir: Path, run_name: str, config: dict[str, Any]) -> None:
        module = _import("tensorboard.summary", "tensorboard")
        self._writer = module.Writer(str(run_dir / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Weights & Biases. The same run directory goes on in the same charts."""

    def __init__(self, run_dir: Path, run_name: str, config: dict[str, Any]) -> None:
        wandb = _import("wandb", "wandb")
        self._run = wandb.init(
            project=PROJECT,
            name=run_name,
            id=_unique(run_dir, run_name),
            dir=str(run_dir),
            config=config,
            resume="allow",
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """Trackio, which resumes by name."""

    def __init__(self, run_dir: Path, run_name: str, config: dict[str, Any]) -> None:
        trackio = _import("trackio", "trackio")
        name = _unique(run_dir, run_name)
        self._run = trackio.init(project=PROJECT, name=name, config=config, resume="allow")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Path, str, dict[str, Any]], Tracker]] = {
    "jsonl": _Jsonl,
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "trackio": _Trackio,
}
