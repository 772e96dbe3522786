"""A process that has everything imported and forks a ``kolb`` command per request: what 30 kills need.

A request is one line of JSON: ``argv``, and ``dies_at``: at which of its calls that change a folder or force
one to disk the command is to kill itself (``None``: it is left alone). The answer is the pid, or, once the
command has ended, its exit code (minus the signal that killed it) and how many such calls it made.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


def command(argv: list[str], dies_at: int | None, log: str, count: str) -> None:
    """Runs in the fork: ``kolb ARGV``, with every call of CALLS counted."""
    calls = 0

    def counted(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return call

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    from kolb.cli import main

    sys.argv = ["kolb", *argv]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    sys.stdout.flush()
    Path(count).write_text(str(calls))
    os._exit(code)


def warm_up(path: str) -> None:
    """Imports what a run of the recipe imports. No backward pass: its threads do not survive a fork."""
    from kolb import recipe
    from kolb.checks import open_engine
    from kolb.cli import running  # noqa: F401
    from kolb.models.prepare import prepare_models

    with tempfile.TemporaryDirectory() as folder:
        made = prepare_models(recipe.load(path), Path(folder))
        engine = open_engine(made)
        for name, spec in made.policies.items():
            engine.open_policy(name, spec.model, optimizer=spec.optimizer).publish()
        engine.close()


def serve() -> None:
    warm_up(sys.argv[1])
    pid = 0
    for line in sys.stdin:
        request = json.loads(line)
        if request == "wait":
            _, status = os.waitpid(pid, 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            pid = os.fork()
            if pid == 0:
                command(**request)
            answer = pid
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
