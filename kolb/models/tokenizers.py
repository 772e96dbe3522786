"""Small tokenizers of our own: byte-level BPE that loses nothing and suits text grids.

Text is first cut into pieces, and merges never cross a piece: a grid cell (`` A \\t``), a word, a digit,
a symbol (each with the one space before it), a newline, a run of other white space. So an agent's board
costs about one token per cell, and what is not in the vocabulary falls back to bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kolb.errors import RecipeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant", "tool")
BYTES = 256

PIECES = "|".join(
    (
        r" \S \t",  # a cell of a grid
        r" ?\p{L}+",
        r" ?\p{N}",
        r" ?```",
        r" ?[^\s\p{L}\p{N}]",
        r"\r?\n",
        r"[^\S\n]+(?!\S)",  # leaves the last space to the word behind it
        r"\s",
    )
)

CHATML = (
    "{% if tools %}<|im_start|>system\n"
    'You may call a tool by writing <tool_call>{"name": ..., "arguments": {...}}</tool_call>. Tools:'
    "{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function or call) | tojson + '</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Our chat format: ChatML without a default system prompt, tool calls in hermes style."""


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 512, extra_words: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer for ``texts``; the same texts in the same order give the same tokenizer, byte for byte.

    It holds at most ``vocab_size`` tokens: <|pad|> (0), <|im_start|> (1), <|im_end|> (2, the eos), all 256
    bytes, merges, then the chat's role names and ``extra_words``, each of which becomes one token wherever
    it stands as a whole word. Raises RecipeError where ``vocab_size`` is too small for that, or an extra
    word cannot be a token.

    >>> tok = train_tokenizer(["go left", "go up"] * 9)
    >>> tok.decode(tok.encode("go ← left")) == "go ← left"
    True
    """
    words = tuple(dict.fromkeys((*ROLES, *extra_words)))
    base = vocab_size - len(words)
    least = BYTES + 3
    if base < least:
        raise RecipeError(
            f"vocab_size={vocab_size} is too small: {BYTES} bytes, 3 special tokens, {len(ROLES)} roles and"
            f" {len(words) - len(ROLES)} extra words take {least + len(words)}"
        )
    from tokenizers import trainers

    tokenizer = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=base,
        min_frequency=2,
        special_tokens=[PAD, START, END],
        initial_alphabet=_alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finished(tokenizer, words)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The same without merges: 256 bytes, three special tokens and the four role names (263 in all)."""
    return train_tokenizer((), vocab_size=BYTES + 3 + len(ROLES))


def _untrained() -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _finished(tokenizer: Tokenizer, words: Sequence[str]) -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    known = tokenizer.get_vocab()
    tokenizer.add_tokens(
        [AddedToken(w, single_word=w.isalnum(), normalized=False) for w in words if w not in known]
    )
    for word in words:
        ids = tokenizer.encode(word, add_special_tokens=False).ids
        if len(ids) != 1 or tokenizer.decode(ids, skip_special_tokens=False) != word:
            raise RecipeError(
                f"extra word {word!r} cannot be a token of its own; use letters, digits or symbols of ASCII"
            )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        chat_template=CHATML,
    )


WORD_CHAT = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}{{ message.content or '' }}"
    "{{ '<|end|>' if message.role == 'assistant' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""One token for each role, and one behind what the assistant says."""


def word_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word of ``words``, for models that need no other text.

    White space separates words and means nothing else; a decoded text has one space between words. A word that is not in
    the vocabulary becomes <|unk|>. Special tokens: <|pad|> (0), <|end|> (1, the eos), <|unk|> (2), then the
    roles.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|end|>", "<|unk|>", *(f"<|{role}|>" for role in ROLES)]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys((*special, *words)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        unk_token="<|unk|>",
        extra_special_tokens=special[3:],
        clean_up_tokenization_spaces=False,
        chat_template=WORD_CHAT,
    )
