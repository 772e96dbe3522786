"""Checkpoints that are whole or absent.

    checkpoints/000012/
        learners/NAME/...   what each learner saved: weights, optimiser, version
        state.json          step, and all else that the loop must know to go on
        manifest.json       size and hash of every file above; written last

A checkpoint is written under a temporary name, forced to disk and renamed. One whose files differ from
its manifest is refused in words, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kolb.errors import RunDirectoryError
from kolb.runs.directory import RunDirectory
from kolb.runs.files import check_schema, parse_line, sync_directory

SCHEMA = 1
MANIFEST = "manifest.json"
STATE = "state.json"
LEARNER_NAME = re.compile(r"[\w.@+-]*\w[\w.@+-]*")


class Saves(Protocol):
    """Anything that writes itself into an existing folder."""

    def save(self, path: Path) -> None: ...


class Loads(Protocol):
    """Anything that reads back what it saved."""

    def load(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """A complete, verified checkpoint: the state after ``step``."""

    path: Path
    step: int
    state: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, learner: str) -> Path:
        """Where that learner's files are; RunDirectoryError when it was not saved."""
        path = self.path / "learners" / learner
        if not path.is_dir():
            saved = sorted(p.name for p in self.path.glob("learners/*"))
            raise RunDirectoryError(f"{self.path} holds no policy {learner!r}; it holds {saved}")
        return path

    def restore(self, learners: Mapping[str, Loads]) -> None:
        """Loads every learner from its folder."""
        folders = {name: self.folder(name) for name in learners}
        for name, learner in learners.items():
            learner.load(folders[name])


# ----------------------------------------------------------------------------------------- saving


def save(
    run: RunDirectory, step: int, *, learners: Mapping[str, Saves], state: Mapping[str, Any]
) -> Path:
    """Writes the checkpoint of ``step``, in place of an older one of the same step.

    ``state`` must survive JSON (tuples come back as lists; NaN and infinity are kept): otherwise
    RunDirectoryError names the place. Killed at any point, it leaves the checkpoints before as they were.
    """
    run.need_lock("save a checkpoint")
    _check_state(state, "state")
    final = run.file("checkpoints", step)
    temporary = _temporary(final)
    temporary.mkdir()
    for name, learner in learners.items():
        if not LEARNER_NAME.fullmatch(name):
            raise RunDirectoryError(
                f"a policy called {name!r} cannot be saved; use letters and digits"
            )
        folder = temporary / "learners" / name
        folder.mkdir(parents=True)
        learner.save(folder)
    _write_json(temporary / STATE, {**state, "schema": SCHEMA, "step": step})
    _write_json(temporary / MANIFEST, {"schema": SCHEMA, "files": _describe(temporary)})
    _sync_tree(temporary)
    _put_in_place(temporary, final)
    return final


def _put_in_place(temporary: Path, final: Path) -> None:
    """An older checkpoint of the same step steps aside; ``sweep`` brings it back if we die here."""
    old = final.with_name(f"{final.name}.old")
    if final.exists():
        os.rename(final, old)
    os.rename(temporary, final)
    sync_directory(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _temporary(final: Path) -> Path:
    """A name that no reader takes for a checkpoint, cleared of what a crash left there."""
    path = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    shutil.rmtree(path, ignore_errors=True)
    return path


def _check_state(value: Any, where: str) -> None:
    if value is None or isinstance(value, bool | int | float | str):
        return
    if isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _check_state(inner, f"{where}[{i}]")
        return
    if not isinstance(value, Mapping):
        what = f"{where} is a {type(value).__name__}"
        raise RunDirectoryError(
            f"{what}, which JSON cannot hold; use lists, dicts, numbers and text"
        )
    for key, inner in value.items():
        if not isinstance(key, str):
            raise RunDirectoryError(f"{where} has the key {key!r}; JSON would make it a string")
        _check_state(inner, f"{where}.{key}")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, default=dict), encoding="utf-8")


def _describe(root: Path) -> dict[str, list[Any]]:
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {p.relative_to(root).as_posix(): [p.stat().st_size, _hash(p)] for p in files}


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            with open(Path(folder) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))


# ---------------------------------------------------------------------------------------- loading


def load(path: Path) -> Checkpoint:
    """The checkpoint in ``path``, every file checked; RunDirectoryError says what is damaged."""
    manifest = _read_json(path / MANIFEST)
    check_schema(manifest, SCHEMA, str(path / MANIFEST))
    for name, (size, digest) in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise RunDirectoryError(f"{path} is damaged: {name} is missing")
        if file.stat().st_size != size:
            raise RunDirectoryError(
                f"{path} is damaged: {name} has {file.stat().st_size} bytes instead of {size}"
            )
        if _hash(file) != digest:
            raise RunDirectoryError(f"{path} is damaged: the content of {name} has changed")
    state = _read_json(path / STATE)
    check_schema(state, SCHEMA, str(path / STATE))
    step = state.pop("step")
    del state["schema"]
    return Checkpoint(path, step, state)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return parse_line(path.read_bytes(), str(path))
    except OSError as error:
        raise RunDirectoryError(f"{path.parent} is damaged: no {path.name} ({error})") from error


def of_step(run: RunDirectory, step: int) -> Checkpoint:
    """The checkpoint of ``step``; RunDirectoryError says which there are."""
    if step not in (steps := run.numbered("checkpoints")):
        raise RunDirectoryError(
            f"{run.path} has no checkpoint of step {step}; it has {steps}. A run that trains keeps the newest "
            "[checkpoints] keep = 2 (0: all of them), one every = 10 steps"
        )
    return load(run.file("checkpoints", step))


def latest(run: RunDirectory, note: Callable[[str], None] | None = None) -> Checkpoint | None:
    """The newest checkpoint that is whole; None when none was ever completed.

    A damaged one is refused: ``note`` (the run's log, when the run is open for writing) is told why, and
    the one before it is tried. RunDirectoryError when all of them are damaged.
    """
    tell = note or (run.log if run.is_writable else lambda _: None)
    if run.is_writable:
        sweep(run)
    refused: list[str] = []
    for step in reversed(run.numbered("checkpoints")):
        try:
            return load(run.file("checkpoints", step))
        except RunDirectoryError as error:
            refused.append(str(error))
            tell(f"checkpoint of step {step} refused, trying the one before: {error}")
    if refused:
        raise RunDirectoryError("no checkpoint is whole: " + "; ".join(refused))
    return None


# --------------------------------------------------------------------------------------- removing


def prune(run: RunDirectory, keep: int) -> None:
    """Removes all but the newest ``keep`` checkpoints; ``keep=0`` keeps all."""
    run.need_lock("prune checkpoints")
    for step in run.numbered("checkpoints")[:-keep] if keep > 0 else []:
        remove(run.file("checkpoints", step))


def remove(path: Path) -> None:
    """Renames first, so that a checkpoint half removed is not taken for a whole one."""
    if path.exists():
        doomed = path.with_name(f"{path.name}.tmp-{os.getpid()}-removed")
        os.rename(path, doomed)
        sync_directory(path.parent)
        shutil.rmtree(doomed)


def sweep(run: RunDirectory) -> None:
    """Clears what interrupted saves and removals left behind."""
    run.need_lock("sweep checkpoints")
    folder = run.path / "checkpoints"
    for leftover in folder.glob("*.tmp-*"):
        shutil.rmtree(leftover)
    for old in folder.glob("*.old"):
        if old.with_suffix("").exists():
            shutil.rmtree(old)
        else:
            os.rename(old, old.with_suffix(""))
