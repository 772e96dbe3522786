"""What must hold between a recipe and an engine, checked before any weight loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kolb import plugins
from kolb.engines.base import CAPABILITIES, Engine
from kolb.errors import CapabilityError, RecipeError, nearest
from kolb.stage import Recipe, Stage
from kolb.terms.base import check_terms
from kolb.types import Group, Update

WAYS_OUT = {
    "sample": "use an engine that samples",
    "logprobs": "use an engine that gives logprobs (torch_local); on an endpoint measure with `learn = []`, or learn "
    'in words with method = "tf_grpo"',
    "tokens": "chat endpoints give only text; use an engine that takes tokens: torch_local does",
    "train": "use an engine that trains (torch_local), or leave the stage's `learn` empty",
    "lora": "use an engine with adapters (torch_local), or train all weights: remove `lora`",
    "full_ft": "use an engine that trains all weights (torch_local), or give the policy a `lora` table",
    "policies": "let one policy play every role, or use an engine with several policies (torch_local)",
    "stats:entropy": "remove the term that needs entropy, or use an engine that gives it (torch_local)",
    "stats:minp": "remove the term that needs min-p statistics, or use an engine that gives them",
    "stats:proxy_kl": 'take kl_mode = "k3", or an engine that compares whole distributions (torch_local)',
    "base": "set the KL coefficient to 0, or use an engine that keeps the initial weights (torch_local)",
}


def open_engine(recipe: Recipe) -> Engine:
    """The engine that the recipe names: ``torch_local`` is ``kolb.engines.torch_local.ENGINE``."""
    kind = plugins.load(recipe.engine, "kolb.engines", "ENGINE")
    try:
        return kind(**recipe.engine_options)
    except TypeError as error:
        options = dict(recipe.engine_options)
        raise RecipeError(
            f"engine {recipe.engine!r} does not take the options {options}: {error}"
        ) from error


def check_recipe(recipe: Recipe, engine: Engine) -> None:
    """Raises RecipeError or CapabilityError for the first thing that cannot work."""
    names = [stage.name for stage in recipe.stages]
    if len(set(names)) < len(names):
        raise RecipeError(f"stages need names of their own, and these are {names}")
    for stage in recipe.stages:
        check_policies(recipe, stage)
        check_capabilities(stage, engine)
    learning = [p for p in recipe.policies if any(p in s.learn for s in recipe.stages)]
    for policy in learning:
        kind = "lora" if recipe.policies[policy].lora else "full_ft"
        require(engine, kind, f"policy {policy!r}")
    if len(learning) > 1:
        require(engine, "policies", f"learning {', '.join(learning)} in one run")


def check_policies(recipe: Recipe, stage: Stage) -> None:
    where = f"stage {stage.name!r}"
    for role, policy in stage.roles.items():
        if policy not in recipe.policies:
            hint = nearest(policy, recipe.policies)
            raise RecipeError(
                f"{where}: role {role!r} has the policy {policy!r}, which is not there{hint}"
            )
    for policy in stage.learn:
        if policy not in recipe.policies:
            raise RecipeError(f"{where}: learn names {policy!r}{nearest(policy, recipe.policies)}")
        if recipe.policies[policy].frozen:
            raise RecipeError(f"{where}: policy {policy!r} is frozen and cannot be in learn")


def check_capabilities(stage: Stage, engine: Engine) -> None:
    """Raises CapabilityError unless the engine provides what the stage's method and terms need.

    Where nothing learns, the terms are never evaluated and need nothing, nor does training.
    """
    where = f"stage {stage.name!r}"
    training_only = {"train", "logprobs", "tokens"}
    needs = stage.method.needs if stage.learn else stage.method.needs - training_only
    for need in sorted(needs):
        require(engine, need, f"{where}: method {stage.method.name!r}")
    if not stage.learn:
        return
    require(engine, "train", f"{where}: learning {', '.join(stage.learn)}")
    if stage.all_terms:
        check_terms(stage.all_terms)
    for term in stage.all_terms:
        for need in sorted(term.needs):
            require(engine, need, f"{where}: term {term.name!r}")
    if len(stage.learn) > 1:
        require(engine, "policies", f"{where}: learning {', '.join(stage.learn)}")
    if not stage.sampling.has_full_support:
        raise CapabilityError(
            f"{where}: sampling has top_p = {stage.sampling.top_p:g}, top_k = {stage.sampling.top_k}, but "
            "training needs the logprobs of the full distribution: set top_p = 1 and top_k = 0 (evaluation "
            "has its own top_p and top_k)"
        )


def require(engine: Engine, need: str, who: str) -> None:
    if need not in CAPABILITIES:
        raise RecipeError(
            f"{who} needs {need!r}, which is no capability{nearest(need, CAPABILITIES)}"
        )
    if need not in engine.provides:
        has = ", ".join(sorted(engine.provides))
        raise CapabilityError(
            f"{who} needs {need!r} ({CAPABILITIES[need]}), and engine {type(engine).__name__} provides only "
            f"{has or 'nothing'}; {WAYS_OUT.get(need, 'use another engine')}"
        )


# --------------------------------------------------------------------------- what a method gives


def check_groups(groups: Any, method: Any) -> None:
    """RecipeError unless ``collect`` gave Groups."""
    is_list = isinstance(groups, Sequence) and not isinstance(groups, str)
    if not is_list or not all(isinstance(group, Group) for group in groups):
        raise RecipeError(
            f"collect() of method {method.name!r} gave {_kind(groups)}; it must return a list of "
            "kolb.types.Group, as `await world.groups(tasks, n, attempt)` gives it"
        )


def check_update(update: Any, method: Any) -> None:
    """RecipeError unless ``credit`` gave an Update."""
    if not isinstance(update, Update):
        raise RecipeError(
            f"credit() of method {method.name!r} gave {_kind(update)}; it must return a "
            "kolb.types.Update (with no examples where there is nothing to learn)"
        )


def _kind(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} of {type(value[0]).__name__}"
    return "None" if value is None else f"a {type(value).__name__}"
