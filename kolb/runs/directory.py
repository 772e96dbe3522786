"""The run directory: what a run leaves behind, and all that a viewer or a resumed run needs.

    recipe.toml               the resolved recipe
    env.json                  versions, platform, commit, command line
    metrics.jsonl             one flat line per step: {"schema": 1, "step": 3, "stage": "rl", "reward/mean": 0.5}
    episodes/000003.jsonl.gz  the step's groups (kolb.runs.records)
    memory/000003.json        the experience library after the step, in its own schema; 000000 is what it started from
    checkpoints/000003/       the state after the step (kolb.runs.checkpoints)
    log.txt                   what happened, in words

Steps count from 1; step 0 is the state before the first. A step's metrics line is written last, so a step
that has one is complete. Several lines may name the same step (training, then evaluation).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kolb.errors import RunDirectoryError
from kolb.runs import records, toml
from kolb.runs.environment import describe_environment
from kolb.runs.files import (
    append_line,
    check_schema,
    complete_lines,
    cut_torn_line,
    json_text,
    parse_line,
    plain,
    write_atomic,
)
from kolb.runs.lock import NAME as LOCK
from kolb.runs.lock import RunLock
from kolb.runs.metrics import metrics_line, parse_metrics, read_metrics
from kolb.runs.rewind import rewind
from kolb.types import Group

SCHEMA = 1
FOLDERS = {"episodes": ".jsonl.gz", "memory": ".json", "checkpoints": ""}


def next_path(root: Path | str, name: str) -> Path:
    """``root/NAME-0001``, or the first number above those that are there."""
    taken = [p.name.removeprefix(f"{name}-") for p in Path(root).glob(f"{name}-*")]
    numbers = [int(n) for n in taken if n.isdigit()]
    return Path(root) / f"{name}-{max(numbers, default=0) + 1:04d}"


class RunDirectory:
    """One run on disk. ``create`` and ``open(path, write=True)`` hold its lock until ``close``."""

    def __init__(self, path: Path, lock: RunLock | None) -> None:
        self.path = path
        self._lock = lock
        self._last = self._newest_step() if lock else -1

    @classmethod
    def create(
        cls, path: Path | str, recipe: Mapping[str, Any], *, command: Sequence[str] = ()
    ) -> RunDirectory:
        """A new run in ``path``, which must be absent or empty. ``command`` is the command line.

        The directory becomes a run when env.json appears, which is last. What a crash during creation
        left behind is not a run; it holds nothing of worth, and is made use of.
        """
        path = Path(path)
        is_free = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        if not is_free and not _is_half_made(path):
            if (path / "env.json").exists():
                raise RunDirectoryError(
                    f"{path} already holds a run; give a new directory, or resume it with --resume {path}"
                )
            raise RunDirectoryError(f"{path} is not empty, and holds no run; give a new directory")
        text = toml.dumps(recipe)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, RunLock(path))
        for folder in FOLDERS:
            (path / folder).mkdir(exist_ok=True)
        write_atomic(path / "recipe.toml", f"# kolb recipe, schema {SCHEMA}\n{text}".encode())
        (path / "log.txt").unlink(missing_ok=True)
        run.log(f"kolb log, schema {SCHEMA}")
        described = {"schema": SCHEMA, "kind": "run", **describe_environment(command)}
        write_atomic(path / "env.json", json_text(described, indent=2) + b"\n")
        return run

    @classmethod
    def open(cls, path: Path | str, *, write: bool = False) -> RunDirectory:
        """An existing run, to read or to go on writing. RunDirectoryError says what is wrong with it."""
        path = Path(path)
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise RunDirectoryError(f"{path} {what}; expected a run directory, as `kolb run` makes")
        if not (path / "env.json").is_file():
            half_made = "; its creation was cut short before anything was learnt: start it again, as you did"
            raise RunDirectoryError(
                f"{path} is not a run directory: it has no env.json"
                f"{half_made if _is_half_made(path) else ''}"
            )
        check_schema(_read_json(path / "env.json"), SCHEMA, str(path / "env.json"))
        if not write:
            return cls(path, None)
        lock = RunLock(path)
        try:
            _repair(path)
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Lets another process write. Reading stays possible."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------- names

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def is_writable(self) -> bool:
        return self._lock is not None

    def file(self, folder: str, step: int) -> Path:
        """Where ``episodes``, ``memory`` or ``checkpoints`` keeps a step."""
        return self.path / folder / f"{step:06d}{FOLDERS[folder]}"

    # -------------------------------------------------------------------------------- writing

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: Mapping[str, float],
        library: Any = None,
        *,
        stage: str = "",
    ) -> None:
        """Writes a step: its groups (if any), the library as JSON data (if any), its metrics line last."""
        self.need_lock("record a step")
        if step < self._last:
            raise RunDirectoryError(
                f"{self.path}: step {step} after step {self._last}; a run only grows, "
                f"rewind({step}) first"
            )
        line = metrics_line(step, stage, metrics)
        if groups:
            self._write_episodes(step, groups)
        if library is not None:
            self.write_library(step, library)
        append_line(self.metrics_path, line)
        self._last = step

    def write_library(self, step: int, library: Any) -> None:
        """Writes the library as JSON data; of step 0 it is what the run starts from."""
        self.need_lock("write a library")
        write_atomic(self.file("memory", step), json_text(plain(library), indent=2) + b"\n")

    def _write_episodes(self, step: int, groups: Sequence[Group]) -> None:
        path = self.file("episodes", step)
        if path.exists():
            raise RunDirectoryError(f"{path} exists; record all groups of a step at once")
        records.write_groups(path, groups)

    def log(self, text: str) -> None:
        """Appends ``text`` to log.txt, with the time; further lines are indented."""
        self.need_lock("write the log")
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        with open(self.path / "log.txt", "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{now} {text}".replace("\n", "\n  ") + "\n")

    def rewind(self, step: int) -> None:
        """Goes back to the end of ``step`` (``kolb.runs.rewind``): what lies beyond is set aside."""
        rewind(self, step)
        self._last = self._newest_step()

    def need_lock(self, what: str) -> None:
        if self._lock is None:
            raise RunDirectoryError(
                f"{self.path} is open for reading, so it cannot {what}; open it with write=True"
            )

    # -------------------------------------------------------------------------------- reading

    def metrics(self) -> list[dict[str, Any]]:
        """Every metrics line, oldest first: ``step``, ``stage`` and the numbers (None: not finite)."""
        return read_metrics(self.metrics_path)

    def steps(self) -> list[int]:
        """The steps that have a metrics line."""
        return sorted({values["step"] for values in self.metrics()})

    def _newest_step(self) -> int:
        lines = complete_lines(self.metrics_path)
        where = f"{self.metrics_path} line {len(lines)}"
        return parse_metrics(lines[-1], where)["step"] if lines else -1

    def episode_steps(self) -> list[int]:
        """The steps whose episodes are on disk."""
        return self.numbered("episodes")

    def episodes(self, step: int) -> list[Group]:
        return records.read_groups(self._episodes_file(step))

    def stream(self, step: int) -> Iterator[Group]:
        """``episodes`` one group at a time, for runs whose steps are large."""
        return records.stream_groups(self._episodes_file(step))

    def group(self, step: int, index: int) -> Group:
        return records.read_group(self._episodes_file(step), index)

    def episode_index(self, step: int) -> list[dict[str, Any]]:
        """The step's groups without their contents (``records.read_index``)."""
        return records.read_index(self._episodes_file(step))

    def _episodes_file(self, step: int) -> Path:
        path = self.file("episodes", step)
        if not path.exists():
            there = self.episode_steps()
            range_ = f"steps {there[0]} to {there[-1]} have some" if there else "no step has any"
            raise RunDirectoryError(f"{self.path} has no episodes of step {step}; {range_}")
        return path

    def library(self, step: int | None = None) -> Any:
        """The library as JSON data after ``step`` (the newest when None); None where there is none."""
        numbers = [n for n in self.numbered("memory") if step is None or n <= step]
        return _read_json(self.file("memory", numbers[-1])) if numbers else None

    def recipe(self) -> dict[str, Any]:
        """The resolved recipe as plain data."""
        return tomllib.loads((self.path / "recipe.toml").read_text(encoding="utf-8"))

    def environment(self) -> dict[str, Any]:
        """env.json: versions, platform, commit and command line of the run's creation."""
        return _read_json(self.path / "env.json")

    def numbered(self, folder: str) -> list[int]:
        """The steps that ``folder`` holds, in order."""
        ending = FOLDERS[folder]
        names = [p.name for p in (self.path / folder).glob(f"[0-9]*{ending}")]
        stems = [name.removesuffix(ending) for name in names]
        return sorted(int(stem) for stem in stems if stem.isdigit())


def _is_half_made(path: Path) -> bool:
    """Whether this is what ``create`` leaves when it is killed: its lock, and nothing that is not its own."""
    if not path.is_dir() or not (path / LOCK).exists():
        return False
    own = {LOCK, "recipe.toml", "log.txt", *FOLDERS}
    return all(
        entry.name.split(".tmp-")[0] in {*own, "env.json"}
        and entry.name != "env.json"
        and not (entry.is_dir() and any(entry.iterdir()))
        for entry in path.iterdir()
    )


def _repair(path: Path) -> None:
    """Clears what a killed writer left half done."""
    cut_torn_line(path / "metrics.jsonl")
    for folder in (path, path / "episodes", path / "memory"):
        for leftover in folder.glob("*.tmp-*"):
            leftover.unlink()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return parse_line(path.read_bytes(), str(path))
    except OSError as error:
        raise RunDirectoryError(f"cannot read {path}: {error}") from error
