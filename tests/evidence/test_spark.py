"""The controlled task of the Lp-Reg evidence: its corpus, its reward, its splits, its bases."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from evidence.spark import (
    FILLERS,
    JUNK,
    SYMBOLS,
    TABLE,
    WORDS,
    Problem,
    Prompt,
    Spark,
    fork_of,
    recheck,
    success,
)
from evidence.spark_base import build, write_start
from kolb.envs.checker import check
from kolb.errors import RecipeError
from kolb.runs.directory import RunDirectory

CORPUS = 20_000
GOLDEN = {"A": "9456780132", "B": "2153860947", "C": "3641980572", "D": "2081654397"}


def answers(kind: str, **options: float) -> list[tuple[list[str], list[str]]]:
    """Prompts and answers of the corpus, as words, of one kind."""
    source = Spark(recheck_share=0.5, train_tasks=CORPUS, **options)
    chats = [source.demonstration(task) for task in source.tasks("train")]
    words = [(user["content"].split(), said["content"].split()) for user, said in chats]
    return [pair for pair in words if pair[0][0] == kind]


def answer_of(prompt: list[str]) -> str:
    return Problem(prompt[2], tuple(o for o in prompt[3:7] if o != "I"), prompt[1]).answer


def test_the_operators_are_these_permutations_in_every_run() -> None:
    assert {name: "".join(made) for name, made in TABLE.items()} == GOLDEN
    assert all(sorted(made) == sorted(SYMBOLS) for made in TABLE.values())


def test_the_vocabulary_has_85_words_with_the_two_that_end_and_pad() -> None:
    assert len(set(WORDS)) == len(WORDS) == 83
    assert (len(FILLERS), len(JUNK)) == (48, 16)


def test_the_corpus_has_the_frequencies_that_the_task_is_about() -> None:
    said = answers("Q")
    assert len(said) == pytest.approx(CORPUS / 2, abs=300)
    forks = Counter(name for _, words in said for name, is_it in fork_of(words).items() if is_it)
    shares = {name: count / len(said) for name, count in forks.items()}
    # Three standard errors of shares over 10,000 answers.
    assert shares["wait"] == pytest.approx(0.05, abs=0.0065)
    assert shares["filler"] == pytest.approx(0.25, abs=0.013)
    assert shares["junk"] == pytest.approx(0.01, abs=0.003)
    copies = np.mean([words[0] == prompt[1] for prompt, words in said])
    assert copies == pytest.approx(0.6 + 0.4 / 10, abs=0.0145)
    right = np.mean([prompt[1] == answer_of(prompt) for prompt, _ in said])
    assert right == pytest.approx(0.3 + 0.7 / 10, abs=0.0145)


@pytest.mark.parametrize(("accuracy", "expected"), [(0.4, 0.118), (0.3, 0.102), (1.0, 0.965)])
def test_a_recheck_of_the_corpus_is_as_often_right_as_its_steps_say(
    accuracy: float, expected: float
) -> None:
    # P(right after k steps) = a p + (1 - a)(1 - p) / 9, from p = 1, times 0.99 per step, over 3 and 4 steps.
    chances = []
    for steps in (3, 4):
        p = 1.0
        for _ in range(steps):
            p = accuracy * p + (1 - accuracy) * (1 - p) / 9
        chances.append(p * 0.99**steps)
    assert np.mean(chances) == pytest.approx(expected, abs=0.0005)
    said = answers("R", accuracy=accuracy)
    assert np.mean([success(words, answer_of(prompt)) for prompt, words in said]) == pytest.approx(
        expected, abs=0.011
    )


def test_a_wrong_step_is_gone_on_from() -> None:
    problem = Problem("0", ("A", "A", "A"), "0")
    said = recheck(Random(0), problem, accuracy=0.0)
    assert all(
        now != TABLE["A"][int(before)] for before, now in zip(["0", *said], said, strict=False)
    )
    assert recheck(Random(0), problem, accuracy=1.0) == [
        first := TABLE["A"][0],
        second := TABLE["A"][int(first)],
        TABLE["A"][int(second)],
    ]


def test_the_answer_by_hand_and_what_earns_it() -> None:
    problem = Problem("3", ("A", "B", "C"), hint="7")  # 3 -A-> 6 -B-> 0 -C-> 3
    assert problem.answer == "3"
    right, wrong = problem.answer, "8"
    assert problem.text == "7 3 A B C I ?"
    for words in (f"{right}", f"{right} f7", f"{wrong} wait 1 2 {right}", f"f1 {right} f2"):
        assert success(words.split(), right), words
    for words in ("", "f1", wrong, f"{right} j3", f"{wrong} wait 1 {right} j0", f"{right} wait"):
        assert not success(words.split(), right), words
    assert success([right] * 6, right)
    assert not success([right] * 7, right), "an answer that was cut"


def test_an_attempt_earns_its_success_and_tells_what_stood_at_the_fork() -> None:
    source = Spark(recheck_share=1.0)

    def tell(split: str, message: str) -> tuple[float | None, dict[str, float]]:
        async def attempt() -> tuple[float | None, dict[str, float]]:
            world = source.environment(source.tasks(split)[0])
            await world.reset()
            result = await world.step(message.replace("RIGHT", source.gold(source.tasks(split)[0])))
            return result.reward, dict(result.scores)

        return asyncio.run(attempt())

    none = {"wait": 0.0, "filler": 0.0, "junk": 0.0}
    assert tell("test", "RIGHT") == (1.0, none)
    assert tell("test", "RIGHT f3") == (1.0, none | {"filler": 1.0})
    assert tell("test", "RIGHT j3") == (0.0, none | {"junk": 1.0})
    assert tell("test", "0 wait 1 2 RIGHT") == (1.0, none | {"wait": 1.0})
    assert tell("train", "1 2 RIGHT") == (1.0, {"recheck": 1.0})
    assert tell("train", "1 2 RIGHT j1") == (0.0, {"recheck": 0.0})


def problems_of(source: Spark, split: str) -> set[tuple[str, ...]]:
    shown = [Prompt.of(task, source.recheck_share).problem for task in source.tasks(split)]
    return {(problem.start, *problem.operators) for problem in shown}


def test_no_problem_of_the_evaluation_is_in_training_or_in_the_corpus() -> None:
    source = Spark(recheck_share=0.5, train_tasks=CORPUS, dev_tasks=3000)
    train, dev, test = (problems_of(source, split) for split in ("train", "dev", "test"))
    assert not test & train
    assert not test & dev
    assert not dev & train
    assert len(train) > 2000
    assert len(test) > 200
    in_corpus = {tuple(w for w in p[2:7] if w != "I") for kind in "QR" for p, _ in answers(kind)}
    assert in_corpus == train


def test_the_evaluation_asks_600_times_and_forces_no_recheck() -> None:
    source = Spark(recheck_share=1.0)
    kinds = {s: [Prompt.of(t, 1.0).text[0] for t in source.tasks(s)] for s in ("test", "dev")}
    assert kinds["test"] == ["Q"] * 600
    assert kinds["dev"] == ["R"] * 600
    mixed = [Prompt.of(t, 0.25).text[0] for t in Spark().tasks("train")]
    assert mixed.count("R") / len(mixed) == pytest.approx(0.25, abs=0.02)


def test_the_task_keeps_the_contract_of_environments() -> None:
    assert check(Spark(train_tasks=20, dev_tasks=20, test_tasks=20)) == []


@pytest.mark.parametrize(
    "options", [{"accuracy": 1.1}, {"recheck_share": -0.1}, {"train_tasks": 0}]
)
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        Spark(**options)


# ------------------------------------------------------------------------------------------- bases


def test_a_forced_recheck_reads_token_for_token_like_one_of_the_agents_own(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from kolb.chat.templates import ChatTemplate

    write_start(tmp_path, 0)
    template = ChatTemplate(AutoTokenizer.from_pretrained(tmp_path))
    texts = (("Q 7 3 A B C I ?", "8 wait 1 2 4"), ("R 7 3 A B C I ? 8 wait", "1 2 4"))
    rows = []
    for user, said in texts:
        chat = [{"role": "user", "content": user}, {"role": "assistant", "content": said}]
        [turn] = template.transcribe(chat).turns
        rows.append([*turn.context_ids, *turn.completion.token_ids])
    assert rows[0][1:] == rows[1][1:]
    assert len(rows[0]) == 8 + 5 + 1
    assert template.tokenizer.unk_token_id not in rows[0]
    assert rows[0][-1] == template.tokenizer.eos_token_id


def test_the_same_seed_starts_from_the_same_bytes_and_another_from_others(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_start(tmp_path / name, seed)
        found.append((tmp_path / name / "model.safetensors").read_bytes())
    assert found[0] == found[1] != found[2]
    assert 90_000 < len(found[0]) / 4 < 130_000, "about a tenth of a million parameters in float32"


def test_a_base_is_built_whole_and_measured_on_both_kinds_of_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    (folder / "run").mkdir(parents=True)  # of a build that was interrupted
    small = ("stages.first.steps=1", "stages.second.steps=1", "environments.spark.dev_tasks=24")
    sizes = [f"stages.{stage}.tasks_per_step=8" for stage in ("first", "second")]
    build(
        folder,
        (f"policies.agent.base={folder}/start", "stages.first.warmup_steps=0", *small, *sizes),
    )
    assert (folder / "model/model.safetensors").is_file()
    assert (folder / "model/model.safetensors").read_bytes() != (
        folder / "start/model.safetensors"
    ).read_bytes()
    last = RunDirectory.open(folder / "run").metrics()[-1]
    assert {"eval/score/wait", "eval/score/recheck"} <= last.keys()
    assert last["eval/episodes"] == 24
