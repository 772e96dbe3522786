"""``kolb run --dry-run``, and what ``kolb run`` says before it asks an endpoint for anything: how much that may be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from kolb.checks import open_engine
from kolb.errors import BoundaryError
from kolb.estimate import BYTES_PER_TOKEN, MEASURED, Amount, Estimate, estimate
from kolb.runs.spent import short
from kolb.stage import Recipe


def print_estimate(recipe: Recipe) -> None:
    """What the run will ask for, by role, with prices where the engine has them."""
    engine = open_engine(recipe)
    try:
        print("\n".join(lines(recipe, engine, asyncio.run(estimate(recipe)))), flush=True)
    except BoundaryError as error:
        print(f"no estimate: {error}", flush=True)
    finally:
        engine.close()


def costs_something(recipe: Recipe) -> bool:
    """Whether its engine says what tokens cost: an endpoint."""
    engine = open_engine(recipe)
    engine.close()
    return hasattr(engine, "price")


def lines(recipe: Recipe, engine: Any, found: Estimate) -> Iterator[str]:
    if found.most:
        yield "estimate of what the run asks for, and in brackets the most that it may come to:"
    sums = {"likely": Amount(), "most": Amount()}
    costs: dict[str, float | None] = {"likely": 0.0, "most": 0.0}
    for (role, policy), most in found.most.items():
        pair = {"likely": found.likely[role, policy], "most": most}
        mine = {name: cost_of(engine, recipe, policy, a) for name, a in pair.items()}
        yield f"  {role}: {words(pair['likely'], most, mine['likely'], mine['most'])}"
        for name in sums:
            sums[name] += pair[name]
            so_far, more = costs[name], mine[name]
            costs[name] = None if so_far is None or more is None else so_far + more
    if len(found.most) > 1:
        yield f"  all: {words(sums['likely'], sums['most'], costs['likely'], costs['most'])}"
    if found.most:
        yield (
            f"  Prompts: {MEASURED} openings, {BYTES_PER_TOKEN} bytes a token. The first numbers take half of what is "
            "open: which groups teach, turns, the length of answers and lessons."
        )
    for method in found.silent:
        yield f"  {method} does not say how often it asks, so it is not in the estimate."
    yield from remarks(recipe, engine, sums, costs)


def words(likely: Amount, most: Amount, cost: float | None, most_cost: float | None) -> str:
    parts = [
        f"{short(likely.requests)} requests ({short(most.requests)})",
        f"{short(likely.prompt_tokens)} prompt tokens ({short(most.prompt_tokens)})",
        f"{short(likely.completion_tokens)} sampled ({short(most.completion_tokens)})",
    ]
    if cost is not None and most_cost is not None:
        parts.append(f"cost {cost:.4f} ({most_cost:.4f})")
    return ", ".join(parts)


def cost_of(engine: Any, recipe: Recipe, policy: str, amount: Amount) -> float | None:
    if not hasattr(engine, "price"):
        return None
    model = recipe.policies[policy].model.base
    return engine.price(model, amount.prompt_tokens, amount.completion_tokens)


def remarks(
    recipe: Recipe, engine: Any, sums: dict[str, Amount], costs: dict[str, float | None]
) -> Iterator[str]:
    """Prices that are missing, and budgets that will not do. A run may start all the same: it ends in order."""
    if not hasattr(engine, "price"):
        return
    models = dict.fromkeys(recipe.policies[policy].model.base for policy in used(recipe))
    for model in (m for m in models if engine.price(m, 0, 0) is None):
        yield f'  No price of {model!r}, so its cost is not known: [engine.prices."{model}"] with input and output.'
    tokens = {name: a.prompt_tokens + a.completion_tokens for name, a in sums.items()}
    for limit, wanted in (("max_cost", costs), ("max_total_tokens", tokens)):
        value = getattr(engine, limit, 0)
        if not value or (wanted["most"] or 0) <= value:
            continue
        is_likely = (wanted["likely"] or 0) > value
        chance, of = (
            ("will probably", "the estimate") if is_likely else ("may", "the most it may come to")
        )
        yield (
            f"  {limit} = {value:g} is less than {of}, so the run {chance} end before its last step. What it has "
            "learnt until then is saved, and it goes on with a higher limit."
        )


def used(recipe: Recipe) -> list[str]:
    return [policy for stage in recipe.stages for policy in stage.roles.values()]
