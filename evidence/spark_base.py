"""The base models of the Lp-Reg evidence: random weights, then imitation of the corpus of ``evidence.spark``.

    python -m evidence.spark_base FOLDER policies.agent.base=FOLDER/start seed=0 environments.spark.accuracy=0.4

A model has a tenth of a million parameters and takes some minutes. ``FOLDER/model`` appears whole, when all is done.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from evidence.plan import Sets
from evidence.spark import WORDS
from kolb import recipe as recipes
from kolb.cli.exporting import export_run
from kolb.loop import run
from kolb.models.tokenizers import word_tokenizer

RECIPE = Path(__file__).with_name("spark_base.toml")
CHAT = (
    "{% for message in messages %}{{ message.content }}"
    "{{ '<|end|>' if message.role == 'assistant' else ' ' }}{% endfor %}"
)
"""No word stands between a prompt and its answer, so that a forced re-check reads like one of the agent's own."""
CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
}


def write_start(folder: Path, seed: int) -> None:
    """A Hugging Face folder with random weights. The same seed gives the same bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = word_tokenizer(WORDS)
    tokenizer.chat_template = CHAT
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=None, **special, **CONFIG)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build(folder: Path, sets: Sets) -> None:
    """``folder/start``, ``folder/run`` and, when all is done, ``folder/model``."""
    made, exported = folder / "run", folder / "exported"
    for path in (made, exported):  # of a command that was interrupted
        shutil.rmtree(path, ignore_errors=True)
    recipe = recipes.load(RECIPE, sets)
    write_start(folder / "start", recipe.seed)
    run(recipe, made)
    export_run(made, exported)
    exported.rename(folder / "model")


if __name__ == "__main__":
    build(Path(sys.argv[1]), tuple(sys.argv[2:]))
