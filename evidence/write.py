"""The page, the numbers and the curves, from the runs alone: the same runs give the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence.curves import draw
from evidence.measure import Measured, measure, short
from evidence.plan import Claim, Evidence, Experiment, ExtraSet, in_words
from evidence.stats import difference, holds, t_interval
from kolb.errors import KolbError

Arms = Mapping[str, Sequence[Measured]]
"""The finished runs of each arm, in the order of the seeds."""

HOW = """\
One value per seed; every arm has the same seeds, and a seed is the same world in every arm. Means are over seeds, with the
95% interval that Student's t gives (it is not cut at 0 or 1). A claim *holds* when the 95% percentile bootstrap interval of
the paired difference (10,000 resamples of the seeds) excludes 0 on the expected side. Over so few seeds that interval is
too narrow; the t interval of the same differences stands beside it and is the more careful one. Tokens are all that was
sampled in training (first attempts, reflections, second attempts, thrown-away tries), without evaluations; a run ends with
the step that reaches the budget, so it may spend up to one step more. Seconds are by the clock, without evaluations, on
a machine that other runs shared. Take-off: tokens at the first evaluation of at least 0.5."""


@dataclass(frozen=True)
class Page:
    """An Evidence with what its finished runs show. ``missing`` are the runs that are not finished."""

    evidence: Evidence
    results: Mapping[str, Arms]
    missing: tuple[str, ...]

    @classmethod
    def of(cls, evidence: Evidence, root: Path) -> Page:
        results: dict[str, dict[str, list[Measured]]] = {}
        missing: list[str] = []
        for e in evidence.experiments:
            for arm in e.arms:
                runs = results.setdefault(e.name, {}).setdefault(arm.name, [])
                for seed in e.seeds:
                    found = measure(e, arm, seed, root)
                    if found is None:
                        missing.append(e.label(arm, seed))
                    else:
                        runs.append(found)
        return cls(evidence, results, tuple(missing))

    def write(self, docs: Path) -> list[Path]:
        """NAME.json, NAME.md and a picture per experiment, in ``docs``."""
        docs.mkdir(parents=True, exist_ok=True)
        page, numbers = (docs / f"{self.evidence.name}.{ending}" for ending in ("md", "json"))
        numbers.write_text(json.dumps(self.numbers(), indent=1) + "\n", encoding="utf-8")
        page.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")
        pictures = [
            draw(e, self.results[e.name], docs / f"{e.name}.png") for e in self.evidence.experiments
        ]
        return [page, numbers, *pictures]

    # ------------------------------------------------------------------------------------- numbers

    def numbers(self) -> dict[str, Any]:
        claims = [self.claim(e, c) for e in self.evidence.experiments for c in e.claims]
        return {
            "commit": ", ".join(self.said("commit")),
            "command": self.evidence.command,
            "machine": self.machine,
            "claims": claims,
        }

    def claim(self, e: Experiment, claim: Claim) -> dict[str, Any]:
        """One claim as JSON data; the main one, which is the first, has every arm."""
        arms = self.results[e.name]
        shown = arms if claim is e.claims[0] else (claim.better, claim.worse)
        return {
            "id": claim.id,
            "metric": e.metric,
            "budget": budget(e, arms),
            "higher_is_better": e.higher_is_better,
            "arms": {arm: [round(r.final, 6) for r in arms[arm]] for arm in shown},
            "tokens": {arm: [r.tokens for r in arms[arm]] for arm in shown},
            "expected": f"{claim.better} {'>' if e.higher_is_better else '<'} {claim.worse}",
            "holds": self.holds(e, claim),
        }

    def holds(self, e: Experiment, claim: Claim) -> bool:
        better, worse = (finals(self.results[e.name][a]) for a in (claim.better, claim.worse))
        return holds(better, worse, higher_is_better=e.higher_is_better)

    def said(self, key: str) -> list[str]:
        """What the runs say about themselves under ``key``, each once."""
        runs = [r for arms in self.results.values() for row in arms.values() for r in row]
        return sorted({str(r.environment[key]) for r in runs})

    @property
    def machine(self) -> str:
        cpus, platforms = self.said("cpus"), self.said("platform")
        return f"{' or '.join(cpus)} cores, {' or '.join(platforms)}"

    # ---------------------------------------------------------------------------------------- page

    def lines(self) -> Iterator[str]:
        evidence, days = self.evidence, [text[:10] for text in self.said("created")]
        yield f"# {evidence.title}\n"
        yield f"Written by `{evidence.command}`; the prose of the last section is `evidence/{evidence.notes.name}`.\n"
        yield f"{evidence.about}\n"
        yield f"Commit {', '.join(self.said('commit'))}; {self.machine}; runs of {days[0]} to {days[-1]}.\n"
        yield from self.beside_the_paper()
        for e in evidence.experiments:
            yield from self.section(e)
        yield from self.failures()
        yield f"## How to read the numbers\n\n{HOW}"

    def beside_the_paper(self) -> Iterator[str]:
        evidence = self.evidence
        names = list(dict.fromkeys(arm.name for e in evidence.experiments for arm in e.arms))
        yield f"## The paper's numbers and ours\n\nThe paper's: {evidence.source}.\n"
        yield from header("", *(in_words(name) for name in names))
        for label, numbers in evidence.paper.items():
            cells = (f"{numbers[n]:.2f}" if n in numbers else "" for n in names)
            yield line(f"paper: {label}", *cells)
        for e in evidence.experiments:
            arms = self.results[e.name]
            yield line(f"ours: {e.name}", *(mean(arms[n]) if n in arms else "" for n in names))
        yield ""

    def section(self, e: Experiment) -> Iterator[str]:
        arms = self.results[e.name]
        stage = next(iter(arms.values()))[0].stage
        spec = stage["evaluation"]
        yield f"## {e.name}\n\n{e.about}\n"
        yield (
            f"Measured: {e.metric}; {spec['episodes'] or 'all'} tasks of split `{spec['split']}`, {spec['samples']} "
            f"attempts each. Budget: {budget(e, arms)}. Recipe: `{e.recipe.parent.name}/{e.recipe.name}`.\n"
        )
        yield from self.table(e)
        yield f"\n![Learning curves of {e.name}]({e.name}.png)\n"
        for claim in e.claims:
            data = self.claim(e, claim)
            yield f"- `{claim.id}`: {data['expected']} {'**holds**' if data['holds'] else '**does not hold**'}{self.apart(e, claim)}"
        yield ""
        for extra in e.extras:
            yield from self.extra(e, extra)

    def table(self, e: Experiment) -> Iterator[str]:
        arms, reference = self.results[e.name], e.claims[0].better
        yield from header(
            "arm", "mean (95%)", "each seed", "before", "tokens", "seconds", "take-off",
            f"minus {in_words(reference)}: bootstrap; t",
        )  # fmt: skip
        for name, runs in arms.items():
            against = "" if name == reference else compared(finals(runs), finals(arms[reference]))
            yield line(
                in_words(name),
                with_interval(finals(runs)),
                " ".join(f"{v:.2f}" for v in finals(runs)),
                f"{fmean(r.curve[0][1] for r in runs):.2f}" if starts(runs) else "",
                short(fmean(r.tokens for r in runs)),
                f"{fmean(r.seconds for r in runs):.0f}",
                " ".join("never" if r.take_off is None else short(r.take_off) for r in runs),
                against,
            )

    def apart(self, e: Experiment, claim: Claim) -> str:
        """Whether the two arms' own intervals touch."""
        one, other = (
            t_interval(finals(self.results[e.name][a])) for a in (claim.better, claim.worse)
        )
        do_touch = max(one[0], other[0]) <= min(one[1], other[1])
        return f"; the arms' own intervals {'touch' if do_touch else 'do not touch'}"

    def extra(self, e: Experiment, extra: ExtraSet) -> Iterator[str]:
        arms = self.results[e.name]
        yield f"### {extra.title}\n"
        if any(extra.name not in run.extras for runs in arms.values() for run in runs):
            where = f"; it needs {extra.needs} in the folder `KOLB_DATA`" if extra.needs else ""
            yield f"Not measured in every run{where}.\n"
            return
        first = next(iter(arms.values()))[0].extras[extra.name]
        yield from header("arm", "all (95%)", *(f"{extra.tag} {v}" for v in first if v))
        for name, runs in arms.items():
            rows = [run.extras[extra.name] for run in runs]
            parts = (f"{fmean(row[v] for row in rows):.2f}" for v in first if v)
            yield line(in_words(name), with_interval([row[""] for row in rows]), *parts)
        yield ""

    def failures(self) -> Iterator[str]:
        yield "## What did not reproduce\n"
        claims = [(e, c) for e in self.evidence.experiments for c in e.claims]
        false = [self.claim(e, c) for e, c in claims if not self.holds(e, c)]
        for claim in false:
            yield f"- `{claim['id']}`: expected {claim['expected']}; the bootstrap interval of the difference does not exclude 0 on that side."
        if not false:
            yield "Every claim above holds."
        yield f"\n{self.evidence.notes.read_text(encoding='utf-8').strip()}\n"


