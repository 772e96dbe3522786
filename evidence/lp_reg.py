"""Lp-Reg (arXiv:2510.03222) and the losses that it is measured against, on a controlled task: ``make evidence-lp-reg``.

A seed changes the run's seed and the base that it starts from, the same in every arm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evidence.erl import world
from evidence.main import main
from evidence.plan import Arm, Base, Claim, Curve, Evidence, Experiment, Quantity, Sets

HERE = Path(__file__).parent

BUDGET = 50_000
"""Tokens of a run, as in its recipe."""
SUCCESS = 0.6
"""Nobody reaches it by copying the hint, which is right in 0.37 of the problems."""
ALIVE, ALIVE_AT = 0.01, 20_000
"""The word is alive where more than this share of the answers has it, so many tokens into the run."""

BASES = tuple(
    Base(
        name,
        module="evidence.spark_base",
        recipe=HERE / "spark_base.toml",
        sets=(
            f"policies.agent.base={{bases}}/{name}/start",
            f"environments.spark.accuracy={accuracy}",
            f"environments.spark.seed={seed}",
            f"seed={seed}",
        ),
    )
    for seed, (name, accuracy) in enumerate({"a": 0.4, "b": 0.3, "c": 0.35}.items())
)


def of_seed(seed: int) -> Sets:
    """The bases take turns."""
    return (f"policies.agent.base={{bases}}/{BASES[seed % len(BASES)].name}/model",)


# -------------------------------------------------------------------------------------------- arms

METHOD = "stages.rl.method"
UNCLIPPED = (f"{METHOD}.clip_low=1.0", f"{METHOD}.clip_high=9.0")
"""The bounds of the released code, 0 and 10."""


def term(use: str, **options: float | str) -> str:
    """A stage with one further term."""
    told = "".join(f", {name} = {value!r}" for name, value in options.items())
    return f'stages.rl.terms=[{{use = "{use}"{told}}}]'


def lp_reg(name: str, **changes: float | str) -> Arm:
    """Thresholds that suit a vocabulary of 83 words: the paper's rho of 1% holds nothing but noise here."""
    threshold = {} if "tau" in changes else {"kappa": 0.01}
    options = {**threshold, "rho": 0.15, "beta": 1.0, "gate_scope": "batch", **changes}
    return Arm(name, (*UNCLIPPED, term("lp_reg", **options)))


GRPO, LP_REG = Arm("grpo"), lp_reg("lp_reg")
ENTROPY = Arm("entropy", (term("entropy", coefficient=0.01),))
FORKING = Arm("forking", (term("forking", share=0.2),))
ARMS = (
    GRPO,
    ENTROPY,
    Arm("clip_higher", (f"{METHOD}.clip_high=0.28",)),
    Arm("kl_cov", (term("kl_cov", percent=0.2, coefficient=1.0),)),
    FORKING,
    LP_REG,
    lp_reg("lp_reg_no_filter", kappa=0.0),
    lp_reg("lp_reg_fixed", tau=0.01),
    lp_reg("beta_0", beta=0.0),
    lp_reg("lp_reg_official", kappa=0.02, rho=0.01, gate_scope="micro"),
)
ON_POLICY = ("stages.rl.updates_per_step=1", "stages.rl.learning_rate=1e-3")


def on_policy(arm: Arm) -> Arm:
    """One update per batch, at a rate that learns as fast."""
    return Arm(arm.name, (*arm.sets, *ON_POLICY))


# -------------------------------------------------------------------------------------- quantities


def tokens_to(level: float, budget: int) -> Callable[[Curve], float]:
    """Tokens at which the curve, drawn straight between evaluations, first reaches ``level``; ``budget`` where it
    never does."""

    def read(curve: Curve) -> float:
        x0, y0 = curve[0]
        for x, y in curve:
            if y >= level:
                crossed = x if y == y0 else x0 + (x - x0) * (level - y0) / (y - y0)
                return min(float(crossed), float(budget))
            x0, y0 = x, y
        return float(budget)

    return read


def is_above(level: float, at: int) -> Callable[[Curve], float]:
    """1 where the curve, drawn straight between evaluations, is above ``level`` at ``at`` tokens, else 0."""

    def read(curve: Curve) -> float:
        return float(np.interp(at, [x for x, _ in curve], [y for _, y in curve]) > level)

    return read


def claims(prefix: str, arms: tuple[Arm, ...]) -> tuple[Claim, ...]:
    """Lp-Reg against GRPO, which is the main one, and against each of the others."""
    others = [arm.name for arm in arms if arm not in (GRPO, LP_REG)]
    return (
        Claim(prefix, LP_REG.name, GRPO.name),
        *(Claim(f"{prefix}_{other}", LP_REG.name, other) for other in others),
    )


WORD = "score/wait"
SHARE = "share of answers with `wait`"


