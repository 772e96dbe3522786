"""Groups survive the disk, bit by bit and field by field."""

import gzip
import json
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fabricated_runs import attempt, broken, group, said
from hypothesis import given
from hypothesis import strategies as st

from kolb.errors import RunDirectoryError
from kolb.runs.files import float32_from, float32_numbers, plain
from kolb.runs.records import (
    group_to_json,
    read_group,
    read_groups,
    read_index,
    stream_groups,
    write_groups,
)
from kolb.types import Completion, Episode, Failure, Group, Status, Task, Trajectory, Turn


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def assert_same(a: Group, b: Group) -> None:
    """Every field equal, arrays bit for bit; dataclass equality cannot compare arrays."""
    assert (a.task, a.kind, len(a.episodes)) == (b.task, b.kind, len(b.episodes))
    for x, y in zip(a.episodes, b.episodes, strict=True):
        for name in ("task_id", "index", "outcome", "status", "failure", "info"):
            assert getattr(x, name) == getattr(y, name), name
        for t, u in zip(x.trajectories, y.trajectories, strict=True):
            for name in ("role", "policy", "scores", "weights", "learns", "name"):
                assert getattr(t, name) == getattr(u, name), name
            for v, w in zip(t.turns, u.turns, strict=True):
                for name in ("messages", "starts_segment", "feedback"):
                    assert getattr(v, name) == getattr(w, name), name
                c, d = v.completion, w.completion
                assert (c.text, c.stop_reason, c.version) == (d.text, d.stop_reason, d.version)
                assert same_bits(v.context_ids, w.context_ids)
                assert same_bits(c.token_ids, d.token_ids)
                assert same_bits(c.logprobs, d.logprobs)


numbers = st.floats(allow_nan=False, width=64)
text = st.text(max_size=12)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(text, json_values, max_size=3)
float32s = st.lists(st.floats(width=32, allow_nan=False), max_size=5)
ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)
completions = st.builds(
    lambda words, tokens, logprobs, stop, version: Completion(
        words, np.array(tokens, np.int32), np.array(logprobs, np.float32), stop, version
    ),
    st.text(st.characters(), max_size=12),  # lone surrogates included
    ids,
    float32s,
    st.sampled_from(["stop", "length", "given"]),
    st.integers(0, 99),
)
turns = st.builds(
    lambda messages, said, context, starts, feedback: Turn(
        tuple(messages), said, np.array(context, np.int32), starts, feedback
    ),
    st.lists(objects, max_size=2),
    completions,
    ids,
    st.booleans(),
    text,
)
scores = st.dictionaries(text, numbers, max_size=2)
trajectories = st.builds(
    lambda role, policy, t, s, w, learns, name: Trajectory(
        role, policy, tuple(t), s, w, learns, name
    ),
    text,
    text,
    st.lists(turns, max_size=2),
    scores,
    scores,
    st.booleans(),
    text,
)
episodes = st.builds(
    lambda i, t, outcome, status, failure, info: Episode(
        "task", i, tuple(t), outcome, status, failure, info
    ),
    st.integers(0, 9),
    st.lists(trajectories, max_size=2),
    st.none() | numbers,
    st.sampled_from(Status),
    st.none() | st.builds(Failure, text, text, text),
    objects,
)
tasks = st.builds(
    lambda prompt, answer, seed, tags, data: Task("task", tuple(prompt), answer, seed, tags, data),
    st.lists(objects, max_size=2),
    json_values,
    st.integers(0, 2**63 - 1),
    objects,
    objects,
)
groups = st.builds(
    lambda t, e, kind: Group(t, tuple(e), kind), tasks, st.lists(episodes, max_size=2), text
)


