"""The process in which ``kolb.envs.math_reward`` compares answers. Run as a file; it imports nothing of kolb.

A line in is JSON, ``[gold, given]``; a line out is ``true`` or ``false``, and before the first of them ``"ready"``.
math-verify limits its own time by SIGALRM, which works in the main thread of a process and takes the alarm clock
from whoever had it. Here it is the only one who wants it.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

from math_verify import parse, verify

SECONDS = 3
"""Of each parse and of each comparison; the released code of arXiv:2510.03222 has 3 as well."""


def parsed(text: str) -> list[Any]:
    return parse(f"${text}$", parsing_timeout=SECONDS)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes the pipe
    logging.disable(logging.CRITICAL)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        gold, given = json.loads(line)
        is_equal = verify(parsed(gold), parsed(given), timeout_seconds=SECONDS)
        print(json.dumps(bool(is_equal)), flush=True)


if __name__ == "__main__":
    main()
