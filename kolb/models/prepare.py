"""What a policy needs on disk before an engine opens it: the tokenizer of one that is built from nothing.

A recipe writes ``tokenizer = { train_on = "lake", vocab_size = 512 }`` under a policy with ``build``. The
tokenizer is then trained on what the environment and its expert say, and kept in the run directory
(``models/NAME``), so that a resumed or evaluated run finds the same one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kolb.boundary import (
    checked_environment,
    checked_messages,
    checked_step,
    guarded_call,
)
from kolb.envs.base import EnvironmentSource
from kolb.errors import KolbError, RecipeError
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

    One that is there already is used as it is. Raises RecipeError where the environment fails while texts
    are gathered, and where the config has mistakes or disagrees with the tokenizer.
    """
    sources = {stage.environment: stage.source for stage in recipe.stages}
    policies = dict(recipe.policies)
    for name, training in trainings(recipe).items():
        home = Path(directory) / "models" / name
        if not home.is_dir():
            try:
                await save_tokenizer(training, sources[training.train_on], home)
            except KolbError as error:
                where = f"[policies.{name}.tokenizer] train_on = {training.train_on!r}"
                raise RecipeError(f"{where}: {error}") from error
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
    check_build(build, name)
    return replace(spec, model=replace(spec.model, tokenizer=str(home), build=build))


def check_build(build: Mapping[str, Any], name: str) -> None:
    """RecipeError for a config of which transformers can make no model; no memory is taken for weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = dict(build)
    if "model_type" not in options:
        raise RecipeError(f"[policies.{name}.build]: model_type is missing; write 'llama', say")
    try:
        config = AutoConfig.for_model(options.pop("model_type"), **options)
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config)
    except Exception as error:  # boundary: a model's code may raise anything on a strange config
        said = str(error).strip() or type(error).__name__
        raise RecipeError(
            f"[policies.{name}.build]: {said.splitlines()[-1].strip():.300}"
        ) from error


async def gather_texts(source: EnvironmentSource, tasks: Sequence[Task]) -> list[str]:
    """Everything that is said when the environment's expert does ``tasks``; without one, the openings and
    the answers that the tasks hold."""
    texts: list[str] = []
    for task in tasks:
        texts += await demonstration_texts(source, task) or await expert_texts(source, task)
    return texts


async def demonstration_texts(source: EnvironmentSource, task: Task) -> list[str]:
    """The chat of ``task``, or its prompt and its answer; nothing where the task itself holds no text."""
    if (demonstration := getattr(source, "demonstration", None)) is None:
        return []
    try:
        chat = await outside("demonstration", task, demonstration, task)
    except RecipeError:  # the source's way to say that this task has none
        answer = [] if task.answer is None else [str(task.answer)]
        return [*contents(task.prompt), *answer] if task.prompt else []
    return contents(checked_messages(chat, f"demonstration({task.id})"))


async def expert_texts(source: EnvironmentSource, task: Task) -> list[str]:
    actions = await expert_actions(source, task)
    made = await outside("environment", task, source.environment, task)
    environment = checked_environment(made)
    try:
        opening = await outside("reset", task, environment.reset)
        texts = contents(checked_messages(opening, "reset()"))
        for action in actions:
            answer = await outside("step", task, environment.step, action)
            result = checked_step(answer, "step()")
            texts += [action, *contents(result.observation)]
            if result.terminated or result.truncated:
                break
    finally:
        await outside("close", task, environment.close)
    return texts


async def expert_actions(source: EnvironmentSource, task: Task) -> list[str]:
    if (expert := getattr(source, "expert", None)) is None:
        return []
    try:
        return list(map(str, await outside("expert", task, expert, task)))
    except RecipeError:  # the source's way to say that this task has none
        return []


def contents(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [m["content"] for m in messages if isinstance(m.get("content"), str)]


async def outside(what: str, task: Task, call: Callable[..., Any], *args: Any) -> Any:
    """The answer of the environment's code, sync or async, behind the guard."""
    return await guarded_call(call, *args, what=f"{what} of task {task.id}", seconds=TIMEOUT_S)
