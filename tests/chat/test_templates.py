"""Chat templates: what is rendered, what is encoded, and that sampled ids are never touched.

The templates here have the structure of well-known families: ChatML, Llama 3, Gemma, Mistral, Qwen 3.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from kolb.chat.conversation import behind
from kolb.chat.templates import ChatTemplate
from kolb.engines.base import Template
from kolb.errors import TemplateError
from kolb.models.tokenizers import byte_tokenizer
from kolb.types import Completion

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_DEFAULT = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    + CHATML
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
R1 = (  # opens answers with <think>, keeps only what comes after </think>
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + m['content'].split('</think>')[-1] + eos_token }}"
    "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)
NO_END = (  # nothing behind an answer but a new line
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

SPECIALS = (
    "<s>", "</s>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
    "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>",
)  # fmt: skip


def tokenizer(
    template: str | None, eos: str = "<|im_end|>", bos: str | None = None, pad: str | None = None
) -> Any:
    """Bytes, the families' special tokens, and a BOS that the tokenizer adds by itself where asked to."""
    tok = byte_tokenizer()
    tok.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    tok.eos_token, tok.pad_token, tok.chat_template = eos, pad or eos, template
    if bos:
        tok.bos_token = bos
        tok.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=None, special_tokens=[(bos, tok.convert_tokens_to_ids(bos))]
        )
    return tok


FAMILIES: dict[str, dict[str, Any]] = {
    "chatml": {"template": CHATML},
    "chatml-default-system": {"template": CHATML_DEFAULT, "pad": "<|pad|>"},
    "llama3": {"template": LLAMA3, "eos": "<|eot_id|>", "bos": "<|begin_of_text|>"},
    "llama3-base-eos": {"template": LLAMA3, "eos": "</s>", "bos": "<|begin_of_text|>"},
    "gemma": {"template": GEMMA, "eos": "</s>", "bos": "<s>"},
    "mistral": {"template": MISTRAL, "eos": "</s>", "bos": "<s>"},
    "qwen3": {"template": QWEN3},
    "no-end": {"template": NO_END, "eos": "</s>"},
    "plain": {"template": None, "eos": "</s>"},
    "plain-bos": {"template": None, "eos": "</s>", "bos": "<s>"},
}


def family(name: str) -> ChatTemplate:
    options = FAMILIES[name]
    return ChatTemplate(tokenizer(**options), template=None if options["template"] else "plain")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def sampled(
    template: ChatTemplate, text: str, *, ended: bool = True, end: int | None = None
) -> Completion:
    ids = list(template.encode_behind(text))
    if ended:
        ids.append(template.turn_end_id if end is None else end)
    ids = np.array(ids, np.int32)
    return Completion(template.decode(ids), ids, stop_reason="stop" if ended else "length")


def raw(template: ChatTemplate, ids: Any) -> str:
    return template.tokenizer.decode([int(i) for i in ids])


# ------------------------------------------------------------------------------------------ layout

EXPECTED = {
    "chatml": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    "yo<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nok<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<s><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n<start_of_turn>user\nok<end_of_turn>\n<start_of_turn>model\n",
    "mistral": "<s>[INST] hi [/INST]yo</s>[INST] ok [/INST]",
    "no-end": "user: hi\nassistant: yo</s>\nuser: ok\nassistant: ",
    "plain": "user:\nhi\nassistant:\nyo</s>\nuser:\nok\nassistant:\n",
    "plain-bos": "<s>user:\nhi\nassistant:\nyo</s>\nuser:\nok\nassistant:\n",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_second_prompt_reads_as_the_family_writes_it(name: str) -> None:
    template = family(name)
    chat = template.open([user("hi")])
    chat.add(sampled(template, "yo"))
    chat.extend([user("ok")])
    assert raw(template, chat.prompt_ids) == EXPECTED[name]
    assert chat.breaks == 0


@pytest.mark.parametrize("name", [n for n in FAMILIES if not n.startswith(("no-end", "mistral"))])
def test_a_well_behaved_conversation_has_the_ids_of_the_whole_rendering(name: str) -> None:
    template = family(name)
    messages = [user("hi"), assistant("yo"), user("and\nnow?"), assistant("left"), user("ok")]
    chat = template.open(messages[:1])
    for i in (1, 3):
        chat.add(sampled(template, messages[i]["content"]))
        chat.extend([messages[i + 1]])
    whole = template.tokenizer.encode(template.render(messages), add_special_tokens=False)
    assert chat.prompt_ids.tolist() == whole
    assert chat.prompt_ids.dtype == np.int32


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "no-end"])
def test_an_answer_cut_by_length_gets_the_end_that_it_lacks(name: str) -> None:
    template = family(name)
    prompts = []
    for ended in (True, False):
        chat = template.open([user("hi")])
        chat.add(sampled(template, "yo", ended=ended))
        chat.extend([user("ok")])
        prompts.append(chat.prompt_ids.tolist())
    assert prompts[0] == prompts[1]
    assert template.turn_end_id in prompts[0]


