"""From a ModelSpec to a transformers model and its tokenizer, and back to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from kolb.engines.base import ModelSpec
from kolb.engines.local import attention
from kolb.errors import RecipeError


def load(spec: ModelSpec) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from kolb.models.fetch import resolve

    where = resolve(spec.base)
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            resolve(spec.tokenizer) if spec.tokenizer else where
        )
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=torch.float32, attn_implementation="eager"
        )
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"cannot open base = {spec.base!r} as a causal language model: {str(error).splitlines()[0]}"
        ) from error
    model.set_attn_implementation(attention.IMPLEMENTATION)
    return model, tokenizer


def build(spec: ModelSpec) -> tuple[Any, Any]:
    """Random weights from a config; the vocabulary and the special ids follow the tokenizer."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from kolb.models.fetch import resolve

    if not spec.build or not spec.tokenizer:
        raise RecipeError(
            "a policy needs `base`, or `build` (with model_type) together with `tokenizer`"
        )
    tokenizer = AutoTokenizer.from_pretrained(resolve(spec.tokenizer))
    options = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **spec.build,
    }
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            config = AutoConfig.for_model(options.pop("model_type"), **options)
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="eager"
            )
    except (KeyError, ValueError, TypeError, RuntimeError, StrictDataclassError) as error:
        raise RecipeError(
            f"build: {error}; the keys are those of the transformers config of `model_type`, such as 'llama'"
        ) from error
    model.set_attn_implementation(attention.IMPLEMENTATION)
    return model, tokenizer


def end_ids(hf: Any) -> tuple[int, ...]:
    """Every id that the model's configs call an end of sequence; nothing else of a generation config is used."""
    found: list[int] = []
    for config in (hf.generation_config, hf.config.get_text_config()):
        value = getattr(config, "eos_token_id", None)
        found += value if isinstance(value, list | tuple) else [] if value is None else [value]
    return tuple(dict.fromkeys(int(v) for v in found))


def enable_checkpointing(hf: Any) -> None:
    # transformers 5.24 renames the call and warns about the old name
    enable = (
        getattr(hf, "activation_checkpointing_enable", None) or hf.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False})


def silence_dropout(hf: Any) -> None:
    """Sampler and learner must compute the same function, so dropout is off everywhere."""
    for module in hf.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 - Module's own setter is typed for tensors


def save_folder(hf: Any, tokenizer: Any, path: Path) -> None:
    """A plain Hugging Face folder, with weights as they are."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    before = hf.config._attn_implementation
    hf.set_attn_implementation("eager")
    try:
        hf.save_pretrained(path)
    finally:
        hf.set_attn_implementation(before)
    tokenizer.save_pretrained(path)
