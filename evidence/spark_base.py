"""The base models of the Lp-Reg evidence: random weights, then imitation of the corpus of ``evidence.spark``.

    python -m evidence.spark_base FOLDER policies.agent.base=FOLDER/start seed=0 environments.spark.accuracy=0.4

A model has a tenth of a million parameters and takes some minutes. ``FOLDER/model`` appears whole, when all is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evidence import small_base
from evidence.plan import Sets
from evidence.spark import WORDS

RECIPE = Path(__file__).with_name("spark_base.toml")
CHAT = (
    "{% for message in messages %}{{ message.content }}"
    "{{ '<|end|>' if message.role == 'assistant' else ' ' }}{% endfor %}"
)
"""No word stands between a prompt and its answer, so that a forced re-check reads like one of the agent's own."""
START = small_base.Start(WORDS, CHAT)

write_start = START.write


def build(folder: Path, sets: Sets) -> None:
    """``folder/start``, ``folder/run`` and, when all is done, ``folder/model``."""
    small_base.build(folder, RECIPE, sets, write_start)


if __name__ == "__main__":
    build(Path(sys.argv[1]), tuple(sys.argv[2:]))
