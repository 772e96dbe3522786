"""The user's own JSONL: formats that load unchanged, splits, and rewards called as TRL calls them."""

from __future__ import annotations

import asyncio
import json
import textwrap

import pytest

from kolb.envs.dataset import Dataset
from kolb.errors import RecipeError, RewardError

ARITHMETIC = [{"prompt": f"{i}+{i}?", "answer": 2 * i, "level": "easy"} for i in range(40)]


@pytest.fixture
def write(tmp_path):
    def write(name, rows):
        path = tmp_path / name
        text = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)) + "\n"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write


def answer(source, message, index=0, split="train"):
    async def go():
        world = source.environment(source.tasks(split)[index])
        return await world.reset(), await world.step(message)

    return asyncio.run(go())


# ------------------------------------------------------------------------------------------ rewards


def test_a_reward_function_gets_what_trl_would_give_it(write):
    data = write("d.jsonl", ARITHMETIC)
    code = write(
        "r.py",
        """
        seen = []
        def reward(prompts, completions, **columns):
            seen.append((prompts, completions, columns))
            return [0.25 for _ in completions]
        """,
    )
    opening, result = answer(Dataset(data, reward=f"{code}:reward", system="Be brief."), "4", 2)
    assert opening == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
    )
    assert (result.reward, result.terminated, result.truncated) == (0.25, True, False)
    from kolb import plugins

    seen = plugins.load(f"{code}:seen", "kolb.envs", "")
    assert seen == [(["2+2?"], ["4"], {"answer": [4], "level": ["easy"]})]


def test_a_conversational_prompt_gets_completions_as_messages(write):
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    code = write(
        "r.py",
        """
        def reward(prompts, completions, **_):
            return [float(c[0] == {"role": "assistant", "content": "yo"} and len(p) == 2)
                    for p, c in zip(prompts, completions)]
        """,
    )
    source = Dataset(write("d.jsonl", [{"prompt": prompt}]), reward=f"{code}:reward", system="T")
    opening, result = answer(source, "yo")
    assert list(opening) == prompt, "a row's own system message is kept"
    assert result.reward == 1.0


def test_async_per_sample_and_strict_signatures_are_called_as_they_ask(write):
    code = write(
        "r.py",
        """
        async def late(completions, answer, **_): return [len(c) for c in completions]
        def single(completion, answer): return float(completion == str(answer))
        def strict(completions, level): return [0.5 * (l == "easy") for l in level]
        """,
    )
    data = write("d.jsonl", ARITHMETIC)
    weights = {f"{code}:late": 0.1, f"{code}:single": 1.0, f"{code}:strict": 2.0}
    _, result = answer(Dataset(data, reward=weights), "10", 5)
    assert result.reward == pytest.approx(0.1 * 2 + 1.0 + 2.0 * 0.5)
    assert result.scores == {f"{code}:late": 2.0, f"{code}:single": 1.0, f"{code}:strict": 0.5}


def test_none_abstains_and_where_all_abstain_there_is_no_reward(write):
    code = write(
        "r.py",
        "def silent(completions, **_): return [None] * len(completions)\n"
        "def half(completions, **_): return [0.5] * len(completions)\n",
    )
    data = write("d.jsonl", ARITHMETIC)
    assert answer(Dataset(data, reward=f"{code}:silent"), "x")[1].reward is None
    both = Dataset(data, reward=(f"{code}:silent", f"{code}:half"))
    assert answer(both, "x")[1].reward == 0.5


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [float('nan')]", "nan"),
        ("return [float('inf')]", "inf"),
        ("return ['1']", "finite number"),
        ("return [1.0, 2.0]", "1 completion and gave 2"),
        ("return 1.0", "must give a list"),
        ("return None", "must give a list"),
        ("raise KeyError('gold')", "KeyError: 'gold'"),
    ],
)
def test_a_bad_reward_names_the_function_and_the_task(write, body, words):
    code = write("r.py", f"def reward(completions, **_):\n    {body}\n")
    source = Dataset(write("d.jsonl", ARITHMETIC), reward=f"{code}:reward")
    with pytest.raises(RewardError, match=words) as caught:
        answer(source, "x", 6)
    assert f"{code}:reward" in str(caught.value)
    assert "train/d:7" in str(caught.value)


