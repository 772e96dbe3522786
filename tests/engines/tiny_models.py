"""Random tiny models of several families for the engine's tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from kolb.engines.base import ModelSpec
from kolb.types import Example

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": True},
    "llama_untied": {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 16},
    "gemma3": {
        "model_type": "gemma3_text",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 6},
    "gpt2": {"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": {"model_type": "gpt_neox"},
}
COMMON = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}


@cache
def tokenizer_folder() -> str:
    from kolb.models.tokenizers import byte_tokenizer

    folder = Path(mkdtemp()) / "bytes"
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def spec(family: str = "llama", **changes: Any) -> ModelSpec:
    own = FAMILIES[family]
    common = {"initializer_range": 0.3} if family == "gpt2" else COMMON
    return ModelSpec(build={**common, **own, **changes}, tokenizer=tokenizer_folder(), seed=1)


def examples(seed: int = 0, vocabulary: int = 250) -> list[Example]:
    """Shared prompts, a lone one, gaps between weighted targets, two streams, one-token targets."""
    rng = np.random.default_rng(seed)
    made = []
    for prompt_length, sizes in ((11, (9, 4, 13)), (5, (1, 1)), (17, (6,)), (3, (12, 2, 7, 5))):
        prompt = rng.integers(0, vocabulary, prompt_length).astype(np.int32)
        for n in sizes:
            weights = (rng.random(n) < 0.7).astype(np.float32)
            weights[rng.integers(n)] = 1.0
            other = (rng.random(n) < 0.3).astype(np.float32)
            made.append(
                Example(
                    "agent",
                    prompt,
                    rng.integers(0, vocabulary, n).astype(np.int32),
                    {"policy": weights, "imitation": other},
                    advantages=np.full(n, rng.normal(), np.float32),
                    sequence=f"s{len(made)}",
                )
            )
    return made
