"""What goes wrong between us and an endpoint: what each fault means, and how long to wait after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any

from kolb.errors import KolbError, RecipeError, SamplerError

FAULTS = (
    *("rate_limited", "server_error", "connection", "timeout", "truncated", "malformed", "empty"),
    *("refused", "context_full", "filtered"),
)
"""The kinds of faults, which are also names of metrics. Those of the second line are final."""

RETRIED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another try may mend; of those from 500 on all but ``NOT_THERE``."""
NOT_THERE = frozenset({501, 505})

SHOWN_CHARS = 400


class Fault(Exception):
    """One try that gave no answer. ``final``: the error to raise at once, as another try would end alike.

    ``asked_s``: the server's Retry-After in seconds. ``may_cost``: the server may have sampled tokens for it.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        final: type[KolbError] | None = None,
        asked_s: float | None = None,
        may_cost: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.final = final
        self.asked_s = asked_s
        self.may_cost = may_cost


@dataclass(frozen=True)
class Patience:
    """How often a request is tried again, and how long one wait may be."""

    retries: int
    longest_wait_s: float

    def wait_s(self, tries: int, asked_s: float | None, random: Random) -> float | None:
        """Seconds to wait after ``tries`` failed tries; None to give up.

        1, 2, 4, ... seconds up to the longest wait, of which a random half is left out so that many clients do
        not come back together. A server's own wish is a lower bound; one beyond the longest wait ends it.
        """
        if tries > self.retries or (asked_s or 0.0) > self.longest_wait_s:
            return None
        backoff = min(self.longest_wait_s, 2.0 ** (tries - 1))
        return max(backoff * (0.5 + 0.5 * random.random()), asked_s or 0.0)


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The wait that a server asks for (RFC 9110, section 10.2.3): seconds or a date. None: it does not ask.

    A date is compared with the server's own ``Date`` where it gives one, so that clocks may differ.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    wish = headers.get("retry-after")
    seconds = _number(wish)
    if seconds is not None or wish is None:
        return seconds
    until = _date(wish)
    if until is None:
        return None
    since = _date(headers.get("date")) or now or datetime.now(UTC)
    return max(0.0, (until - since).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


# --------------------------------------------------------------------------------- what a status means


def of_status(
    status: int, said: str, headers: Mapping[str, str], hints: Mapping[str, str]
) -> Fault:
    """The fault behind an answer that is not 200. ``said``: its body. ``hints``: the ways out, by kind:
    ``key``, ``address``, ``request``, ``context``."""
    words = f"status {status}: {shown(said)}"
    lower = said.lower()
    if status == 402 or (status == 429 and "insufficient_quota" in lower):
        return Fault("refused", f"{words}. The account has no credit left", final=RecipeError)
    if status in RETRIED or (status >= 500 and status not in NOT_THERE):
        kind = "rate_limited" if status == 429 else "server_error"
        return Fault(kind, words, asked_s=retry_after_s(headers))
    if status in (401, 403):
        return Fault("refused", f"{words}. {hints['key']}", final=RecipeError)
    if status == 413 or (status in (400, 422) and is_about_context(lower)):
        return Fault("context_full", f"{words}. {hints['context']}", final=SamplerError)
    if status in (400, 422) and "content_filter" in lower:
        return Fault("filtered", f"{words}. The endpoint filters this prompt", final=SamplerError)
    if status in (400, 422):
        return Fault("refused", f"{words}. {hints['request']}", final=RecipeError)
    return Fault("refused", f"{words}. {hints['address']}", final=RecipeError)


CONTEXT_WORDS = (
    "context_length",  # OpenAI's code
    "context length",  # vLLM, hosted APIs
    "context size",  # llama.cpp
    "context window",
    "maximum context",
    "prompt is too long",
)


def is_about_context(lower: str) -> bool:
    return any(words in lower for words in CONTEXT_WORDS)


def shown(said: str) -> str:
    """The error's own words out of a body, or its beginning."""
    try:
        text = _words(json.loads(said))
    except (ValueError, RecursionError):
        text = said
    text = " ".join(text.split()) or "(an empty body)"
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def _words(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    found = error.get("message", error) if isinstance(error, dict) else error
    return found if isinstance(found, str) else json.dumps(found)
