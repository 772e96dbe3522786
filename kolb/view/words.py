"""How often a run says a word, and how likely the word was when it was sampled.

A word is found in the decoded text of a completion: whole words, whatever their case. ``wait`` is in
``Wait, ...`` and in ``(wait)``, and neither in ``waiter`` nor, as ``let``, in ``let's``. A tokenizer may cut it into
several tokens and put the space before it into the first. Its probability is that of its first token: where
the decision to say it was made, and what follows is often spelling.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from kolb.runs.directory import RunDirectory
from kolb.types import Completion, Trajectory
from kolb.view.token_ends import Decode, TokenEnds, token_at

T = TypeVar("T")

ANY_WORD = re.compile(r"\w+(?:['’]\w+)*")


def pattern_of(word: str) -> re.Pattern[str]:
    """Finds ``word`` as a whole word in any case.

    >>> [m.start() for m in pattern_of("wait").finditer("Wait, the waiter; wait's not it, 'wait' is")]
    [0, 34]
    """
    before = r"(?<!\w)(?<!\w['’])" if re.match(r"\w", word) else ""
    after = r"(?!['’]?\w)" if re.search(r"\w$", word) else ""
    return re.compile(before + re.escape(word) + after, re.IGNORECASE)


# -------------------------------------------------------------------------------------- what was said


def sampled_trajectories(run: RunDirectory, step: int, policy: str = "") -> Iterator[Trajectory]:
    """The step's trajectories of ``policy`` (of all policies when empty) in which something was sampled."""
    for group in run.stream(step):
        for episode in group.episodes:
            for trajectory in episode.trajectories:
                is_meant = not policy or trajectory.policy == policy
                if is_meant and any(is_sampled(t.completion) for t in trajectory.turns):
                    yield trajectory


def is_sampled(completion: Completion) -> bool:
    """What was written or retold is ``given``: nobody drew it from a distribution here."""
    return completion.stop_reason != "given"


# ------------------------------------------------------------------------------------------- counting


@dataclass
class Tally:
    """Occurrences of one word: how many, and the probabilities of those for which it is known."""

    count: int = 0
    known: int = 0
    total: float = 0.0
    lowest: float = math.inf

    def add(self, probability: float | None) -> None:
        self.count += 1
        if probability is not None:
            self.known += 1
            self.total += probability
            self.lowest = min(self.lowest, probability)

    def merge(self, other: Tally) -> None:
        self.count += other.count
        self.known += other.known
        self.total += other.total
        self.lowest = min(self.lowest, other.lowest)

    @property
    def mean(self) -> float | None:
        return self.total / self.known if self.known else None


@dataclass
class WordBin:
    """What was sampled in some steps.

    ``unplaced`` completions have no token at which to look up a word's probability: they have no logprobs, or
    the tokenizer is not here or does not spell them. Of ``texts`` among them an endpoint gave no tokens at all.
    """

    steps: Sequence[int]
    completions: int = 0
    tokens: int = 0
    unplaced: int = 0
    texts: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    unlikely: Counter[str] = field(default_factory=Counter)

    @property
    def title(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        return f"{first}" if first == last else f"{first}-{last}"

    @property
    def middle(self) -> float:
        return (self.steps[0] + self.steps[-1]) / 2

    def per_thousand(self, word: str) -> float | None:
        """Occurrences per 1000 sampled tokens; None where the tokens of some of the words are not known."""
        if self.texts or not self.tokens:
            return None
        return 1000 * self.tallies[word].count / self.tokens

    @classmethod
    def joined(cls, bins: Sequence[WordBin]) -> WordBin:
        """Neighbouring ``bins`` of the same words as one."""
        whole = cls([step for b in bins for step in b.steps])
        for b in bins:
            whole.completions += b.completions
            whole.tokens += b.tokens
            whole.unplaced += b.unplaced
            whole.texts += b.texts
            whole.unlikely.update(b.unlikely)
            for word, tally in b.tallies.items():
                whole.tallies.setdefault(word, Tally()).merge(tally)
        return whole


def cut(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """``items`` in order, in at most ``count`` parts of nearly equal size.

    >>> [list(part) for part in cut([1, 2, 3, 4, 5], 2)]
    [[1, 2], [3, 4, 5]]
    """
    count = min(count, len(items))
    edges = [i * len(items) // count for i in range(count + 1)] if count else [0]
    return [items[a:b] for a, b in pairwise(edges)]


class WordCounter:
    """Counts ``words`` in what was sampled, and every word that was sampled with a probability under ``below``.

    ``decoder(policy)`` gives the decoding of a policy's tokens, None where it is not known. ``policy``: the
    one whose words count; all when empty. One group is in memory at a time.
    """

    def __init__(
        self,
        decoder: Callable[[str], Decode | None],
        words: Sequence[str] = (),
        *,
        below: float = 0.0,
        policy: str = "",
    ) -> None:
        self.patterns = {word: pattern_of(word) for word in words}
        self.below, self.policy = below, policy
        self._decoder = decoder
        self._ends: dict[str, TokenEnds | None] = {}

    def count(self, run: RunDirectory, steps: Sequence[int]) -> WordBin:
        filled = WordBin(steps, tallies={word: Tally() for word in self.patterns})
        for step in steps:
            for trajectory in sampled_trajectories(run, step, self.policy):
                for turn in trajectory.turns:
                    if is_sampled(turn.completion):
                        self._add(filled, trajectory.policy, turn.completion)
        return filled

    def _add(self, filled: WordBin, policy: str, said: Completion) -> None:
        filled.completions += 1
        filled.tokens += len(said.token_ids)
        filled.texts += not len(said.token_ids)
        ends = self._token_ends(policy, said)
        if ends is None:
            filled.unplaced += 1
        for word, pattern in self.patterns.items():
            for match in pattern.finditer(said.text):
                filled.tallies[word].add(_probability(said, ends, match) if ends else None)
        if self.below and ends:
            filled.unlikely.update(
                match.group().lower()
                for match in ANY_WORD.finditer(said.text)
                if _probability(said, ends, match) < self.below
            )

    def _token_ends(self, policy: str, said: Completion) -> list[int] | None:
        """None also where there is no logprob to look up."""
        if policy not in self._ends:
            decode = self._decoder(policy)
            self._ends[policy] = TokenEnds(decode) if decode else None
        find = self._ends[policy]
        return find(said) if find and len(said.logprobs) else None


def _probability(said: Completion, ends: Sequence[int], match: re.Match[str]) -> float:
    return math.exp(said.logprobs[token_at(ends, match.start())])
