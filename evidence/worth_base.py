"""The base models of the evidence for Training-Free GRPO: random weights, then imitation of ``evidence.worth_corpus``.

    python -m evidence.worth_base FOLDER policies.agent.base=FOLDER/start seed=0

``FOLDER/model`` appears whole, when all is done. It acts, compares, proposes and plans in worlds that it was never taught.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from evidence import small_base
from evidence.plan import Sets
from evidence.worth_corpus import WORDS

RECIPE = Path(__file__).with_name("worth_base.toml")
CONTENT = re.compile(r"take|leave|G\d+|\d+(?:\.\d+)?|\b[A-L]\b")


def parts(word: str) -> list[str]:
    """What ``word`` is about, and its form.

    >>> parts('"take-F",'), parts("take-F"), parts("[G3].")
    (['take', 'F', '"*-*",'], ['take', 'F', '*-*'], ['G3', '[*].'])
    """
    return [*CONTENT.findall(word), CONTENT.sub("*", word)]


SHAPE = {"num_hidden_layers": 3, "head_dim": 32, "max_position_embeddings": 512}
START = small_base.Start(WORDS, shape=SHAPE, parts=parts)
"""That F, ``take-F`` and ``"take-F",`` are about one letter is known to any model that has read text."""


def build(folder: Path, sets: Sets) -> None:
    """``folder/start``, ``folder/run`` and, when all is done, ``folder/model``."""
    small_base.build(folder, RECIPE, sets, START.write)


if __name__ == "__main__":
    build(Path(sys.argv[1]), tuple(sys.argv[2:]))
