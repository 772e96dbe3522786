"""What is written as TOML reads back equal."""

import datetime as dt
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolb.errors import RecipeError
from kolb.runs.toml import dumps

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.datetimes(dt.datetime(1000, 1, 1), timezones=st.none() | st.just(dt.UTC))
scalars = (
    words
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | times
    | times.map(dt.datetime.date)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(words, values, max_size=5))
def test_any_table_reads_back_equal(table):
    assert tomllib.loads(dumps(table)) == table


def test_a_recipe_is_written_the_way_a_person_would():
    recipe = {
        "name": "lake",
        "seed": 0,
        "policies": {"agent": {"lora": {"rank": 16}, "lr": 1e-5}},
        "stages": [
            {
                "name": "rl",
                "learn": ["agent"],
                "roles": {"solver": "agent"},
                "prompt": 'Say "go".\nNow.\n',
            },
            {"name": "rest", "limit": None, "empty": {}},
        ],
    }
    assert (
        dumps(recipe)
        == '''name = "lake"
seed = 0

[policies.agent]
lr = 1e-05

[policies.agent.lora]
rank = 16

[[stages]]
name = "rl"
learn = ["agent"]
prompt = """
Say \\"go\\".
Now.
"""

[stages.roles]
solver = "agent"

[[stages]]
name = "rest"

[stages.empty]
'''
    )


def test_a_long_list_takes_one_line_per_entry():
    names = [f"name-{i:03d}" for i in range(12)]
    text = dumps({"names": names})
    assert text.splitlines()[1] == '  "name-000",'
    assert tomllib.loads(text) == {"names": names}


def test_infinity_and_nan_are_toml_too():
    back = tomllib.loads(dumps({"a": float("inf"), "b": -float("inf"), "c": float("nan")}))
    assert back["a"] == float("inf")
    assert back["b"] == -float("inf")
    assert back["c"] != back["c"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": {"b": [1, object()]}}, r"a\.b = <object .* has no form in TOML"),
        ({"a": {3: 1}}, "the key 3 is not a string"),
        ({"a": "\ud800"}, "half a surrogate pair"),
        ({"a": [None]}, "a = None"),
    ],
)
def test_what_toml_cannot_hold_is_named_with_its_place(table, message):
    with pytest.raises(RecipeError, match=message):
        dumps(table)
