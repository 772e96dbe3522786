"""The ``kolb`` command in this process, for tests of every folder."""

from collections.abc import Callable

import pytest


@pytest.fixture
def kolb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``kolb("eval", run)`` runs the command as the shell would, and gives its exit code."""
    from kolb.cli import main

    def run(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["kolb", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    return run
