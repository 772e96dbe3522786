"""Equation 13 of arXiv:2503.14476 at its corners, with the paper's lengths."""

from __future__ import annotations

import pytest

from kolb.credit.overlong import soft_overlong


@pytest.mark.parametrize(
    ("length", "worth"),
    [
        (0, 0.0),
        (16383, 0.0),
        (16384, 0.0),
        (16385, -1 / 4096),
        (18432, -0.5),
        (20479, -4095 / 4096),
        (20480, -1.0),
        (20481, -1.0),
        (10**6, -1.0),
    ],
)
def test_the_punishment_at_the_papers_lengths(length: int, worth: float) -> None:
    assert soft_overlong(length, limit=20480, buffer=4096) == worth


def test_a_buffer_of_one_token_has_no_line() -> None:
    assert [soft_overlong(n, limit=8, buffer=1) for n in (6, 7, 8, 9)] == [0.0, 0.0, -1.0, -1.0]


def test_a_buffer_as_long_as_the_limit_punishes_from_the_first_token() -> None:
    assert [soft_overlong(n, limit=4, buffer=4) for n in range(6)] == [
        0.0,
        -0.25,
        -0.5,
        -0.75,
        -1.0,
        -1.0,
    ]


def test_no_punishment_is_not_minus_zero() -> None:
    assert str(soft_overlong(3, limit=8, buffer=2)) == "0.0"
