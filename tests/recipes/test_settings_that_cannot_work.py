"""Numbers that could only hang, crash or do nothing are refused where they are written."""

from __future__ import annotations

import math

import pytest

from kolb.engines.base import LoraSpec, OptimizerSpec
from kolb.errors import RecipeError
from kolb.stage import CheckpointSpec, Evaluation, Limits
from kolb.types import SamplingParams


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Limits, {"max_concurrent": 0}),
        (Limits, {"retries": -1}),
        (Limits, {"max_turns": 0}),
        (Limits, {"environment_timeout_s": 0.0}),
        (Limits, {"episode_timeout_s": -1.0}),
        (Limits, {"max_bad_updates": 0}),
        (Evaluation, {"samples": 0}),
        (Evaluation, {"every": -1}),
        (Evaluation, {"episodes": -5}),
        (Evaluation, {"split": "tset"}),
        (CheckpointSpec, {"every": -1}),
        (OptimizerSpec, {"lr": math.nan}),
        (OptimizerSpec, {"lr": -1e-4}),
        (OptimizerSpec, {"betas": (0.9, 1.0)}),
        (LoraSpec, {"rank": 0}),
    ],
)
def test_it_is_a_recipe_error_that_names_the_setting(kind, wrong):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        kind(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"stop": ("ok", "")},
    ],
)
def test_sampling_that_cannot_sample_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)
