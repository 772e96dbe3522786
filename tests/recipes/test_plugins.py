"""Names to objects, and what is said about names that lead nowhere."""

from pathlib import Path

import pytest

from kolb import plugins
from kolb.errors import RecipeError
from kolb.methods import grpo


@pytest.mark.parametrize("use", ["grpo", "kolb.methods.grpo", "kolb.methods.grpo.METHOD"])
def test_a_short_a_module_and_an_attribute_name_give_the_same(use: str):
    assert plugins.load(use, "kolb.methods", "METHOD") is grpo.METHOD


def test_a_file_is_loaded_once_and_may_name_its_attribute(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("METHOD = object()\nOTHER = object()\n")
    method = plugins.load(str(file), "kolb.methods", "METHOD")
    assert plugins.load(str(file), "kolb.methods", "METHOD") is method
    assert plugins.load(f"{file}:OTHER", "kolb.methods", "METHOD") is not method
    with pytest.raises(RecipeError, match="has no OTHR"):
        plugins.load(f"{file}:OTHR", "kolb.methods", "METHOD")


def test_a_module_beside_the_shell_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lab_beside.py").write_text("METHOD = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert plugins.load("lab_beside.METHOD", "kolb.methods", "METHOD") == 7


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("grppo", "no kolb.methods.grppo; did you mean 'grpo'"),
        ("no such", "expected a name, package.module"),
        ("nowhere.at.all", "there is no module nowhere.at.all and no module nowhere.at"),
        ("kolb.methods.grpo.METHD", "has no METHD; did you mean 'METHOD'"),
        ("missing.py", "no file "),
    ],
)
def test_a_name_that_leads_nowhere_says_what_was_looked_for(use: str, message: str):
    with pytest.raises(RecipeError) as caught:
        plugins.load(use, "kolb.methods", "METHOD")
    assert message in str(caught.value)


def test_a_syntax_error_shows_its_line(tmp_path: Path):
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ndef broken(:\n")
    with pytest.raises(RecipeError, match=r"SyntaxError(.|\n)*broken.py, line 2: def broken\(:"):
        plugins.load(str(file), "kolb.methods", "METHOD")
