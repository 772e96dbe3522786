"""Where code that is not kolb's runs: deadlines around it, its answers checked, its errors named.

Everything here turns trouble outside into one BoundaryError with the cause kept. Nothing else in kolb
catches ``Exception`` around user code. KeyboardInterrupt, SystemExit and cancellation pass through, and so
does every KolbError: a RecipeError raised by an environment is still a RecipeError.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kolb.errors import BoundaryError, DeadlineError, EnvironmentFailure, KolbError, RewardError
from kolb.types import Environment, Failure, Message, Status, StepResult

T = TypeVar("T")

STATUSES: Mapping[str, Status] = {
    "environment": Status.ENV_ERROR,
    "reward": Status.REWARD_ERROR,
    "sampler": Status.SAMPLER_ERROR,
    "deadline": Status.TIMEOUT,
}
"""The status of an Episode, by the boundary that broke."""


OURS = (
    *(f"{Path(f).parent}{os.sep}" for f in (__file__, asyncio.__file__, importlib.__file__)),
    "<frozen importlib",
)
"""Frames of these files say nothing to a user: kolb, asyncio, the import machinery."""

LIBRARIES = (f"{Path(os.__file__).parent}{os.sep}", f"{os.sep}site-packages{os.sep}")

LARGEST = 1e30
"""The largest size of a reward: sums of very many of them are finite, and each fits float32."""


class _SliceOverrun(BaseException):
    """Interrupts synchronous code. No Exception, so that ``except Exception`` there does not eat it."""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupts the code inside after ``seconds``, where that is possible: on the main thread of a
    Unix process, in code that returns to the interpreter now and then and does not swallow everything.
    Elsewhere it does nothing. Whoever used the alarm clock before (a test runner, say) gets it back with
    its time left.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or not hasattr(signal, "setitimer"):
        yield
        return
    is_armed = True

    def ring(*_: object) -> None:
        if is_armed:
            raise _SliceOverrun

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    # Rings again every second: one bare `except:` eats one ring.
    delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if delay:
            left = max(delay - (time.monotonic() - started), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


class _Slices(Awaitable[T]):
    """Drives a coroutine as ``await`` would, with an alarm around each of its synchronous slices.

    It stays in the caller's task: no new task, so the order in which things happen does not change.
    A second cancellation abandons a coroutine that swallowed the first.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> None:
        self._coroutine = coroutine
        self._seconds = seconds

    def __await__(self) -> Generator[Any, Any, T]:
        answer: Any = None
        error: BaseException | None = None
        cancellations = 0
        while True:
            try:
                with _alarm(self._seconds):
                    if error is None:
                        waits_for = self._coroutine.send(answer)
                    else:
                        waits_for = self._coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            try:
                answer, error = (yield waits_for), None
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as raised:
                error = raised
                cancellations += isinstance(raised, asyncio.CancelledError)
                if cancellations > 1:
                    with suppress(RuntimeError):  # It may go on even now; it is not asked again.
                        self._coroutine.close()
                    raise


async def guard(coroutine: Coroutine[Any, Any, T], *, what: str, seconds: float) -> T:
    """The result of user code, within ``seconds``.

    Each synchronous stretch of it is interrupted after ``seconds`` (main thread of a Unix process only),
    and the whole of it when it has been waiting for so long (everywhere). Raises DeadlineError then,
    EnvironmentFailure for anything that it raised, and lets KolbErrors through. ``what`` names it. A
    cancellation of something inside, which nobody asked of us, is a failure like any other.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await _Slices(coroutine, seconds)
    except KolbError:
        raise
    except _SliceOverrun as error:
        raise _too_late(what, seconds) from error
    except TimeoutError as error:
        if deadline.expired():
            raise _too_late(what, seconds) from error
        raise EnvironmentFailure(f"{what} raised {_said(error)}") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EnvironmentFailure(f"{what} raised {_said(error)}") from error
    except Exception as error:
        raise EnvironmentFailure(f"{what} raised {_said(error)}") from error


async def guarded_call(call: Callable[..., Any], *args: Any, what: str, seconds: float) -> Any:
    """``guard`` for a function that may be sync or async."""

    async def run() -> Any:
        answer = call(*args)
        return await answer if inspect.isawaitable(answer) else answer

    return await guard(run(), what=what, seconds=seconds)


def _said(error: BaseException) -> str:
    """``ValueError: text (FILE, line N)``, also of an error that cannot say what it has to say."""
    place = place_of(error)
    where = f" ({place})" if place else ""
    try:
        return f"{type(error).__name__}: {error}{where}"
    except Exception:  # its __str__ is the user's code, too
        return f"{type(error).__name__}, whose message cannot be shown{where}"


def _too_late(what: str, seconds: float) -> DeadlineError:
    return DeadlineError(
        f"{what} took longer than {seconds:g} s; make it faster, or raise environment_timeout_s"
    )


def as_failure(error: BoundaryError) -> tuple[Status, Failure]:
    """What broke, as data: the Episode's status and its Failure with the whole traceback."""
    text = "".join(traceback.format_exception(error))
    return STATUSES[error.boundary], Failure(error.boundary, str(error), text)


