"""The base models of the evidence for Training-Free GRPO: the embedded model ``notes``, taught by ``evidence.worth_corpus``.

    python -m evidence.worth_base FOLDER policies.agent.base=FOLDER/start seed=0

``FOLDER/model`` appears whole, when all is done. It acts, compares, proposes and plans in worlds that it was never taught.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from evidence import small_base
from evidence.plan import Sets
from evidence.worth_corpus import REWARDS, TENTHS, WORDS
from kolb.models.fetch import EMBEDDED
from kolb.models.grids.start import SPREAD, waves
from kolb.models.tokenizers import word_tokenizer

RECIPE = Path(__file__).with_name("worth_base.toml")


def write_start(folder: Path, seed: int) -> None:
    """The embedded model with words added. Neighbouring rewards begin alike. The same seed gives the same bytes."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    home = EMBEDDED["notes"]
    known = AutoTokenizer.from_pretrained(home).get_vocab()
    tokenizer = word_tokenizer([*sorted(known, key=known.__getitem__), *WORDS])
    ids = tokenizer.get_vocab()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32)
        model.resize_token_embeddings(len(ids), mean_resizing=False)
        table = model.get_input_embeddings().weight
        table[len(known) :].normal_(0.0, SPREAD)
        half = table.shape[1] // 2
        for words in (TENTHS, REWARDS):
            for n, word in enumerate(words):
                if ids[word] >= len(known):
                    table[ids[word], :half] = table[ids[words[1]], :half]
                    table[ids[word], half:] = waves(n, half)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build(folder: Path, sets: Sets) -> None:
    """``folder/start``, ``folder/run`` and, when all is done, ``folder/model``."""
    small_base.build(folder, RECIPE, sets, write_start)


if __name__ == "__main__":
    build(Path(sys.argv[1]), tuple(sys.argv[2:]))
