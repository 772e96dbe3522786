"""What a policy needs on disk before an engine opens it: the tokenizer of one that is built from nothing.

A recipe writes ``tokenizer = { train_on = "lake", vocab_size = 512 }`` under a policy with ``build``. The
tokenizer is then trained on what the environment and its expert say, and kept in the run directory
(``models/NAME``), so that a resumed or evaluated run finds the same one.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kolb.boundary import checked_messages, checked_step, guard
from kolb.envs.base import EnvironmentSource
from kolb.errors import RecipeError
from kolb.stage import PolicySpec, Recipe
from kolb.types import Task

TIMEOUT_S = 60.0
"""For each call of the environment while texts are gathered."""


@dataclass(frozen=True)
class TokenizerTraining:
    """``[policies.NAME] tokenizer = {...}``: trained on the first ``tasks`` training tasks of ``train_on``."""

    train_on: str
    vocab_size: int = 512
    tasks: int = 200


def trainings(recipe: Recipe) -> dict[str, TokenizerTraining]:
    """The tokenizers that ``recipe`` wants trained, by policy."""
    tables = {n: t.get("tokenizer") for n, t in recipe.resolved.get("policies", {}).items()}
    return {n: TokenizerTraining(**t) for n, t in tables.items() if isinstance(t, Mapping)}


def prepare_models(recipe: Recipe, directory: Path) -> Recipe:
    """``prepared`` for those who are in no event loop."""
    return asyncio.run(prepared(recipe, directory))


async def prepared(recipe: Recipe, directory: Path) -> Recipe:
    """``recipe`` with its trained tokenizers in place, in the run ``directory`` under ``models/POLICY``.

    One that is there already is used as it is. Raises RecipeError where the config and the tokenizer
    disagree, and the environment's own errors.
    """
    sources = {stage.environment: stage.source for stage in recipe.stages}
    policies = dict(recipe.policies)
    for name, training in trainings(recipe).items():
        home = Path(directory) / "models" / name
        if not home.is_dir():
            await save_tokenizer(training, sources[training.train_on], home)
        policies[name] = with_tokenizer(policies[name], home, name)
    return replace(recipe, policies=policies)


async def save_tokenizer(
    training: TokenizerTraining, source: EnvironmentSource, home: Path
) -> None:
    """Trains, and lets ``home`` appear whole by one rename."""
    from kolb.models.tokenizers import train_tokenizer

    texts = await gather_texts(source, source.tasks("train")[: training.tasks])
    beside = home.with_name(f".{home.name}-{os.getpid()}")
    beside.mkdir(parents=True, exist_ok=True)
    train_tokenizer(texts, vocab_size=training.vocab_size).save_pretrained(beside)
    try:
        beside.rename(home)
    except OSError:
        shutil.rmtree(beside)
        if not home.is_dir():
            raise


def with_tokenizer(spec: PolicySpec, home: Path, name: str) -> PolicySpec:
    """``spec`` with the tokenizer at ``home``, and a config that knows its size and its special tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(home)
    size = spec.model.build.get("vocab_size", len(tokenizer))
    if size < len(tokenizer):
        raise RecipeError(
            f"[policies.{name}.build]: vocab_size = {size}, but its tokenizer has {len(tokenizer)} tokens; "
            "leave vocab_size out and it is set for you"
        )
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    build = {"vocab_size": size, "bos_token_id": None, **ids, **spec.model.build}
    return replace(spec, model=replace(spec.model, tokenizer=str(home), build=build))


async def gather_texts(source: EnvironmentSource, tasks: Sequence[Task]) -> list[str]:
    """Everything that is said when the environment's expert does ``tasks``; without one, the openings."""
    texts: list[str] = []
    for task in tasks:
        if (demonstration := getattr(source, "demonstration", None)) is not None:
            chat = await outside("demonstration", demonstration, task)
            texts += contents(checked_messages(chat, f"demonstration({task.id})"))
        else:
            texts += await expert_texts(source, task)
    return texts


async def expert_texts(source: EnvironmentSource, task: Task) -> list[str]:
    expert = getattr(source, "expert", None)
    actions = await outside("expert", expert, task) if expert is not None else []
    environment = await outside("environment", source.environment, task)
    try:
        texts = contents(checked_messages(await outside("reset", environment.reset), "reset()"))
        for action in map(str, actions):
            result = checked_step(await outside("step", environment.step, action), "step()")
            texts += [action, *contents(result.observation)]
            if result.terminated or result.truncated:
                break
    finally:
        await outside("close", environment.close)
    return texts


def contents(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [m["content"] for m in messages if isinstance(m.get("content"), str)]


async def outside(what: str, call: Callable[..., Any], *args: Any) -> Any:
    """The answer of the environment's code, sync or async, behind the guard."""

    async def run() -> Any:
        answer = call(*args)
        return await answer if inspect.isawaitable(answer) else answer

    return await guard(run(), what=f"{what} (gathering text for a tokenizer)", seconds=TIMEOUT_S)
