"""The command of an Evidence: runs, evaluates, and writes the page, the numbers and the curves."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from evidence.plan import Arm, Evidence, Experiment
from evidence.run import ROOT, Job, base_job, extra_job, keep_extra, run_all, training_job
from evidence.write import Page, summary
from kolb.errors import KolbError, at_least

Cell = tuple[Experiment, Arm, int]
"""One run: an arm of an experiment at a seed."""


def main(evidence: Evidence, words: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when a run failed, 2 for a mistake, 130 when it was interrupted."""
    asked = parser(evidence).parse_args(words)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return carry_out(evidence, asked)
    except KolbError as error:
        print(f"evidence: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def parser(evidence: Evidence) -> argparse.ArgumentParser:
    names = ", ".join(experiment.name for experiment in evidence.experiments)
    made = argparse.ArgumentParser(
        prog=f"python -m evidence.{evidence.name}",
        description=f"{evidence.title}. Experiments: {names}. Finished runs are kept, interrupted ones go on; "
        "when nothing is missing, the page, the numbers and the curves are written.",
    )
    made.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (2)")
    made.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="EXPERIMENT[/ARM]",
        help="run these alone; repeatable",
    )
    made.add_argument("--seeds", type=seeds_of, metavar="0-4", help="run these seeds alone")
    made.add_argument("--runs", type=Path, default=Path("runs/evidence") / evidence.name,
                      metavar="DIR", help="where the runs are (%(default)s)")  # fmt: skip
    made.add_argument("--docs", type=Path, default=ROOT / "docs/papers", metavar="DIR",
                      help="where the page goes (docs/papers)")  # fmt: skip
    return made


def seeds_of(text: str) -> tuple[int, ...]:
    """
    >>> seeds_of("0-2"), seeds_of("3")
    ((0, 1, 2), (3,))
    """
    first, _, last = text.partition("-")
    try:
        seeds = tuple(range(int(first), int(last or first) + 1))
    except ValueError:
        seeds = ()
    if not seeds:
        raise argparse.ArgumentTypeError(
            f"{text!r}; write one seed, 3, or the first and the last, 0-4"
        )
    return seeds


def carry_out(evidence: Evidence, asked: argparse.Namespace) -> int:
    at_least(1, jobs=asked.jobs)
    cells = list(chosen(evidence, asked.only, asked.seeds))
    if not cells:
        raise KolbError(f"no run has a seed among {asked.seeds}")
    data = Path(os.environ.get("KOLB_DATA") or "data").resolve()
    for file in sorted({x.needs for e, _, _ in cells for x in e.extras if x.needs}):
        if not (data / file).exists():
            print(f"left out: an evaluation on {data / file}, which is not there (KOLB_DATA)")
    failed = follow(base_jobs(evidence, cells, asked.runs), asked.jobs)
    if failed:
        return told(failed)
    jobs = [job for e, a, s in cells if (job := training_job(e, a, s, asked.runs))]
    failed = follow(jobs, asked.jobs)
    roots = (asked.runs, data)
    extras = {
        job: extra
        for e, a, s in cells
        for extra in e.extras
        if (job := extra_job(e, a, s, extra, roots))
    }
    failed += follow(list(extras), asked.jobs, lambda job: keep_extra(job, extras[job], roots))
    conclude(evidence, asked, failed)
    return told(failed)


def told(failed: Sequence[Job]) -> int:
    """Says what failed; the exit code."""
    for job in failed:
        print(f"\nFAILED: {job.label}, whose log {job.log} ends with\n{job.tail()}")
    return 1 if failed else 0


def base_jobs(evidence: Evidence, cells: Sequence[Cell], root: Path) -> list[Job]:
    """What builds the bases that ``cells`` start from and that are not there."""
    sets = " ".join(
        text
        for e, a, s in cells
        for text in (*e.sets(a, s), *(t for extra in e.extras for t in extra.sets))
    )
    wanted = [base for base in evidence.bases if f"{{bases}}/{base.name}/" in sets]
    return [job for base in wanted if (job := base_job(base, root))]


def conclude(evidence: Evidence, asked: argparse.Namespace, failed: Sequence[Job]) -> None:
    """Says what there is so far, and writes the page where nothing is missing."""
    page = Page.of(evidence, asked.runs)
    print("\n".join(summary(page)))
    if page.missing:
        print(f"{len(page.missing)} runs are missing, so nothing was written to {asked.docs}")
    elif failed:
        print(f"{len(failed)} further evaluations failed, so nothing was written to {asked.docs}")
    else:
        for e, a, s in chosen(evidence, (), None):
            training_job(e, a, s, asked.runs)  # refuses what an older recipe left
        print("\n".join(f"written: {path}" for path in page.write(asked.docs)))


def chosen(evidence: Evidence, only: Sequence[str], seeds: Sequence[int] | None) -> Iterator[Cell]:
    """The runs that were asked for, seed by seed, so that every arm has its first seed early."""
    known = {name for e in evidence.experiments for name in (e.name, *arms_of(e))}
    for name in only:
        if name not in known:
            raise KolbError(
                f"--only {name}: there is no such thing; known: {', '.join(sorted(known))}"
            )
    for experiment in evidence.experiments:
        for seed in experiment.seeds:
            for arm in experiment.arms:
                is_meant = {experiment.name, f"{experiment.name}/{arm.name}"} & set(only)
                if (not only or is_meant) and (seeds is None or seed in seeds):
                    yield experiment, arm, seed


def arms_of(experiment: Experiment) -> list[str]:
    return [f"{experiment.name}/{arm.name}" for arm in experiment.arms]


def follow(
    jobs: Sequence[Job], at_once: int, after: Callable[[Job], None] = lambda job: None
) -> list[Job]:
    """Runs the jobs, tells of each, does ``after`` it where it succeeded; gives those that failed."""
    failed: list[Job] = []
    with closing(run_all(jobs, at_once)) as ended:
        for number, (job, is_good) in enumerate(ended, 1):
            said = "done" if is_good else "FAILED"
            print(f"[{number}/{len(jobs)}] {job.label}: {said}", flush=True)
            if is_good:
                after(job)
            else:
                failed.append(job)
    return failed
