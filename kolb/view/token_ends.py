"""Which token of a completion a place in its text belongs to.

Text is never encoded again: the sampled ids are decoded, whatever the tokenizer does with spaces and with
characters that are cut into several tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

from kolb.types import Completion

REACHES = (1, 16)
"""Tokens before one with which it is decoded: one is enough unless a character is cut into tokens."""
REMEMBERED = 2**17

Decode = Callable[[Sequence[int]], str]
"""Token ids of one policy to their text."""


class TokenEnds:
    """Where in the text of a completion each of its tokens ends, by decoding it behind its neighbours."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._width = lru_cache(REMEMBERED)(self._measured)

    def __call__(self, completion: Completion) -> list[int] | None:
        """Positions [N], ascending; None where the tokens do not spell the text."""
        ids = [int(i) for i in completion.token_ids]
        whole = self.decode(ids)
        if not whole.startswith(completion.text):
            return None
        for reach in REACHES:
            widths = (self._width(tuple(ids[max(i - reach, 0) : i + 1])) for i in range(len(ids)))
            ends = list(accumulate(widths))
            if ends and ends[-1] == len(whole) and ends == sorted(ends):
                return ends
        return None

    def _measured(self, ids: tuple[int, ...]) -> int:
        """How many characters the last of ``ids`` adds."""
        return len(self.decode(ids)) - len(self.decode(ids[:-1]))


def token_at(ends: Sequence[int], position: int) -> int:
    """The index of the token that brings the character at ``position``."""
    return bisect_right(ends, position)
