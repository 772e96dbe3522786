"""Bodies of requests and answers: what is sent, and what the forms of many servers are read as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kolb.engines.endpoint.answers import Answer, Form, answer_from_json
from kolb.engines.endpoint.cache import RequestCache
from kolb.engines.endpoint.faults import FAULTS, Fault
from kolb.engines.endpoint.spending import Budget, Tokens
from kolb.errors import RecipeError, SamplerError
from kolb.types import SamplingParams

CHAT = [{"role": "user", "content": "2+3?"}]


def choice(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop"}]}


def read(body: Any, form: Form = Form(), wants_logprobs: bool = False) -> Answer:
    return form.read(body, wants_logprobs=wants_logprobs)


# ---------------------------------------------------------------------------------------- requests


def test_a_request_says_temperature_top_p_and_seed_and_nothing_that_only_some_servers_know() -> (
    None
):
    body = Form().body("m", CHAT, SamplingParams(max_tokens=9, temperature=0.7, seed=2**40 + 5))
    assert body == {
        "model": "m",
        "messages": CHAT,
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 1.0,
        "seed": 5,
    }


def test_a_request_takes_the_form_that_its_server_wants() -> None:
    form = Form("completions", "max_completion_tokens", ("seed", "top_p"), {"min_p": 0.0}, True)
    params = SamplingParams(max_tokens=9, top_k=3, stop=("\n",))
    assert form.body("m", "2+3=", params) == {
        "model": "m",
        "prompt": "2+3=",
        "max_completion_tokens": 9,
        "temperature": 1.0,
        "top_k": 3,
        "stop": ["\n"],
        "logprobs": 1,
        "min_p": 0.0,
    }


def test_logprobs_are_asked_for_where_they_are_those_of_the_sampling_temperature() -> None:
    form = Form(logprobs=True)
    asked = [form.asks_logprobs(SamplingParams(temperature=t)) for t in (0.0, 0.7, 1.0)]
    assert asked == [True, False, True]
    assert not Form().asks_logprobs(SamplingParams())


# ----------------------------------------------------------------------------------------- answers


def test_text_reasoning_and_usage_are_read_apart() -> None:
    body = choice(content="5", reasoning_content="2 and 3 make 5")
    body["usage"] = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert read(body) == Answer("5", "2 and 3 make 5", "stop", Tokens(10, 4, 7))


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Tokens(9, 0, 2)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 8}, Tokens(9, 8, 2)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}, Tokens(9, 0, 2)),
        ({"prompt_tokens": 9}, None),
        ({"prompt_tokens": -1, "completion_tokens": 2}, None),
        ({"prompt_tokens": "9", "completion_tokens": 2}, None),
        (None, None),
    ],
)  # fmt: skip
def test_usage_is_what_the_server_counted_or_nothing(usage: Any, tokens: Tokens | None) -> None:
    assert read({**choice(content="5"), "usage": usage}).tokens == tokens


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": ""}, "", ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", ""),
        ({"content": None, "reasoning": "hm"}, "", "hm"),
        ({"content": None}, "", ""),
        ({"content": None, "refusal": "I cannot."}, "I cannot.", ""),
    ],
)
def test_content_of_every_form_becomes_text(message: Any, text: str, reasoning: str) -> None:
    answer = read(choice(**message))
    assert (answer.text, answer.reasoning) == (text, reasoning)


def test_a_cut_answer_says_length_and_a_stop_string_that_the_server_names_is_put_back() -> None:
    cut = {"choices": [{"text": "4 +", "finish_reason": "length"}]}
    stopped = {"choices": [{"text": "5", "finish_reason": "stop", "stop_reason": "</a>"}]}
    ended = {"choices": [{"text": "5", "finish_reason": "stop", "stop_reason": 151645}]}
    form = Form("completions")
    assert read(cut, form).finish_reason == "length"
    assert [read(b, form).text for b in (stopped, ended)] == ["5</a>", "5"]


@pytest.mark.parametrize(
    ("body", "kind", "final"),
    [
        ([], "malformed", None),
        ({}, "empty", None),
        ({"choices": []}, "empty", None),
        ({"choices": None, "error": {"message": "overloaded"}}, "server_error", None),
        ({"choices": ["5"]}, "malformed", None),
        ({"choices": {"0": 1}}, "malformed", None),
        ({"choices": [{"finish_reason": "stop"}]}, "malformed", None),
        (choice(), "malformed", None),
        (choice(content=5), "malformed", None),
        ({"choices": [{"message": {"content": "5"}, "finish_reason": "error"}]}, "server_error", None),
        ({"choices": [{"message": {"content": "5"}, "finish_reason": "content_filter"}]}, "filtered", SamplerError),
        (choice(content=None, tool_calls=[{"id": "1"}]), "refused", SamplerError),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_fault_of_its_kind(body: Any, kind: str, final: Any) -> None:
    with pytest.raises(Fault) as caught:
        read(body)
    assert (caught.value.kind, caught.value.final) == (kind, final)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "text", "usage", "finish_reason", "logprobs"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON, st.sampled_from(["chat", "completions"]), st.booleans())
def test_any_json_is_an_answer_or_a_fault(body: Any, api: str, wants_logprobs: bool) -> None:
    kind = ""
    try:
        assert isinstance(read(body, Form(api), wants_logprobs).text, str)
    except Fault as fault:
        kind = fault.kind
    assert kind in ("", *FAULTS)


def test_logprobs_are_read_in_both_forms_and_missed_in_words() -> None:
    chat = {**choice(content="5")["choices"][0], "logprobs": {"content": [{"logprob": -0.5}]}}
    assert read({"choices": [chat]}, wants_logprobs=True).logprobs == (-0.5,)
    plain = {"text": "5", "logprobs": {"token_logprobs": [-0.5, 0.0]}}
    assert read({"choices": [plain]}, Form("completions"), True).logprobs == (-0.5, 0.0)
    with pytest.raises(Fault, match="logprobs = false") as caught:
        read(choice(content="5"), wants_logprobs=True)
    assert caught.value.final is RecipeError


def test_an_answer_survives_json() -> None:
    answer = Answer("5", "hm", "length", Tokens(3, 1, 2), (-0.25, -1.0))
    assert answer_from_json(answer.to_json()) == answer
    assert answer_from_json(Answer("").to_json()) == Answer("")


def test_a_cache_that_cannot_be_written_says_which_folder_and_what_to_do(tmp_path: Path):
    (tmp_path / "taken").write_text("a file where the folder should be")
    cache = RequestCache(tmp_path / "taken", "on")
    with pytest.raises(RecipeError, match=r"taken cannot be written .* another folder"):
        cache.put({"seed": 1}, Answer("yes"))
    assert cache.get({"seed": 1}) is None


@pytest.mark.parametrize(
    "line", ["5", "null", '{"schema": 1}', '{"schema": 1, "tokens": 1e999, "cost": 0}']
)
def test_books_that_hold_no_charge_are_refused_in_words(line: str, tmp_path: Path):
    books = tmp_path / "usage.jsonl"
    books.write_text(f"{line}\n")
    with pytest.raises(RecipeError, match="which is no charge"):
        Budget().keep_books(books)
