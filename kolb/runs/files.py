"""Writing that a power cut or ``kill -9`` cannot leave half done, and plain JSON for any value.

A file is written beside its place, forced to disk, and renamed over it: a reader sees the old content or
the new one, never a mixture. Lines are only ever appended; one without its newline was cut and is ignored.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence, Set
from datetime import date, time
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

import numpy as np

from kolb.errors import RunDirectoryError

MAX_DEPTH = 64
WRITTEN_AS_TEXT = (PurePath, Decimal, Fraction, date, time, UUID, complex)


def sync_directory(path: Path) -> None:
    """Forces the names in ``path`` to disk: a rename is only durable once its directory is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, content: bytes) -> None:
    """Replaces ``path`` by ``content``, all of it or nothing."""
    beside = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Appends one line (without its newline) and forces it to disk."""
    with open(path, "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def complete_lines(path: Path) -> list[bytes]:
    """The lines of a file that ended with a newline; none when there is no file."""
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]


def cut_torn_line(path: Path) -> None:
    """Removes what follows the last newline: the line that a crash cut short."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_atomic(path, whole)


def json_text(value: Any, indent: int | None = None) -> bytes:
    """``value`` (plain JSON) as readable UTF-8; lone surrogates force ASCII escapes."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent
        ).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=separators, indent=indent).encode()


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """One JSON object; RunDirectoryError with ``where`` when it is something else."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise RunDirectoryError(f"{where} is not JSON ({error}); the file is damaged") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{where} holds {type(value).__name__}, not a JSON object")
    return value


def check_schema(value: Mapping[str, Any], schema: int, where: str) -> None:
    """RunDirectoryError when ``value`` was written by another version of the format."""
    found = value.get("schema")
    if found != schema:
        raise RunDirectoryError(
            f"{where} has schema {found!r}, this kolb reads schema {schema}; "
            "read it with the kolb version in the run's env.json"
        )


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` as plain JSON, by rules that call no code of the value's own class.

    Kept: None, booleans, numbers, strings, lists, mappings (keys become strings). Tuples, arrays and sets
    become lists (sets in the order of their JSON), dataclasses mappings, enums their value; paths, dates,
    decimals and the like become text. A float that is not finite becomes ``"NaN"``, ``"Infinity"`` or
    ``"-Infinity"``. Anything else, and anything nested more than 64 deep, becomes ``"<module.Class>"``.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, np.generic):
        return plain(value.item(), depth) if value.dtype.kind in "biufU" else _name(value)
    if isinstance(value, float):
        return _number(float(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, WRITTEN_AS_TEXT):
        return str(value)
    return _plain_container(value, depth + 1) if depth < MAX_DEPTH else _name(value)


def _plain_container(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {_key(k): plain(v, depth) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, depth) for v in value]
    if isinstance(value, Set):
        return sorted((plain(v, depth) for v in value), key=json.dumps)
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return {name: plain(getattr(value, name, None), depth) for name in names}
    return _name(value)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key(key: Any) -> str:
    simple = plain(key)
    return simple if isinstance(simple, str) else json.dumps(simple)


def _name(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def number_from(value: Any) -> Any:
    """Undoes the spelling of floats that are not finite."""
    return float(value) if isinstance(value, str) else value


def float32_numbers(values: np.ndarray) -> list[float | str]:
    """float32 [N] as the shortest decimals that read back as the same bits.

    Reading goes through a double, so the rare decimal that would round twice is written out in full.

    >>> float32_numbers(np.array([0.1, -0.25], np.float32))
    [0.1, -0.25]
    """
    exact = np.asarray(values, np.float32)
    short = [float(str(x)) for x in exact]
    same = np.asarray(short, np.float64).astype(np.float32) == exact
    return [_number(s if ok else float(x)) for s, ok, x in zip(short, same, exact, strict=True)]


def float32_from(values: Sequence[float | str]) -> np.ndarray:
    """The float32 [N] that ``float32_numbers`` wrote."""
    return np.asarray([float(v) for v in values], np.float64).astype(np.float32)