def place_of(error: BaseException) -> str:
    """``FILE, line N``: the innermost line of the user's that ``error``, or what caused it, went through.
    Empty where there is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_in(f.filename, OURS)]
    written = [f for f in frames if not _is_in(f.filename, LIBRARIES)]
    if frames:
        last = (written or frames)[-1]
        return f"{last.filename}, line {last.lineno}"
    return place_of(error.__cause__) if error.__cause__ is not None else ""


def users_lines(text: str) -> str:
    """Of a formatted traceback: the first exception's frames outside ``OURS``, and what it said.
    Where every frame is ours, the innermost of them."""
    first = text[text.find("Traceback (most recent call last):\n") :].split("\n\n")[0].rstrip()
    start, *frames = re.split(r'(?m)^(?=  File ")', first)
    if not frames:
        return start
    last, *said = re.split(r"(?m)^(?=\S)", frames[-1], maxsplit=1)
    frames[-1] = last
    theirs = [f for f in frames if not _is_in(f.split('"')[1], OURS)]
    return "".join([*(theirs or frames[-1:]), *said])


def _is_in(file: str, places: Sequence[str]) -> bool:
    return any(place in file for place in places)


# ------------------------------------------------------------------------------ answers, checked


def checked_environment(value: Any) -> Environment:
    """``value`` if it has the methods of an environment that every episode calls, else EnvironmentFailure."""
    missing = [name for name in ("reset", "step", "close") if not hasattr(value, name)]
    if not missing:
        return value
    what = f"environment(task) gave {type(value).__name__} without {', '.join(missing)}"
    if missing == ["close"]:
        raise EnvironmentFailure(
            f"{what}; wrap it: SingleUse(...) or Replayable(lambda: ...), both of kolb.envs.base"
        )
    raise EnvironmentFailure(
        f"{what}; a world has `async def reset(self)` and `async def step(self, message)`, and goes into "
        "SingleUse(...) or Replayable(lambda: ...) of kolb.envs.base"
    )


def checked_messages(value: Any, what: str) -> tuple[Message, ...]:
    """``value`` if it is a sequence of chat messages whose content can be encoded, else EnvironmentFailure."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        messages = tuple(value)
        if all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages):
            for message in messages:
                _check_content(message.get("content"), what)
            return messages
    raise EnvironmentFailure(
        f"{what} must give a tuple of messages like "
        f'{{"role": "user", "content": "..."}}, not {_shown(value)}'
    )


def _check_content(content: Any, what: str) -> None:
    if isinstance(content, list | tuple):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    elif content is None or isinstance(content, str):
        texts = [content]
    else:
        raise EnvironmentFailure(
            f"{what}: the content of a message is text or a list of parts, not {_shown(content)}"
        )
    for text in texts:
        try:
            "".join([text or ""]).encode()
        except (UnicodeEncodeError, TypeError) as error:
            raise EnvironmentFailure(
                f"{what}: {_shown(text)} is no text that UTF-8 can hold ({error}); decode files with "
                "errors='replace'"
            ) from error


def checked_number(value: Any, what: str) -> float | None:
    """``value`` as a finite float, or None where the grader abstains; else RewardError."""
    if value is None:
        return None
    if not isinstance(value, Real | np.bool_):
        raise RewardError(
            f"{what} must be a finite number, or None to abstain, not {_shown(value)}; "
            "a tensor or array of one number becomes one by .item()"
        )
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"{what} is {number}; a reward is a finite number, or None to abstain")
    if abs(number) > LARGEST:
        raise RewardError(f"{what} is {number}; beyond {LARGEST:g} sums and float32 overflow")
    return number


def checked_step(result: Any, what: str) -> StepResult:
    """A StepResult with every field of its declared type, else EnvironmentFailure or RewardError."""
    if not isinstance(result, StepResult):
        raise EnvironmentFailure(f"{what} must give a StepResult, not {_shown(result)}")
    for flag in ("terminated", "truncated"):
        if not isinstance(getattr(result, flag), bool | np.bool_):
            raise EnvironmentFailure(
                f"{what}: {flag} must be True or False, not {_shown(getattr(result, flag))}"
            )
    if not isinstance(result.feedback, str):
        raise EnvironmentFailure(f"{what}: feedback must be text, not {_shown(result.feedback)}")
    if not isinstance(result.scores, Mapping) or not isinstance(result.info, Mapping):
        raise EnvironmentFailure(f"{what}: scores and info must be mappings")
    scores = {
        name: checked_number(value, f"{what}: score {name!r}")
        for name, value in result.scores.items()
    }
    return replace(
        result,
        observation=checked_messages(result.observation, f"{what}: observation"),
        reward=checked_number(result.reward, f"{what}: reward"),
        terminated=bool(result.terminated),
        truncated=bool(result.truncated),
        scores={name: value for name, value in scores.items() if value is not None},
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
