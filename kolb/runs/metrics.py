"""metrics.jsonl: one flat line per step, each with its schema number.

    {"schema": 1, "step": 3, "stage": "rl", "reward/mean": 0.5, "groups/dead": 2}

A metric that is NaN or infinite is written as null, and ``errors/nonfinite_metrics`` on the same line counts
them. A last line that a crash cut short is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kolb.errors import RunDirectoryError
from kolb.runs.files import check_schema, complete_lines, json_text, parse_line

SCHEMA = 1
RESERVED = ("schema", "step", "stage")
NONFINITE = "errors/nonfinite_metrics"


def metrics_line(step: int, stage: str, metrics: Mapping[str, float]) -> bytes:
    """The line of a step, without its newline. RunDirectoryError for what is not a number."""
    for name in RESERVED:
        if name in metrics:
            raise RunDirectoryError(
                f"a metric cannot be called {name!r}: the line has that already"
            )
    values = {name: _number(name, value) for name, value in metrics.items()}
    nonfinite = sum(value is None for value in values.values())
    if nonfinite:
        values[NONFINITE] = nonfinite
    return json_text({"schema": SCHEMA, "step": int(step), "stage": stage, **values})


def _number(name: str, value: Any) -> float | int | None:
    """Python and numpy numbers as they are; booleans count 0 or 1."""
    if isinstance(value, int):
        return int(value)
    try:
        # float("0.5") would work, but a string among numbers is somebody's mistake.
        number = float(value) if not isinstance(value, str | bytes) else None
    except (TypeError, ValueError):
        number = None
    if number is None:
        what = f"{value!r} ({type(value).__name__})"
        raise RunDirectoryError(f"metric {name!r} is {what}; a metric is a number")
    return number if math.isfinite(number) else None


def parse_metrics(line: bytes, where: str) -> dict[str, Any]:
    """One line as ``step``, ``stage`` and numbers (None: was not finite)."""
    values = parse_line(line, where)
    check_schema(values, SCHEMA, where)
    if not isinstance(values.get("step"), int):
        raise RunDirectoryError(f"{where} has no step; the file is damaged")
    return {name: value for name, value in values.items() if name != "schema"}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every line, oldest first; none when there is no file."""
    lines = complete_lines(path)
    return [parse_metrics(line, f"{path} line {i}") for i, line in enumerate(lines, 1)]