def test_a_reward_function_cannot_change_the_task(write):
    code = write(
        "r.py", "def reward(completions, answer, **_):\n    answer[0].append(1); return [0]\n"
    )
    source = Dataset(write("d.jsonl", [{"prompt": "p", "answer": [0]}]), reward=f"{code}:reward")
    answer(source, "x")
    assert source.tasks("train")[0].data["row"]["answer"] == [0]


def test_exact_match_needs_no_python(write):
    source = Dataset(write("d.jsonl", ARITHMETIC), reward="exact_match")
    assert answer(source, " 6\n", 3)[1].reward == 1.0
    assert answer(source, "7", 3)[1].reward == 0.0
    assert source.gold(source.tasks("train")[3]) == "6"
    rows = [{"question": "2?", "solution": "two"}]
    named = Dataset(
        write("e.jsonl", rows),
        reward="exact_match",
        prompt_column="question",
        answer_column="solution",
    )
    assert answer(named, "two")[1].reward == 1.0


# --------------------------------------------------------------------------------- demonstrations


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


DEMONSTRATIONS = {
    "trl messages": ({"messages": [user("a"), assistant("b")]}, [user("a"), assistant("b")]),
    "trl prompt and completion, text": (
        {"prompt": "a", "completion": "b"},
        [user("a"), assistant("b")],
    ),
    "trl prompt and completion, messages": (
        {"prompt": [system("s"), user("a")], "completion": [assistant("b")]},
        [system("s"), user("a"), assistant("b")],
    ),
    "alpaca": (
        {
            "instruction": "add",
            "input": "1 1",
            "output": "2",
            "system": "s",
            "history": [["q", "r"]],
        },
        [system("s"), user("q"), assistant("r"), user("add\n1 1"), assistant("2")],
    ),
    "alpaca without input": (
        {"instruction": "add", "input": "", "output": "2"},
        [user("add"), assistant("2")],
    ),
    "sharegpt": (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "3"},
                {"from": "gpt", "value": "b"},
            ],
            "system": "s",
            "tools": '[{"name": "f"}]',
        },
        [
            system("s"),
            user("a"),
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
                ],
            },
            {"role": "tool", "content": "3"},
            assistant("b"),
        ],
    ),
}


@pytest.mark.parametrize("name", DEMONSTRATIONS)
def test_demonstrations_load_unchanged(write, name):
    row, chat = DEMONSTRATIONS[name]
    source = Dataset(write("d.jsonl", [row]))
    [task] = source.tasks("train")
    assert source.demonstration(task) == chat
    assert list(task.prompt) == chat[:-1]
    if "tools" in row:
        assert task.data["tools"] == [{"name": "f"}]


def test_a_json_list_reads_like_jsonl_and_line_separators_inside_strings_do_not_matter(write):
    rows = [{"prompt": "a\u2028b", "answer": 1}, {"prompt": "c", "answer": 2}]
    as_list = Dataset(write("d.json", json.dumps(rows, indent=1, ensure_ascii=False)))
    as_lines = Dataset(write("d.jsonl", "\n".join(json.dumps(r, ensure_ascii=False) for r in rows)))
    assert [t.prompt for t in as_list.tasks("train")] == [t.prompt for t in as_lines.tasks("train")]
    assert as_list.tasks("train")[0].prompt == (user("a\u2028b"),)


def test_rows_without_an_answer_say_that_there_is_nothing_to_imitate(write):
    source = Dataset(write("d.jsonl", ARITHMETIC))
    with pytest.raises(RecipeError, match=r"no demonstration.*end with the assistant"):
        source.demonstration(source.tasks("train")[0])


def test_without_a_reward_the_rows_cannot_be_played(write):
    source = Dataset(write("d.jsonl", [{"messages": [user("a"), assistant("b")]}]))
    with pytest.raises(RecipeError, match=r"set reward = 'file\.py:function', 'exact_match' or"):
        source.environment(source.tasks("train")[0])


# ------------------------------------------------------------------------------------------- splits


