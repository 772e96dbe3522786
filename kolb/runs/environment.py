"""What a run ran on: versions, platform, commit and command line, for env.json."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("kolb", "numpy", "torch", "transformers", "tokenizers", "peft", "safetensors")
GIT_TIMEOUT_S = 10


def describe_environment(command: Sequence[str] = ()) -> dict[str, Any]:
    """JSON data. ``command`` defaults to this process's own; nothing is imported to learn its version."""
    return {
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": list(command or sys.argv),
        "folder": os.getcwd(),
        "commit": commit_of(Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": {name: version_of(name) for name in PACKAGES},
    }


def version_of(package: str) -> str | None:
    """The installed version; None where the package is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit_of(folder: Path) -> str | None:
    """The commit checked out in ``folder``, with ``-dirty`` after it where files were changed since."""
    command = [
        "git",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
