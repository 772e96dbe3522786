"""``kolb models``: what is known by name, and getting it."""

from __future__ import annotations

import logging

from kolb.models.fetch import EMBEDDED, KNOWN, cache_folder, get, is_here


def list_known() -> None:
    for name, folder in EMBEDDED.items():
        print(f"{name:<16} comes with kolb: see {folder / 'README.md'}")
    for name, model in KNOWN.items():
        where = (
            f"in {cache_folder() / name}" if is_here(name) else f"{model.download_mb} MB to fetch"
        )
        print(f"{name:<16} {model.parameters / 1e6:.0f}M parameters, {model.licence}, {where}")
        print(f"{'':<16} {model.about}")


def fetch(name: str) -> None:
    # The stages of a fetch are the log's lines: a minute of silence looks like a hang.
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    path = get(name)
    print(f"{name} is in {path}; in a recipe: [policies.agent] base = {name!r}")