def test_where_the_template_writes_no_end_none_is_made_up() -> None:
    template = family("no-end")
    chat = template.open([user("hi")])
    chat.add(sampled(template, "yo", ended=False))
    chat.extend([user("ok")])
    assert raw(template, chat.prompt_ids) == "user: hi\nassistant: yo\nuser: ok\nassistant: "


def test_the_end_token_is_neither_doubled_nor_lost() -> None:
    template = family("chatml")
    for ended in (True, False):
        chat = template.open([user("hi")])
        chat.add(sampled(template, "yo", ended=ended))
        chat.extend([user("ok")])
        assert chat.prompt_ids.tolist().count(2) == 3  # two user turns and one answer


@pytest.mark.parametrize("name", ["llama3", "llama3-base-eos", "gemma", "mistral", "plain-bos"])
def test_there_is_exactly_one_bos(name: str) -> None:
    template = family(name)
    bos = template.tokenizer.bos_token_id
    assert template.tokenizer.encode("x")[0] == bos  # this tokenizer would add a second one
    chat = template.open([user("hi")])
    chat.add(sampled(template, "yo"))
    chat.extend([user("ok")])
    assert chat.prompt_ids[0] == bos
    assert chat.prompt_ids.tolist().count(bos) == 1


def test_no_space_slips_in_between_turns_of_a_sentencepiece_like_tokenizer() -> None:
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    letters = list("abcdefghijklmnopqrstuvwxyz:?\n▁")
    backend.train_from_iterator(
        ["hello there"],
        trainers.BpeTrainer(
            special_tokens=["<unk>", "</s>"], initial_alphabet=letters, show_progress=False
        ),
    )
    tok = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    template = ChatTemplate(tok, template=NO_END)
    chat = template.open([user("hi")])
    answer = Completion(
        "yo", np.array([*tok.convert_tokens_to_ids(["y", "o"]), tok.eos_token_id], np.int32)
    )
    chat.add(answer)
    chat.extend([user("ok")])
    space = tok.convert_tokens_to_ids("▁")
    assert chat.turns[0].context_ids[0] == space  # at the very start this tokenizer does add one
    assert tok.convert_ids_to_tokens(chat.pending.context_ids[:2].tolist()) == ["\n", "u"]


def test_end_ids_are_the_eos_the_templates_end_and_those_passed_in() -> None:
    tok = tokenizer(LLAMA3, eos="</s>", bos="<|begin_of_text|>")
    eos, eot = tok.convert_tokens_to_ids(["</s>", "<|eot_id|>"])
    assert ChatTemplate(tok, extra_end_ids=[7, eos]).end_ids == (eos, eot, 7)
    assert ChatTemplate(tok, template="plain").end_ids == (eos,)
    assert family("no-end").end_ids == (eos,)


def test_another_end_token_than_the_templates_ends_a_turn_too() -> None:
    template = family("llama3-base-eos")
    eos = template.tokenizer.eos_token_id
    chat = template.open([user("hi")])
    chat.add(sampled(template, "yo", end=eos))
    chat.extend([user("ok")])
    assert "yo</s><|start_header_id|>user" in raw(template, chat.prompt_ids)


