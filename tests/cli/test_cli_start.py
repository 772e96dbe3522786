"""The command and the package start without loading what computes."""

import subprocess
import sys

import pytest

import kolb

PROBE = """
import sys
{code}
print([m for m in ("torch", "transformers", "numpy", "rich") if m in sys.modules])
"""
HELP = """
sys.argv = ["kolb", "--help"]
from kolb.cli import main
try:
    main()
except SystemExit:
    pass
"""


@pytest.mark.parametrize("code", ["import kolb", HELP], ids=["import kolb", "kolb --help"])
def test_nothing_heavy_is_loaded(code: str):
    command = [sys.executable, "-c", PROBE.format(code=code)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_the_modules_that_describe_load_neither_torch_nor_transformers():
    code = "import kolb.types, kolb.stage, kolb.recipe, kolb.cli, kolb.engines.torch_local, kolb.envs.base"
    command = [sys.executable, "-c", PROBE.format(code=code)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "torch" not in out
    assert "transformers" not in out


def test_every_public_name_is_there():
    assert {name for name in kolb.__all__ if getattr(kolb, name, None) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'Recipee'"):
        _ = kolb.Recipee


def test_every_verb_explains_itself(capsys, monkeypatch):
    from kolb.cli import main

    for verb in ("run", "eval", "play", "view", "check", "export", "models"):
        monkeypatch.setattr("sys.argv", ["kolb", verb, "--help"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 0
        assert f"kolb {verb}" in capsys.readouterr().out
