"""Another model like the embedded ``notes``: of the same recipe and the same corpus, from another seed.

    python -m evidence.notes_base FOLDER policies.agent.base=FOLDER/start seed=1

``FOLDER/model`` appears whole, when all is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evidence import small_base
from kolb.models.notes.start import write_start

RECIPE = Path(__file__).parents[1] / "recipes/base/notes.toml"

if __name__ == "__main__":
    small_base.build(Path(sys.argv[1]), RECIPE, tuple(sys.argv[2:]), write_start)
