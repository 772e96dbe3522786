"""Our own tokenizers: nothing is lost, grids are cheap, and the same texts give the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from kolb.errors import RecipeError
from kolb.models.tokenizers import byte_tokenizer, train_tokenizer

CELLS = " A \t D \t C \t\n D \t D \t B \t\n"
COMPACT = "A D # _\nD D B .\n"
WORDS = "Step 12 of 8. Choose Up, Down, Left or Right.\n```Up```\n"
TEXTS = [CELLS, COMPACT, WORDS] * 10
TOKENIZER = train_tokenizer(TEXTS, extra_words=("<prompt>", "</prompt>", "Backpack"))
BYTES = byte_tokenizer()


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([i]) for i in TOKENIZER.encode(text, add_special_tokens=False)]


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    for tokenizer in (TOKENIZER, BYTES):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "  two  spaces ",
        " ,. !?' s",
        "\r\n\t\n \n",
        "é→🙂\u0301",
        "<|im_end|> <|pad|>",
        "user<prompt>x</prompt> a Backpack",
        "\x00\x7f",
    ],
)
def test_white_space_symbols_and_special_words_come_back_too(text: str) -> None:
    for tokenizer in (TOKENIZER, BYTES):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_grid_costs_one_token_per_cell_and_newline() -> None:
    assert pieces(CELLS) == [" A \t", " D \t", " C \t", "\n", " D \t", " D \t", " B \t", "\n"]
    assert pieces(COMPACT) == ["A", " D", " #", " _", "\n", "D", " D", " B", " .", "\n"]


def test_words_digits_and_symbols_are_single_tokens() -> None:
    assert pieces(WORDS) == [
        "Step", " 1", "2", " of", " 8", ".", " Choose", " Up", ",", " Down", ",", " Left", " or", " Right", ".", "\n",
        "```", "Up", "```", "\n",
    ]  # fmt: skip


def test_digits_stay_single_however_often_a_number_is_seen() -> None:
    tokenizer = train_tokenizer(["2024 2024 2024"] * 50)
    assert [tokenizer.decode([i]) for i in tokenizer.encode("2024")] == ["2", "0", "2", "4"]


def test_extra_words_are_one_token_but_not_inside_other_words() -> None:
    assert pieces("<prompt>Up</prompt>") == ["<prompt>", "Up", "</prompt>"]
    assert pieces("Backpack") == ["Backpack"]
    assert "Backpack" not in pieces("Backpacks")


def test_a_chat_costs_a_role_one_token() -> None:
    ids = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Up"}], add_generation_prompt=True, return_dict=False
    )
    assert [TOKENIZER.decode([i]) for i in ids] == [
        "<|im_start|>", "user", "\n", "Up", "<|im_end|>", "\n", "<|im_start|>", "assistant", "\n",
    ]  # fmt: skip


def test_special_tokens_have_fixed_ids() -> None:
    for tokenizer in (TOKENIZER, BYTES):
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
        assert tokenizer.convert_tokens_to_ids(["<|pad|>", "<|im_start|>", "<|im_end|>"]) == [
            0,
            1,
            2,
        ]
        assert tokenizer.encode("x") == tokenizer.encode("x", add_special_tokens=False)


def test_vocab_size_is_a_limit_and_ids_have_no_gap() -> None:
    tokenizer = train_tokenizer(
        [f"word{'abcdefgh'[i % 8] * (i % 5)} {chr(97 + i % 26)}x" for i in range(500)],
        vocab_size=300,
    )
    assert len(tokenizer) == 300
    assert sorted(tokenizer.get_vocab().values()) == list(range(300))
    assert len(BYTES) == 263


def test_too_small_a_vocabulary_says_what_it_must_hold() -> None:
    with pytest.raises(RecipeError, match="take 264"):
        train_tokenizer(TEXTS, vocab_size=263, extra_words=("Backpack",))


def test_an_extra_word_that_would_not_come_back_is_refused() -> None:
    with pytest.raises(RecipeError, match="'café'"):
        train_tokenizer(TEXTS, extra_words=("café",))


def test_training_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        train_tokenizer(TEXTS, extra_words=("Backpack",)).save_pretrained(tmp_path / name)
        files.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert files[0] == files[1]
    assert "tokenizer.json" in files[0]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, BYTES])
def test_a_saved_folder_loads_as_the_same_tokenizer(tokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = CELLS + WORDS + "<|im_start|>user  é <prompt>Backpack"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.chat_template == tokenizer.chat_template
    assert (loaded.pad_token, loaded.eos_token) == ("<|pad|>", "<|im_end|>")
    assert set(loaded.all_special_ids) == {0, 1, 2}
