"""A server that we did not write: llama.cpp's, or any other, at KOLB_ENDPOINT (such as http://127.0.0.1:8080/v1).

    pip install xllamacpp        # llama.cpp's own server, built; or `llama-server -m MODEL.gguf`
    KOLB_ENDPOINT=http://127.0.0.1:8080/v1 pytest tests/engines/test_endpoint_real.py

KOLB_ENDPOINT_MODEL names the model where the server has several; api_key_env is KOLB_ENDPOINT_KEY.
"""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any

import pytest

from kolb.engines.base import ModelSpec
from kolb.engines.openai_compat import EndpointSampler, OpenAICompat
from kolb.types import Completion, SamplingParams

URL = os.environ.get("KOLB_ENDPOINT", "")
pytestmark = pytest.mark.skipif(
    not URL, reason="KOLB_ENDPOINT names no server (see the top of the file)"
)
CHAT = [{"role": "user", "content": "Name an animal, in one word."}]


def opened(**options: Any) -> EndpointSampler:
    engine = OpenAICompat(base_url=URL, api_key_env="KOLB_ENDPOINT_KEY", max_requests=2, **options)
    return engine.open_sampler(ModelSpec(base=os.environ.get("KOLB_ENDPOINT_MODEL", "default")))


def sample(sampler: EndpointSampler, n: int = 1, **params: Any) -> list[Completion]:
    given = SamplingParams(**{"max_tokens": 8, **params})
    return asyncio.run(sampler.sample(CHAT, given, n))


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_real_server_samples_counts_and_takes_seeds(api: str) -> None:
    sampler = opened(api=api)
    completions = sample(sampler, n=3, seed=1)
    assert all(0 < c.tokens <= 8 and c.text for c in completions)
    assert len({c.text for c in completions}) > 1
    greedy = sample(sampler, n=2, temperature=0.0)
    assert greedy[0].text == greedy[1].text
    usage = sampler.usage
    assert (usage["requests"], usage["retries"], usage.get("unmetered", 0)) == (5, 0, 0)
    assert usage["prompt_tokens"] >= 5 * 5
    sampled = sum(c.tokens for c in (*completions, *greedy))
    assert usage["completion_tokens"] == sampled


def test_a_real_server_says_when_the_answer_was_cut() -> None:
    sampler = opened()
    (completion,) = sample(sampler, max_tokens=1)
    assert (completion.stop_reason, completion.tokens, sampler.usage["cut"]) == ("length", 1, 1)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_logprobs_of_a_real_server_are_one_per_token_and_finite(api: str) -> None:
    (completion,) = sample(opened(logprobs=True, api=api), seed=2)
    assert len(completion.logprobs) == completion.tokens
    assert all(math.isfinite(x) and x <= 0 for x in completion.logprobs)


def test_the_cache_spares_a_real_server(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": "on", "cache_folder": str(tmp_path)}
    first = sample(opened(**options), n=2, seed=7)
    again = opened(**options)
    assert sample(again, n=2, seed=7) == first
    assert (again.usage["requests"], again.usage["cache_hits"]) == (0, 2)
