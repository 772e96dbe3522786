"""ERL (arXiv:2602.13949) against RLVR and its ablations, on both grid games: ``make evidence-erl``."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from evidence.main import main
from evidence.plan import Arm, Claim, Evidence, Experiment, ExtraSet, Quantity, Sets
from kolb.envs.grid_lessons import held_out_symbols
from kolb.types import derive_seed

HERE = Path(__file__).parent

METHOD = "stages.rl.method"
PAPER_BOARDS = 100
"""In each of the paper's test files."""

ARMS = (
    Arm("erl"),
    Arm("rlvr", (f'{METHOD}.learns_from=["first"]', f"{METHOD}.group_size=10")),
    Arm("no_memory", (f"{METHOD}.memory_slots=0",)),
    Arm("no_reflection", (f"{METHOD}.reflects=false",)),
    Arm("no_distill", (f'{METHOD}.learns_from=["first", "reflect", "second"]',)),
    Arm("no_gate", (f"{METHOD}.is_gated=false",)),
)


def symbols(game: str, seed: int) -> dict[str, str]:
    """The hidden assignment of a seed: drawn at random, and none that the base model was taught with."""
    return held_out_symbols(game, (derive_seed("evidence for erl", seed, n) for n in count()))


def world(game: str, seed: int, environment: str = "grid") -> Sets:
    """What a seed changes beside the run's seed: what the symbols mean in the recipe's ``environment``."""
    table = ", ".join(f'{thing} = "{letter}"' for thing, letter in symbols(game, seed).items())
    return (f"environments.{environment}.symbols={{{table}}}",)


def paper_boards(game: str) -> ExtraSet:
    """All of the released test boards, with the letters of the run's seed; four attempts each, as the paper."""
    file = f"erl/{game}_test.jsonl"
    boards = f'environments.grid.boards={{test = "{{data}}/{file}"}}'
    sets = (boards, f"environments.grid.test_tasks={PAPER_BOARDS}")
    title = "The paper's own test boards, by size"
    return ExtraSet("paper_boards", title, sets, needs=file, samples=4, tag="size")


def experiment(game: str, title: str) -> Experiment:
    """One game: every arm on its recipe, ERL against each of the others."""
    name = f"erl_{game}"
    claims = (
        Claim(name, "erl", "rlvr"),
        *(Claim(f"{name}_{arm.name}", "erl", arm.name) for arm in ARMS[2:]),
    )
    return Experiment(
        name=name,
        recipe=HERE / f"{name}.toml",
        about=f"{title} with hidden rules: nothing says what the letters on the board mean, and each seed has letters "
        "of its own, which the base model was not taught with. All arms start from the same base model.",
        arms=ARMS,
        quantities=(Quantity("first-attempt success, held-out boards", claims),),
        extras=(paper_boards(game),),
        of_seed=lambda seed: world(game, seed),
    )


def table_1(*numbers: float) -> dict[str, float]:
    """A row of the paper's table 1, in the order of its columns."""
    return dict(zip(("rlvr", "erl", "no_memory", "no_reflection"), numbers, strict=True))


EVIDENCE = Evidence(
    name="erl",
    title="Evidence for ERL",
    about="""\
ERL, RLVR (first attempts alone, ten of each task) and ERL without one of its parts, from the same base model, at equal numbers
of sampled tokens. The base is a model of a third of a million parameters that was taught to act when the rules are in its prompt
and to write rules from a failed attempt, so this shows the mechanism (reflection and distillation turn a reward that is
hardly ever met into one that can be learnt from), not the size that the effect has in a model of billions.""",
    source="arXiv:2602.13949, table 1, final evaluation reward, one run per cell, its models of 4B and 7B",
    paper={
        "Qwen3-4B-Instruct-2507, FrozenLake": table_1(0.86, 0.94, 0.86, 0.60),
        "Qwen3-4B-Instruct-2507, Sokoban": table_1(0.06, 0.87, 0.87, 0.59),
        "Olmo-3-7B-Instruct, FrozenLake": table_1(0.39, 0.66, 0.64, 0.54),
        "Olmo-3-7B-Instruct, Sokoban": table_1(0.04, 0.20, 0.24, 0.06),
    },
    experiments=(experiment("sokoban", "Sokoban"), experiment("frozenlake", "FrozenLake")),
    notes=HERE / "erl_notes.md",
)

if __name__ == "__main__":
    sys.exit(main(EVIDENCE))
