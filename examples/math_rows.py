"""Rows for ``reward = "math_answer"`` from the files in which mathematics is published.

    pip install pyarrow
    python examples/math_rows.py dapo-math-17k.parquet data/dapo-math-17k.jsonl
    python examples/math_rows.py dapo-math-17k.parquet data/dapo100.jsonl 100

Read are parquet and JSONL, with verl's columns (``prompt`` as messages and ``reward_model.ground_truth``, as in
BytedTsinghua-SIA/DAPO-Math-17k) or with a ``problem`` or ``question`` and its ``answer``, of which what stands behind
GSM8K's ``####`` is taken. Written is JSONL with ``prompt`` and ``answer``. A problem that was there before is left out:
DAPO-Math-17k holds each of its own about a hundred times. A third word is how many to draw at random, always the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

FORM = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
"""How DAPO-Math-17k asks. Bare problems are asked in the same way."""


def convert(row: Mapping[str, Any]) -> dict[str, str]:
    """One row of any of the forms as ``prompt`` and ``answer``; KeyError where it has none of them."""
    if "reward_model" in row:
        return {
            "prompt": row["prompt"][-1]["content"],
            "answer": row["reward_model"]["ground_truth"],
        }
    problem = row["problem"] if "problem" in row else row["question"]
    answer = str(row["answer"]).rpartition("####")[2].strip()
    return {"prompt": FORM.format(problem), "answer": answer}


def distinct(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The first row of every prompt, in order."""
    found: dict[str, dict[str, str]] = {}
    for row in map(convert, rows):
        found.setdefault(row["prompt"].strip(), row)
    return list(found.values())


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix != ".parquet":
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return
    import pyarrow.parquet as parquet

    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def drawn(rows: list[dict[str, str]], count: int) -> list[dict[str, str]]:
    """``count`` of ``rows``, the same at every call; all of them for 0, or where there are no more."""
    return Random(42).sample(rows, count) if 0 < count < len(rows) else rows


def main(source: str, target: str, count: str = "0") -> None:
    rows = drawn(distinct(read(Path(source))), int(count))
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(target).write_text(lines, encoding="utf-8")
    print(f"{len(rows)} problems in {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
