"""A Trajectory as training records: one Example per segment, masks from roles.

segment:    context  completion  context  completion
prompt_ids  ^^^^^^^
target_ids           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
weight               1111111111  0000000  1111111111
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from kolb.errors import CapabilityError, NonFiniteError
from kolb.types import NO_FLOATS, Example, Floats, Ids, Trajectory, Turn

_sequence_numbers = itertools.count()


def to_examples(
    trajectory: Trajectory,
    *,
    advantage: float | Sequence[float] | Floats | None = None,
    stream: str = "policy",
    weight: float = 1.0,
    sequence: str = "",
) -> list[Example]:
    """One Example for each segment of ``trajectory`` that holds a completion; none if it does not learn.

    Every token of a completion, sampled or given, weighs ``weight`` in ``stream``; context weighs 0. A
    weight of 0 teaches nothing, so it gives no Example. ``advantage`` is one number for the whole
    trajectory, or one for each completion token of all its turns in order. ``sampler_logprobs`` are
    there when every completion of the segment has its logprobs, else None: a demonstration was sampled
    by nobody. ``sequence`` names the trajectory, so that normalisation by sequence sees its segments as
    one; without it a trajectory of several segments gets a fresh name.

    Raises CapabilityError for a completion without token ids, NonFiniteError for a bad advantage.
    """
    if not trajectory.learns or weight == 0:
        return []
    _check_trainable(trajectory)
    segments = [
        s for s in _segments(trajectory.turns) if any(len(t.completion.token_ids) for t in s)
    ]
    worth = iter(_split_advantage(advantage, segments))
    if not sequence and len(segments) > 1:
        # A name made from the tokens would merge two trajectories that said the same thing.
        sequence = f"{trajectory.role}#{next(_sequence_numbers)}"
    return [
        Example(
            policy=trajectory.policy,
            prompt_ids=turns[0].context_ids,
            target_ids=_targets(turns),
            weights={stream: _spread(turns, [_full(t, weight) for t in turns])},
            advantages=None if advantage is None else _spread(turns, next(worth)),
            sampler_logprobs=_sampler_logprobs(turns),
            sequence=sequence,
        )
        for turns in segments
    ]


def _check_trainable(trajectory: Trajectory) -> None:
    for number, turn in enumerate(trajectory.turns):
        completion = turn.completion
        where = f"turn {number} of role {trajectory.role!r} (policy {trajectory.policy!r})"
        if completion.text and not len(completion.token_ids):
            raise CapabilityError(
                f"{where} has text but no token ids: its endpoint gives text only, and text is never "
                "encoded again for training. Sample this role from an engine that provides 'tokens', "
                "or let its trajectories not learn (learns=False)"
            )
        if len(completion.logprobs) not in (0, len(completion.token_ids)):
            raise ValueError(
                f"{where} has {len(completion.token_ids)} tokens and {len(completion.logprobs)} "
                "logprobs; give one logprob for each token, or none"
            )


def _segments(turns: Sequence[Turn]) -> list[list[Turn]]:
    segments: list[list[Turn]] = []
    for turn in turns:
        if turn.starts_segment or not segments:
            segments.append([])
        segments[-1].append(turn)
    return segments


def _targets(turns: Sequence[Turn]) -> Ids:
    pieces = [turns[0].completion.token_ids]
    for turn in turns[1:]:
        pieces += [turn.context_ids, turn.completion.token_ids]
    return np.concatenate(pieces).astype(np.int32)


def _spread(turns: Sequence[Turn], per_turn: Sequence[Floats]) -> Floats:
    """Per-token numbers of the completions laid along the targets, zero on the context between."""
    pieces = [per_turn[0]]
    for turn, numbers in zip(turns[1:], per_turn[1:], strict=True):
        pieces += [np.zeros(len(turn.context_ids), np.float32), numbers]
    return np.concatenate(pieces).astype(np.float32)


def _full(turn: Turn, value: float) -> Floats:
    return np.full(len(turn.completion.token_ids), value, np.float32)


def _sampler_logprobs(turns: Sequence[Turn]) -> Floats | None:
    spoken = [t.completion for t in turns if len(t.completion.token_ids)]
    if any(not len(c.logprobs) for c in spoken):
        return None
    return _spread(turns, [t.completion.logprobs for t in turns])


def _split_advantage(
    advantage: float | Sequence[float] | Floats | None, segments: Sequence[Sequence[Turn]]
) -> Iterator[list[Floats]]:
    """For each segment, for each of its turns, the advantages of the completion's tokens."""
    lengths = [[len(t.completion.token_ids) for t in turns] for turns in segments]
    total = sum(map(sum, lengths))
    values = NO_FLOATS if advantage is None else np.asarray(advantage, np.float32)
    if not np.all(np.isfinite(values)):
        raise NonFiniteError(
            f"an advantage is not finite: {advantage}; check the rewards behind it"
        )
    if advantage is None:
        return
    if values.ndim and values.shape != (total,):
        raise ValueError(
            f"{values.shape} advantages for {total} completion tokens; give one number, or one for "
            "each token that was sampled or given, context left out"
        )
    tokens = np.broadcast_to(values, (total,))
    start = 0
    for segment in lengths:
        ends = list(itertools.accumulate(segment, initial=start))
        yield [tokens[a:b] for a, b in itertools.pairwise(ends)]
        start = ends[-1]
