"""Groups of Episodes on disk, and back, field by field.

``episodes/000012.jsonl.gz`` has a header line and then one line per Group. The header holds the schema
number and one small entry per group (task, kind, statuses, outcomes, sampled tokens), so that a viewer can
list a step after reading a single line. Identical groups give identical bytes.

Token ids are lists of integers; float32 numbers are the shortest decimals that read back as the same bits
(a NaN comes back as the standard one). Free-form values (``Task.answer``, ``data``, ``tags``, ``info``,
messages) are written by the rules of ``kolb.runs.files.plain``: JSON values come back as they were,
tuples come back as lists, and objects that JSON has no form for come back as text.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kolb.errors import RunDirectoryError
from kolb.runs.files import (
    check_schema,
    float32_from,
    float32_numbers,
    json_text,
    number_from,
    parse_line,
    plain,
    write_atomic,
)
from kolb.types import (
    Completion,
    Episode,
    Failure,
    Group,
    Message,
    Status,
    Task,
    Trajectory,
    Turn,
)

SCHEMA = 1
COMPRESSION = 6

Json = dict[str, Any]

# ---------------------------------------------------------------------------------------- to JSON


def group_to_json(group: Group) -> Json:
    return {
        "kind": group.kind,
        "task": _task(group.task),
        "episodes": [episode_to_json(e) for e in group.episodes],
    }


def episode_to_json(episode: Episode) -> Json:
    failure = episode.failure
    return {
        "task_id": episode.task_id,
        "index": plain(episode.index),
        "status": episode.status.value,
        "outcome": plain(episode.outcome),
        "failure": None if failure is None else plain(failure),
        "info": plain(episode.info),
        "trajectories": [_trajectory(t) for t in episode.trajectories],
    }


def _task(task: Task) -> Json:
    return {
        "id": task.id,
        "prompt": plain(task.prompt),
        "answer": plain(task.answer),
        "seed": plain(task.seed),
        "tags": plain(task.tags),
        "data": plain(task.data),
    }


def _trajectory(trajectory: Trajectory) -> Json:
    return {
        "role": trajectory.role,
        "name": trajectory.name,
        "policy": trajectory.policy,
        "learns": bool(trajectory.learns),
        "scores": plain(trajectory.scores),
        "weights": plain(trajectory.weights),
        "turns": [_turn(t) for t in trajectory.turns],
    }


def _turn(turn: Turn) -> Json:
    said = turn.completion
    return {
        "messages": plain(turn.messages),
        "feedback": turn.feedback,
        "starts_segment": bool(turn.starts_segment),
        "context_ids": np.asarray(turn.context_ids).tolist(),
        "completion": {
            "text": said.text,
            "stop_reason": said.stop_reason,
            "version": plain(said.version),
            "token_ids": np.asarray(said.token_ids).tolist(),
            "logprobs": float32_numbers(said.logprobs),
            **({"token_count": int(said.token_count)} if said.token_count else {}),
            **({"reasoning": said.reasoning} if said.reasoning else {}),
        },
    }


# -------------------------------------------------------------------------------------- from JSON


def group_from_json(data: Mapping[str, Any]) -> Group:
    task = data["task"]
    return Group(
        task=Task(**{**task, "prompt": tuple(task["prompt"])}),
        episodes=tuple(episode_from_json(e) for e in data["episodes"]),
        kind=data["kind"],
    )


def episode_from_json(data: Mapping[str, Any]) -> Episode:
    return Episode(
        task_id=data["task_id"],
        index=data["index"],
        trajectories=tuple(_trajectory_from(t) for t in data["trajectories"]),
        outcome=number_from(data["outcome"]),
        status=Status(data["status"]),
        failure=Failure(**data["failure"]) if data["failure"] else None,
        info=data["info"],
    )


def _trajectory_from(data: Mapping[str, Any]) -> Trajectory:
    numbers = {
        what: {name: number_from(value) for name, value in data[what].items()}
        for what in ("scores", "weights")
    }
    return Trajectory(
        role=data["role"],
        policy=data["policy"],
        turns=tuple(_turn_from(t) for t in data["turns"]),
        scores=numbers["scores"],
        weights=numbers["weights"],
        learns=data["learns"],
        name=data["name"],
    )


def _turn_from(data: Mapping[str, Any]) -> Turn:
    said = data["completion"]
    messages: tuple[Message, ...] = tuple(data["messages"])
    return Turn(
        messages=messages,
        completion=Completion(
            text=said["text"],
            token_ids=np.asarray(said["token_ids"], np.int32),
            logprobs=float32_from(said["logprobs"]),
            stop_reason=said["stop_reason"],
            version=said["version"],
            token_count=said.get("token_count", 0),
            reasoning=said.get("reasoning", ""),
        ),
        context_ids=np.asarray(data["context_ids"], np.int32),
        starts_segment=data["starts_segment"],
        feedback=data["feedback"],
    )


# ------------------------------------------------------------------------------------------ files


def write_groups(path: Path, groups: Sequence[Group]) -> None:
    """Writes one step's groups to ``path`` (a ``.jsonl.gz``), all of them or nothing."""
    header = {"schema": SCHEMA, "kind": "episodes", "groups": [_entry(g) for g in groups]}
    lines = [json_text(header), *(json_text(group_to_json(g)) for g in groups)]
    write_atomic(path, gzip.compress(b"\n".join(lines) + b"\n", COMPRESSION, mtime=0))


def _entry(group: Group) -> Json:
    trajectories = [t for e in group.episodes for t in e.trajectories]
    return {
        "task": group.task.id,
        "kind": group.kind,
        "statuses": [e.status.value for e in group.episodes],
        "outcomes": [plain(e.outcome) for e in group.episodes],
        "roles": list(dict.fromkeys(t.role for t in trajectories)),
        "tokens": sum(t.sampled_tokens for t in trajectories),
    }


def read_index(path: Path) -> list[Json]:
    """The header's entry of every group: task, kind, statuses, outcomes, roles, sampled tokens."""
    header = parse_line(next(_lines(path), b""), f"{path} line 1")
    check_schema(header, SCHEMA, str(path))
    entries: list[Json] = header["groups"]
    return [{**e, "outcomes": [number_from(o) for o in e["outcomes"]]} for e in entries]


def read_groups(path: Path) -> list[Group]:
    """Every group of the file; RunDirectoryError when it is missing, damaged or of another schema."""
    return list(stream_groups(path))


def stream_groups(path: Path) -> Iterator[Group]:
    """``read_groups`` one group at a time: no more than one is in memory. Damage shows when it is met."""
    expected, read = len(read_index(path)), 0
    for read, line in enumerate(itertools.islice(_lines(path), 1, None), 1):
        yield _parse_group(line, f"{path} line {read + 1}")
    if read != expected:
        raise RunDirectoryError(f"{path} promises {expected} groups and holds {read}")


def read_group(path: Path, index: int) -> Group:
    """One group of the file; only the lines up to it are read."""
    if not 0 <= index < len(read_index(path)):
        raise RunDirectoryError(f"{path} has {len(read_index(path))} groups, so no group {index}")
    line = next(itertools.islice(_lines(path), index + 1, None), b"")
    return _parse_group(line, f"{path} line {index + 2}")


def _parse_group(line: bytes, where: str) -> Group:
    data = parse_line(line, where)
    try:
        return group_from_json(data)
    except (KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"{where} is not a Group: {error!r}") from error


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                yield line.rstrip(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise RunDirectoryError(f"cannot read episodes from {path}: {error}") from error
