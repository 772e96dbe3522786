"""The engine for OpenAI-compatible endpoints, against a local server that fails as it is told."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Reply, babble, in_turn, said

from kolb.engines.base import ModelSpec
from kolb.engines.endpoint import client
from kolb.engines.endpoint.spending import Budget, Charge, Prices, Tokens
from kolb.engines.openai_compat import EndpointSampler, OpenAICompat
from kolb.errors import (
    BudgetSpentError,
    CapabilityError,
    DeadlineError,
    KolbError,
    RecipeError,
    SamplerError,
)
from kolb.types import Completion, SamplingParams

CHAT = [{"role": "user", "content": "Guess my number."}]
SECRET = "sk-very-secret-0123456789"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, none of which is waited for."""
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(client, "sleep", note)
    return waits


@pytest.fixture
def serve() -> Iterator[Callable[..., FaultServer]]:
    servers: list[FaultServer] = []

    def start(answer: Any = babble) -> FaultServer:
        servers.append(FaultServer(answer).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


def opened(server: FaultServer, model: str = "m", **options: Any) -> EndpointSampler:
    return OpenAICompat(base_url=server.url, **options).open_sampler(ModelSpec(base=model))


def sample(sampler: EndpointSampler, n: int = 1, **params: Any) -> list[Completion]:
    given = SamplingParams(**{"max_tokens": 12, **params})
    return asyncio.run(sampler.sample(CHAT, given, n))


async def many(sampler: EndpointSampler, seeds: range) -> list[Any]:
    jobs = (sampler.sample(CHAT, SamplingParams(max_tokens=12, seed=s)) for s in seeds)
    return await asyncio.gather(*jobs, return_exceptions=True)


# ----------------------------------------------------------------------------------------- answers


def test_text_comes_back_with_its_count_of_tokens_and_its_reasoning(serve: Any) -> None:
    server = serve(in_turn(Reply(said("Is it 50?", reasoning_content="Half of 100."))))
    (completion,) = sample(opened(server), seed=3)
    assert (completion.text, completion.reasoning) == ("Is it 50?", "Half of 100.")
    assert (completion.tokens, len(completion.token_ids)) == (3, 0)
    ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert "authorization" not in headers
    assert (body["model"], body["messages"], body["seed"]) == ("m", CHAT, 3)


def test_the_completions_api_gets_text_by_the_policys_template(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda request, n: Reply(said("50", request)))
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
    engine = OpenAICompat(base_url=server.url, api="completions")
    for template in ("plain", str(file)):
        sampler = engine.open_sampler(ModelSpec(base="m", template=template))
        assert sample(sampler)[0].text == "50"
    assert [path for path, _, _ in server.requests] == ["/v1/completions"] * 2
    assert [body["prompt"] for body in server.bodies] == [
        "user:\nGuess my number.\nassistant:\n",
        "<user>Guess my number.<assistant>",
    ]


def test_logprobs_come_with_the_completion_where_they_are_configured(serve: Any) -> None:
    reply = said("50")
    reply["choices"][0]["logprobs"] = {"content": [{"token": "50", "logprob": -0.5}]}
    server = serve(lambda request, n: Reply(reply))
    assert OpenAICompat().provides == {"sample"}
    assert OpenAICompat(logprobs=True).provides == {"sample", "logprobs"}
    sampler = opened(server, logprobs=True)
    assert sample(sampler)[0].logprobs.tolist() == [-0.5]
    assert sample(sampler, temperature=0.7)[0].logprobs.tolist() == []
    assert [body.get("logprobs") for body in server.bodies] == [True, None]


# ------------------------------------------------------------------------------------------ faults

BUSY = Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "9"})


