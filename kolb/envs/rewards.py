"""The user's own reward functions, called the way TRL calls them, and checked.

``reward(prompts=[...], completions=[...], **columns)`` gives one number per completion, or None to abstain;
every column of the row arrives as a list of the same length. Completions are strings where the prompt is a
string, and lists of messages where it is one. The function may be ``async``. A function with a parameter
named ``completion`` is called for one sample: ``reward(prompt=..., completion=..., **columns)``, one number out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kolb import plugins
from kolb.boundary import checked_number
from kolb.envs.base import shorten
from kolb.envs.math_reward import check_installed, math_answer
from kolb.errors import KolbError, RecipeError, RewardError

EXACT_MATCH = "exact_match"
MATH_ANSWER = "math_answer"
OURS = (EXACT_MATCH, MATH_ANSWER)
"""The rewards that kolb brings. Both compare with the answer column."""


def load_reward(name: str) -> Callable[..., Any]:
    """``exact_match``, ``math_answer``, or the function at ``package.module.function`` or ``path/to/file.py:function``."""
    if name == EXACT_MATCH:
        return exact_match
    if name == MATH_ANSWER:
        check_installed()
        return math_answer
    if "." not in name:
        raise RecipeError(
            f"reward = {name!r}: expected '{EXACT_MATCH}', '{MATH_ANSWER}', 'package.module.function' or "
            "'path/to/file.py:function'"
        )
    function = plugins.load(name, "kolb.envs", "reward")
    if not callable(function):
        raise RecipeError(f"reward = {name!r} is a {type(function).__name__}, not a function")
    return function


def exact_match(completion: str | Sequence[Mapping[str, Any]], answer: Any) -> float:
    """1 if the completion is the answer column, white space around either aside; else 0."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    return float(text.strip() == str(answer).strip())


@dataclass(frozen=True)
class Sample:
    """What a reward function may see. ``task_id`` is for messages only."""

    prompt: Any
    completion: Any
    columns: Mapping[str, Any]
    task_id: str


async def score(name: str, sample: Sample) -> float | None:
    """The function's number for one sample; None when it abstains. Anything else is a RewardError that
    names the function and the task."""
    function = load_reward(name)
    parameters = inspect.signature(function).parameters
    is_per_sample = "completion" in parameters
    arguments = {**sample.columns}
    if is_per_sample:
        arguments |= {"prompt": sample.prompt, "completion": sample.completion}
    else:
        arguments = {key: [value] for key, value in arguments.items()}
        arguments |= {"prompts": [sample.prompt], "completions": [sample.completion]}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {key: value for key, value in arguments.items() if key in parameters}
    where = f"reward {name!r} on task {sample.task_id}"
    try:
        answer = function(**arguments)
        answer = await answer if inspect.isawaitable(answer) else answer
    except KolbError:
        raise
    except Exception as error:  # boundary: the user's function may raise anything
        raise RewardError(f"{where} raised {type(error).__name__}: {error}") from error
    return checked_number(answer if is_per_sample else _only(answer, where), where)


def _only(answer: Any, where: str) -> Any:
    if not isinstance(answer, list | tuple | np.ndarray):
        raise RewardError(
            f"{where} must give a list with one number per completion, not {shorten(answer)}; "
            "a function for single samples names its parameter 'completion'"
        )
    if len(answer) != 1:
        raise RewardError(f"{where} was given 1 completion and gave {len(answer)} numbers")
    return answer[0]
