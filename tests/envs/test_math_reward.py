r"""The reward for mathematics: which answer is read, what counts as equal, and how its process is kept in hand."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from kolb.boundary import guarded_call
from kolb.envs import math_reward
from kolb.envs.dataset import Dataset
from kolb.envs.math_reward import COMPARER, Comparer, answer_of, math_answer, normalised
from kolb.errors import DeadlineError, RecipeError, RewardError

DATA = Path(os.environ.get("KOLB_DATA", Path(__file__).parents[3] / "shared" / "data")) / "math"

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None,
    reason="math-verify is not installed: pip install math-verify",
)


# ------------------------------------------------------------------------------ which answer is read


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{34}.", "34"),
        (r"\boxed{2}? No: \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{f_{1}(\{a\})}", r"f_{1}(\{a\})"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{1} or \boxed{2", None),  # cut off: the last box decides, and it never ends
        ("Answer: 34", "34"),
        ("Answer: 3\nno\n**Answer:** $x+1$", "$x+1$"),
        (r"Answer: 3, that is \boxed{4}", "4"),
        ("the answer is 34", None),
        ("", None),
    ],
)
def test_the_last_box_is_read_and_without_any_the_last_answer_line(text, answer):
    assert answer_of(text) == answer


def test_layout_is_no_part_of_an_answer_and_the_space_between_numbers_is():
    assert normalised(r"\left( 3,\, \tfrac{1}{2} \right)") == r"(3,\frac{1}{2})"
    assert normalised(r"\text{ Evelyn }.") == "Evelyn"
    assert normalised(r"$\$18.90$") == "18.90"
    assert normalised("1 2") == "1 2"
    assert (
        normalised(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}") == r"\begin{pmatrix}1\\2\end{pmatrix}"
    )


# ---------------------------------------------------------------------------------- what is equal


@needs_math_verify
@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("34", "34"),
        (34, "34.0"),
        (r"\frac{1}{2}", "0.5"),
        (r"\boxed{\frac{1}{2}}", r"\frac12"),
        ("x+1", "1+x"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"),
        ("1,000", "1000"),
        (r"90^\circ", "90"),
        (r"5\text{ cm}", "5"),
        (r"\$18.90", "18.9"),
        ("5", "x = 5"),
        (r"\text{(A)}", "A"),
    ],
)
def test_answers_that_are_equal_score_1(gold, given):
    assert math_answer(f"So it is $\\boxed{{{given}}}$.", gold) == 1.0


@needs_math_verify
@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("34", "35"),
        ("34", "3 4"),
        ("12", "1 2"),
        ("x+1", "x-1"),
        ("(1,2)", "(2,1)"),
        ("[2,5)", "[2,5]"),
        ("34", r"\frac{"),
        ("34", ""),
        ("", "34"),
        ("A", "B"),
        ("34", "\u2028\ud800"),
    ],
)
def test_answers_that_are_not_equal_or_cannot_be_read_score_0(gold, given):
    assert math_answer(f"\\boxed{{{given}}}", gold) == 0.0


def test_without_an_answer_nothing_is_compared(monkeypatch):
    monkeypatch.setattr(math_reward, "COMPARER", None)
    assert math_answer("I do not know", "34") == 0.0
    assert math_answer([{"role": "assistant", "content": r"\boxed{34"}], "34") == 0.0
    assert math_answer([{"role": "assistant", "content": r"\boxed{34}"}], "34") == 1.0


# ------------------------------------------------------------------------------------ the process


@needs_math_verify
def test_a_tower_of_powers_is_given_up_and_the_next_answer_is_scored():
    assert math_answer(r"\boxed{10^{10^{10}}}", "34") == 0.0
    assert math_answer(r"\boxed{2+2}", "4") == 1.0


@needs_math_verify
def test_it_scores_in_a_thread_and_beside_an_event_loop():
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(math_answer(r"\boxed{2/4}", "0.5")))
    thread.start()
    thread.join()

    async def beside() -> list[float]:
        calls = (asyncio.to_thread(math_answer, rf"\boxed{{{n}/2}}", str(n / 2)) for n in (1, 3, 5))
        return [math_answer(r"\boxed{1/2}", "0.5"), *await asyncio.gather(*calls)]

    assert found + asyncio.run(beside()) == [1.0] * 5


def worker(code: str, limit_s: float = 20.0) -> Comparer:
    """One that says it is ready and then does ``code`` with every ``line``."""
    start = "import sys, time\nprint('\"ready\"', flush=True)\nfor line in sys.stdin:\n    "
    return Comparer((sys.executable, "-c", start + code), limit_s)


def test_what_takes_too_long_is_killed_and_counts_as_unequal():
    compare = worker(
        "time.sleep(0 if 'quick' in line else 600)\n    print('true', flush=True)", 1.0
    )
    assert compare("4", "slow") is False
    assert compare("4", "quick") is True
    compare.close()


def test_a_process_that_ends_by_itself_breaks_the_episode_and_is_not_a_0():
    for compare in (worker("sys.exit(3)"), Comparer((sys.executable, "-c", "raise SystemExit(3)"))):
        with pytest.raises(RewardError, match="exit code 3"):
            compare("4", "2+2")


def test_an_interrupted_comparison_leaves_no_answer_behind_for_the_next():
    code = "time.sleep(0 if 'quick' in line else 3)\n    print('true' if 'slow' in line else 'false', flush=True)"
    compare = worker(code)
    assert compare("4", "quick") is False

    async def hurried() -> None:
        await guarded_call(compare, "4", "slow", what="the reward", seconds=0.3)

    with pytest.raises(DeadlineError):
        asyncio.run(hurried())
    assert compare("4", "quick") is False
    compare.close()


# ------------------------------------------------------------------------------------- in a recipe


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "1/4 + 1/4?", "answer": "1/2"}) + "\n")
    return str(path)


@needs_math_verify
def test_a_dataset_takes_it_by_name_and_knows_what_scores(rows):
    source = Dataset(rows, reward="math_answer")
    (task,) = source.tasks("train")

    async def scores(*messages: str) -> list[float | None]:
        worlds = [source.environment(task) for _ in messages]
        for world in worlds:
            await world.reset()
        return [(await w.step(m)).reward for w, m in zip(worlds, messages, strict=True)]

    gold = source.gold(task)
    assert gold == r"\boxed{1/2}"
    assert asyncio.run(scores(gold, "Answer: 0.5", r"\boxed{2}")) == [1.0, 1.0, 0.0]


def test_without_math_verify_a_recipe_that_names_it_is_refused_with_the_command(rows, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="pip install math-verify"):
        Dataset(rows, reward="math_answer")


def test_a_row_without_the_answer_column_is_named(rows):
    with pytest.raises(
        RecipeError, match=r"rows\.jsonl:1: reward = 'math_answer' needs the column 'gold'"
    ):
        Dataset(rows, reward="math_answer", answer_column="gold").tasks("train")


# ------------------------------------------------------------------------------------- real data


def real(name: str, every: int) -> list[dict[str, str]]:
    file = DATA / name
    if not file.is_file():
        pytest.skip(f"{file} is not there: set KOLB_DATA to a folder with math/{name}")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[::every]]


@needs_math_verify
def test_on_math_a_solution_scores_1_for_its_own_problem():
    rows = real("math500.jsonl", 1)
    wrong = [r["answer"] for r in rows if math_answer(r["solution"], r["answer"]) != 1.0]
    assert (len(rows), wrong) == (500, [])


@needs_math_verify
def test_on_math_the_library_alone_knows_nearly_every_answer_from_itself():
    answers = [row["answer"] for row in real("math500.jsonl", 10)]
    unknown = [answer for answer in answers if not COMPARER(answer, answer)]
    assert len(unknown) <= 1, unknown


@needs_math_verify
@pytest.mark.slow
def test_on_math_another_problem_s_solution_scores_0():
    rows = real("math500.jsonl", 5)
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if a["answer"] != b["answer"]]
    right = [
        (a["answer"], b["answer"]) for a, b in pairs if math_answer(b["solution"], a["answer"])
    ]
    assert (len(pairs) > 90, right) == (True, [])


@needs_math_verify
@pytest.mark.slow
def test_on_the_larger_file_only_answers_that_it_spoils_are_missed():
    """Its answer column lost one of the two backslashes between the rows of a matrix, and spaces in text."""
    rows = real("math_test.jsonl", 10)
    missed = [row["answer"] for row in rows if not math_answer(row["solution"], row["answer"])]
    assert (len(rows), len(missed) <= 15) == (500, True), missed