# --------------------------------------------------------------------------------------- segments


def test_white_space_that_a_template_trims_is_no_break() -> None:
    template = family("llama3")
    chat = template.open([user("hi")])
    chat.add(sampled(template, "\n yo \n"))
    chat.extend([user("ok")])
    chat.add(sampled(template, " left "))
    chat.extend([user("ok")])
    assert chat.breaks == 0
    assert "\n\n\n yo \n<|eot_id|>" in raw(
        template, chat.prompt_ids
    )  # the record keeps what was sampled


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_an_answer_without_words_is_no_break(name: str, text: str) -> None:
    template = family(name)
    chat = template.open([user("hi")])
    chat.add(sampled(template, text))
    chat.extend([user("ok")])
    assert chat.breaks == 0
    assert [t.starts_segment for t in chat.turns] == [True]


def test_a_template_that_strips_thoughts_starts_a_segment_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    template = family("qwen3")
    with caplog.at_level(logging.WARNING, "kolb.chat"):
        for _ in range(2):
            chat = template.open([user("hi")])
            chat.add(sampled(template, "<think>\nhm\n</think>\n\nyo"))
            chat.extend([user("ok")])
            chat.add(sampled(template, "left"))
            chat.extend([user("more")])
    assert chat.breaks == 1
    assert [t.starts_segment for t in chat.turns] == [True, True]
    assert not chat.pending.starts_segment
    whole = [user("hi"), assistant("yo"), user("ok")]
    assert raw(template, chat.turns[1].context_ids) == template.render(whole)
    assert [r.message for r in caplog.records if "rewrites earlier turns" in r.message] == [
        caplog.records[0].message
    ]


def test_thoughts_before_tool_results_are_kept_and_break_nothing() -> None:
    template = family("qwen3")
    chat = template.open([user("hi")])
    chat.add(sampled(template, "<think>\nhm\n</think>\n\nyo"))
    chat.extend([{"role": "tool", "content": "3"}])
    assert chat.breaks == 0
    assert "hm" in raw(template, chat.prompt_ids)


def test_an_earlier_turn_that_is_rewritten_later_is_noticed() -> None:
    template = family("qwen3")
    chat = template.open([user("hi")])
    chat.add(sampled(template, "<think>\nhm\n</think>\n\nyo"))
    chat.extend([{"role": "tool", "content": "3"}])
    chat.add(sampled(template, "done"))
    chat.extend([user("ok")])  # only now the first answer loses its thoughts
    assert chat.breaks == 1
    assert chat.pending.starts_segment
    assert "hm" not in raw(template, chat.prompt_ids)


def test_a_context_that_is_rewritten_at_the_same_length_is_a_break() -> None:
    template = ChatTemplate(tokenizer("{{ messages | length }} messages\n" + CHATML))
    chat = template.open([user("hi")])
    chat.add(sampled(template, "yo"))
    chat.extend([user("ok")])
    assert chat.breaks == 1
    assert raw(template, chat.prompt_ids).startswith("3 messages\n<|im_start|>user\nhi")


def test_extending_twice_is_extending_once() -> None:
    template = family("chatml")
    prompts = []
    for parts in ([[user("a"), user("b")]], [[user("a")], [user("b")]]):
        chat = template.open([user("hi")])
        chat.add(sampled(template, "yo"))
        for part in parts:
            chat.extend(part)
        prompts.append((chat.prompt_ids.tolist(), chat.pending.messages))
    assert prompts[0] == prompts[1]


def test_two_extensions_behind_one_rewrite_count_as_one_break() -> None:
    template = family("qwen3")
    chat = template.open([user("hi")])
    chat.add(sampled(template, "<think>\nhm\n</think>\n\nyo"))
    chat.extend([user("a")])
    chat.extend([user("b")])
    assert chat.breaks == 1


def test_a_copy_grows_apart_from_its_original() -> None:
    template = family("chatml")
    chat = template.open([user("hi")])
    branch = copy.copy(chat)
    chat.add(sampled(template, "left"))
    branch.add(sampled(template, "right"))
    assert [c.turns[0].completion.text for c in (chat, branch)] == ["left", "right"]


