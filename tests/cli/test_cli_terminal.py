"""``kolb play`` and ``kolb run`` as processes: what Ctrl-C does on a terminal, and a reader that goes away."""

import logging
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kolb.cli.running import is_no_interrupt

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX")
KOLB = [sys.executable, "-m", "kolb"]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def on_a_terminal(words: list[str], after: str, presses: int) -> tuple[int, str]:
    """Exit code and output of ``kolb WORDS``, with Ctrl-C pressed ``presses`` times after a text was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(KOLB[0], [*KOLB, *words], environment())
    shown, asked, until = "", presses, time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < until:
            if select.select([terminal], [], [], 0.5)[0]:
                try:
                    piece = os.read(terminal, 4096)
                except OSError:  # Linux says so when the other side is closed
                    piece = b""
                if not piece:
                    _, status = os.waitpid(child, 0)
                    child = 0
                    return os.waitstatus_to_exitcode(status), shown
                shown += piece.decode(errors="replace")
            if presses and after in shown:
                if presses == asked:
                    time.sleep(0.5)  # Nobody presses in the moment between a prompt and its read.
                presses -= 1
                os.write(terminal, b"\x03")
        raise AssertionError(f"still running after {PATIENCE_S} s: {shown}")
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(terminal)


def test_one_ctrl_c_ends_a_play_by_hand(here: Path) -> None:
    words = ["play", "lake.toml", "--by-hand"]
    code, shown = on_a_terminal(words, "your move> ", presses=1)
    assert code == 130
    assert shown.rstrip().endswith("stopped")
    assert "Traceback" not in shown


def test_two_quick_ctrl_c_end_a_run_without_a_traceback(here: Path) -> None:
    words = ["run", "lake.toml", "--set", "stages.explore.steps=20000"]
    code, shown = on_a_terminal(words, "1/20000", presses=2)
    assert code == 130
    assert "kolb run --resume runs/lake-0001" in shown
    assert "Traceback" not in shown


def test_asyncio_says_nothing_of_a_task_that_ctrl_c_ended_and_all_else() -> None:
    def record(error: BaseException | None) -> logging.LogRecord:
        info = None if error is None else (type(error), error, None)
        return logging.LogRecord("asyncio", logging.ERROR, "", 0, "never retrieved", None, info)

    assert not is_no_interrupt(record(KeyboardInterrupt()))
    assert is_no_interrupt(record(ValueError()))
    assert is_no_interrupt(record(None))


def test_play_ends_quietly_when_its_reader_goes_away(here: Path) -> None:
    command = [*KOLB, "play", "lake.toml", "--by-hand"]
    reading, writing = os.pipe()
    os.close(reading)  # Nobody reads: the first line breaks the pipe.
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment(), input="Up\n"
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
