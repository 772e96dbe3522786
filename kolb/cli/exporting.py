"""``kolb export``: a policy as a plain Hugging Face folder."""

from __future__ import annotations

import os
from pathlib import Path

from kolb.cli.opened import learning, open_learner, opened_engine, read_source
from kolb.errors import RecipeError, RunDirectoryError, nearest


def export_run(
    run: Path, out: Path, *, policy: str = "", merge: bool = False, checkpoint: int | None = None
) -> None:
    source = read_source(str(run), checkpoint=checkpoint)
    if source.checkpoint is None:
        raise RunDirectoryError(f"{run} has no checkpoint yet, so there is nothing to export")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} is there and not empty; give a new folder")
    known = learning(source.recipe)
    if policy not in known:
        if policy or len(known) != 1:
            raise RecipeError(f"say which policy: --policy{nearest(policy, known)}")
        policy = known[0]
    with opened_engine(source) as (engine, recipe):
        learner = open_learner(engine, recipe, policy, source.checkpoint)
        out.mkdir(parents=True, exist_ok=True)
        learner.export(out, merge=merge)
    make_readable(out)
    print(f"policy {policy!r} after step {source.step} is in {out}")


def make_readable(folder: Path) -> None:
    """Files get the mode of any new file: safetensors writes its own for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~mask)
