"""How much of the controlled task can be learnt at all: the ideal player of ``evidence.worth_notes``, without a model.

    python -m evidence.worth_ideal

It plays the arms of the evidence through the method, in the same worlds, and prints the success at the end. So what a small
model makes of an arm can be told from what the arm makes possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from evidence.plan import Arm, in_words
from evidence.stats import t_interval
from evidence.tf_grpo import OFFERS_ARMS, OFFERS_EXPERIMENT, SEEDS
from evidence.worth_corpus import answers_to
from evidence.worth_notes import draw
from kolb import recipe
from kolb.engines.scripted import Scripted
from kolb.loop import run
from kolb.runs.directory import RunDirectory
from kolb.types import Message

SHOWN = ("full", "g1", "no_gt", "no_gate")


def player(*, guesses: bool) -> Scripted:
    def answer(messages: Sequence[Message], seed: int) -> str:
        return draw(Random(seed), answers_to(messages, guesses=guesses))

    return Scripted(answer, gives_tokens=False)


def success(arm: Arm, seed: int, *, guesses: bool) -> float:
    """Of the held-out tasks at the end of a run."""
    at_the_end = ("stages.notes.evaluation.every=0", "stages.notes.evaluation.at_start=false")
    base = "policies.agent.base=ideal"
    sets = (*arm.sets, f"environments.worth.seed={seed}", f"seed={seed}", base, *at_the_end)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run(recipe.load(OFFERS_EXPERIMENT.recipe, sets), path, engine=player(guesses=guesses))
        return RunDirectory.open(path).metrics()[-1]["eval/score/success"]


if __name__ == "__main__":
    for is_guessing in (False, True):
        print("guesses where it must" if is_guessing else "says what is certain")
        for chosen in (arm for arm in OFFERS_ARMS if arm.name in SHOWN):
            found = [success(chosen, seed, guesses=is_guessing) for seed in SEEDS]
            low, high = t_interval(found)
            mean = sum(found) / len(found)
            numbers = " ".join(f"{x:.2f}" for x in found)
            print(f"  {in_words(chosen.name):8} {mean:.2f} ({low:.2f} to {high:.2f})  {numbers}")
