r"""A reward for mathematics: the last ``\boxed{...}`` against the answer column, 1 or 0.

In a recipe it is ``reward = "math_answer"`` of the ``dataset`` environment. After the verifier of the released code of
Lp-Reg (arXiv:2510.03222), in our own words: equal as text once normalised, else equal to the math-verify library, else 0;
nothing to read, a parse that fails and one that takes too long are 0. Two differences. An answer without any box may
stand behind ``Answer:``, which is what the prompts of DAPO-Math-17k (arXiv:2503.14476) ask for. And the code's long list
of units and its own sympy rules are left to math-verify.

math-verify runs in a process of its own (``kolb.envs.math_worker``), one for all comparisons: so its time limit holds in
any thread, beside any event loop, and what it cannot interrupt is killed. A comparison blocks the caller, as any
reward does. Limits are of wall time: under a load that makes 3 s of parsing out of milliseconds, a reward may differ.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kolb.errors import RecipeError, RewardError

LIMIT_S = 20.0
"""After so long the process is killed: more than math-verify's own limits add up to, less than a stage's
``environment_timeout_s``."""

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("math_worker.py")))

_ANSWER = re.compile(r"\banswer\s*:([^\n]+)", re.IGNORECASE)
_TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
_LAYOUT = re.compile(r"(?<!\\)\\(?:(?:left|right)(?![a-zA-Z])|[!,;: ])")
_SPACE = re.compile(r"(?<!\w)\s+|\s+(?!\w)")


def math_answer(completion: str | Sequence[Mapping[str, Any]], answer: Any) -> float:
    """1 if what ``answer_of`` finds in the completion is ``answer``, else 0.

    Raises RewardError where math-verify's process ends by itself: no reason to score anything.
    """
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    given = answer_of(text)
    return float(given is not None and is_equal(str(answer), given))


def check_installed() -> None:
    """RecipeError with the way to install math-verify, which is an optional extra, where it is not there."""
    if importlib.util.find_spec("math_verify") is None:
        raise RecipeError("reward 'math_answer' needs math-verify; run: pip install math-verify")


def answer_of(text: str) -> str | None:
    r"""What stands in the last ``\boxed{...}``; None where that one never ends. Without any box, what stands behind
    the last ``Answer:`` of a line; None where there is neither.

    >>> answer_of(r"\boxed{2}, no: \boxed{\frac{1}{2}}"), answer_of("Answer: 34"), answer_of(r"\boxed{3")
    ('\\frac{1}{2}', '34', None)
    """
    _, box, inside = text.rpartition("\\boxed{")
    if box:
        return _until_closed(inside)
    said = _ANSWER.findall(text)
    return said[-1].strip(" \t*") if said else None


def _until_closed(text: str) -> str | None:
    """``text`` up to the brace that closes more than was opened in it."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if not depth:
            return text[:place]
    return None


def is_equal(gold: str, given: str) -> bool:
    """Whether two answers are the same, as text or to math-verify. A gold answer may be in a box."""
    gold = answer_of(gold) or gold
    wanted, said = normalised(gold), normalised(given)
    if not wanted or not said:
        return False
    return wanted == said or COMPARER(without_dollars(gold), without_dollars(given))


def without_dollars(text: str) -> str:
    return re.sub(r"\\?\$", "", text).strip()


def normalised(text: str) -> str:
    r"""Without dollars, ``\left`` and ``\right``, small spaces, text commands, outer spaces and a last full stop.

    >>> normalised(r" $\left( 3, \dfrac{\pi}{2} \right)$. "), normalised(r"\text{ Evelyn }")
    ('(3,\\frac{\\pi}{2})', 'Evelyn')
    """
    text = (
        _LAYOUT.sub("", _TEXT.sub(r"\1", without_dollars(text)))
        .replace("dfrac", "frac")
        .replace("tfrac", "frac")
    )
    return _SPACE.sub("", text.strip().rstrip(".").strip())


class Comparer:
    """Asks ``math_worker``, which is started at the first question, and anew after it had to be killed."""

    def __init__(self, command: Sequence[str] = WORKER, limit_s: float = LIMIT_S) -> None:
        self._command, self._limit_s = tuple(command), limit_s
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __call__(self, gold: str, given: str) -> bool:
        """math-verify's opinion; False where it took longer than ``limit_s``. Raises RewardError where its process
        ends by itself."""
        with self._lock:
            try:
                return self._ask(gold, given)
            except BaseException:
                self.close()  # an answer that is still due must not be taken for the next one's
                raise

    def close(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, gold: str, given: str) -> bool:
        process, is_late = self._started(), threading.Event()

        def stop() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._limit_s, stop)
        timer.start()
        try:
            reply = _exchanged(process, json.dumps([gold, given]))
        finally:
            timer.cancel()
            timer.join()
        if is_late.is_set():  # killed, perhaps a moment after it had answered
            self.close()
        elif not reply:
            raise _ended(process, f"while it compared {given!r:.80} with {gold!r:.80}")
        return reply == "true"

    def _started(self) -> subprocess.Popen[str]:
        """The process, ready: what it takes to import math-verify is nobody's comparison."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
            )
            if not _exchanged(self._process):
                raise _ended(self._process, "when it was started")
        return self._process


def _exchanged(process: subprocess.Popen[str], line: str = "") -> str:
    """Writes ``line``, if there is one, and reads a line; empty where the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if line:
            process.stdin.write(line + "\n")
            process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline().strip()


def _ended(process: subprocess.Popen[str], when: str) -> RewardError:
    return RewardError(
        f"math-verify's process ended {when} (exit code {process.wait()}); what it said is on stderr"
    )


COMPARER = Comparer()
atexit.register(COMPARER.close)
