"""Runs what is not finished: every arm and seed as a process of its own, a few at a time.

A finished run is left alone and an interrupted one goes on. A run of another recipe, or from other weights, is an
error, so that no old number passes for a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evidence.measure import is_built, is_finished, read_extra
from evidence.plan import BASES, Arm, Base, Experiment, ExtraSet, Sets, placed
from kolb import recipe as recipes
from kolb.cli.opened import read_source
from kolb.errors import RunDirectoryError
from kolb.models.fetch import EMBEDDED
from kolb.runs.directory import RunDirectory
from kolb.stage import Recipe

ROOT = Path(__file__).parents[1]
POLL_S = 0.2
GRACE_S = 20.0
TAIL_LINES = 15
Roots = tuple[Path, Path]
"""The folder of the runs and that of the data."""
WAY_OUT = "move it away or delete it, and it is run again"


@dataclass(frozen=True)
class Job:
    """One ``kolb`` command, or one of another ``module``; ``log`` takes what it prints. ``weights``: the files that a
    new run starts from."""

    label: str
    words: tuple[str, ...]
    log: Path
    weights: tuple[Path, ...] = ()
    module: str = "kolb"

    def start(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.weights:
            self.log.with_suffix(".weights").write_text(digest(self.weights))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        with open(self.log, "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, *self.words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip

    def tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])


def options(sets: Sets) -> tuple[str, ...]:
    return tuple(word for text in sets for word in ("--set", text))


def training_job(experiment: Experiment, arm: Arm, seed: int, root: Path) -> Job | None:
    """What is left to do for this arm and seed; None when its run is finished."""
    path, sets = experiment.folder(root, arm, seed), placed(experiment.sets(arm, seed), root)
    wanted = recipes.load(experiment.recipe, sets)
    label, log, weights = experiment.label(arm, seed), path.with_suffix(".log"), weights_of(wanted)
    if not (path / "env.json").exists():
        words = ("run", str(experiment.recipe), *options(sets), "--out", str(path), "--quiet")
        return Job(label, words, log, weights)
    run = RunDirectory.open(path)
    check_recipe(run, wanted, f"{experiment.recipe} with {' '.join(sets)}")
    began = path.with_suffix(".weights")
    if (began.read_text() if began.exists() else "") != digest(weights):
        names = ", ".join(map(str, weights)) or "none on disk"
        raise RunDirectoryError(
            f"{path} began from other weights than are now in {names}; {WAY_OUT}"
        )
    return None if is_finished(run) else Job(label, ("run", "--resume", str(path), "--quiet"), log)


def check_recipe(run: RunDirectory, wanted: Recipe, described: str) -> None:
    """RunDirectoryError where ``run`` is of another recipe than ``wanted``."""
    if recipes.parse(run.recipe()).resolved != wanted.resolved:
        raise RunDirectoryError(
            f"{run.path} is a run of another recipe than {described} is now; {WAY_OUT}"
        )


def base_job(base: Base, root: Path) -> Job | None:
    """What builds ``base``; None when it is there."""
    folder, sets = base.folder(root), placed(base.sets, root)
    if not is_built(base, root):
        words, log = (str(folder), *sets), folder.with_suffix(".log")
        return Job(f"{BASES}/{base.name}", words, log, module=base.module)
    run = RunDirectory.open(folder / "run")
    check_recipe(run, recipes.load(base.recipe, sets), f"{base.recipe} with {' '.join(sets)}")
    return None


def weights_of(recipe: Recipe) -> tuple[Path, ...]:
    """The weight files of the embedded models and folders that ``recipe`` starts from. It only names them, and
    an embedded model that was built anew keeps its name."""
    bases = sorted({spec.model.base for spec in recipe.policies.values() if spec.model.base})
    folders = [Path(EMBEDDED.get(base, base)) for base in bases]
    return tuple(file for folder in folders for file in sorted(folder.glob("*.safetensors")))


def digest(files: Sequence[Path]) -> str:
    """SHA-256 of the contents, one after the other; empty where there are no files."""
    if not files:
        return ""
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()


def filled(extra: ExtraSet, roots: Roots) -> Sets:
    root, data = roots
    return tuple(text.replace("{data}", str(data)) for text in placed(extra.sets, root))


def extra_job(
    experiment: Experiment, arm: Arm, seed: int, extra: ExtraSet, roots: Roots
) -> Job | None:
    """The evaluation of a finished run on ``extra``; None when it is done or cannot be."""
    root, data = roots
    path = experiment.folder(root, arm, seed)
    is_done = read_extra(experiment.extra_file(root, arm, seed, extra), extra) is not None
    is_ready = (path / "env.json").exists() and is_finished(RunDirectory.open(path))
    if is_done or not is_ready or (extra.needs and not (data / extra.needs).exists()):
        return None
    asked = ("--episodes", "0", "--samples", str(extra.samples))
    words = ("eval", str(path), *asked, *options(filled(extra, roots)))
    label = f"{experiment.label(arm, seed)}/{extra.name}"
    return Job(label, words, path.with_name(f"{path.name}-{extra.name}.log"))


def keep_extra(job: Job, extra: ExtraSet, roots: Roots) -> None:
    """Moves what ``kolb eval`` wrote to the extra's own file, with what was asked and the tasks' tags."""
    path, sets = Path(job.words[1]), filled(extra, roots)
    [written] = re.findall(r"^written to (.+)$", job.log.read_text(encoding="utf-8"), re.M)
    content = json.loads(Path(written).read_text(encoding="utf-8"))
    stage = read_source(str(path), sets=sets).stage()
    tasks = stage.source.tasks(content["evaluation"]["split"])
    tags = {task.id: str(task.tags[extra.tag]) for task in tasks if extra.tag in task.tags}
    kept = {task: tag for task, tag in tags.items() if task in content["outcomes"]}
    target = path / extra.file_name
    text = json.dumps({**content, "asked": extra.asked, "tags": kept}, indent=2)
    target.with_suffix(".tmp").write_text(text + "\n", encoding="utf-8")
    target.with_suffix(".tmp").replace(target)
    Path(written).unlink()


def run_all(jobs: Sequence[Job], at_once: int) -> Generator[tuple[Job, bool], None, None]:
    """Runs the jobs and gives each with whether it succeeded, as they end. Whatever stops this stops them;
    whoever stops asking has to ``close`` it."""
    waiting = list(jobs)
    running: dict[subprocess.Popen[bytes], Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job.start()] = job
            for process in [p for p in running if p.poll() is not None]:
                yield running.pop(process), process.returncode == 0
            time.sleep(POLL_S)
    finally:
        stop(running)


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ends them; SIGTERM, because SIGINT is ignored by what a shell started in the background."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
