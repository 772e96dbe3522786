"""What a step's groups look like in numbers: the metrics that every method shares.

Pure. An Episode's ``outcome`` is None where every grader abstained; it then counts in no mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from kolb.types import Episode, Failure, Group

SUCCESS_AT = 1.0 - 1e-9
"""An outcome of at least this is a success: rewards of kolb's environments end at 1."""

BOUNDARIES = ("environment", "reward", "sampler", "deadline")


def is_dead(group: Group) -> bool:
    """A usable group whose outcomes are all equal: there is nothing to compare in it."""
    return group.usable and len(set(group.outcomes)) < 2


def broken_share(groups: Sequence[Group]) -> float:
    """The share of episodes that broke; 0 where there are none."""
    episodes = [e for g in groups for e in g.episodes]
    return sum(not e.status.is_usable for e in episodes) / len(episodes) if episodes else 0.0


def first_failure(groups: Sequence[Group]) -> tuple[Episode, Failure] | None:
    """The first broken episode and why it broke."""
    for group in groups:
        for episode in group.episodes:
            if episode.failure is not None:
                return episode, episode.failure
    return None


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards over the usable groups; deadness, drops and failures over all of them.

    ``reward/std`` is the population's deviation over all episodes. ``episodes/turns`` and
    ``episodes/tokens`` (sampled ones) are means over the usable episodes.
    """
    episodes = [e for g in groups if g.usable for e in g.episodes]
    outcomes = [e.outcome for e in episodes if e.outcome is not None]
    metrics: dict[str, float] = {
        "groups/total": len(groups),
        "groups/dead": sum(is_dead(g) for g in groups),
        "groups/dropped": sum(not g.usable for g in groups),
        "episodes/truncated": sum(e.status == "truncated" for e in episodes),
    }
    if outcomes:
        metrics["reward/mean"] = statistics.fmean(outcomes)
        metrics["reward/std"] = statistics.pstdev(outcomes)
        metrics["success/mean"] = statistics.fmean(o >= SUCCESS_AT for o in outcomes)
    if episodes:
        trajectories = [e.trajectories for e in episodes]
        metrics["episodes/turns"] = statistics.fmean(
            sum(len(t.turns) for t in ts) for ts in trajectories
        )
        metrics["episodes/tokens"] = statistics.fmean(
            sum(t.sampled_tokens for t in ts) for ts in trajectories
        )
    return metrics | score_metrics(groups) | failure_metrics(groups)


def score_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """``score/NAME`` for every named score beside ``reward``: its mean over the trajectories of the usable groups
    that have it."""
    found: dict[str, list[float]] = {}
    for t in (t for g in groups if g.usable for e in g.episodes for t in e.trajectories):
        for name, value in t.scores.items():
            found.setdefault(name, []).append(value)
    return {f"score/{n}": statistics.fmean(v) for n, v in sorted(found.items()) if n != "reward"}


def failure_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """``errors/BOUNDARY`` for every boundary, zeros included: the number of episodes that broke there."""
    broken = [e.failure.boundary for g in groups for e in g.episodes if e.failure]
    return {f"errors/{name}": broken.count(name) for name in BOUNDARIES}
