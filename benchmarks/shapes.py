"""What the engine benchmark runs on: model geometries, workloads, inputs, and the least work they take.

Every peer gets the same prompts, the same number of tokens for each completion, the same reward function
and random weights of the same shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

SAMPLES = 8
"""Completions of each task."""

WORDS = 509
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


@dataclass(frozen=True)
class Geometry:
    """A Llama with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Elements of the matrices that every token passes."""
        kv = self.hidden * self.kv_heads // self.heads
        attention = self.hidden * (2 * self.hidden + 2 * kv)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    def config(self, **more: Any) -> dict[str, Any]:
        """Keys of the transformers config."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": True,
            "max_position_embeddings": 1024,
            "pad_token_id": 0,
            "bos_token_id": 1,
            **more,
        }


GEOMETRIES = {
    "3m": Geometry(192, 6, 3, 3, 512, 512),
    "10m": Geometry(320, 6, 5, 5, 1280, 512),
    "135m": Geometry(576, 30, 9, 3, 1536, 49152),
}

RANGES = {
    "long": ((128, 256), (16, 128)),
    "short": ((16, 32), (16, 128)),
    "short32": ((16, 32), (4, 32)),
}
"""Lengths of prompts, and of completions."""


@dataclass(frozen=True)
class Workload:
    """``tasks`` prompts with SAMPLES completions each; lengths are uniform, drawn once, fixed per row."""

    name: str
    tasks: int = 8

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Token ids; words start at 3."""
        random, (low, high) = Random(0), RANGES[self.name][0]
        return [
            [random.randrange(3, 3 + WORDS) for _ in range(random.randint(low, high))]
            for _ in range(self.tasks)
        ]

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each completion, the completions of a prompt behind each other."""
        random, (low, high) = Random(1), RANGES[self.name][1]
        return [random.randint(low, high) for _ in range(self.tasks * SAMPLES)]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def texts(self) -> list[str]:
        return [" ".join(f"w{i}" for i in prompt) for prompt in self.prompts]


def even_words(completions: Sequence[str], **_: Any) -> list[float]:
    """The reward: the share of words with an even number."""
    rewards = []
    for completion in completions:
        numbers = [int(w[1:]) for w in completion.split() if w[1:].isdigit()]
        rewards.append(sum(n % 2 == 0 for n in numbers) / max(1, len(numbers)))
    return rewards


def write_tasks(workload: Workload, path: Path) -> None:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in workload.texts()))


def tokenizer(eos_id: int) -> Any:
    """One token per word; a chat is its messages' contents and nothing else."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {PAD: 0, BOS: 1, EOS: eos_id, **{f"w{i}": i for i in range(3, 3 + WORDS)}}
    words = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        chat_template="{% for message in messages %}{{ message.content + ' ' }}{% endfor %}",
    )


# ----------------------------------------------------------------------------------------- floors


@dataclass(frozen=True)
class Rates:
    """What the machine does at best: large and 64-row float32 products in FLOP/s, reads in bytes/s."""

    large: float
    rows64: float
    read: float


def rollout_floor(g: Geometry, w: Workload, rates: Rates) -> float:
    """Seconds that sampling takes at the least: each prompt once, each token once, keys and values of a
    prompt read once per step for its whole group. Matrices are read once per step where that is longer."""
    prompt_tokens = sum(map(len, w.prompts))
    prefill = 2 * g.layer_weights * prompt_tokens / rates.large
    decode_flops = 2 * (g.layer_weights + g.head_weights) * w.tokens
    read_weights = 4 * (g.layer_weights + g.head_weights) * max(w.lengths) / rates.read
    decode = max(decode_flops / rates.rows64, read_weights)
    attention = 4 * g.hidden * g.layers * _attended(w) / rates.large
    kv_width = 2 * g.hidden * g.kv_heads // g.heads
    return prefill + decode + attention + 4 * kv_width * g.layers * _kv_reads(w) / rates.read


def train_floor(g: Geometry, w: Workload, rates: Rates) -> float:
    """Seconds of forward and backward at the least: three products per matrix, each prompt once."""
    tokens = sum(map(len, w.prompts)) + w.tokens
    products = 6 * (g.layer_weights * tokens + g.head_weights * w.tokens)
    return (products + 3 * 4 * g.hidden * g.layers * _attended(w)) / rates.large


def _attended(w: Workload) -> int:
    """Pairs of a token and one that it sees, each prompt once."""
    within = sum(len(p) ** 2 for p in w.prompts) // 2
    return within + sum(
        n * len(w.prompts[i // SAMPLES]) + n * n // 2 for i, n in enumerate(w.lengths)
    )


def _kv_reads(w: Workload) -> int:
    """Tokens whose keys and values are read, over all steps of sampling."""
    own = sum(n * n // 2 for n in w.lengths)
    groups = [w.lengths[i : i + SAMPLES] for i in range(0, len(w.lengths), SAMPLES)]
    return own + sum(
        max(group) * len(prompt) for group, prompt in zip(groups, w.prompts, strict=True)
    )
