"""What requests cost, and a budget that is not crossed: each request is let go only while its worst case fits.

The worst case of a request is as many prompt tokens as it has bytes and as many sampled tokens as it asks for,
at full price. When the answer is there, what the server counted takes its place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kolb.errors import BudgetSpentError, RecipeError, at_least

SCHEMA = 1


@dataclass(frozen=True)
class Prices:
    """Of one model, per million tokens, in any currency.

    >>> Prices(input=2.0, cached=0.5, output=8.0).cost(Tokens(prompt=1000, cached=200, completion=100))
    0.0025
    """

    input: float
    output: float
    cached: float | None = None
    """Of prompt tokens that the server had in its cache; the price of any input when None."""

    def __post_init__(self) -> None:
        at_least(0, input=self.input, output=self.output, cached=self.cached or 0.0)

    def cost(self, tokens: Tokens) -> float:
        cached = self.input if self.cached is None else self.cached
        fresh = (tokens.prompt - tokens.cached) * self.input
        return (fresh + tokens.cached * cached + tokens.completion * self.output) / 1e6


@dataclass(frozen=True)
class Tokens:
    """As a server counts them: ``cached`` are among ``prompt``, reasoning is among ``completion``."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@dataclass(frozen=True)
class Charge:
    """Tokens of both kinds, and money."""

    tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Charge) -> Charge:
        return Charge(self.tokens + other.tokens, self.cost + other.cost)

    def __sub__(self, other: Charge) -> Charge:
        return Charge(self.tokens - other.tokens, self.cost - other.cost)


NOTHING = Charge()


def charge_for(tokens: Tokens, prices: Prices | None) -> Charge:
    return Charge(tokens.prompt + tokens.completion, prices.cost(tokens) if prices else 0.0)


@dataclass
class Bill:
    """Of one request that is under way. Where nobody says what it came to, its worst case is booked: it was
    cut, and the server may have sampled to the end all the same."""

    charge: Charge | None = None


class Budget:
    """What all requests of an engine have cost, and what they may cost. 0: no limit."""

    def __init__(self, max_cost: float = 0.0, max_total_tokens: int = 0) -> None:
        self.limit = Charge(max_total_tokens, max_cost)
        self.spent = NOTHING
        self._held = NOTHING
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._books: Path | None = None

    def keep_books(self, path: Path) -> None:
        """Counts what ``path`` says was spent before, and writes every charge there from now on."""
        self._books = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            self.spent += _charge_from(line)
        if text and not text.endswith("\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")  # else the next charge would be lost behind what a crash cut short

    @asynccontextmanager
    async def room_for(self, worst: Charge) -> AsyncIterator[Bill]:
        """Waits until ``worst`` fits beside what is spent and under way, holds it, and books the Bill.
        BudgetSpentError where it does not fit with nothing else under way."""
        while not self._fits(worst):
            if not self._under_way:
                raise BudgetSpentError(self._words(worst))
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._held += worst
        self._under_way += 1
        bill = Bill()
        try:
            yield bill
        finally:
            self._under_way -= 1
            # Back to exactly nothing now and then: sums of floats drift.
            self._held = self._held - worst if self._under_way else NOTHING
            self._book(worst if bill.charge is None else bill.charge)
            self._wake()

    def _fits(self, worst: Charge) -> bool:
        then = self.spent + self._held + worst
        fits_tokens = not self.limit.tokens or then.tokens <= self.limit.tokens
        return fits_tokens and (not self.limit.cost or then.cost <= self.limit.cost)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def _book(self, charge: Charge) -> None:
        if charge == NOTHING:
            return
        self.spent += charge
        if self._books is not None:
            with self._books.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"schema": SCHEMA, **asdict(charge)}) + "\n")

    def _words(self, worst: Charge) -> str:
        names = {"max_total_tokens": "tokens", "max_cost": "cost"}
        limits = {key: getattr(self.limit, name) for key, name in names.items()}
        set_ones = ", ".join(f"{key} = {value:g}" for key, value in limits.items() if value)
        return (
            f"the budget of the endpoint is spent ({set_ones}): so far {self.spent.tokens} tokens, cost "
            f"{self.spent.cost:.4f}; the next request could take {worst.tokens} tokens, cost {worst.cost:.4f}. To "
            "go on, raise it: under [engine] in the run's recipe.toml, then `kolb run --resume RUN`; for other "
            'commands in the recipe or by --set engine.max_cost=... A cache (engine.cache = "on") makes what '
            "was asked before free"
        )


def _charge_from(line: str) -> Charge:
    """The charge in a line of the books; none for a line that a crash cut short."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return NOTHING
    schema = entry.get("schema") if isinstance(entry, dict) else SCHEMA
    if schema != SCHEMA:
        raise RecipeError(
            f"the books of this run have schema {schema!r}, this kolb reads {SCHEMA}; go on with the kolb version in "
            "the run's env.json"
        )
    try:
        return Charge(int(entry["tokens"]), float(entry["cost"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecipeError(
            f"the books of this run hold the line {line[:80]!r}, which is no charge: the file is damaged; put its "
            "former content back, so that the budget is kept"
        ) from error
