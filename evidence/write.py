"""The page, the numbers and the curves, from the runs alone: the same runs give the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence.cells import compared, cost, header, line, mean, number, take_offs, with_interval
from evidence.curves import draw, pictured
from evidence.measure import Measured, is_built, measure, of_base, values
from evidence.plan import Claim, Evidence, Experiment, Quantity, in_words, last
from evidence.sections import Arms, by_extra, roles, weights
from evidence.stats import holds, t_interval
from kolb.errors import KolbError

HOW = """\
One value per seed; every arm has the same seeds, and a seed is the same world in every arm. Means are over seeds, with the
95% interval that Student's t gives (it is not cut at 0 or 1). A claim *holds* when the 95% percentile bootstrap interval of
the paired difference (10,000 resamples of the seeds) excludes 0 on the expected side. Over few seeds that interval is
too narrow; the t interval of the same differences stands beside it and is the more careful one. Tokens are all that was
sampled in training, thrown-away tries included, without evaluations; a run ends with the step that reaches the budget, so it
may spend up to one step more. Seconds are by the clock, without evaluations, on a machine that other runs shared. Take-off:
tokens at the first evaluation of at least 0.5. What is said to be read between evaluations is read off straight lines between them."""


@dataclass(frozen=True)
class Page:
    """An Evidence with what its finished runs show. ``missing`` are the runs that are not finished. ``bases``: the
    last evaluation of each base, by metric."""

    evidence: Evidence
    results: Mapping[str, Arms]
    missing: tuple[str, ...]
    bases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

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
                        lacking = dict.fromkeys(q.extra for q in e.quantities if not found.has(q))
                        missing += [f"{e.label(arm, seed)}/{extra}" for extra in lacking]
        bases = {b.name: of_base(b, root) for b in evidence.bases if is_built(b, root)}
        return cls(evidence, results, tuple(missing), bases)

    def write(self, docs: Path) -> list[Path]:
        """NAME.json, NAME.md and a picture per experiment, in ``docs``."""
        docs.mkdir(parents=True, exist_ok=True)
        page, numbers = (docs / f"{self.evidence.name}.{ending}" for ending in ("md", "json"))
        numbers.write_text(json.dumps(self.numbers(), indent=1) + "\n", encoding="utf-8")
        page.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")
        pictures = [
            draw(e, quantity, self.results[e.name], docs / name)
            for e in self.evidence.experiments
            for name, quantity in pictured(e).items()
        ]
        return [page, numbers, *pictures]

    # ------------------------------------------------------------------------------------- numbers

    def numbers(self) -> dict[str, Any]:
        claims = [self.claim(*each) for each in self.claims()]
        return {
            "commit": ", ".join(self.said("commit")),
            "command": self.evidence.command,
            "machine": self.machine,
            "claims": claims,
        }

    def claims(self) -> Iterator[tuple[Experiment, Quantity, Claim]]:
        for e in self.evidence.experiments:
            for quantity in e.quantities:
                yield from ((e, quantity, claim) for claim in quantity.claims)

    def claim(self, e: Experiment, q: Quantity, claim: Claim) -> dict[str, Any]:
        """One claim as JSON data; the main one about a quantity, which is the first, has every arm."""
        arms = self.results[e.name]
        shown = arms if claim is q.claims[0] else (claim.better, claim.worse)
        return {
            "id": claim.id,
            "metric": q.metric,
            "budget": budget(e, arms),
            "higher_is_better": q.higher_is_better,
            "arms": {arm: [round(v, 6) for v in values(q, arms[arm])] for arm in shown},
            "tokens": {arm: [r.tokens for r in arms[arm]] for arm in shown},
            "expected": f"{claim.better} {'>' if q.higher_is_better else '<'} {claim.worse}",
            "holds": self.holds(e, q, claim),
        }

    def holds(self, e: Experiment, q: Quantity, claim: Claim) -> bool:
        better, worse = (values(q, self.results[e.name][a]) for a in (claim.better, claim.worse))
        return holds(better, worse, higher_is_better=q.higher_is_better)

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
        yield from self.of_bases()
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
            for q in e.quantities:
                label = f"ours: {e.name}" + (f", {q.metric}" if len(e.quantities) > 1 else "")
                yield line(label, *(mean(q, arms[n]) if n in arms else "" for n in names))
        yield ""

    def of_bases(self) -> Iterator[str]:
        """What the runs start from, as their own runs measured it in the end."""
        if not self.bases:
            return
        yield "## The bases\n"
        names = [name for name in next(iter(self.bases.values())) if name.startswith("score/")]
        yield from header(
            "base", "changes to its recipe", *(n.removeprefix("score/") for n in names)
        )
        for base in self.evidence.bases:
            sets = " ".join(f"`{text}`" for text in base.sets if "{" not in text)
            yield line(base.name, sets, *(f"{self.bases[base.name][n]:.3f}" for n in names))
        yield ""

    def section(self, e: Experiment) -> Iterator[str]:
        arms = self.results[e.name]
        stage = next(iter(arms.values()))[0].stage
        spec = stage["evaluation"]
        yield f"## {e.name}\n\n{e.about}\n"
        yield (
            f"Measured: {e.quantities[0].metric}; {spec['episodes'] or 'all'} tasks of split `{spec['split']}`, {spec['samples']} "
            f"attempts each. Budget: {budget(e, arms)}. Recipe: `{e.recipe.parent.name}/{e.recipe.name}`.\n"
        )
        yield from self.table(e, e.quantities[0])
        for q in e.quantities[1:]:
            yield f"\nMeasured: {q.metric}.\n"
            yield from self.table(e, q)
        yield ""
        for name, q in pictured(e).items():
            yield f"![Curves of {e.name}: {q.axis or q.metric}]({name})\n"
        for q in e.quantities:
            for claim in q.claims:
                data = self.claim(e, q, claim)
                yield f"- `{claim.id}`: {data['expected']} {'**holds**' if data['holds'] else '**does not hold**'}{self.apart(e, q, claim)}"
        yield ""
        yield from roles(arms)
        yield from weights(arms)
        for extra in e.extras:
            if extra.name not in [q.extra for q in e.quantities]:
                yield from by_extra(extra, arms)

    def table(self, e: Experiment, q: Quantity) -> Iterator[str]:
        """A row for each arm; what it cost stands beside the main quantity, take-off where the curve's end counts."""
        arms, is_main, is_end = self.results[e.name], q is e.quantities[0], q.read is last
        against = f"minus {in_words(e.reference)}: bootstrap; t"
        costs = ("before", "tokens", "steps", "seconds") if is_main else ()
        take_off = ("take-off",) if is_main and is_end else ()
        yield from header("arm", "mean (95%)", "each seed", *costs, *take_off, against)
        for name, runs in arms.items():
            found = values(q, runs)
            difference = compared(found, values(q, arms[e.reference]))
            yield line(
                in_words(name),
                with_interval(found),
                " ".join(map(number, found)),
                *(cost(q, runs) if costs else ()),
                *([take_offs(q, runs)] if take_off else ()),
                "" if name == e.reference else difference,
            )

    def apart(self, e: Experiment, q: Quantity, claim: Claim) -> str:
        """Whether the two arms' own intervals touch."""
        one, other = (
            t_interval(values(q, self.results[e.name][a])) for a in (claim.better, claim.worse)
        )
        do_touch = max(one[0], other[0]) <= min(one[1], other[1])
        return f"; the arms' own intervals {'touch' if do_touch else 'do not touch'}"

    def failures(self) -> Iterator[str]:
        yield "## What did not reproduce\n"
        false = [self.claim(*each) for each in self.claims() if not self.holds(*each)]
        for claim in false:
            yield f"- `{claim['id']}`: expected {claim['expected']}; the bootstrap interval of the difference does not exclude 0 on that side."
        if not false:
            yield "Every claim above holds."
        yield f"\n{self.evidence.notes.read_text(encoding='utf-8').strip()}\n"


def summary(page: Page) -> Iterator[str]:
    """What is there so far, for the terminal."""
    for e in page.evidence.experiments:
        for q in e.quantities:
            yield f"{e.name}: {q.metric}"
            for name, runs in page.results[e.name].items():
                measured = [run for run in runs if run.has(q)]
                found = " ".join(map(number, values(q, measured))) or "none finished"
                yield f"  {name}: {found}"


def budget(e: Experiment, arms: Arms) -> str:
    """What the plan says of it, or the one budget of all arms. KolbError where they differ: then they cannot be compared."""
    if e.budget:
        return e.budget
    found = {name: run.budget for name, runs in arms.items() for run in runs}
    if len(set(found.values())) != 1:
        raise KolbError(
            f"{e.name}: the arms have different budgets: {found}; give them one token_budget"
        )
    return next(iter(found.values()))