def quantities(about_tokens: tuple[Claim, ...], *about_survival: Claim) -> tuple[Quantity, ...]:
    """How soon a run succeeds, whether the word survives until then, and how it ends."""
    return (
        Quantity(
            f"tokens to success {SUCCESS} on held-out problems (the budget where it is never reached)",
            about_tokens,
            read=tokens_to(SUCCESS, BUDGET),
            higher_is_better=False,
            axis="success, held-out problems",
        ),
        Quantity(
            f"survival of `wait`: 1 where more than {ALIVE:.0%} of the answers have it after {ALIVE_AT // 1000}k tokens, else 0",
            about_survival,
            curve=WORD,
            read=is_above(ALIVE, ALIVE_AT),
            axis=SHARE,
        ),
        Quantity(f"lowest {SHARE} in the run", curve=WORD, read=lowest),
        Quantity("success at the end, held-out problems"),
    )


def lowest(curve: Curve) -> float:
    return min(y for _, y in curve)


# --------------------------------------------------------------------------------- the experiments

OFF = "lp_reg_spark_off_policy"
ON = "lp_reg_spark_on_policy"
ON_ARMS = (GRPO, ENTROPY, FORKING, LP_REG)

OFF_POLICY_EXPERIMENT = Experiment(
    name=OFF,
    recipe=HERE / "lp_reg_spark.toml",
    about="""\
A word that is sampled in one answer of twenty, mostly inside failures, and becomes useful later: `wait`, after which the model works
out the answer again. Eight updates per batch of 256 answers. At first copying the hint earns more (0.37), so `wait` is pushed
down while forced re-checks (a quarter of the prompts) make it worth 0.9.""",
    arms=ARMS,
    quantities=quantities(
        claims(f"{OFF}_tokens", ARMS), Claim(f"{OFF}_survival", LP_REG.name, GRPO.name)
    ),
    of_seed=of_seed,
    seeds=tuple(range(16)),
)
ON_POLICY_EXPERIMENT = Experiment(
    name=ON,
    recipe=HERE / "lp_reg_spark.toml",
    about="""\
The same with one update per batch. There the pull of the term on a rare token is small beside the push of its advantage, so that
no difference is to be expected.""",
    arms=tuple(on_policy(arm) for arm in ON_ARMS),
    quantities=quantities(claims(ON, ON_ARMS)),
    of_seed=of_seed,
    seeds=tuple(range(6)),
)


def in_erl(game: str, title: str) -> Experiment:
    """Lp-Reg beside ERL's own losses, with its default settings, in the worlds of the evidence for ERL."""
    name = f"erl_lp_reg_{game}"
    return Experiment(
        name=name,
        recipe=HERE / f"erl_{game}.toml",
        about=f"ERL on {title} with hidden rules, as in the evidence for ERL, with and without Lp-Reg.",
        arms=(Arm("erl"), Arm("lp_reg", (term("lp_reg"),))),
        quantities=(
            Quantity("first-attempt success, held-out boards", (Claim(name, "lp_reg", "erl"),)),
        ),
        of_seed=lambda seed: world(game, seed),
    )


def table_1(*numbers: float | None) -> dict[str, float]:
    """A row of the paper's table 1, in the order of ``names``; None where it has no number."""
    names = ("grpo", "entropy", "clip_higher", "kl_cov", "forking", "lp_reg")
    return {name: n for name, n in zip(names, numbers, strict=True) if n is not None}


EVIDENCE = Evidence(
    name="lp_reg",
    title="Evidence for Lp-Reg",
    about="""\
Lp-Reg, parts of it, and the losses that it is measured against, on a controlled task in which a rare word is useful and other rare
words are not, at equal numbers of sampled tokens. The models have a tenth of a million parameters, so this shows what the losses do to such a
word, not what they earn in models of billions.""",
    source="arXiv:2510.03222, table 1, mean accuracy over five mathematics benchmarks in percent, one run per cell; clip-higher "
    "and KL-Cov were run off-policy only, the entropy bonus on-policy only",
    paper={
        "Qwen3-14B-Base, off-policy": table_1(51.13, None, 56.16, 57.29, 55.88, 57.08),
        "Qwen3-14B-Base, on-policy": table_1(57.43, 50.40, None, None, 57.51, 60.17),
        "Qwen2.5-32B, off-policy": table_1(47.29, None, 51.48, 50.02, 51.49, 50.60),
        "Qwen2.5-32B, on-policy": table_1(48.56, 23.32, None, None, 50.73, 52.54),
    },
    experiments=(
        OFF_POLICY_EXPERIMENT,
        ON_POLICY_EXPERIMENT,
        in_erl("sokoban", "Sokoban"),
        in_erl("frozenlake", "FrozenLake"),
    ),
    notes=HERE / "lp_reg_notes.md",
    bases=BASES,
)

if __name__ == "__main__":
    sys.exit(main(EVIDENCE))
