"""Okapi BM25: which of a few texts match a query best.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), section 3. A
text ``d`` scores for the words ``w`` of a query

    sum_w idf(w) * tf(w, d) * (k1 + 1) / (tf(w, d) + k1 * (1 - b + b * |d| / mean |d|))
    idf(w) = ln(1 + (N - n(w) + 0.5) / (n(w) + 0.5))

The 1 in the logarithm is Lucene's: without it a word that most texts have would count against them, and
in ten paragraphs about one thing that is the word which matters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

K1 = 1.5
B = 0.75

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The words of ``text`` in small letters: runs of letters and digits, in any script.

    >>> words("O'Neill's 2nd film, Ångström")
    ['o', 'neill', 's', '2nd', 'film', 'ångström']
    """
    return _WORD.findall(text.lower())


class Bm25:
    """An index of ``texts``, which never changes."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(words(text)) for text in texts]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._mean = sum(self._lengths) / len(texts) if any(self._lengths) else 1.0
        self._holding = Counter(word for counts in self._counts for word in counts)

    def scores(self, query: str) -> list[float]:
        """One score of 0 or more for each text; a word that the query repeats counts each time."""
        asked = [(word, self.idf(word)) for word in words(query)]
        return [
            sum(idf * self._weight(counts[word], length) for word, idf in asked)
            for counts, length in zip(self._counts, self._lengths, strict=True)
        ]

    def top(self, query: str, k: int) -> list[tuple[int, float]]:
        """(place, score) of the best ``k`` texts that share a word with ``query``; of equals the earlier one."""
        found = [(place, score) for place, score in enumerate(self.scores(query)) if score > 0]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k]

    def idf(self, word: str) -> float:
        holding = self._holding[word]
        return math.log(1 + (len(self._counts) - holding + 0.5) / (holding + 0.5))

    def _weight(self, count: int, length: int) -> float:
        return count * (K1 + 1) / (count + K1 * (1 - B + B * length / self._mean))