@pytest.mark.parametrize(
    ("faults", "counted"),
    [
        ([BUSY, BUSY], {"rate_limited": 2}),
        ([Reply({}, 500), Reply(b"<html>", 503)], {"server_error": 2}),
        ([Reply(cut="reset")], {"connection": 1, "unmetered": 1}),
        ([Reply(said("never seen"), cut="body")], {"truncated": 1, "unmetered": 1}),
        ([Reply(b'{"choices": [')], {"malformed": 1, "unmetered": 1}),
        ([Reply(b"\xff\xfe")], {"malformed": 1, "unmetered": 1}),
        ([Reply({"choices": []})], {"empty": 1, "unmetered": 1}),
        ([BUSY, Reply(cut="reset"), Reply({}, 502)], {"rate_limited": 1, "connection": 1, "server_error": 1, "unmetered": 1}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_fault_that_may_pass_is_tried_again_and_counted(
    serve: Any, slept: list[float], faults: list[Reply], counted: dict[str, int]
) -> None:
    server = serve(in_turn(*faults))
    sampler = opened(server)
    assert sample(sampler, seed=3)[0].text == "3 of 1"
    assert len(server.requests) == len(faults) + 1 == sampler.usage["requests"]
    assert sampler.usage["retries"] == len(faults) == len(slept)
    assert {k: v for k, v in sampler.usage.items() if k in counted} == counted
    assert [body["seed"] for body in server.bodies] == [3] * len(server.requests)


def test_retry_after_is_waited_for_and_a_wait_that_is_too_long_ends_it(
    serve: Any, slept: list[float]
) -> None:
    late = Reply({}, 429, {"Retry-After": "500"})
    server = serve(in_turn(BUSY, late))
    with pytest.raises(SamplerError, match=r"asks to wait 500 s, more than longest_wait_s = 120"):
        sample(opened(server))
    assert slept == [9.0]
    assert len(server.requests) == 2


def test_tries_end_after_retries_with_the_last_fault(serve: Any, slept: list[float]) -> None:
    server = serve(lambda request, n: Reply({"error": "loading"}, 503))
    with pytest.raises(SamplerError, match=r"status 503: loading; 4 tries \(retries = 3"):
        sample(opened(server, retries=3))
    assert len(server.requests) == 4
    assert len(slept) == 3


@pytest.mark.parametrize(("retries", "tries"), [(0, 1), (1, 2), (6, 3)])
def test_a_server_that_was_never_there_is_given_up_after_three_tries_and_asked_about(
    slept: list[float], retries: int, tries: int
) -> None:
    with FaultServer() as gone:
        sampler = opened(gone, retries=retries)
    with pytest.raises(RecipeError, match=r"is the server running .* is base_url = 'http://127"):
        sample(sampler)
    assert sampler.usage["connection"] == tries
    assert "unmetered" not in sampler.usage


def test_a_server_that_has_gone_is_tried_as_often_as_the_recipe_says(slept: list[float]) -> None:
    with FaultServer() as gone:
        sampler = opened(gone, retries=4)
        sample(sampler)
    with pytest.raises(SamplerError, match=r"no connection .* 5 tries"):
        sample(sampler)
    assert sampler.usage["connection"] == 5


def test_a_slow_server_is_there(serve: Any, slept: list[float]) -> None:
    server = serve(lambda request, n: Reply(said("late"), delay_s=30))
    with pytest.raises(DeadlineError, match="4 tries"):
        sample(opened(server, retries=3, timeout_s=0.05))


def test_an_answer_that_is_late_breaks_a_deadline(serve: Any, slept: list[float]) -> None:
    server = serve(lambda request, n: Reply(said("late"), delay_s=30))
    with pytest.raises(DeadlineError, match=r"no answer within 0.2 s; 2 tries"):
        sample(opened(server, timeout_s=0.2, retries=1))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("reply", "error", "way_out"),
    [
        (Reply({"error": {"message": "bad key"}}, 401), RecipeError, "api_key_env"),
        (Reply({}, 403), RecipeError, "api_key_env"),
        (Reply({"error": "no model"}, 404), RecipeError, r"most end in /v1.*the model 'm'"),
        (Reply({"error": "unknown field seed"}, 400), RecipeError, r"omit = \[\.\.\.\]"),
        (Reply({"error": "maximum context length is 64"}, 400), SamplerError, "lower max_tokens"),
        (Reply({"error": "insufficient_quota"}, 429), RecipeError, "no credit left"),
        (Reply({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}), SamplerError, "filtered"),
    ],
)  # fmt: skip
def test_what_no_further_try_mends_is_an_error_at_once_that_names_the_way_out(
    serve: Any, slept: list[float], reply: Reply, error: type[KolbError], way_out: str
) -> None:
    server = serve(lambda request, n: reply)
    with pytest.raises(error, match=way_out):
        sample(opened(server))
    assert (len(server.requests), slept) == (1, [])


def test_a_cut_answer_is_counted_and_one_that_was_all_reasoning_is_no_full_context(
    serve: Any,
) -> None:
    reply = said("", reasoning_content="hm hm")
    reply["choices"][0]["finish_reason"] = "length"
    reply["usage"]["completion_tokens"] = 12
    sampler = opened(serve(lambda request, n: Reply(reply)))
    (completion,) = sample(sampler)
    assert (completion.stop_reason, completion.tokens, sampler.usage["cut"]) == ("length", 12, 1)


# -------------------------------------------------------------------------- many at once, and none left


def test_200_requests_at_once_are_bounded(serve: Any) -> None:
    server = serve(lambda request, n: Reply(babble(request, n).body, delay_s=0.01))
    sampler = opened(server, max_requests=8)
    answers = asyncio.run(many(sampler, range(200)))
    assert [c.text for (c,) in answers] == [f"{s % 7} of 1" for s in range(200)]
    assert server.most_at_once == 8
    assert sampler.usage["requests"] == 200


def test_a_cancelled_request_leaves_no_orphan(serve: Any) -> None:
    server = serve(lambda request, n: Reply(said("never"), delay_s=60))
    sampler = opened(server)

    async def interrupted() -> None:
        job = asyncio.create_task(many(sampler, range(5)))
        while len(server.requests) < 5:
            await asyncio.sleep(0.01)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        while server.at_once:
            await asyncio.sleep(0.01)

    asyncio.run(interrupted())
    assert (server.abandoned, len(server.requests)) == (5, 5)
    assert sampler.usage["unmetered"] == 5
    assert sampler.endpoint._open is None


def test_where_one_of_n_is_refused_the_others_are_cancelled(serve: Any) -> None:
    def answer(request: dict[str, Any], number: int) -> Reply:
        return Reply({}, 401) if request["seed"] == 2 else Reply(said("never"), delay_s=60)

    server = serve(answer)
    with pytest.raises(RecipeError, match="status 401"):
        sample(opened(server), n=4, seed=0)


# ------------------------------------------------------------------------------------------ budget

PRICES = Prices(input=2.0, cached=0.5, output=8.0)


def test_a_price_is_per_million_tokens_and_cached_ones_cost_less() -> None:
    assert PRICES.cost(Tokens(prompt=1000, cached=200, completion=100)) == pytest.approx(0.0025)
    assert Prices(2.0, 8.0).cost(Tokens(1000, 200, 100)) == pytest.approx(0.0028)


@pytest.mark.parametrize("limit", [{"max_cost": 0.004}, {"max_total_tokens": 2000}])
def test_a_budget_is_used_and_never_crossed_by_many_requests_at_once(
    serve: Any, limit: dict[str, Any]
) -> None:
    def answer(request: dict[str, Any], number: int) -> Reply:
        reply = said("x")
        reply["usage"] = {"prompt_tokens": 20, "completion_tokens": number % 13}
        return Reply(reply, delay_s=0.002)

    server = serve(answer)
    sampler = opened(server, prices={"m": PRICES}, max_requests=16, **limit)
    answers = asyncio.run(many(sampler, range(300)))
    stopped = [a for a in answers if isinstance(a, BaseException)]
    assert all(isinstance(a, BudgetSpentError) for a in stopped)
    paid = [n % 13 for n in range(len(server.requests))]
    tokens, cost = (
        20 * len(paid) + sum(paid),
        PRICES.cost(Tokens(20 * len(paid), 0, sum(paid))),
    )
    assert len(paid) + len(stopped) == 300
    assert sampler.usage["requests"] == len(paid)
    assert sampler.usage["cost"] == pytest.approx(cost)
    # The worst case of one request: its bytes, the frame of a template, and 12 tokens.
    worst = Tokens(len(json.dumps(server.bodies[0])) + client.FRAME_TOKENS, 0, 12)
    if "max_cost" in limit:
        assert limit["max_cost"] - PRICES.cost(worst) < cost <= limit["max_cost"]
    else:
        assert 2000 - worst.prompt - worst.completion < tokens <= 2000


def test_the_end_of_a_budget_says_what_was_spent_and_how_to_go_on(serve: Any) -> None:
    sampler = opened(serve(), max_total_tokens=100)
    with pytest.raises(BudgetSpentError, match=r"max_total_tokens = 100.*recipe.toml.*--resume"):
        sample(sampler)


def test_a_try_that_was_cut_is_booked_at_its_worst_and_one_that_was_refused_at_nothing(
    serve: Any, slept: list[float]
) -> None:
    filtered = said("no")
    filtered["choices"][0]["finish_reason"] = "content_filter"
    server = serve(
        in_turn(
            Reply(cut="reset"),
            Reply({}, 500),
            Reply({}, 500),
            Reply(said("Is it 50?")),
            Reply(filtered),
        )
    )
    engine = OpenAICompat(base_url=server.url, prices={"m": PRICES})
    sampler = engine.open_sampler(ModelSpec(base="m"))
    sample(sampler)
    with pytest.raises(SamplerError, match="filtered"):
        sample(sampler)
    worst = len(json.dumps(server.bodies[0])) + client.FRAME_TOKENS + 12
    answered = 1 + 3  # without the request the server counts one word asked, and 3 said
    assert engine._budget.spent.tokens == 2 * worst + answered
    assert sampler.usage["unmetered"] == 2
    assert sampler.usage["cost"] == pytest.approx(engine._budget.spent.cost)


def test_the_books_are_read_again_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    books = tmp_path / "usage.jsonl"

    async def spend(budget: Budget, cost: float) -> None:
        async with budget.room_for(Charge(100, 1.0)) as bill:
            bill.charge = Charge(10, cost)

    first = Budget(max_cost=2.0)
    first.keep_books(books)
    asyncio.run(spend(first, 0.75))
    with books.open("a") as file:
        file.write('{"schema": 1, "tok')
    again = Budget(max_cost=1.5)
    again.keep_books(books)
    assert again.spent == Charge(10, 0.75)
    with pytest.raises(BudgetSpentError):
        asyncio.run(spend(again, 0.5))


def test_what_follows_a_torn_line_of_the_books_is_counted(tmp_path: Path) -> None:
    books = tmp_path / "usage.jsonl"
    books.write_text('{"schema": 1, "tokens": 5, "cost": 0.5}\n{"schema": 1, "tok')

    async def spend(budget: Budget) -> None:
        async with budget.room_for(Charge()) as bill:
            bill.charge = Charge(7, 0.25)

    for _ in range(2):
        budget = Budget()
        budget.keep_books(books)
        asyncio.run(spend(budget))
    last = Budget()
    last.keep_books(books)
    assert last.spent == Charge(19, 1.0)


def test_a_server_that_counts_nothing_is_charged_its_worst(serve: Any) -> None:
    server = serve(lambda request, n: Reply({"choices": said("5")["choices"]}))
    sampler = opened(server)
    (completion,) = sample(sampler)
    assert (completion.text, completion.tokens) == ("5", 0)
    assert sampler.usage["unmetered"] == 1


# ------------------------------------------------------------------------------------------- cache


def test_what_was_asked_before_costs_nothing_and_says_the_same(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda request, n: Reply(said(f"answer {n}", reasoning_content=f"hm {n}")))
    options = {"cache": "on", "cache_folder": str(tmp_path)}
    first = sample(opened(server, **options), n=3, seed=5)
    sampler = opened(server, **options)
    assert sample(sampler, n=3, seed=5) == first
    assert len(server.requests) == 3
    numbers = {k: v for k, v in sampler.usage.items() if v}
    assert numbers == {"cache_hits": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"params": {"seed": 6}},
        {"params": {"seed": 5 + 2**31}},  # the seeds that are sent are equal, the samples are not
        {"params": {"temperature": 0.5}},
        {"params": {"max_tokens": 13}},
        {"params": {"stop": ("\n",)}},
        {"options": {"extra": {"top_k": 0}}},
        {"options": {"omit": ("seed",)}},
        {"options": {"api": "completions"}},
    ],
    ids=str,
)
def test_everything_that_matters_is_in_the_key_of_the_cache(
    serve: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    server = serve()
    options = {"cache": "on", "cache_folder": str(tmp_path)}
    sample(opened(server, **options), seed=5)
    changed = opened(server, change.get("model", "m"), **{**options, **change.get("options", {})})
    sample(changed, **{"seed": 5, **change.get("params", {})})
    assert (len(server.requests), changed.usage["cache_hits"]) == (2, 0)


def test_another_endpoint_is_another_cache(serve: Any, tmp_path: Path) -> None:
    servers = [serve(), serve()]
    for server in servers:
        sample(opened(server, cache="on", cache_folder=str(tmp_path)))
    assert [len(server.requests) for server in servers] == [1, 1]


def test_a_cache_may_be_read_only_or_off_and_a_damaged_file_is_a_miss(
    serve: Any, tmp_path: Path
) -> None:
    server = serve()
    for mode in ("off", "read-only"):
        sample(opened(server, cache=mode, cache_folder=str(tmp_path)))
        assert list(tmp_path.rglob("*.json")) == []
    sample(opened(server, cache="on", cache_folder=str(tmp_path)))
    (file,) = tmp_path.rglob("*.json")
    sample(opened(server, cache="read-only", cache_folder=str(tmp_path)))
    assert len(server.requests) == 3
    for damage in (b"", b"{", b"[]", b'{"answer": {"text": 1}}', b"\xff"):
        file.write_bytes(damage)
        sample(opened(server, cache="on", cache_folder=str(tmp_path)))
        assert json.loads(file.read_bytes())["answer"]["text"] == "0 of 1"
    assert len(server.requests) == 8


# -------------------------------------------------------------------------------------------- keys


def test_a_key_comes_from_the_environment_and_is_needed_unless_the_server_is_here(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    away = OpenAICompat(base_url="https://api.example.com/v1")
    with pytest.raises(RecipeError, match=r"OPENAI_API_KEY is not set.*api_key_env"):
        away.open_sampler(ModelSpec(base="m"))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("MY_KEY", SECRET)
    away.open_sampler(ModelSpec(base="m"))
    server = serve()
    sample(opened(server))
    sample(opened(server, api_key_env="MY_KEY"))
    sent = [headers.get("authorization") for _, headers, _ in server.requests]
    assert sent == [None, f"Bearer {SECRET}"]


def test_a_key_is_not_sent_in_the_clear_unless_it_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    plain = OpenAICompat(base_url="http://gpu.example.com:8000/v1")
    assert plain.open_sampler(ModelSpec(base="m")).endpoint.key.headers == {}


@pytest.mark.parametrize("value", [f"{SECRET}\nmore", "two words", "schlüssel-0123456789"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(RecipeError, match="OPENAI_API_KEY holds white space") as caught:
        OpenAICompat(base_url="https://api.example.com/v1").open_sampler(ModelSpec(base="m"))
    assert value not in str(caught.value)


def test_a_server_that_repeats_the_key_is_scrubbed(
    serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    server = serve(
        in_turn(Reply(said(f"key {SECRET}")), Reply({"error": f"bad key {SECRET}"}, 401))
    )
    sampler = opened(server, api_key_env="MY_KEY", cache="on", cache_folder=str(tmp_path))
    assert sample(sampler)[0].text == "key [api key]"
    with pytest.raises(RecipeError, match=r"bad key \[api key\]") as caught:
        sample(sampler, seed=1)
    assert SECRET not in f"{caught.value!r}{sampler!r}{sampler.endpoint!r}"
    assert all(SECRET not in file.read_text() for file in tmp_path.rglob("*.json"))


# ----------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "localhost:8000/v1"}, "expected an address such as"),
        ({"base_url": "ftp://host/v1"}, "expected an address such as"),
        ({"base_url": "http://host:port/v1"}, "expected an address such as"),
        ({"base_url": "https://host/v1?key=1"}, "expected an address such as"),
        ({"base_url": f"https://me:{SECRET}@host/v1"}, "holds a user or password"),
        ({"api": "chats"}, "did you mean 'chat'"),
        ({"cache": "read_only"}, "did you mean 'read-only'"),
        ({"max_requests": 0}, "max_requests = 0"),
        ({"timeout_s": 0.0}, "timeout_s = 0.0"),
        ({"retries": -1}, "retries = -1"),
        ({"max_cost": float("nan")}, "max_cost = nan"),
        ({"omit": ("max_tokens",)}, "bounds the cost"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        OpenAICompat(**options)
    assert SECRET not in str(caught.value)


def test_a_policy_that_cannot_work_is_refused_before_anything_is_asked() -> None:
    engine = OpenAICompat(max_cost=1.0, prices={"cheap": PRICES})
    engine.open_sampler(ModelSpec(base="cheap"))
    for model, words in (
        (ModelSpec(base="cheep"), "did you mean 'cheap'"),
        (ModelSpec(build={"model_type": "llama"}), "has a base"),
        (ModelSpec(base="cheap", tokenizer="t"), "nor tokenizer"),
        (ModelSpec(base="cheap", template="plain"), 'api = "completions"'),
    ):
        with pytest.raises(RecipeError, match=words):
            engine.open_sampler(model)
    with pytest.raises(RecipeError, match="no such file"):
        OpenAICompat(api="completions").open_sampler(ModelSpec(base="m", template="no.jinja"))
    with pytest.raises(CapabilityError, match="torch_local"):
        engine.open_policy("agent", ModelSpec(base="cheap"))


def test_it_works_without_torch_and_transformers() -> None:
    code = """if True:
        import sys
        sys.modules["torch"] = sys.modules["transformers"] = None  # importing them raises
        from kolb.engines.base import ModelSpec
        from kolb.engines.openai_compat import ENGINE
        ENGINE(api="completions").open_sampler(ModelSpec(base="m", template="plain"))
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
