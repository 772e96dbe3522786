"""The failure that a report shows with what came of it, and episodes shown by their last turns."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from fabricated_runs import attempt, group, said
from rich.console import Console

from kolb.report import experience
from kolb.runs.directory import RunDirectory
from kolb.types import Episode, Trajectory, Turn
from kolb.view.render import episode_view


def tried_twice(index: int, first: float, second: float) -> Episode:
    """A first attempt, a second one, and the second told again (nothing in it was sampled)."""
    episode = attempt(index, reward=first)
    (one, _) = episode.trajectories
    again = replace(one, name="second", scores={"reward": second})
    (turn,) = again.turns
    told = replace(
        again, name="distill", turns=(replace(turn, completion=said("x", stop="given")),)
    )
    return replace(episode, trajectories=(one, again, told))


def run_of(path: Path, *groups) -> RunDirectory:
    with RunDirectory.create(path, {"name": "x", "stages": []}) as run:
        for step, made in enumerate(groups, start=1):
            run.record(step, [made], {}, stage="s")
    return RunDirectory.open(path)


def test_the_earliest_failure_that_was_made_good_is_shown_without_what_was_told_again(
    tmp_path: Path,
) -> None:
    lost, won = tried_twice(0, 0.0, 0.0), tried_twice(1, 0.0, 1.0)
    run = run_of(tmp_path / "r", group(lost, tried_twice(1, 1.0, 1.0)), group(lost, won))
    ((title, episode),) = experience(run)
    assert title == "a failure and what came of it: step 2, group 0, episode 1"
    assert [t.name for t in episode.trajectories] == ["first", "second"]


def test_a_method_of_single_attempts_has_no_such_episode(tmp_path: Path) -> None:
    single = replace(attempt(0, reward=0.0), trajectories=attempt(0, reward=0.0).trajectories[:1])
    assert list(experience(run_of(tmp_path / "r", group(single)))) == []


def test_earlier_turns_are_counted_where_only_the_last_ones_are_shown() -> None:
    turns = tuple(Turn((), said(f"word{n}")) for n in range(5))
    episode = Episode("t", 0, (Trajectory("solver", "agent", turns, {"reward": 1.0}),), 1.0)
    out = io.StringIO()
    Console(file=out, width=80).print(episode_view(episode, last_turns=2))
    assert "… earlier turns: 3" in out.getvalue()
    assert [n for n in range(5) if f"word{n}" in out.getvalue()] == [3, 4]
