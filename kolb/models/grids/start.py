"""Where the embedded base model starts from: a word tokenizer and random weights.

    python -m kolb.models.grids.start build/grids-start

Every cell of a board is one word, such as ``b4K``. Its embedding starts as the sum of those of its two parts, ``b4``
and ``K``, each of which has half of the dimensions to itself; and ``b4`` is a column and a row, each in sines and cosines
(as the positions of arXiv:1706.03762, section 3.5), so that the cell beside it is a rotation away. What a network
learns about one cell then holds for all. The rest is a small Llama with random weights, which
``recipes/base/grids.toml`` teaches.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import cast

import torch

from kolb.models.tokenizers import word_tokenizer

LETTERS = "ABCDEFGHIJKL"
"""The symbols that the model reads, and their small letters (the agent on the goal)."""
COLUMNS, ROWS = "abcdefghi", range(1, 10)
WORDS = (
    "Left Down Right Up edge <prompt> </prompt> agent box goal hole wall frozen floor "
    "won fell moved blocked pushed invalid timeout end at to : , ? "
    "which symbol is what where beside do nothing known about this grid yet look try and learn "
    # for lessons to come: predicting what an action does, and comparing attempts
    "if then next predict board after reward 0 1 first second attempt better worse same why because "
    "since not no yes rule rules note add keep remove use to"
)
SPREAD = 0.2
CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


def vocabulary() -> tuple[list[str], list[str], dict[str, tuple[str, str]]]:
    """Symbols, names of cells, and the words for a symbol in a cell with their two parts."""
    symbols = [*LETTERS, *LETTERS.lower()]
    names = [f"{column}{row}" for column in COLUMNS for row in ROWS]
    return symbols, names, {name + s: (name, s) for name in names for s in symbols}


def waves(place: int, size: int) -> torch.Tensor:
    """``size`` numbers, sines and cosines of ``place`` at wavelengths of 2 to 20 places."""
    angles = place * torch.linspace(2 * math.pi / 20, math.pi, size // 2)
    return SPREAD * math.sqrt(2) * torch.cat([angles.sin(), angles.cos()])


def write_start(folder: Path, seed: int = 0) -> None:
    """A Hugging Face folder. The same seed gives the same bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    symbols, names, cells = vocabulary()
    tokenizer = word_tokenizer([*symbols, *names, *WORDS.split(), *cells])
    ids = tokenizer.get_vocab()
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(vocab_size=len(ids), bos_token_id=None, **special, **CONFIG)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        table = cast(torch.Tensor, model.get_input_embeddings().weight)
        table.normal_(0.0, SPREAD)
        half = config.hidden_size // 2
        table[[ids[s] for s in symbols], half:] = 0.0
        for name in names:
            column, row = COLUMNS.index(name[0]), int(name[1]) - 1
            table[ids[name], :half] = 0.0
            table[ids[name], half:] = torch.cat([waves(column, half // 2), waves(row, half // 2)])
        for word, (name, symbol) in cells.items():
            table[ids[word]] = table[ids[name]] + table[ids[symbol]]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m kolb.models.grids.start FOLDER")
    write_start(Path(sys.argv[1]))
