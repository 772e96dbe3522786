"""Checkpoints are whole or absent, whatever happens while they are written."""

import contextlib
import os
import random
import select
import signal
import time

import pytest

from kolb.errors import RunDirectoryError
from kolb.runs import checkpoints
from kolb.runs.directory import RunDirectory

FILES, SIZE = 4, 20_000


class FakeLearner:
    """Its weights are its step, many times over, in several files."""

    def __init__(self, step=0):
        self.step = step

    def save(self, path):
        for i in range(FILES):
            (path / f"shard{i}.bin").write_bytes(self.step.to_bytes(4, "big") * SIZE)
        (path / "nested").mkdir()
        (path / "nested" / "optimizer.bin").write_bytes(b"m" * self.step)

    def load(self, path):
        parts = {(path / f"shard{i}.bin").read_bytes() for i in range(FILES)}
        assert len(parts) == 1
        content = parts.pop()
        self.step = int.from_bytes(content[:4], "big")
        assert content == self.step.to_bytes(4, "big") * SIZE


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "run", {"name": "x"}) as run:
        yield run


def save(run, step):
    return checkpoints.save(
        run,
        step,
        learners={"a": FakeLearner(step), "b": FakeLearner(2 * step)},
        state={"cursor": [step, 0.1]},
    )


def test_a_checkpoint_gives_back_learners_and_state(run):
    assert checkpoints.latest(run) is None
    save(run, 3)
    found = checkpoints.latest(run)
    a, b = FakeLearner(), FakeLearner()
    found.restore({"a": a, "b": b})
    assert (found.step, found.state, a.step, b.step) == (3, {"cursor": [3, 0.1]}, 3, 6)
    with pytest.raises(RunDirectoryError, match=r"holds no policy 'c'; it holds \['a', 'b'\]"):
        found.restore({"c": a})


def test_floats_in_the_state_come_back_bit_for_bit(run):
    values = [0.1, 1e-320, 2**0.5, float("inf"), -0.0]
    checkpoints.save(run, 1, learners={}, state={"x": values})
    back = checkpoints.latest(run).state["x"]
    assert [v.hex() for v in back] == [v.hex() for v in values]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"buffer": [1, {"x": {1, 2}}]}, r"state\.buffer\[1\]\.x is a set"),
        ({"counts": {3: 1}}, r"state\.counts has the key 3"),
    ],
)
def test_a_state_that_json_would_change_is_refused_with_its_place(run, state, message):
    with pytest.raises(RunDirectoryError, match=message):
        checkpoints.save(run, 1, learners={}, state=state)
    assert os.listdir(run.path / "checkpoints") == []


@pytest.mark.parametrize("name", ["../up", "", "a/b", ".."])
def test_a_policy_name_that_is_no_folder_name_is_refused(run, name):
    with pytest.raises(RunDirectoryError, match="cannot be saved"):
        checkpoints.save(run, 1, learners={name: FakeLearner()}, state={})


def change(path):
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda p: change(p / "learners/a/shard1.bin"),
            "the content of learners/a/shard1.bin has changed",
        ),
        (lambda p: (p / "learners/b/shard0.bin").unlink(), "learners/b/shard0.bin is missing"),
        (lambda p: (p / "state.json").write_text("{}"), "state.json has 2 bytes instead of"),
        (lambda p: (p / "manifest.json").unlink(), "no manifest.json"),
        (lambda p: (p / "manifest.json").write_text("{"), "is not JSON"),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_words_and_the_one_before_is_used(run, damage, words):
    save(run, 1)
    damage(save(run, 2))
    notes = []
    assert checkpoints.latest(run, notes.append).step == 1
    assert len(notes) == 1
    assert words in notes[0]
    assert "checkpoint of step 2 refused" in notes[0]
    checkpoints.latest(run)
    assert words in (run.path / "log.txt").read_text()


def test_when_every_checkpoint_is_damaged_the_run_does_not_silently_start_over(run):
    change(save(run, 1) / "learners/a/shard0.bin")
    with pytest.raises(RunDirectoryError, match="no checkpoint is whole"):
        checkpoints.latest(run)


def test_pruning_keeps_the_newest(run):
    for step in (1, 2, 3, 10):
        save(run, step)
    checkpoints.prune(run, 0)
    assert run.numbered("checkpoints") == [1, 2, 3, 10]
    checkpoints.prune(run, 2)
    assert sorted(os.listdir(run.path / "checkpoints")) == ["000003", "000010"]


def test_leftovers_are_swept_by_a_writer_and_ignored_by_a_reader(run):
    save(run, 1)
    (run.path / "checkpoints" / "000002.tmp-77").mkdir()
    (run.path / "checkpoints" / "000002.tmp-77" / "half").write_text("x")
    assert checkpoints.latest(RunDirectory.open(run.path)).step == 1
    assert checkpoints.latest(run).step == 1
    assert os.listdir(run.path / "checkpoints") == ["000001"]


def test_saving_a_step_again_never_leaves_it_without_a_checkpoint(run, monkeypatch):
    """The only checkpoint is replaced; dying between the two renames must not lose it."""
    save(run, 1)
    real, names = os.rename, []

    def die_second(source, target):
        names.append(str(target))
        if len(names) == 2:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die_second)
        with pytest.raises(KeyboardInterrupt):
            save(run, 1)
    assert names[0].endswith("000001.old")
    assert checkpoints.latest(run).step == 1
    save(run, 1)
    assert os.listdir(run.path / "checkpoints") == ["000001"]


def save_for_ever(path, confirmed):
    """In the child: save, confirm, prune to one, until killed. Takes up where the last child was."""
    run = RunDirectory.open(path, write=True)
    found = checkpoints.latest(run)
    step = found.step if found else 0
    while True:
        step += 1
        save(run, step)
        os.write(confirmed, step.to_bytes(4, "big"))
        checkpoints.prune(run, 1)
        save(run, step)


def test_killed_at_random_points_the_last_confirmed_checkpoint_or_a_later_one_is_whole(run):
    run.close()
    chance = random.Random(0)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    confirmed = 0
    for kill in range(14):
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(run.path, writer)
            finally:
                os._exit(1)
        if kill % 2:
            assert select.select([reader], [], [], 60)[0], "the child confirmed nothing in a minute"
        time.sleep(0.12 * chance.random())
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        with contextlib.suppress(BlockingIOError):
            confirmed = int.from_bytes(os.read(reader, 1 << 20)[-4:], "big")
        with RunDirectory.open(run.path, write=True) as again:
            found = checkpoints.latest(again)
            if found is None:
                assert confirmed == 0
                continue
            a, b = FakeLearner(), FakeLearner()
            found.restore({"a": a, "b": b})
            assert found.step >= confirmed
            assert (a.step, b.step, found.state["cursor"]) == (
                found.step,
                2 * found.step,
                [found.step, 0.1],
            )
            assert [n for n in os.listdir(run.path / "checkpoints") if not n.isdigit()] == []
    assert confirmed > 0
    os.close(reader)
    os.close(writer)
