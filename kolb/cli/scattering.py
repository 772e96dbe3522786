"""``kolb words --scatter``: how likely the words were, beside how undecided the policy was where it said them.

The probability-entropy scatter by which arXiv:2510.03222 tells words that open another way to think (wait, however,
perhaps) from noise of the same low probability. A run records probabilities and no entropies, so the
recorded tokens go through the weights of a checkpoint, and both numbers are of these weights. They are those of the
sampling for what the same weights sampled: the step after the checkpoint, up to its first optimiser step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kolb.cli.counting import distinct, opened, say, say_picture
from kolb.cli.opened import Source, learning, open_learner, opened_engine, read_source
from kolb.cli.recomputing import computed, nearest_first, temperature_of_steps
from kolb.engines.base import Engine, Learner
from kolb.errors import CapabilityError, RecipeError, RunDirectoryError, nearest
from kolb.runs.directory import RunDirectory
from kolb.runs.plots import scatter_png
from kolb.types import Completion
from kolb.view.token_ends import TokenEnds, token_at
from kolb.view.word_tables import Cloud, cloud_table
from kolb.view.words import pattern_of

SHOWN = 5000
"""Other tokens in the picture; the table knows them all."""
TOKENS = 50_000
"""Sampled tokens to compute when nobody says how many."""
LABELS = ("probability of the token", "entropy of the distribution (nats)")


def scatter_words(
    run: Path,
    words: Sequence[str],
    *,
    policy: str = "",
    checkpoint: int | None = None,
    tokens: int = TOKENS,
) -> None:
    """A table of probabilities and entropies, and ``words-scatter.png`` in the run's folder.

    Computes the steps nearest to the checkpoint until ``tokens`` sampled tokens are reached.
    """
    directory = opened(run, policy)
    if checkpoint is None:
        checkpoint = followed_checkpoint(directory)
    source = read_source(str(run), checkpoint=checkpoint)
    policy = chosen_policy(source, policy)
    scatter = Scatter(distinct(words))
    with opened_engine(source) as (engine, recipe):
        need_entropy(engine, source.recipe.engine)
        learner = open_learner(engine, recipe, policy, source.checkpoint)
        scatter.fill(source, directory, learner, policy, tokens)
    if not scatter.tokens:
        raise RunDirectoryError(
            f"{run}: policy {policy!r} has sampled no token in a recorded episode"
        )
    clouds, others = scatter.clouds()
    say(f"\n{cloud_table(clouds, others)}\n\n{scatter.in_words(policy, source.step)}")
    title = f"{directory.name}: tokens under the weights after step {source.step}"
    path = directory.path / "words-scatter.png"
    shown = others[np.random.default_rng(0).permutation(len(others))[:SHOWN]]
    said = {word: cloud.tolist() for word, cloud in clouds.items() if len(cloud)}
    say_picture(lambda: scatter_png(said, shown.tolist(), path, title=title, labels=LABELS))


def followed_checkpoint(run: RunDirectory) -> int | None:
    """The newest checkpoint that a recorded step follows: its weights sampled that step. Else the newest."""
    steps, last = run.numbered("checkpoints"), run.episode_steps()[-1]
    return max((step for step in steps if step < last), default=None)


def chosen_policy(source: Source, policy: str) -> str:
    """The policy whose weights the checkpoint holds: ``policy``, or the only one that learns."""
    if source.checkpoint is None:
        raise RunDirectoryError(
            "--scatter computes with the weights of a checkpoint; this run has none yet"
        )
    known = learning(source.recipe)
    if policy in known:
        return policy
    if policy or len(known) != 1:
        raise RecipeError(f"--scatter needs a policy that learns: --policy{nearest(policy, known)}")
    return known[0]


def need_entropy(engine: Engine, name: str) -> None:
    if "stats:entropy" not in engine.provides:
        raise CapabilityError(
            f"--scatter asks for entropies, and the engine {name!r} does not provide 'stats:entropy'; "
            "without --scatter the words are counted from the record alone"
        )


@dataclass
class Scatter:
    """Probability and entropy of every computed token, by the word that it begins."""

    words: Sequence[str]
    steps: set[int] = field(default_factory=set)
    tokens: int = 0
    exact: int = 0
    """Tokens that the very weights of the checkpoint sampled."""
    unplaced: int = 0
    rows: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    """Per completion: bool [N, words] whether a token begins a word, and [N, 2] what was computed."""

    def fill(
        self, source: Source, run: RunDirectory, learner: Learner, policy: str, budget: int
    ) -> None:
        """Computes step by step, the nearest to the checkpoint first, until ``budget`` tokens are reached."""
        if learner.template is None:
            raise CapabilityError(
                "--scatter needs the tokens of what was said, and this engine gives text only"
            )
        ends = TokenEnds(learner.template.decode)
        temperatures = temperature_of_steps(source, run)
        for step in nearest_first(list(temperatures), source.step):
            for said, numbers in computed(run, step, policy, learner, temperatures[step]):
                self.add(said, numbers, ends(said))
                self.steps.add(step)
                self.exact += len(numbers) * (said.version == learner.version)
                if self.tokens >= budget:
                    return

    def add(self, said: Completion, numbers: Cloud, ends: Sequence[int] | None) -> None:
        """``numbers`` [N, 2] of the tokens of ``said``, which end at ``ends`` in its text."""
        begins = np.zeros((len(numbers), len(self.words)), bool)
        for column, word in enumerate(self.words if ends else ()):
            starts = [match.start() for match in pattern_of(word).finditer(said.text)]
            begins[[token_at(ends or (), start) for start in starts], column] = True
        self.rows.append((begins, numbers))
        self.tokens += len(numbers)
        self.unplaced += not ends

    def clouds(self) -> tuple[dict[str, Cloud], Cloud]:
        """For each word its tokens, and all the other tokens."""
        begins = np.concatenate([begins for begins, _ in self.rows])
        numbers = np.concatenate([numbers for _, numbers in self.rows])
        clouds = {word: numbers[begins[:, i]] for i, word in enumerate(self.words)}
        return clouds, numbers[~begins.any(axis=1)]

    def in_words(self, policy: str, step: int) -> str:
        first, last = min(self.steps), max(self.steps)
        lines = [
            f"Both numbers are of policy {policy!r} after step {step}, at the training temperature. Of the "
            f"{self.tokens} tokens (steps {first} to {last}) {self.exact} were sampled from these very weights."
        ]
        if not self.exact:
            lines.append(
                "So they tell what these weights think of it, not how it was sampled; a checkpoint that a recorded "
                "step follows tells both ([checkpoints] every and keep)."
            )
        if self.unplaced:
            lines.append(
                f"{self.unplaced} completions are not spelt by their tokens; theirs are all among the others."
            )
        return "\n".join(lines)
