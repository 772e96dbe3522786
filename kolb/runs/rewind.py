"""Going back to a checkpoint: what was recorded after it is set aside, and nothing is lost.

A run that crashed between two checkpoints has recorded steps that it will now take again. Their metrics
lines go to metrics.discarded.jsonl, their files to discarded/. Every write is atomic and every order is
chosen so that being killed anywhere and rewinding again ends in the same place.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kolb.runs.files import complete_lines, cut_torn_line, sync_directory, write_atomic
from kolb.runs.metrics import parse_metrics

if TYPE_CHECKING:
    from kolb.runs.directory import RunDirectory


def rewind(run: RunDirectory, step: int) -> None:
    """Keeps everything up to the end of ``step``. The run must be open for writing."""
    run.need_lock("rewind")
    # A checkpoint must not outlive the metrics that lead to it, so later ones go first.
    for folder in ("checkpoints", "episodes", "memory"):
        for later in run.numbered(folder):
            if later > step:
                _set_aside(run.file(folder, later), run.path / "discarded" / folder)
    moved = _rewind_metrics(run.metrics_path, step)
    if moved:
        run.log(f"went back to step {step}: {moved} metrics lines set aside")


def _rewind_metrics(path: Path, step: int) -> int:
    cut_torn_line(path)
    kept: list[bytes] = []
    beyond: list[bytes] = []
    for number, line in enumerate(complete_lines(path), 1):
        values = parse_metrics(line, f"{path} line {number}")
        (kept if values["step"] <= step else beyond).append(line + b"\n")
    if beyond:
        _keep_discarded(path.with_name("metrics.discarded.jsonl"), beyond)
        write_atomic(path, b"".join(kept))
    return len(beyond)


def _keep_discarded(target: Path, lines: Sequence[bytes]) -> None:
    before = target.read_bytes() if target.exists() else b""
    block = b"".join(lines)
    # Killed between the two writes, we find the block here already.
    if not before.endswith(block):
        write_atomic(target, before + block)


def _set_aside(source: Path, folder: Path) -> None:
    """Moves to ``folder``, under the first free name: 000013.1.json, 000013.2.json, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, _, ending = source.name.partition(".")
    names = (".".join(filter(None, (stem, str(n), ending))) for n in itertools.count(1))
    os.rename(source, next(folder / n for n in names if not (folder / n).exists()))
    sync_directory(folder)
    sync_directory(source.parent)
