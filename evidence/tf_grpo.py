"""Training-Free GRPO (arXiv:2510.08191) against its ablations, by frozen models: ``make evidence-tf-grpo``.

On FrozenLake with hidden symbols a single attempt shows what there is to learn. In the task of ``evidence.worth`` it does not:
there attempts must be compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evidence import notes_base, worth_base
from evidence.erl import world
from evidence.main import main
from evidence.plan import Arm, Base, Claim, Evidence, Experiment, ExtraSet, Quantity, Sets

HERE = Path(__file__).parent
STAGE = "stages.notes"
METHOD = f"{STAGE}.method"
GROUP = 5
"""Attempts at a task, in both recipes."""
SEEDS = tuple(range(8))

# ------------------------------------------------------------------------------------------- bases


def model(name: str, module: str, recipe: Path, seed: int, sets: Sets) -> Base:
    """``sets`` are what the recipe of a base has to change beside its start and its seed."""
    start = f"policies.agent.base={{bases}}/{name}/start"
    return Base(name, module, recipe, (start, f"seed={seed}", *sets))


OTHER_NOTES = model(
    "other_notes",
    "evidence.notes_base",
    notes_base.RECIPE,
    1,
    ("environments.editing.seed=2", "environments.all.seed=3", "stages.edit.steps=60", "stages.keep.steps=240"),
)  # fmt: skip
"""It only has to act by a library that it is given, so half of the lessons are enough."""


def worth_model(name: str, seed: int, *sets: str) -> Base:
    chosen = (f"environments.worth.seed={seed}", *sets)
    return model(name, "evidence.worth_base", worth_base.RECIPE, seed, chosen)


WORTH, OTHER_WORTH = worth_model("worth", 0), worth_model("other_worth", 1)
GUESSING = worth_model("guessing", 0, "environments.worth.guesses=true")
"""Its comparer always says something: what is open it draws from what the attempts leave possible."""


def played_by(base: Base) -> Sets:
    """``base`` plays every role."""
    return (f"policies.agent.base={{bases}}/{base.name}/model",)


# -------------------------------------------------------------------------------------------- arms


def arms(steps: int) -> tuple[Arm, ...]:
    """The method, what it is measured against, and its ablations. ``none`` makes the same attempts and keeps no notes. A
    step of ``g1`` has as many lessons to reconcile as any, so it takes more steps for as many attempts."""
    alone = (f"{METHOD}.group_size=1", f'{METHOD}.gate="none"')
    as_many = (f"{STAGE}.steps={GROUP * steps}", f"{STAGE}.evaluation.every={GROUP}")
    return (
        Arm("full"),
        Arm("none", ("policies.agent.frozen=true", f'{METHOD}={{use="grpo", group_size={GROUP}}}')),
        Arm("tips", (f"{METHOD}.group_size=0",)),
        Arm("g1", (*alone, *as_many)),
        Arm("no_gt", (f'{METHOD}.judged_by="nobody"',)),
        Arm("no_gate", (f'{METHOD}.gate="none"',)),
    )


VOTE = Arm("vote", (f'{METHOD}.judged_by="vote"',))


def claims(name: str, compared: tuple[Arm, ...]) -> tuple[Claim, ...]:
    """The full method against no library, which is the main one, and against each of the others."""
    others = [arm.name for arm in compared if arm.name not in ("full", "none")]
    return (
        Claim(f"{name}_success", "full", "none"),
        *(Claim(f"{name}_{other}", "full", other) for other in others),
    )


def budget(steps: int, tasks: int) -> str:
    return f"{steps * tasks * GROUP} attempts, in `tips` none"


def quantities(
    name: str, curve: str, tasks: str, compared: tuple[Arm, ...]
) -> tuple[Quantity, ...]:
    """What the library does for the model that wrote it, how large it is, and what it does elsewhere."""
    size, other = (Claim(f"{name}_transfer_{to}", "full", "none") for to in ("size", "model"))
    return (
        Quantity(f"success at the end, held-out {tasks}", claims(name, compared), curve=curve),
        Quantity("lessons in the library at the end", curve="library/size"),
        Quantity(f"success with the final library, larger {tasks}", (size,), extra="size"),
        Quantity(
            f"success of another model with the final library, held-out {tasks}",
            (other,),
            extra="model",
        ),
    )


# --------------------------------------------------------------------------------- the experiments

LAKE, LAKE_STEPS, LAKE_TASKS = "tf_grpo", 4, 4
LAKE_ARMS = arms(LAKE_STEPS)
LARGER = ("environments.lake.sizes=[6]", "environments.lake.max_steps=12")

LAKE_EXPERIMENT = Experiment(
    name=LAKE,
    recipe=HERE.parent / "recipes/tf_grpo/frozenlake_notes.toml",
    about="""\
