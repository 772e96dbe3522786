"""What a reward is worth beside the others: centring, standardising, leave-one-out, whitening.

Plain Python floats. One rule holds everywhere: a reward of ``None`` abstains. It is left out of every
mean and deviation, does not count towards the size of its group, and stays ``None`` in the result, so
that the caller drops that trajectory. A reward that is NaN or infinite raises RewardError.

A group whose rewards are all equal has nothing to tell apart: its advantages are exactly 0, whatever
rounding would have made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from kolb.errors import RewardError

Values = Sequence[float | None]
Advantages = list[float | None]


def centre(rewards: Values) -> Advantages:
    """``r - mean``. A group of one gets 0.

    >>> centre([1.0, 0.0, None, 0.5])
    [0.5, -0.5, None, 0.0]
    """
    return _among_present(rewards, _centred)


def standardise(
    rewards: Values,
    *,
    ddof: Literal[0, 1] = 1,
    epsilon: float = 1e-6,
    singleton: Literal["reward", "zero"] = "reward",
) -> Advantages:
    """``(r - mean) / (std + epsilon)``: the group advantage of GRPO (arXiv:2402.03300, section 4.1.2).

    ``ddof=1`` is the sample deviation that the released trainers use, ``ddof=0`` the population's. A
    group of one cannot be compared: ``reward`` takes mean 0 and std 1, so that its advantage is its
    reward (arXiv:2602.13949, released code); ``zero`` gives it 0.

    >>> [round(a, 4) for a in standardise([1.0, 0.0, 0.0, 0.0])]
    [1.5, -0.5, -0.5, -0.5]
    """

    def advantages(present: list[float]) -> list[float]:
        if len(present) == 1:
            return list(present) if singleton == "reward" else [0.0]
        centred = _centred(present)
        if not any(centred):
            return centred
        std = math.sqrt(math.fsum(d * d for d in centred) / (len(centred) - ddof))
        return [d / (std + epsilon) for d in centred]

    return _among_present(rewards, advantages)


def leave_one_out(rewards: Values) -> Advantages:
    """``r`` minus the mean of the others (RLOO, arXiv:2402.14740). A group of one gets 0.

    >>> leave_one_out([1.0, 0.0, 0.0])
    [1.0, -0.5, -0.5]
    """

    def advantages(present: list[float]) -> list[float]:
        n = len(present)
        return [d * n / (n - 1) if n > 1 else 0.0 for d in _centred(present)]

    return _among_present(rewards, advantages)


def whiten(values: Values, *, ddof: Literal[0, 1] = 0, epsilon: float = 1e-8) -> Advantages:
    """Mean 0 and deviation 1 over a whole batch, groups ignored (REINFORCE++, arXiv:2501.03262).

    Values may belong to trajectories or to tokens. A batch of one gets 0.
    """
    return standardise(values, ddof=ddof, epsilon=epsilon, singleton="zero")


def by_key(
    values: Values, keys: Sequence[Hashable], fn: Callable[[list[float | None]], Advantages]
) -> Advantages:
    """``fn`` applied to the values of each key apart; the results in the order of ``values``.

    >>> by_key([1.0, 4.0, 0.0, 6.0], ["a", "b", "a", "b"], centre)
    [0.5, -1.0, -0.5, 1.0]
    """
    members: dict[Hashable, list[int]] = {}
    for index, (_, key) in enumerate(zip(values, keys, strict=True)):
        members.setdefault(key, []).append(index)
    result: Advantages = [None] * len(values)
    for indices in members.values():
        for index, advantage in zip(indices, fn([values[i] for i in indices]), strict=True):
            result[index] = advantage
    return result


def _centred(present: list[float]) -> list[float]:
    if min(present) == max(present):
        return [0.0] * len(present)
    mean = math.fsum(present) / len(present)
    return [r - mean for r in present]


def _among_present(rewards: Values, fn: Callable[[list[float]], list[float]]) -> Advantages:
    """``fn`` over the rewards that do not abstain, put back in their places."""
    present = [float(r) for r in rewards if r is not None]
    for r in present:
        if not math.isfinite(r):
            raise RewardError(
                f"a reward is {r} among {list(rewards)}; rewards are finite numbers, or None to "
                "abstain: mend the function that scored it"
            )
    advantages = iter(fn(present) if present else ())
    return [None if r is None else next(advantages) for r in rewards]
