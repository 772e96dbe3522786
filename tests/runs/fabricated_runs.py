"""Made-up groups for the tests of run directories and viewers."""

import numpy as np

from kolb.types import Completion, Episode, Failure, Group, Status, Task, Trajectory, Turn


def said(text, ids=(5, 6), logprobs=(-0.1, -2.5), stop="stop", version=3):
    return Completion(text, np.array(ids, np.int32), np.array(logprobs, np.float32), stop, version)


def attempt(index, *, text="[right] it is", reward=1.0):
    first = Turn(
        messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go?"}),
        completion=said(text),
        context_ids=np.array([1, 2, 3], np.int32),
        starts_segment=True,
        feedback="you moved",
    )
    judged = Turn(({"role": "user", "content": "Score?"},), Completion("7", stop_reason="given"))
    return Episode(
        task_id="lake-7",
        index=index,
        trajectories=(
            Trajectory(
                "solver", "agent", (first,), {"reward": reward}, {"reward": 1.0}, True, "first"
            ),
            Trajectory("judge", "frozen", (judged,), {}, {"reward": 1.0}, False),
        ),
        outcome=reward,
        info={"moves": 3},
    )


def broken(index):
    why = Failure("environment", "step raised: [red]no[/red]", "Traceback:\n  line 1")
    return Episode("lake-7", index, status=Status.ENV_ERROR, failure=why)


def group(*episodes, kind="attempt"):
    task = Task("lake-7", ({"role": "user", "content": "Go?"},), answer="goal", seed=7)
    return Group(task, tuple(episodes), kind)
