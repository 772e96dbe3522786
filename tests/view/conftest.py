"""The made-up groups of tests/runs serve the viewers too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "runs"))
