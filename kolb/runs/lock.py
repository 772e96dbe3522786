"""One writer per run: a file that names the process, believed only while that process lives."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from kolb.errors import RunDirectoryError

NAME = "lock.json"
PATIENCE_S = 0.2


class RunLock:
    """Held from construction to ``release``. RunDirectoryError when a living process holds it.

    The lock of a process that died (kill -9, power cut) is taken over. A process on another host cannot
    be asked whether it lives; the error then says which file to delete.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / NAME
        self._me = _identity(os.getpid())
        while not self._take():
            holder = _read(self.path)
            if holder is not None:
                self._refuse_if_alive(holder)
                self._remove_stale(holder)

    def release(self) -> None:
        if _read(self.path) == self._me:
            self.path.unlink()

    def _take(self) -> bool:
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(self._me).encode())
            file.flush()
            os.fsync(file.fileno())
        return True

    def _refuse_if_alive(self, holder: dict[str, Any]) -> None:
        run, pid, host = self.path.parent, holder.get("pid", 0), holder.get("host", "")
        if host and host != socket.gethostname():
            raise RunDirectoryError(
                f"{run} is being written by process {pid} on {host}; "
                f"if that one is no longer running, delete {self.path}"
            )
        if holder and holder == _identity(pid):
            whose = "this very process" if holder == self._me else f"process {pid}"
            raise RunDirectoryError(
                f"{run} is being written by {whose}; stop or close it, or choose another directory"
            )

    def _remove_stale(self, holder: dict[str, Any]) -> None:
        """Renaming first: when two processes find the same dead holder, only one removes its lock."""
        stale = self.path.with_name(f"{NAME}.stale-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, stale)
            if _read(stale) == holder:
                stale.unlink()
            else:
                os.rename(stale, self.path)


def _read(path: Path) -> dict[str, Any] | None:
    """The holder; None when nobody holds it; empty when a power cut left no content."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            # Another process may be between creating the file and writing its name into it.
            if time.monotonic() > deadline:
                return {}
            time.sleep(PATIENCE_S / 10)


def _identity(pid: int) -> dict[str, Any] | None:
    """Who runs under this process id now; None when nobody does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it lives, under another user
    return {"pid": pid, "host": socket.gethostname(), "started": _started(pid)}


def _started(pid: int) -> str:
    """Boot id and start tick, where /proc tells: they tell a reused process id apart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{boot}/{stat.rsplit(')', 1)[1].split()[19]}"
