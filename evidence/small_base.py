"""How the small base models of controlled tasks are made: random weights over a vocabulary of words, then a run of imitation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from evidence.plan import Sets
from kolb import recipe as recipes
from kolb.cli.exporting import export_run
from kolb.loop import run
from kolb.models.tokenizers import WORD_CHAT, word_tokenizer

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
}
"""About a tenth of a million parameters."""


@dataclass(frozen=True)
class Start:
    """A model that knows nothing: its words, its chat template and what differs from ``SHAPE``."""

    words: Sequence[str]
    chat: str = WORD_CHAT
    shape: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, seed: int) -> None:
        """A Hugging Face folder with random weights. The same seed gives the same bytes."""
        from transformers import LlamaConfig, LlamaForCausalLM

        tokenizer = word_tokenizer(self.words)
        tokenizer.chat_template = self.chat
        special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        shape = {**SHAPE, **self.shape}
        config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=None, **special, **shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def build(folder: Path, path: Path, sets: Sets, write: Callable[[Path, int], None]) -> None:
    """``folder/start`` by ``write``, ``folder/run`` of the recipe at ``path`` and, when all is done, ``folder/model``."""
    made, exported = folder / "run", folder / "exported"
    for left in (made, exported):  # of a command that was interrupted
        shutil.rmtree(left, ignore_errors=True)
    recipe = recipes.load(path, sets)
    write(folder / "start", recipe.seed)
    run(recipe, made)
    export_run(made, exported)
    exported.rename(folder / "model")