def summary(page: Page) -> Iterator[str]:
    """What is there so far, for the terminal."""
    for experiment, arms in page.results.items():
        for name, runs in arms.items():
            values = " ".join(f"{r.final:.2f}" for r in runs) or "none finished"
            yield f"{experiment}/{name}: {values}"


def budget(e: Experiment, arms: Arms) -> str:
    """The one budget of all arms. KolbError where they differ: then they cannot be compared."""
    found = {name: run.budget for name, runs in arms.items() for run in runs}
    if len(set(found.values())) != 1:
        raise KolbError(
            f"{e.name}: the arms have different budgets: {found}; give them one token_budget"
        )
    return next(iter(found.values()))


def finals(runs: Sequence[Measured]) -> list[float]:
    return [run.final for run in runs]


def starts(runs: Sequence[Measured]) -> bool:
    return all(run.curve[0][0] == 0 for run in runs)


def mean(runs: Sequence[Measured]) -> str:
    return f"{fmean(finals(runs)):.2f}"


def with_interval(values: Sequence[float]) -> str:
    low, high = t_interval(values)
    return f"{fmean(values):.3f} ({low:.3f} to {high:.3f})"


def compared(one: Sequence[float], other: Sequence[float]) -> str:
    d = difference(one, other)
    (low, high), (t_low, t_high) = d.bootstrap, d.t
    return f"{d.mean:+.3f} ({low:+.3f} to {high:+.3f}; {t_low:+.3f} to {t_high:+.3f})"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def header(*titles: str) -> list[str]:
    return [line(*titles), f"|{'---|' * len(titles)}"]