@given(st.lists(groups, max_size=2))
def test_every_field_of_every_group_survives_the_file(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("r") / "000001.jsonl.gz"
    write_groups(path, written)
    for before, after in zip(written, read_groups(path), strict=True):
        assert_same(before, after)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_any_float32_bit_pattern_comes_back_but_nan_payloads(patterns):
    bits = np.array(patterns, np.uint32).view(np.float32)
    back = float32_from(json.loads(json.dumps(float32_numbers(bits), allow_nan=False)))
    assert np.array_equal(np.isnan(bits), np.isnan(back))
    assert same_bits(bits[~np.isnan(bits)], back[~np.isnan(back)])


def test_logprobs_are_written_for_people_to_read():
    values = np.array([-0.1, -2.5, 0.0, -np.inf, np.nan], np.float32)
    assert float32_numbers(values) == [-0.1, -2.5, 0.0, "-Infinity", "NaN"]


def test_identical_groups_give_identical_bytes(tmp_path):
    for name in ("a", "b"):
        write_groups(tmp_path / name, [group(attempt(0), attempt(1, reward=0.0))])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_header_lists_groups_without_their_contents(tmp_path):
    path = tmp_path / "000001.jsonl.gz"
    write_groups(path, [group(attempt(0), broken(1)), group(attempt(0), kind="prediction")])
    assert read_index(path) == [
        {
            "task": "lake-7",
            "kind": "attempt",
            "statuses": ["ok", "env_error"],
            "outcomes": [1.0, None],
            "roles": ["solver", "judge"],
            "tokens": 2,
        },
        {
            "task": "lake-7",
            "kind": "prediction",
            "statuses": ["ok"],
            "outcomes": [1.0],
            "roles": ["solver", "judge"],
            "tokens": 2,
        },
    ]
    assert read_group(path, 1).kind == "prediction"
    with pytest.raises(RunDirectoryError, match="has 2 groups, so no group 2"):
        read_group(path, 2)


class Colour(Enum):
    RED = "red"


@dataclass
class Board:
    rows: tuple[str, ...]


class Stubborn:
    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __repr__


def test_values_without_a_json_form_become_text_and_call_no_code_of_theirs():
    answer = {
        1: (1, 2),
        "set": {3, 1, 2},
        "colour": Colour.RED,
        "board": Board(("ab", "cd")),
        "array": np.array([[1, 2]]),
        "number": np.float32(0.5),
        "nan": float("nan"),
        "path": Path("a/b"),
        "third": Fraction(1, 3),
        "stubborn": Stubborn(),
        "bytes": b"x",
    }
    assert plain(answer) == {
        "1": [1, 2],
        "set": [1, 2, 3],
        "colour": "red",
        "board": {"rows": ["ab", "cd"]},
        "array": [[1, 2]],
        "number": 0.5,
        "nan": "NaN",
        "path": "a/b",
        "third": "1/3",
        "stubborn": "<test_records.Stubborn>",
        "bytes": "<builtins.bytes>",
    }


def test_a_value_that_contains_itself_is_cut_and_not_followed_for_ever():
    loop: list = []
    loop.append(loop)
    assert json.dumps(plain(loop)).count("<builtins.list>") == 1


def test_numpy_numbers_and_lists_in_place_of_arrays_do_not_stop_a_run(tmp_path):
    turn = Turn((), Completion("x", [1, 2], [-0.5, -1.0], version=np.int64(3)), [7])
    trajectory = Trajectory(
        "solver", turns=(turn,), scores={"reward": np.float32(0.5)}, learns=np.True_
    )
    odd = Group(
        Task("t", seed=np.int64(5)), (Episode("t", np.int32(0), (trajectory,), np.float64(0.5)),)
    )
    write_groups(tmp_path / "x", [odd])
    (back,) = read_groups(tmp_path / "x")
    read = back.episodes[0].trajectories[0]
    assert (back.task.seed, back.episodes[0].outcome, read.scores) == (5, 0.5, {"reward": 0.5})
    assert read.turns[0].completion.token_ids.tolist() == [1, 2]


def test_damage_and_other_schemas_are_named(tmp_path):
    path = tmp_path / "000001.jsonl.gz"
    write_groups(path, [group(attempt(0))])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunDirectoryError, match="cannot read episodes"):
        read_groups(path)
    path.write_bytes(gzip.compress(b'{"schema":99,"groups":[]}\n'))
    with pytest.raises(RunDirectoryError, match="schema 99, this kolb reads schema 1"):
        read_groups(path)
    path.write_bytes(gzip.compress(b'{"schema":1,"groups":[{"outcomes":[]}]}\n{"kind":"x"}\n'))
    with pytest.raises(RunDirectoryError, match="line 2 is not a Group"):
        read_groups(path)


def test_a_stream_gives_the_groups_before_the_damage_and_misses_none_silently(tmp_path):
    path = tmp_path / "000001.jsonl.gz"
    write_groups(path, [group(attempt(0)), group(attempt(1), kind="prediction")])
    header, first, second = gzip.decompress(path.read_bytes()).splitlines()
    path.write_bytes(gzip.compress(b"\n".join([header, first, second[:-9], b""])))
    stream = stream_groups(path)
    assert_same(next(stream), group(attempt(0)))
    with pytest.raises(RunDirectoryError, match="line 3 is not JSON"):
        next(stream)
    path.write_bytes(gzip.compress(b"\n".join([header, first, b""])))
    with pytest.raises(RunDirectoryError, match="promises 2 groups and holds 1"):
        list(stream_groups(path))


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "000001.jsonl.gz"
    write_groups(path, [group(attempt(0))])
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_groups(path, [group(attempt(0), attempt(1))])
    assert path.read_bytes() == before


def test_a_group_is_one_json_line_that_other_tools_can_read(tmp_path):
    path = tmp_path / "000001.jsonl.gz"
    write_groups(path, [group(attempt(0, text="naïve 你好\n"))])
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert len(lines) == 2
    assert "你好" in lines[1]
    turn = json.loads(lines[1])["episodes"][0]["trajectories"][0]["turns"][0]
    assert turn["completion"]["logprobs"] == [-0.1, -2.5]
    assert group_to_json(group(attempt(0)))["task"]["answer"] == "goal"
    assert said("x").version == 3
