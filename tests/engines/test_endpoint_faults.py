"""Faults of an endpoint: what each one means, and how long is waited after it."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kolb.engines.endpoint.faults import FAULTS, Patience, of_status, retry_after_s, shown
from kolb.errors import RecipeError, SamplerError

HINTS = dict.fromkeys(("key", "address", "request", "context"), "do this")
NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 2026 12:01:30 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:59:00 GMT"}, 0.0),
        # The server's clock is an hour ahead of ours, and 30 s are 30 s all the same.
        (
            {
                "retry-after": "Thu, 01 Jan 2026 13:00:30 GMT",
                "date": "Thu, 01 Jan 2026 13:00:00 GMT",
            },
            30.0,
        ),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_s(headers, NOON) == seconds


@settings(deadline=None)
@given(st.text())
def test_no_retry_after_header_raises(text: str) -> None:
    seconds = retry_after_s({"retry-after": text}, NOON)
    assert seconds is None or 0 <= seconds < float("inf")


def test_waits_double_up_to_the_longest_and_at_most_half_of_each_is_left_out() -> None:
    patience = Patience(retries=9, longest_wait_s=20.0)
    for tries, most in enumerate((1, 2, 4, 8, 16, 20, 20), start=1):
        waits = [patience.wait_s(tries, None, Random(seed)) for seed in range(50)]
        assert all(w is not None and most / 2 <= w <= most for w in waits)
        assert len(set(waits)) == 50


def test_the_servers_wish_is_a_lower_bound_and_one_beyond_the_longest_wait_ends_it() -> None:
    patience = Patience(retries=2, longest_wait_s=60.0)
    assert patience.wait_s(1, 45.0, Random(0)) == 45.0
    assert 0.5 <= (patience.wait_s(1, 0.0, Random(0)) or 0) <= 1.0
    assert patience.wait_s(1, 61.0, Random(0)) is None
    assert patience.wait_s(3, None, Random(0)) is None


OVER = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
QUOTA = '{"error": {"message": "no credit", "code": "insufficient_quota"}}'


@pytest.mark.parametrize(
    ("status", "said", "kind", "final"),
    [
        (429, "slow down", "rate_limited", None),
        (408, "", "server_error", None),
        (500, "", "server_error", None),
        (503, "loading model", "server_error", None),
        (529, "overloaded", "server_error", None),
        (501, "", "refused", RecipeError),
        (401, "", "refused", RecipeError),
        (403, "", "refused", RecipeError),
        (404, "", "refused", RecipeError),
        (307, "", "refused", RecipeError),
        (402, "Insufficient Balance", "refused", RecipeError),
        (429, QUOTA, "refused", RecipeError),
        (400, "unknown field top_k", "refused", RecipeError),
        (422, "unknown field top_k", "refused", RecipeError),
        (400, f'{{"error": {{"message": "{OVER}"}}}}', "context_full", SamplerError),
        (400, "the request exceeds the available context size", "context_full", SamplerError),
        (413, "", "context_full", SamplerError),
        (400, '{"error": {"code": "content_filter"}}', "filtered", SamplerError),
    ],
)
def test_a_status_is_retried_or_final(
    status: int, said: str, kind: str, final: type[Exception] | None
) -> None:
    fault = of_status(status, said, {"retry-after": "3"}, HINTS)
    assert (fault.kind, fault.final) == (kind, final)
    assert kind in FAULTS
    assert fault.asked_s == (None if final else 3.0)
    assert str(status) in str(fault)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error": {"message": "No such model."}}', "No such model."),
        ('{"error": "No such\\nmodel."}', "No such model."),
        ('{"detail": 3}', '{"detail": 3}'),
        ("<html>  Bad gateway", "<html> Bad gateway"),
        ("", "(an empty body)"),
        ("x" * 500, "x" * 400 + "..."),
    ],
)
def test_an_error_is_shown_in_the_servers_own_words(body: str, words: str) -> None:
    assert shown(body) == words
