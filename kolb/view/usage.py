"""What endpoints counted, in words: a line per policy, and one per role where there are several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Usage = Mapping[str, Mapping[str, float]]


def usage_of(
    lines: Iterable[Mapping[str, Any]], area: str = "usage"
) -> dict[str, dict[str, float]]:
    """The sums of ``usage/POLICY/NAME`` over the metrics of a run, by policy and name; by role with area ``role``."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        for key, value in line.items():
            if key.startswith(f"{area}/") and isinstance(value, int | float):
                who, _, name = key.removeprefix(f"{area}/").rpartition("/")
                usage = found.setdefault(who, {})
                usage[name] = usage.get(name, 0) + value
    return found


def usage_lines(policies: Usage, roles: Usage | None = None) -> Iterator[str]:
    """A line for each policy that asked an endpoint for something, one with the cost of several, and one for
    each role."""
    asked = those_who_asked(policies)
    for policy, numbers in asked.items():
        yield f"{policy}: {usage_words(numbers)}"
    costs = [u["cost"] for u in asked.values() if "cost" in u]
    if len(costs) > 1:
        yield f"cost of all policies: {sum(costs):.4f}"
    for role, numbers in those_who_asked(roles or {}).items():
        yield f"  as {role}: {usage_words(numbers)}"


def those_who_asked(usage: Usage) -> Usage:
    return {who: u for who, u in usage.items() if u.get("requests") or u.get("cache_hits")}


def usage_words(usage: Mapping[str, float]) -> str:
    """``12 requests (2 again, 3 more from the cache), 5,120 prompt tokens (512 cached), 940 sampled, cost 0.0013``."""
    again = f"{usage.get('retries', 0):.0f} again" if usage.get("retries") else ""
    known = f"{usage['cache_hits']:.0f} more from the cache" if usage.get("cache_hits") else ""
    aside = ", ".join(part for part in (again, known) if part)
    cached = f" ({usage['cached_tokens']:,.0f} cached)" if usage.get("cached_tokens") else ""
    lost = usage.get("unmetered", 0)
    parts = [
        f"{usage.get('requests', 0):,.0f} requests{f' ({aside})' if aside else ''}",
        f"{usage.get('prompt_tokens', 0):,.0f} prompt tokens{cached}",
        f"{usage.get('completion_tokens', 0):,.0f} sampled",
        f"{lost:.0f} of unknown usage, taken at their worst" if lost else "",
        f"cost {usage['cost']:.4f}" if "cost" in usage else "",
    ]
    return ", ".join(part for part in parts if part)