def test_a_refused_message_leaves_the_conversation_as_it_was() -> None:
    template = family("gemma")
    chat = template.open([user("hi")])
    chat.add(sampled(template, "yo"))
    with pytest.raises(TemplateError, match="must alternate"):
        chat.extend([user("a"), user("b")])
    chat.extend([user("a")])
    assert [m["content"] for m in chat.messages] == ["hi", "yo", "a"]


def test_speaking_twice_or_without_ids_is_refused() -> None:
    template = family("chatml")
    chat = template.open([user("hi")])
    with pytest.raises(TemplateError, match="without token ids"):
        chat.add(Completion("yo"))
    chat.add(sampled(template, "yo"))
    with pytest.raises(TemplateError, match="spoke last"):
        chat.add(sampled(template, "yo"))
    with pytest.raises(TemplateError, match="spoke last"):
        _ = chat.prompt_ids


# --------------------------------------------------------------------------- sampled ids stay as they are


class Spy:
    """A tokenizer that remembers what it was asked to encode."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.encoded = inner, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        self.encoded.append(text)
        return self._inner.encode(text, **options)


MARK = "\u00a7"  # no message and no template of these tests holds it
KEEPERS = ["chatml", "llama3", "gemma", "mistral", "no-end", "plain-bos"]
SPIES = {
    name: ChatTemplate(
        Spy(tokenizer(**FAMILIES[name])), template=None if FAMILIES[name]["template"] else "plain"
    )
    for name in KEEPERS
}
VOCABULARY = len(tokenizer(CHATML))
answers = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), max_size=12), st.booleans(), st.text(max_size=8)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(KEEPERS), said=answers)
def test_sampled_ids_are_never_encoded_again(
    name: str, said: list[tuple[list[int], bool, str]]
) -> None:
    """Random ids hold halves of characters, special tokens and ids that decode and encode to others."""
    template = SPIES[name]
    spy = template.tokenizer
    spy.encoded.clear()
    chat = template.open([user("hi")])
    record: list[int] = chat.prompt_ids.tolist()
    for ids, ended, heard in said:
        ids = [*ids, template.turn_end_id] if ended else ids
        ids = ids or [65]
        chat.add(Completion(MARK + template.decode(ids), np.array(ids, np.int32)))
        chat.extend([user(heard.replace(MARK, ""))])
        record += [*ids, *chat.pending.context_ids.tolist()]
        assert chat.prompt_ids.tolist() == record
    assert chat.breaks == 0
    assert not [text for text in spy.encoded if MARK in text]
    parts = [
        p for t in chat.turns for p in (*t.context_ids.tolist(), *t.completion.token_ids.tolist())
    ]
    assert parts == record[: len(parts)]


def test_ids_that_do_not_survive_decoding_are_really_among_them() -> None:
    template = family("chatml")
    lone = [i for i in range(VOCABULARY) if list(template.encode(template.decode([i]))) != [i]]
    assert len(lone) > 100


# ------------------------------------------------------------------------------------ transcription

CHAT = [
    system("Be brief."),
    user("hi"),
    assistant("yo"),
    user("and now?"),
    assistant(" go left\n"),
    user("bye"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_demonstration_begins_with_the_ids_of_a_live_prompt(name: str) -> None:
    template = family(name)
    written = template.transcribe(CHAT).turns
    live = template.open(CHAT[:2])
    own = template.tokenizer.encode(template.render(CHAT[:2]), add_special_tokens=False)
    assert written[0].context_ids.tolist() == live.prompt_ids.tolist() == own
    assert [t.starts_segment for t in written] == [True, False]
    assert [t.messages for t in written] == [tuple(CHAT[:2]), (CHAT[3],)]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_demonstration_replayed_as_samples_is_the_same_record(name: str) -> None:
    template = family(name)
    written = template.transcribe(CHAT)
    live = template.open(CHAT[:2])
    for turn, heard in zip(written.turns, ([CHAT[3]], [CHAT[5]]), strict=True):
        assert turn.context_ids.tolist() == live.pending.context_ids.tolist()
        live.add(turn.completion)
        live.extend(heard)
    assert live.breaks == 0


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("chatml", "yo<|im_end|>", " go left\n<|im_end|>"),
        ("llama3", "yo<|eot_id|>", "go left<|eot_id|>"),
        ("gemma", "yo<end_of_turn>", "go left<end_of_turn>"),
        ("mistral", " yo</s>", " go left</s>"),
        ("no-end", "yo</s>", " go left\n</s>"),
        ("plain", "yo</s>", " go left\n</s>"),
    ],
)
def test_targets_are_what_the_family_writes_with_the_end_of_turn(
    name: str, first: str, second: str
) -> None:
    template = family(name)
    turns = template.transcribe(CHAT).turns
    assert [raw(template, t.completion.token_ids) for t in turns] == [first, second]
    assert all(
        t.completion.stop_reason == "given" and len(t.completion.logprobs) == 0 for t in turns
    )
    assert turns[0].completion.text == template.decode(turns[0].completion.token_ids)


def test_white_space_behind_the_end_token_belongs_to_the_next_context() -> None:
    template = family("chatml")
    turns = template.transcribe(CHAT).turns
    assert turns[0].completion.token_ids[-1] == 2
    assert (
        raw(template, turns[1].context_ids)
        == "\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_two_answers_in_a_row_are_two_turns() -> None:
    template = family("chatml")
    turns = template.transcribe([user("hi"), assistant("a"), assistant("b")]).turns
    assert raw(template, turns[1].context_ids) == "\n<|im_start|>assistant\n"
    assert turns[1].messages == ()


def test_an_opening_that_the_history_drops_is_not_part_of_the_target() -> None:
    template = ChatTemplate(tokenizer(R1, eos="</s>", bos="<s>"))
    turns = template.transcribe(
        [user("hi"), assistant("hm</think>yo"), user("ok"), assistant("left")]
    ).turns
    assert raw(template, turns[0].context_ids) == "<s><|user|>hi<|assistant|><think>\n"
    assert raw(template, turns[0].completion.token_ids) == "hm</think>yo</s>"
    assert turns[1].starts_segment
    assert (
        raw(template, turns[1].context_ids)
        == "<s><|user|>hi<|assistant|>yo</s><|user|>ok<|assistant|><think>\n"
    )


def test_a_chat_without_an_answer_is_an_error() -> None:
    with pytest.raises(TemplateError, match="nothing to learn"):
        family("chatml").transcribe([user("hi")])


# --------------------------------------------------------------------------------------- messages


def test_a_system_message_moves_into_the_first_user_message_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    template = family("gemma")
    with caplog.at_level(logging.WARNING, "kolb.chat"):
        for _ in range(2):
            chat = template.open([system("Be brief."), user("hi")])
    assert (
        raw(template, chat.prompt_ids)
        == "<s><start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\n"
    )
    assert chat.messages[0] == system("Be brief.")  # the record keeps the message as it came
    assert len([r for r in caplog.records if "no system role" in r.message]) == 1


def test_a_system_message_that_a_template_would_drop_silently_is_moved_too() -> None:
    silent = "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}"
    template = ChatTemplate(tokenizer(silent, eos="</s>"))
    assert template.render([system("Be brief."), user("hi")]) == "user: Be brief.\n\nhi</s>"


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@pytest.mark.parametrize("template", [None, "plain"])
def test_tool_calls_become_targets_and_tools_become_context(template: str | None) -> None:
    chat = ChatTemplate(byte_tokenizer(), template=template)
    messages = [
        user("2+3?"),
        CALLING,
        {"role": "tool", "content": "5", "tool_call_id": "1"},
        assistant("5"),
    ]
    turns = chat.transcribe(messages, [ADD]).turns
    assert (
        turns[0].completion.text == '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    )
    assert '"description": "Adds."' in raw(chat, turns[0].context_ids)
    assert "tool" in raw(chat, turns[1].context_ids)
    assert [t.starts_segment for t in turns] == [True, False]


def test_tools_and_tool_calls_that_a_template_drops_are_errors() -> None:
    template = family("chatml")
    with pytest.raises(TemplateError, match="does not show tools"):
        template.open([user("hi")], [ADD])
    with pytest.raises(TemplateError, match="drops tool calls"):
        template.transcribe([user("hi"), CALLING])


def test_tool_calls_are_missed_even_where_the_list_of_tools_has_their_names() -> None:
    listing = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    template = ChatTemplate(tokenizer(listing + CHATML))
    assert template.open([user("hi")], [ADD]).breaks == 0
    with pytest.raises(TemplateError, match="drops tool calls"):
        template.transcribe([user("2+3?"), CALLING], [ADD])


def test_text_parts_are_joined_and_pictures_refused() -> None:
    template = family("chatml")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (
        template.render([{"role": "user", "content": parts}], answer=False)
        == "<|im_start|>user\nab<|im_end|>\n"
    )
    with pytest.raises(TemplateError, match="text or a list of text parts"):
        template.open(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        )
    with pytest.raises(TemplateError, match="needs a role"):
        template.open([{"content": "hi"}])
    with pytest.raises(TemplateError, match="no messages"):
        template.open([])


# -------------------------------------------------------------------------------- where templates come from


def test_a_missing_template_names_the_way_out() -> None:
    with pytest.raises(TemplateError, match='`template = "plain"`'):
        ChatTemplate(tokenizer(None))


def test_a_template_may_be_a_file_or_its_text(tmp_path: Any) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(CHATML)
    tok = tokenizer(None)
    texts = [ChatTemplate(tok, template=t).render([user("hi")]) for t in (str(path), CHATML)]
    assert texts == ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"] * 2
    with pytest.raises(TemplateError, match="neither"):
        ChatTemplate(tok, template=str(tmp_path / "absent.jinja"))


def test_a_tokenizer_without_any_end_token_is_refused() -> None:
    tok = tokenizer(NO_END)
    tok.eos_token = None
    with pytest.raises(TemplateError, match="would never end"):
        ChatTemplate(tok)
    with pytest.raises(TemplateError, match="which the plain template needs"):
        ChatTemplate(tok, template="plain")
    assert ChatTemplate(tok, extra_end_ids=[9]).end_ids == (9,)


def test_a_template_that_hides_the_answer_is_refused() -> None:
    with pytest.raises(TemplateError, match="does not show what the assistant says"):
        ChatTemplate(tokenizer("{% for m in messages %}{{ m['role'] }}{% endfor %}"))


def test_prompts_do_not_depend_on_the_day() -> None:
    dated = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{{ 'Today: ' + date_string + '\n' }}"
    template = ChatTemplate(tokenizer(dated + CHATML))
    assert template.render([user("hi")]).startswith("Today: 26 Jul 2024\n")


def test_decode_drops_special_tokens_at_the_end_only() -> None:
    template = family("llama3")
    ids = template.encode("<s>a<|eot_id|>b</s><|eot_id|>")
    assert template.decode(ids) == "<s>a<|eot_id|>b"
    assert template.decode([]) == ""


def test_chat_template_is_a_template() -> None:
    protocol: Template = family("chatml")
    assert protocol.end_ids == (2,)


@pytest.mark.parametrize(
    ("text", "said", "end", "rest"),
    [
        ("yo</s>u", "yo", "</s>", "</s>u"),
        (" yo</s>u", "yo\n", "</s>", "</s>u"),
        ("yo\n</s>u", "yo\n", "</s>", "</s>u"),
        ("</s>u", " \n", "</s>", "</s>u"),
        ("yo\nu", "yo", "", "\nu"),
        ("yo\n\nu", "yo\n", "", "\nu"),
        ("yet</s>", "yo", "</s>", None),
        ("yo, changed</s>", "yo", "</s>", None),
        ("yo", "yo", "</s>", None),
    ],
)
def test_behind_finds_the_rest(text: str, said: str, end: str, rest: str | None) -> None:
    assert behind(text, said, end) == rest
