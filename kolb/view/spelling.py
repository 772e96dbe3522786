"""The text of single tokens, from the tokenizers that a run has beside it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kolb.runs.directory import RunDirectory
from kolb.view.render import Spelling


def spelling_of(run: RunDirectory) -> Spelling:
    """Spells tokens of the run's policies; None for those of a policy without a tokenizer on this disk."""

    @cache
    def tokenizer(policy: str) -> Any:
        from tokenizers import Tokenizer

        for folder in homes(run, policy):
            if (file := folder / "tokenizer.json").is_file():
                return Tokenizer.from_file(str(file))
        return None

    def spell(policy: str, token: int) -> str | None:
        known = tokenizer(policy)
        if known is None or known.id_to_token(token) is None:
            return None
        return known.decode([token], skip_special_tokens=False)

    return spell


def homes(run: RunDirectory, policy: str) -> Iterator[Path]:
    """Where a policy's tokenizer may be: trained for the run, or the folder that the recipe names."""
    yield run.path / "models" / policy
    given = run.recipe().get("policies", {}).get(policy, {})
    for key in ("tokenizer", "base"):
        if isinstance(given.get(key), str) and given[key]:
            yield Path(given[key])
