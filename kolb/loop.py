"""The one loop: collect -> credit -> update -> record. ``run`` is the way in.

Everything random derives from seeds, so the state between two steps is small: the position, the method's
own state, the library, and what each learner saves. A run that is stopped anywhere and resumed goes on from
its last checkpoint and ends with the same weights, metrics and library as one that was never stopped.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from kolb.checks import check_recipe, open_engine
from kolb.engines.base import Engine, Learner, Sampler
from kolb.errors import NonFiniteError, RecipeError, RunDirectoryError, TooManyFailuresError
from kolb.evaluate import EvaluationResult, evaluate
from kolb.learning import PolicyReport, dump_batch, learning_rate, update_policy
from kolb.memory.library import ExperienceLibrary
from kolb.report import Listeners, Observer, why_nothing_was_learnt
from kolb.runs import checkpoints
from kolb.runs.directory import RunDirectory
from kolb.stage import Recipe, Stage
from kolb.types import Example, Group, Task, Update, derive_seed
from kolb.world import LiveWorld, stop_if_broken


@dataclass
class Position:
    """Where the run stands after a step, and what its methods and counters remember."""

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    method_state: Any = None
    bad_updates: int = 0
    """Updates in a row that were not finite."""
    idle_steps: int = 0
    """Steps in a row that taught nothing."""


@dataclass
class Result:
    """What a run left: its directory, the last step's metrics, and every evaluation by step."""

    directory: Path
    steps: int
    library: ExperienceLibrary
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: list[tuple[int, EvaluationResult]] = field(default_factory=list)
    was_finished: bool = False
    """Nothing was left to do: the run that was resumed had ended."""
