"""Dynamic sampling: tasks whose attempts all came out alike are thrown away, and others sampled instead.

Sixteen tasks, four a step, two attempts each. ``Marked`` decides by the number of a task whether its attempts
differ; the batches of the order are looked up in ``TaskOrder``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from loop_toys import Guess, StoppedError, StopsAfter, engine, guess, recipe

from kolb.collected import Collected
from kolb.errors import RecipeError, TooManyFailuresError
from kolb.loop import run
from kolb.methods import erl, imitation
from kolb.methods.grpo import Grpo
from kolb.order import TaskOrder
from kolb.runs import checkpoints
from kolb.runs.directory import RunDirectory
from kolb.stage import CheckpointSpec, Limits, Recipe
from kolb.types import Completion, Episode, Failure, Group, Status, Task, Trajectory, Turn, World

EVERY = tuple(range(16))
NEW = ("groups/refilled", "groups/thrown_away", "reward/sampled")


@dataclass(frozen=True)
class Marked(Grpo):
    """Of the tasks whose number is in ``alive`` the first attempt earns 1; all else earns 0."""

    group_size: int = 2
    alive: tuple[int, ...] = EVERY
    name: ClassVar[str] = "marked"

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        async def attempt(task: Task, index: int) -> Episode:
            played = await world.play(task, index=index)
            earned = float(index == 0 and task.data["number"] in self.alive)
            (said,) = played.trajectories
            said = replace(said, scores={"reward": earned})
            return replace(played, outcome=earned, trajectories=(said,))

        return await world.groups(tasks, self.group_size, attempt)


def refilled(alive: tuple[int, ...] = EVERY, *, refill: int = 3, **rest: Any) -> Recipe:
    return recipe(Marked(alive=alive), refill=refill, **rest)


def order(made: Recipe) -> TaskOrder:
    return TaskOrder(made.stages[0], made.seed)


def numbers(tasks: Sequence[Task]) -> list[int]:
    return [task.data["number"] for task in tasks]


BATCHES = [numbers(order(refilled()).of(b)) for b in range(8)]
"""Four make an epoch."""


def lines_of(path: Path) -> list[dict[str, Any]]:
    lines = RunDirectory.open(path).metrics()
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def recorded(path: Path, step: int) -> list[int]:
    """The numbers of the tasks whose groups were recorded, in their order."""
    return numbers([group.task for group in RunDirectory.open(path).episodes(step)])


def bytes_of(path: Path) -> dict[str, bytes]:
    files = [f for folder in ("checkpoints", "episodes") for f in (path / folder).rglob("*")]
    return {str(f.relative_to(path)): f.read_bytes() for f in files if f.is_file()}


def counts(line: dict[str, Any]) -> list[float]:
    """Rounds, thrown away, kept, of these dead."""
    names = ("groups/refilled", "groups/thrown_away", "groups/total", "groups/dead")
    return [line[name] for name in names]


# ------------------------------------------------------------------------------------ exact numbers


def test_a_step_samples_batches_until_enough_tasks_can_be_told_apart(tmp_path: Path) -> None:
    first, second, third, _ = BATCHES[:4]
    alive = (first[1], second[0], second[2], second[3], *third)
    run(refilled(alive, steps=2), tmp_path / "run", engine=engine())
    lines = lines_of(tmp_path / "run")
    assert [counts(line) for line in lines] == [[1, 4, 4, 0], [0, 0, 4, 0]]
    kept = [first[1], second[0], second[2], second[3]]
    thrown_away = [first[0], first[2], first[3], second[1]]
    assert recorded(tmp_path / "run", 1) == [*kept, *thrown_away]
    assert recorded(tmp_path / "run", 2) == third
    assert [line["reward/mean"] for line in lines] == [0.5, 0.5]
    assert [line["reward/sampled"] for line in lines] == [0.25, 0.5]
    assert [line["examples/agent"] for line in lines] == [8, 8]


def test_tokens_cover_what_was_thrown_away(tmp_path: Path) -> None:
    run(refilled(tuple(BATCHES[1]), steps=1), tmp_path / "run", engine=engine())
    [line] = lines_of(tmp_path / "run")
    groups = RunDirectory.open(tmp_path / "run").episodes(1)
    sampled = [sum(e.trajectories[0].sampled_tokens for e in g.episodes) for g in groups]
    assert counts(line) == [1, 4, 4, 0]
    assert line["tokens/agent"] == line["tokens/sampled"] == line["tokens/stage"] == sum(sampled)
    assert sum(sampled[4:]) > 0


def test_a_token_budget_counts_what_was_thrown_away(tmp_path: Path) -> None:
    run(refilled((), steps=3), tmp_path / "free", engine=engine())
    free = lines_of(tmp_path / "free")
    assert [line["tokens/stage"] for line in free] == list(
        accumulate(line["tokens/sampled"] for line in free)
    )
    budget = free[0]["tokens/stage"]
    run(refilled((), steps=3, token_budget=budget), tmp_path / "bounded", engine=engine())
    assert len(lines_of(tmp_path / "bounded")) == 1


def test_surplus_is_cut_in_the_order_of_tasks(tmp_path: Path) -> None:
    first, second = BATCHES[:2]
    run(refilled((first[2], *second), steps=1), tmp_path / "run", engine=engine())
    assert counts(lines_of(tmp_path / "run")[0]) == [1, 4, 4, 0]
    assert recorded(tmp_path / "run", 1)[:4] == [first[2], *second[:3]]
    assert second[3] in recorded(tmp_path / "run", 1)[4:]


def test_where_the_batches_end_first_the_step_learns_from_fewer(tmp_path: Path) -> None:
    alive = (BATCHES[0][3], BATCHES[2][0])
    run(refilled(alive, refill=2, steps=1), tmp_path / "run", engine=engine())
    [line] = lines_of(tmp_path / "run")
    assert counts(line) == [2, 10, 2, 0]
    assert line["examples/agent"] == 4
    assert recorded(tmp_path / "run", 1)[:2] == list(alive)


def test_where_no_task_is_left_the_first_batch_is_kept_and_the_log_says_why(tmp_path: Path) -> None:
    watcher = StopsAfter()
    made = refilled((), refill=2, steps=1)
    run(made, tmp_path / "run", engine=engine(), observer=watcher)
    assert counts(lines_of(tmp_path / "run")[0]) == [2, 8, 4, 4]
    assert recorded(tmp_path / "run", 1) == BATCHES[0] + BATCHES[1] + BATCHES[2]
    assert "in each of 4 groups all rewards are equal (all are 0)" in watcher.notes[0]


def test_where_every_task_is_alive_it_is_the_run_without_refill(tmp_path: Path) -> None:
    for name, refill in (("without", 0), ("with", 3)):
        run(refilled(refill=refill, steps=5), tmp_path / name, engine=engine())
    without, with_refill = lines_of(tmp_path / "without"), lines_of(tmp_path / "with")
    assert [{k: v for k, v in line.items() if k not in NEW} for line in with_refill] == without
    assert [line["groups/refilled"] for line in with_refill] == [0] * 5
    assert bytes_of(tmp_path / "without") == bytes_of(tmp_path / "with")


def test_without_refill_dead_groups_are_kept_and_nothing_is_counted(tmp_path: Path) -> None:
    run(refilled((BATCHES[0][0],), refill=0, steps=2), tmp_path / "run", engine=engine())
    lines = lines_of(tmp_path / "run")
    assert [line["groups/dead"] for line in lines] == [3, 4]
    assert not [name for line in lines for name in NEW if name in line]
    assert [recorded(tmp_path / "run", step) for step in (1, 2)] == BATCHES[:2]


# ---------------------------------------------------------------------------------------- failures


def test_tasks_that_broke_are_replaced_and_their_errors_counted(tmp_path: Path) -> None:
    troubled = min(BATCHES[0]) + 1
    broken = [n for n in BATCHES[0] + BATCHES[1] if n < troubled]
    made = refilled(source=Guess("raises", troubled=troubled), steps=1)
    run(made, tmp_path / "run", engine=engine())
    [line] = lines_of(tmp_path / "run")
    assert line["errors/environment"] == 2 * len(broken)
    assert counts(line) == [1, 4, 4, 0]
    assert line["groups/dropped"] == 0
    assert set(broken) <= set(recorded(tmp_path / "run", 1)[4:])


def test_a_step_that_breaks_too_often_ends_the_run_before_it_samples_further(
    tmp_path: Path,
) -> None:
    source = Guess("raises", troubled=16)
    with pytest.raises(TooManyFailuresError, match="step 1: 100% of the episodes broke"):
        run(refilled(source=source), tmp_path / "run", engine=engine())
    assert sorted(source.built) == sorted(f"train-{n}" for n in BATCHES[0])


def test_the_share_of_failures_is_of_everything_that_was_sampled(tmp_path: Path) -> None:
    first, second = BATCHES[:2]
    broken = sorted([*first[:1], *second])

    @dataclass(frozen=True)
    class Some(Guess):
        def environment(self, task: Task) -> Any:
            whole = replace(self, troubled=16 if task.data["number"] in broken else 0)
            return Guess.environment(whole, task)

    limits = Limits(environment_timeout_s=0.3, max_failure_share=0.5)
    made = refilled((), source=Some("raises"), limits=limits, steps=1)
    with pytest.raises(TooManyFailuresError, match="62% of the episodes broke"):
        run(made, tmp_path / "run", engine=engine())


# --------------------------------------------------------------------- where the next step begins


def test_the_next_step_begins_behind_what_this_one_took(tmp_path: Path) -> None:
    first, second, third, fourth = BATCHES[:4]
    alive = (*first[:2], *second[:2], *third, *fourth)
    run(refilled(alive, steps=3), tmp_path / "run", engine=engine())
    assert [line["groups/refilled"] for line in lines_of(tmp_path / "run")] == [1, 0, 0]
    assert [sorted(recorded(tmp_path / "run", s)) for s in (1, 2, 3)] == [
        sorted(first + second),
        sorted(third),
        sorted(fourth),
    ]


def test_at_the_turn_of_an_epoch_no_step_meets_a_task_twice(tmp_path: Path) -> None:
    run(refilled((), refill=1, steps=4), tmp_path / "even", engine=engine())
    made = refilled((), refill=2, steps=3)
    run(made, tmp_path / "odd", engine=engine())
    first = [n for b in BATCHES[:3] for n in b]
    turn = BATCHES[3] + [n for b in BATCHES[4:6] for n in b if n not in BATCHES[3]]
    assert recorded(tmp_path / "odd", 1) == first
    assert recorded(tmp_path / "odd", 2) == turn
    assert len(turn) < 12, "batch 4 or 5 must hold a task of batch 3, or this test sees nothing"
    for path, steps in (("even", 4), ("odd", 3)):
        for step in range(1, steps + 1):
            met = recorded(tmp_path / path, step)
            assert len(set(met)) == len(met)


def test_where_every_task_was_met_the_step_takes_no_further_batch(tmp_path: Path) -> None:
    made = refilled((), source=Guess(size=6), refill=9, steps=2)
    batches = [numbers(order(made).of(b)) for b in range(20)]  # one of four tasks an epoch

    def taken(number: int) -> tuple[list[int], int]:
        met: list[int] = []
        for further in range(10):
            new = [n for n in batches[number + further] if n not in met]
            if not new:
                return met, number + further
            met += new
        return met, number + 10

    one, begin = taken(0)
    two, _ = taken(begin)
    run(made, tmp_path / "run", engine=engine())
    assert [recorded(tmp_path / "run", step) for step in (1, 2)] == [one, two]
    assert lines_of(tmp_path / "run")[0]["groups/refilled"] == begin - 1
    assert begin < 10


def test_every_stage_begins_with_its_own_first_batch(tmp_path: Path) -> None:
    made = refilled((), refill=1, steps=1)
    second = replace(made.stages[0], name="more", refill=0)
    run(replace(made, stages=(*made.stages, second)), tmp_path / "run", engine=engine())
    own = numbers(TaskOrder(second, made.seed).of(0))
    assert recorded(tmp_path / "run", 2) == own


# -------------------------------------------------------------------------------------- resuming


def by_chance(*, refill: int = 2) -> Recipe:
    made = recipe(Grpo(group_size=2), refill=refill, steps=6)
    return replace(made, checkpoints=CheckpointSpec(every=2, keep=0))


@pytest.mark.parametrize("killed_after", [1, 2, 3, 4, 5])
def test_killed_anywhere_and_resumed_it_ends_with_the_same_bytes(
    tmp_path: Path, killed_after: int
) -> None:
    run(by_chance(), tmp_path / "whole", engine=engine())
    rounds = [line["groups/refilled"] for line in lines_of(tmp_path / "whole")]
    assert sum(rounds[:2]) > 0, "a refill must come before the first checkpoint"
    with pytest.raises(StoppedError):
        run(by_chance(), tmp_path / "halves", engine=engine(), observer=StopsAfter(killed_after))
    run(by_chance(), tmp_path / "halves", engine=engine(), resume=True)
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "halves")
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "halves")


def test_the_checkpoint_holds_the_number_of_further_batches(tmp_path: Path) -> None:
    run(by_chance(), tmp_path / "run", engine=engine())
    rounds = [line["groups/refilled"] for line in lines_of(tmp_path / "run")]
    totals = list(accumulate(rounds))
    for step in (2, 4, 6):
        state = json.loads((tmp_path / "run" / f"checkpoints/{step:06d}/state.json").read_text())
        assert state["position"]["stage_refills"] == totals[step - 1]


def test_a_checkpoint_from_before_there_were_refills_goes_on_as_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoints.save

    def old(run: RunDirectory, step: int, *, learners: Any, state: Any) -> Path:
        position = {k: v for k, v in state["position"].items() if k != "stage_refills"}
        return save(run, step, learners=learners, state={**state, "position": position})

    run(by_chance(refill=0), tmp_path / "whole", engine=engine())
    monkeypatch.setattr(checkpoints, "save", old)
    with pytest.raises(StoppedError):
        run(by_chance(refill=0), tmp_path / "halves", engine=engine(), observer=StopsAfter(3))
    monkeypatch.setattr(checkpoints, "save", save)
    state = json.loads((tmp_path / "halves/checkpoints/000002/state.json").read_text())
    assert "stage_refills" not in state["position"]
    run(by_chance(refill=0), tmp_path / "halves", engine=engine(), resume=True)
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "halves")


# ------------------------------------------------------------------- which tasks can be told apart


def trajectory(name: str, reward: float | None) -> Trajectory:
    said = Completion("x", np.array([1], np.int32), -np.ones(1, np.float32))
    turn = Turn((), said, np.array([9], np.int32), starts_segment=True)
    scores = {} if reward is None else {"reward": reward}
    return Trajectory("solver", "agent", (turn,), scores, name=name)


def group(task: str, *outcomes: float | None, kind: str = "attempt") -> Group:
    episodes = [
        Episode(task, i, (trajectory("first", o),), outcome=o) for i, o in enumerate(outcomes)
    ]
    return Group(Task(task), tuple(episodes), kind)


def broken(task: str, kind: str = "attempt") -> Group:
    failed = Episode(task, 0, status=Status.ENV_ERROR, failure=Failure("environment", "broke"))
    return Group(Task(task), (failed,), kind)


def collected(size: int, *groups: Group, method: Any = Grpo()) -> Collected:
    made = recipe(method, refill=1, tasks_per_step=size)
    found = Collected(made.stages[0])
    found.add(groups)
    return found


def named(groups: Sequence[Group]) -> list[tuple[str, str]]:
    return [(g.task.id, g.kind) for g in groups]


def test_a_task_is_kept_or_thrown_away_with_all_its_groups() -> None:
    found = collected(
        3,
        group("a", 0.0, 0.0),
        group("b", 1.0, 0.0),
        group("c", 1.0, 1.0),
        group("d", 0.0, 0.0),
        group("a", 5.0, 6.0, kind="forecast"),
        group("b", 3.0, 3.0, kind="forecast"),
        group("c", 4.0, 4.0, kind="forecast"),
        broken("d", kind="forecast"),
    )
    both = ("attempt", "forecast")
    assert named(found.kept) == [(task, kind) for kind in both for task in "ab"]
    assert named(found.thrown_away) == [(task, kind) for kind in both for task in "cd"]
    assert found.metrics()["reward/sampled"] == 0.375  # of the attempts


def test_a_living_task_stays_though_another_kind_of_it_broke() -> None:
    found = collected(2, group("a", 1.0, 0.0), broken("a", kind="forecast"), group("b", 1.0, 1.0))
    assert named(found.kept) == [("a", "attempt"), ("a", "forecast")]


@pytest.mark.parametrize(
    ("outcomes", "is_kept"),
    [((1.0, 0.0), True), ((0.5, 0.5), False), ((1.0, None), False), ((None, None), False)],
)
def test_abstentions_are_compared_with_nothing(outcomes: tuple[Any, ...], is_kept: bool) -> None:
    found = collected(2, group("a", *outcomes), group("z", 1.0, 0.0))
    assert (("a", "attempt") in named(found.kept)) is is_kept


def test_tasks_of_the_methods_own_making_are_tasks_too() -> None:
    method = Grpo(group_size=2)
    found = Collected(recipe(method, refill=1).stages[0])
    next(iter(found.batches(order(by_chance()), 0)))
    found.add([group("made up", 1.0, 0.0), group("another", 1.0, 1.0)])
    assert named(found.kept) == [("made up", "attempt")]


def test_outcomes_decide_and_not_the_punishment_of_lengths() -> None:
    punishing = Grpo(overlong_limit=2, overlong_buffer=1)
    long = replace(trajectory("first", 1.0), turns=trajectory("first", 1.0).turns * 2)
    uneven = Group(Task("a"), (*group("a", 1.0).episodes, Episode("a", 1, (long,), outcome=1.0)))
    rewards = [t.reward for e in punishing.punished(uneven).episodes for t in e.trajectories]
    assert rewards == [1.0, 0.0]
    assert named(collected(1, uneven, group("z", 1.0, 0.0), method=punishing).kept) == [
        ("z", "attempt")
    ]


def second_attempts(task: str, *rewards: float) -> Group:
    """Every first attempt failed."""
    return Group(
        Task(task),
        tuple(
            Episode(task, i, (trajectory("first", 0.0), trajectory("second", r)), outcome=0.0)
            for i, r in enumerate(rewards)
        ),
    )


def test_erl_keeps_failed_tasks_whose_second_attempts_differ() -> None:
    found = collected(
        2, second_attempts("a", 1.0, 0.0), second_attempts("b", 0.0, 0.0), method=erl.METHOD
    )
    assert named(found.kept) == [("a", "attempt")]


def test_imitation_replaces_only_what_broke() -> None:
    found = collected(2, group("a", 1.0), broken("b"), group("c", 1.0), method=imitation.METHOD)
    assert named(found.kept) == [("a", "attempt"), ("c", "attempt")]


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: refilled(refill=-1), "refill"),
        (
            lambda: order(refilled(source=Guess(size=4))),
            "has 4 tasks, and each step takes all of them, so refill = 3 finds no others",
        ),
    ],
)
def test_settings_that_can_do_nothing_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_the_scripted_guess_is_sometimes_alive_and_sometimes_not(tmp_path: Path) -> None:
    """The recipe of the resuming tests must meet both, or they would show little."""
    run(by_chance(refill=0), tmp_path / "run", engine=engine(guess))
    dead = [line["groups/dead"] for line in lines_of(tmp_path / "run")]
    assert 0 < sum(dead) < 24