FrozenLake with hidden rules: nothing says what the letters on the board mean, and each seed has letters of its own, which the
embedded model `notes` was not taught with. It plays, reports, compares and keeps the library; its weights stay as they are.
The larger boards are 6x6 instead of 4x4, with 12 moves instead of 8. The other model is of the same recipe, from another seed.""",
    arms=LAKE_ARMS,
    quantities=quantities(LAKE, "success", "boards", LAKE_ARMS),
    extras=(
        ExtraSet("size", "Larger boards", (*LARGER, f"{STAGE}.limits.max_turns=12")),
        ExtraSet("model", "Another model", played_by(OTHER_NOTES)),
    ),
    of_seed=lambda seed: world("frozenlake", seed, "lake"),
    seeds=SEEDS,
    budget=budget(LAKE_STEPS, LAKE_TASKS),
    tells_roles=True,
)

OFFERS, OFFERS_STEPS, OFFERS_TASKS = "tf_grpo_worth", 6, 5
OFFERS_ARMS = (*arms(OFFERS_STEPS), VOTE)
POOR = ("environments.worth.richest=0",)
"""Then the reward is 1 for a success, else 0."""

A_TASK = """\
A task in which one attempt tells next to nothing. Of three letters that are offered at a place one is worth a tenth more than the
others, but tasks are rich or poor by up to nine tenths and do not say so. Attempts at one task that differ in reward tell which
letter it is, and one attempt only if its reward is 1. Each seed is a world of its own, which the model was not taught with."""


def offers(name: str, base: Base, about: str, extras: tuple[ExtraSet, ...] = ()) -> Experiment:
    claimed = quantities(name, "score/success", "tasks", OFFERS_ARMS)
    return Experiment(
        name=name,
        recipe=HERE / "tf_grpo_worth.toml",
        about=f"{A_TASK}\n{about}",
        arms=OFFERS_ARMS,
        quantities=claimed if extras else claimed[:2],
        extras=extras,
        of_seed=lambda seed: (*played_by(base), f"environments.worth.seed={seed}"),
        seeds=SEEDS,
        budget=budget(OFFERS_STEPS, OFFERS_TASKS),
        tells_roles=True,
    )


OFFERS_EXPERIMENT = offers(
    OFFERS,
    WORTH,
    """\
The model's comparer was taught to say what is certain and nothing else, so a single attempt is made the most of. In the larger
tasks five letters are offered. The other model is of the same recipe, from another seed.""",
    (
        ExtraSet("size", "Larger tasks", (*POOR, "environments.worth.offered=5")),
        ExtraSet("model", "Another model", (*POOR, *played_by(OTHER_WORTH))),
    ),
)
GUESSES_EXPERIMENT = offers(
    "tf_grpo_worth_guesses",
    GUESSING,
    """\
The same task, by a model whose comparer always gives a lesson, as a language model that is asked for one does: what the attempts
leave open it guesses, with the chances that they leave.""",
)


def ablations(
    none: float, tips: float, g1: float | None, no_gt: float, full: float
) -> dict[str, float]:
    """A row of the paper's table of ablations; None where it has no number."""
    row = {"none": none, "tips": tips, "g1": g1, "no_gt": no_gt, "full": full}
    return {arm: number for arm, number in row.items() if number is not None}


EVIDENCE = Evidence(
    name="tf_grpo",
    title="Evidence for Training-Free GRPO",
    about="""\
The method, its ablations, and attempts without any library, by frozen models that play every role: at equal numbers of
attempts at tasks. The models have up to a third of a million parameters and were taught to act on notes, to compare and to keep notes in
worlds other than these. So this shows the mechanism, and what each part of it tells the model; not how large the
effect is in models of billions.

The arms: `full`, the method; `none`, the same attempts without a library; `tips`, lessons that the model writes without any
attempt; `g1`, single attempts, as many in all; `no_gt`, groups without answers, rewards and feedback; `no_gate`, all groups
compared, also those whose attempts earn the same; `vote`, agreement with the group's majority in place of rewards.""",
    source="arXiv:2510.08191, DeepSeek-V3.1-Terminus with tools, in percent: mean of 32 attempts (mathematics), first attempt on 51 "
    "questions (web); `none` is the same agent without a library. By notes on the paper that agree with each other",
    paper={
        "AIME 2024": ablations(80.0, 79.8, 80.4, 80.7, 82.7),
        "AIME 2025": ablations(67.9, 67.3, 69.3, 68.9, 73.3),
        "WebWalkerQA": ablations(66.7, 64.7, None, 66.7, 68.6),
    },
    experiments=(LAKE_EXPERIMENT, OFFERS_EXPERIMENT, GUESSES_EXPERIMENT),
    notes=HERE / "tf_grpo_notes.md",
    bases=(OTHER_NOTES, WORTH, OTHER_WORTH, GUESSING),
)

if __name__ == "__main__":
    sys.exit(main(EVIDENCE))
