"""What a length costs: the soft overlong punishment of DAPO (arXiv:2503.14476, section 3.4, equation 13)."""

from __future__ import annotations


def soft_overlong(length: int, *, limit: int, buffer: int) -> float:
    """What is added to the reward of an output of ``length`` tokens: 0 up to ``limit - buffer``, from there
    on a line down to -1 at ``limit``, and -1 beyond it. ``limit`` is the paper's L_max, ``buffer`` its
    L_cache, at least 1.

    >>> [soft_overlong(length, limit=20, buffer=4) for length in (16, 17, 18, 20, 21)]
    [0.0, -0.25, -0.5, -1.0, -1.0]
    """
    excess = min(max(length - (limit - buffer), 0), buffer)
    return -excess / buffer if excess else 0.0
