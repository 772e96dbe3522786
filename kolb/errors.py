"""Every error kolb raises, on one page.

KolbError
├── RecipeError             (ValueError)    a recipe, option or file that the user can mend
│   └── CapabilityError                     the engine cannot do what the method needs
├── BoundaryError                           something outside kolb broke; becomes an Episode's Failure
│   ├── EnvironmentFailure                  reset, step or fork raised or answered nonsense
│   ├── RewardError                         a grader raised, or gave NaN or the wrong type
│   ├── SamplerError                        the engine or endpoint failed to answer
│   └── DeadlineError                       any of them took too long
├── BudgetSpentError                        the next request to an endpoint might cost more than is allowed
├── TemplateError           (ValueError)    messages that a chat template cannot render
├── StaleSamplerError                       a sampler used after its weights moved on
├── PublishMismatchError                    what samples is not what was trained
├── NonFiniteError                          a loss or gradient that is NaN or infinite
├── TooManyFailuresError                    a larger share of episodes broke than the recipe allows
└── RunDirectoryError                       a run directory that is missing, foreign or damaged

A message says what was given, what was expected and what to do. To add an error, add it here and to the
tree above; a test compares the two.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.util import find_spec


class KolbError(Exception):
    """Base of every error that kolb raises on purpose."""


class RecipeError(KolbError, ValueError):
    """A mistake in a recipe, an option or an input file, found before anything expensive starts."""


class CapabilityError(RecipeError):
    """A method or term needs something that the chosen engine does not provide."""


class BoundaryError(KolbError):
    """Something outside kolb failed while an Episode was being made. ``boundary`` names it."""

    boundary = "outside"


class EnvironmentFailure(BoundaryError):
    """The environment raised, or returned something that is not a StepResult."""

    boundary = "environment"


class RewardError(BoundaryError):
    """A reward function raised, or returned NaN, infinity or the wrong type."""

    boundary = "reward"


class SamplerError(BoundaryError):
    """The engine or endpoint could not give a completion."""

    boundary = "sampler"


class DeadlineError(BoundaryError):
    """A call across a boundary took longer than its deadline."""

    boundary = "deadline"


class BudgetSpentError(KolbError):
    """Nothing more is asked of an endpoint: it might cost more than the recipe allows. A run can be resumed
    with a higher budget."""


class TemplateError(KolbError, ValueError):
    """Messages that the chat template cannot render, or a tokenizer without a template."""


class StaleSamplerError(KolbError):
    """A sampler handle was used after the weights it is bound to had moved on."""


class PublishMismatchError(KolbError):
    """After publication the sampler's logprobs differ from the learner's."""


class NonFiniteError(KolbError):
    """A loss or a gradient is NaN or infinite; the weights were left as they were."""


class TooManyFailuresError(KolbError):
    """More episodes broke than the recipe's share. The message holds the user's lines of the first
    traceback, ``traceback`` the whole of it."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class RunDirectoryError(KolbError):
    """A run directory that is missing, of another schema, or damaged."""


LOCAL = ("torch", "transformers", "tokenizers", "safetensors", "peft")
"""What the extra ``local`` installs: all that holds weights in this process needs it."""


def check_local(who: str) -> None:
    """RecipeError with the way out where something of the extra ``local`` is not installed."""
    if missing := [name for name in LOCAL if find_spec(name) is None]:
        raise RecipeError(
            f"{who} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed here: "
            "install the extra `local` (in a checkout of kolb: `pip install -e '.[local]'`). Without it policies "
            'are played by an endpoint: use = "openai_compat" under [engine]'
        )


def at_least(lowest: float, **values: float) -> None:
    """RecipeError for the first of ``values`` that is below ``lowest``, infinite or NaN."""
    for name, value in values.items():
        if not lowest <= value < float("inf"):
            raise RecipeError(f"{name} = {value}; it is a number of at least {lowest:g}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: ``; did you mean 'steps'?``, or the list of known names."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(known)}" if known else ""
