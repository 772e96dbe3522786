"""``--set``: TOML values, and paths through tables and lists."""

import pytest

from kolb.errors import RecipeError
from kolb.overrides import apply_sets, value_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("2.0", 2.0),
        ("1e-4", 1e-4),
        ("true", True),
        ('"2"', "2"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        ("smollm2-135m", "smollm2-135m"),
        ("a b", "a b"),
        ("", ""),
        ("1\nx = 2", "1\nx = 2"),
    ],
)
def test_values_are_toml_and_everything_else_is_text(text: str, value: object):
    found = value_of(text)
    assert (found, type(found)) == (value, type(value))


def test_later_sets_win_and_the_original_is_left_alone():
    data = {"a": {"b": 1}, "stages": [{"name": "one", "steps": 1}, {"name": "two", "steps": 2}]}
    sets = ["a.b=2", "a.b=3", "stages.two.steps=9", "stages.0.steps=8", "new.deep.key=x=y"]
    assert apply_sets(data, sets) == {
        "a": {"b": 3},
        "stages": [{"name": "one", "steps": 8}, {"name": "two", "steps": 9}],
        "new": {"deep": {"key": "x=y"}},
    }
    assert data["a"] == {"b": 1}
    assert data["stages"][1]["steps"] == 2


def test_a_stage_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'imitate'"):
        apply_sets({"stages": [{"name": "imitate"}]}, ["stages.imitat.steps=1"])
    with pytest.raises(RecipeError, match="in a list of 1"):
        apply_sets({"stages": [{"name": "imitate"}]}, ["stages.1.steps=1"])
