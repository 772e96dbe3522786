"""Where the embedded model ``notes`` starts from: the weights of ``grids``, with words for keeping notes added.

    python -m kolb.models.notes.start build/notes-start

Words that belong together start alike: ``7``, ``(7)`` and ``7.`` share half of their dimensions, and so do ``[G7].`` and
``"G7",``. ``recipes/base/notes.toml`` teaches the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kolb.models.fetch import EMBEDDED
from kolb.models.grids import start as grids
from kolb.models.notes.editing import MOST_IDS
from kolb.models.notes.prompts import NOTES
from kolb.models.tokenizers import word_tokenizer

TAGS = ("task", "answer", "result", "attempt", "library", "lessons", "new", "experiences")
WORDS = (
    "[not given] [REDACTED] ## Turn The agent: Feedback: reward Attempt (reward 0): 1): [REDACTED]): None . "
    'revise: remove: add: [ ] } , " {"content": "id": null, "was": "operation": "ADD" "UPDATE" "DELETE" "NONE" '
    '"from":'
)
PROMPTS = (NOTES.heading, NOTES.summary, NOTES.comparison, NOTES.proposals, NOTES.plan)
NUMERALS = ("{}", "({})", "{}.")
IDS = ("[G{}].", '"G{}",')
MOST = 40
"""The highest number of an attempt, a lesson or a proposal."""


def rows() -> list[list[str]]:
    """Words that start alike, by family: one row for each number."""
    numbers = [[form.format(n) for form in NUMERALS] for n in range(1, MOST + 1)]
    return [*numbers, *([form.format(n) for form in IDS] for n in range(MOST_IDS))]


def new_words() -> list[str]:
    tags = [tag for name in TAGS for tag in (f"<{name}>", f"</{name}>")]
    alike = [word for row in rows() for word in row]
    return [*tags, *WORDS.split(), *" ".join(PROMPTS).split(), *alike]


def with_new_words(known: torch.Tensor, ids: Mapping[str, int]) -> torch.Tensor:
    """The table of embeddings with random rows for new words, those of a family alike in one half and those of a form
    in the other."""
    added = grids.SPREAD * torch.randn(len(ids) - len(known), known.shape[1])
    table = torch.cat([known, added])
    half = known.shape[1] // 2
    families = rows()
    for family in families:
        for word, form in zip(
            family, families[0 if len(family) == len(NUMERALS) else -1], strict=True
        ):
            table[ids[word], :half] = table[ids[family[0]], :half]
            table[ids[word], half:] = table[ids[form], half:]
    return torch.cat([known, table[len(known) :]])


def write_start(folder: Path, seed: int = 0) -> None:
    """A Hugging Face folder. The same seed gives the same bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    home = EMBEDDED["grids"]
    symbols, names, cells = grids.vocabulary()
    tokenizer = word_tokenizer([*symbols, *names, *grids.WORDS.split(), *cells, *new_words()])
    ids = tokenizer.get_vocab()
    config = LlamaConfig.from_pretrained(home)
    config.vocab_size = len(ids)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        known: Any = LlamaForCausalLM.from_pretrained(home, dtype=torch.float32)
        state = known.state_dict()
        table = with_new_words(state["model.embed_tokens.weight"], ids)
        state |= {"model.embed_tokens.weight": table, "lm_head.weight": table}
        model.load_state_dict(state)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m kolb.models.notes.start FOLDER")
    write_start(Path(sys.argv[1]))