def test_a_row_stays_in_its_split_when_other_rows_come_and_go(write):
    whole = Dataset(write("d.jsonl", ARITHMETIC), test_fraction=0.3, dev_fraction=0.2)
    part = Dataset(write("e.jsonl", ARITHMETIC[5:]), test_fraction=0.3, dev_fraction=0.2)
    prompts = {
        s: {t.prompt[0]["content"] for t in whole.tasks(s)} for s in ("train", "dev", "test")
    }
    assert sum(map(len, prompts.values())) == 40
    assert 4 <= len(prompts["test"]) <= 20
    for split, expected in prompts.items():
        assert {t.prompt[0]["content"] for t in part.tasks(split)} <= expected


def test_a_test_file_of_its_own_is_the_test_split(write):
    train, test = write("d.jsonl", ARITHMETIC[:3]), write("t.jsonl", ARITHMETIC[3:5])
    source = Dataset(train, test_path=test)
    assert [t.id for t in source.tasks("test")] == ["test/t:1", "test/t:2"]
    assert [t.id for t in source.tasks("train")] == ["train/d:1", "train/d:2", "train/d:3"]


def test_an_empty_split_says_which_option_fills_it(write):
    source = Dataset(write("d.jsonl", ARITHMETIC))
    with pytest.raises(RecipeError, match=r"'test'.*is empty: set test_path or test_fraction"):
        source.tasks("test")
    with pytest.raises(RecipeError, match=r"'dev'.*is empty: set dev_fraction"):
        source.tasks("dev")
    with pytest.raises(RecipeError, match=r"'train' is empty: .*empty.jsonl has no rows"):
        Dataset(write("empty.jsonl", "\n")).tasks("train")
    with pytest.raises(RecipeError, match=r"'test' is empty: .*empty.jsonl has no rows"):
        Dataset(write("empty.jsonl", "\n"), test_fraction=0.5).tasks("test")
    with pytest.raises(RecipeError, match=r"'dev' .*none fell into dev_fraction = 1e-06"):
        Dataset(write("d.jsonl", ARITHMETIC), dev_fraction=1e-6).tasks("dev")


# ---------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a"', "not JSON"),
        ('["a"]', "expected an object"),
        ('{"text": "a"}', r"none of 'prompt'.*\['text'\].*prompt_column"),
        ('{"prompt": 3}', "expected text or a list of messages"),
        ('{"prompt": [{"content": "a"}]}', r"prompt\[0\]"),
        ('{"conversations": [{"from": "alien", "value": "a"}]}', r"conversations\[0\].*human"),
        ('{"conversations": [{"from": "function_call", "value": "f(1)"}]}', "name and arguments"),
        ('{"instruction": "a", "output": 3}', "output must be text, not int"),
        ('{"instruction": "a", "history": ["b"]}', "list of \\[question, answer\\]"),
    ],
)
def test_a_broken_line_is_named_with_file_and_number(write, line, words):
    path = write("d.jsonl", '{"prompt": "fine"}\n\n' + line)
    with pytest.raises(RecipeError, match=words) as caught:
        Dataset(path).tasks("train")
    assert f"{path}:3" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reward": "exact"}, "expected 'exact_match'"),
        ({"reward": "nowhere.py:f"}, "no file"),
        ({"reward": "no_such_package.f"}, "no module"),
        ({"test_fraction": 1.5}, "test_fraction"),
        ({"test_fraction": 0.6, "dev_fraction": 0.5}, "nothing to train on"),
        ({"test_path": "nowhere.jsonl"}, "test_path = 'nowhere.jsonl'"),
    ],
)
def test_a_mistaken_option_is_refused_when_the_recipe_is_read(write, options, words):
    with pytest.raises(RecipeError, match=words):
        Dataset(write("d.jsonl", ARITHMETIC), **options)


def test_exact_match_without_its_column_names_the_line(write):
    path = write("d.jsonl", [{"prompt": "a", "gold": 1}])
    with pytest.raises(RecipeError, match=r"d\.jsonl:1.*needs the column 'answer'.*'gold'"):
        Dataset(path, reward="exact_match").tasks("train")
