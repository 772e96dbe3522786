"""The controlled task of the evidence for Training-Free GRPO: its rewards and splits, the ideal player, its corpus."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from evidence.worth import NOTES, Offer, Worth, good_letters, offer_split
from evidence.worth_base import build, write_start
from evidence.worth_corpus import KINDS, WorthCorpus, answers_to
from evidence.worth_notes import Note, answers, choices, draw, lessons, planned, posterior, proposed
from kolb import recipe
from kolb.engines.scripted import Scripted
from kolb.envs.checker import check
from kolb.errors import RecipeError
from kolb.loop import run
from kolb.runs.directory import RunDirectory
from kolb.types import Message, StepResult

RECIPE = Path(__file__).parents[2] / "evidence" / "tf_grpo_worth.toml"
OFFERED = ("A", "B", "C")
TENTHS = [n / 10 for n in range(11)]


# ---------------------------------------------------------------------------------------- the task


def tell(source: Worth, message: str) -> StepResult:
    task = source.tasks("train")[0]
    offer = source.offer(task)
    [bad, _] = [x for x in offer.letters if x != offer.good]

    async def attempt() -> StepResult:
        world = source.environment(task)
        await world.reset()
        return await world.step(message.replace("GOOD", offer.good).replace("BAD", bad))

    return asyncio.run(attempt())


def test_the_good_letter_earns_a_tenth_more_than_any_other_and_is_the_success() -> None:
    offer = Offer(OFFERED, good="B", richness=4)
    assert [offer.reward(x) for x in OFFERED] == [0.4, 0.5, 0.4]
    rich, poor = Offer(OFFERED, "B", 9), Offer(OFFERED, "B", 0)
    assert (rich.reward("B"), rich.reward("A"), poor.reward("B"), poor.reward("A")) == (
        1,
        0.9,
        0.1,
        0,
    )
    good, bad, nonsense = (tell(Worth(), said) for said in (" GOOD\n", "BAD", "GOOD BAD"))
    assert good.reward == pytest.approx((bad.reward or 0.0) + 0.1)
    assert bad.reward == nonsense.reward
    assert [r.scores["success"] for r in (good, bad, nonsense)] == [1.0, 0.0, 0.0]


def test_without_richness_the_reward_is_the_success() -> None:
    assert [tell(Worth(richest=0), said).reward for said in ("GOOD", "BAD")] == [1.0, 0.0]


def test_a_reward_alone_says_next_to_nothing_over_the_tasks_of_a_world() -> None:
    source = Worth(train_tasks=4000)
    offers = [source.offer(t) for t in source.tasks("train")]
    by_reward: Counter[float] = Counter(o.richness / 10 for o in offers)
    assert all(by_reward[n / 10] == pytest.approx(400, abs=80) for n in range(10))
    assert all(sum(x in good_letters(0, "test") for x in o.letters) == 1 for o in offers)


@pytest.mark.parametrize("offered", [3, 5])
def test_no_set_of_letters_of_the_evaluation_is_offered_while_notes_are_taken(offered: int) -> None:
    source = Worth(offered=offered, train_tasks=2000, test_tasks=2000)
    sets = {
        split: {frozenset(source.offer(t).letters) for t in source.tasks(split)}
        for split in ("train", "test")
    }
    assert not sets["train"] & sets["test"]
    assert min(map(len, sets.values())) > 15
    assert all(offer_split(tuple(s)) == split for split, found in sets.items() for s in found)
    good = good_letters(0, "test")
    assert all(set().union(*found) >= good for found in sets.values()), "all good letters are met"


def test_a_world_is_a_half_of_the_letters_and_no_world_of_the_evidence_is_in_the_corpus() -> None:
    worlds = {split: {good_letters(s, split) for s in range(300)} for split in ("train", "test")}
    assert {len(good) for found in worlds.values() for good in found} == {6}
    assert not worlds["train"] & worlds["test"]
    assert len({good_letters(s, "test") for s in range(5)}) == 5


def test_the_task_and_the_corpus_keep_the_contract_of_environments() -> None:
    assert check(Worth(train_tasks=20, dev_tasks=20, test_tasks=20)) == []
    assert check(WorthCorpus(train_tasks=20, dev_tasks=20)) == []


@pytest.mark.parametrize(
    "options", [{"offered": 1}, {"offered": 8}, {"richest": -1}, {"train_tasks": 0}]
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(RecipeError):
        Worth(**options)


# ----------------------------------------------------------------------------------- the ideal player


def test_an_agent_says_what_it_is_told_is_good_and_avoids_what_is_bad() -> None:
    good, bad = Note("G0", "B", "good"), Note("G7", "A", "bad")
    assert choices([], OFFERED) == ["A", "B", "C"]
    assert choices([bad], OFFERED) == ["B", "C"]
    assert choices([bad, good], OFFERED) == ["B"]
    assert choices([good, Note("G2", "C", "good")], OFFERED) == ["B", "C"]
    assert choices([Note("G1", x, "bad") for x in OFFERED], OFFERED) == ["A", "B", "C"]


def test_one_attempt_tells_only_by_a_reward_of_0_or_1() -> None:
    third = pytest.approx(1 / 3)
    for reward in TENTHS[1:-1]:
        assert posterior(OFFERED, [("B", reward)]) == {"A": third, "B": third, "C": third}
    assert posterior(OFFERED, [("B", 1.0)]) == {"A": 0, "B": 1, "C": 0}
    assert posterior(OFFERED, [("B", 0.0)]) == {"A": 0.5, "B": 0, "C": 0.5}
    assert posterior(OFFERED, []) == {"A": third, "B": third, "C": third}


def test_two_attempts_that_differ_tell_all_whatever_the_richness() -> None:
    for low, high in pairwise(TENTHS):
        assert posterior(OFFERED, [("B", high), ("C", low)]) == {"A": 0, "B": 1, "C": 0}
    assert posterior(OFFERED, [("B", 0.4), ("C", 0.4)]) == {"A": 1, "B": 0, "C": 0}
    same = posterior(OFFERED, [("B", 0.4), ("B", 0.4)])
    assert same == {x: pytest.approx(1 / 3) for x in OFFERED}


def test_the_posterior_is_how_often_each_letter_is_good_among_worlds_drawn_at_random() -> None:
    rng, good = Random(0), Counter[tuple[float, bool]]()
    for _ in range(30_000):
        offer = Offer(OFFERED, rng.choice(OFFERED), rng.randint(0, 9))
        good[offer.reward("A"), offer.good == "A"] += 1
    for reward in TENTHS:
        share = good[reward, True] / (good[reward, True] + good[reward, False])
        assert share == pytest.approx(posterior(OFFERED, [("A", reward)])["A"], abs=0.04)


@pytest.mark.parametrize("result", ["reward [REDACTED]", "its answer is the majority's"])
def test_without_rewards_every_letter_is_as_likely_whatever_was_said(result: str) -> None:
    shown = f"<task>\noffer A B C\n</task>\n\nAttempt 1 ({result}):\n## Turn 1\nThe agent: B"
    told = answers(NOTES.prompts.comparison, shown)
    for x in OFFERED:
        assert sum(p for text, p in told.items() if f"{x} good" in text) == pytest.approx(1 / 3)


def test_without_any_attempt_a_lesson_is_a_guess_about_any_letter() -> None:
    [_, user] = NOTES.message(NOTES.prompts.comparison, "<attempt>\nNone\n</attempt>")
    told = answers(NOTES.prompts.comparison, str(user["content"]))
    assert len(told) == 12 * 11
    assert sum(p for text, p in told.items() if "L good" in text) == pytest.approx(1 / 12)


def test_lessons_are_drawn_from_the_posterior_so_that_a_guess_is_as_often_right_as_it_can_be() -> (
    None
):
    told = lessons(OFFERED, [("B", 0.4)], guesses=True)
    assert len(told) == 6
    assert sum(p for text, p in told.items() if "B good" in text) == pytest.approx(1 / 3)
    assert sum(p for text, p in told.items() if "B bad" in text) == pytest.approx(1 / 3)
    sure = "{} <experiences> 1. B good 2. {} bad </experiences>"
    for guesses in (True, False):
        told = lessons(OFFERED, [("C", 0.4), ("B", 0.5)], guesses=guesses)
        assert told == {sure.format("more 0.5 B less 0.4 C", "C"): 1.0}
        told = lessons(OFFERED, [("B", 1.0)], guesses=guesses)
        assert told == {sure.format("same 1", x): 0.5 for x in "AC"}


def test_who_does_not_guess_says_what_is_certain_and_nothing_else() -> None:
    assert lessons(OFFERED, [("B", 0.4)], guesses=False) == {
        "same 0.4 <experiences> </experiences>": 1.0
    }
    only = "same 0 <experiences> 1. B bad </experiences>"
    assert lessons(OFFERED, [("B", 0.0)], guesses=False) == {only: 1.0}
    assert len(lessons(OFFERED, [("B", 1.0)], guesses=False)) == 2


def rows(text: str) -> list[list[Any]]:
    return [
        [op["operation"], op["id"] or "", op["content"].strip(), op.get("from")]
        for op in json.loads(text)
    ]


NOTES_KNOWN = (Note("G5", "A", "good"), Note("G2", "B", "bad"))


def test_each_lesson_is_added_or_turns_a_note_about_its_letter_or_is_known() -> None:
    new = [("C", "good"), ("A", "bad"), ("B", "bad")]
    assert rows(proposed(NOTES_KNOWN, new)) == [
        ["ADD", "", "C good", None],
        ["UPDATE", "G5", "A bad", None],
        ["NONE", "G2", "B bad", None],
    ]


def test_the_plan_follows_the_majority_of_each_letter_and_passes_over_a_tie() -> None:
    told = [(1, "A", "bad"), (2, "C", "good"), (3, "C", "bad"), (4, "C", "good")]
    tied = [(5, "D", "good"), (6, "D", "bad")]
    assert rows(planned(NOTES_KNOWN, [*told, *tied])) == [
        ["UPDATE", "G5", "A bad", [1]],
        ["ADD", "", "C good", [2, 4]],
    ]
    assert planned(NOTES_KNOWN, tied) == "[ ]"


# ----------------------------------------------------------------------- through the method itself


WORLD = 100
METHOD = "stages.notes.method"
FAST = ("environments.worth.test_tasks=60", f"{METHOD}.note_tokens=4000", f"seed={WORLD}")


def player(guesses: bool) -> Scripted:
    def answer(messages: list[Message], seed: int) -> str:
        return draw(Random(seed), answers_to(messages, guesses=guesses))

    return Scripted(answer, gives_tokens=False)


def learnt(folder: Path, *sets: str, guesses: bool = True) -> tuple[float, float, list[str]]:
    """Success before and after, and the library, of the ideal player."""
    only = (*FAST, f"environments.worth.seed={WORLD}", "stages.notes.evaluation.every=0", *sets)
    result = run(recipe.load(RECIPE, only), folder, engine=player(guesses))
    [first, *_, last] = RunDirectory.open(folder).metrics()
    before, after = first["eval_start/score/success"], last["eval/score/success"]
    return before, after, [e.text for e in result.library.experiences]


def share_right(notes: list[str]) -> float:
    good = good_letters(WORLD, "test")
    return sum(n.endswith("good") == (n[0] in good) for n in notes) / len(notes)


def test_an_ideal_player_learns_the_world_from_groups(tmp_path: Path) -> None:
    before, after, notes = learnt(tmp_path / "run")
    assert before == pytest.approx(1 / 3, abs=0.15)
    assert after > 0.95
    assert share_right(notes) == 1.0
    assert len({n[0] for n in notes}) == len(notes) > 8, "one note for each letter"


def test_from_single_attempts_all_is_right_if_it_says_what_is_certain_and_not_if_it_guesses(
    tmp_path: Path,
) -> None:
    single = (f"{METHOD}.group_size=1", f"{METHOD}.gate=none", "stages.notes.steps=8")
    *_, wrong = learnt(tmp_path / "guesses", *single)
    *_, right = learnt(tmp_path / "certain", *single, guesses=False)
    assert share_right(right) == 1.0
    assert share_right(wrong) < 0.9


# ------------------------------------------------------------------------------------------ corpus

CHATS = 600


def chats(source: WorthCorpus) -> list[tuple[str, list[Message]]]:
    tasks = source.tasks("train")[:CHATS]
    return [(source.exercise(t).kind, source.demonstration(t)) for t in tasks]


def test_the_corpus_has_the_kinds_in_their_shares_and_no_word_without_a_token(
    tmp_path: Path,
) -> None:
    found = chats(WorthCorpus())
    shares = Counter(kind for kind, _ in found)
    assert all(shares[k] / CHATS == pytest.approx(p, abs=0.06) for k, p in KINDS.items())
    said = {w for _, chat in found for m in chat for w in str(m["content"]).split()}
    write_start(tmp_path, seed=0)
    known = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert said <= set(known)


def test_the_corpus_asks_word_for_word_what_the_method_asks_in_a_run(tmp_path: Path) -> None:
    """Digits and letters apart, every prompt of a run is one of the corpus."""
    heard: list[str] = []

    def listener(messages: list[Message], seed: int) -> str:
        heard.append(shape(messages))
        return draw(Random(seed), answers_to(messages))

    arms = (
        (),
        (f"{METHOD}.judged_by=nobody",),
        (f"{METHOD}.judged_by=vote",),
        (f"{METHOD}.group_size=0",),
    )
    for number, sets in enumerate(arms):
        only = (*FAST, "stages.notes.steps=2", *sets)
        run(
            recipe.load(RECIPE, only),
            tmp_path / str(number),
            engine=Scripted(listener, gives_tokens=False),
        )
    taught = {shape(chat[:-1]) for _, chat in chats(WorthCorpus())}
    assert len(set(heard)) > 6
    assert set(heard) <= taught


def shape(messages: list[Message]) -> str:
    """What a prompt looks like, repeated lines and blocks once."""
    text = "\n".join(f"{m['role']}: {m['content']}" for m in messages)
    text = re.sub(r"\b[A-L]\b", "X", re.sub(r"\d+(\.\d+)?", "0", text))
    text = re.sub(r"good|bad", "do", re.sub(r"offer[ X]+", "offer", text))
    text = re.sub(r"majority's\)|another\)", "it)", text)
    return "\n".join(dict.fromkeys(line for line in text.splitlines() if line))


def test_what_the_corpus_says_is_what_the_ideal_player_says_to_the_same_prompt() -> None:
    for _, (*asked, answer) in chats(WorthCorpus()):
        assert answer["content"] in answers_to(asked)
    silent = [c for k, c in chats(WorthCorpus(guesses=False)) if k == "compare"]
    assert any(str(c[-1]["content"]).endswith("<experiences> </experiences>") for c in silent)
    assert all("answer" not in answers("", str(c[0]["content"])) for c in silent)


# ------------------------------------------------------------------------------------------- bases


def test_a_base_is_built_whole_and_measured_on_every_kind_of_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    sizes = [
        f"stages.imitation.{what}" for what in ("steps=1", "tasks_per_step=8", "warmup_steps=0")
    ]
    small = ("environments.worth.dev_tasks=40", "stages.imitation.sampling.max_tokens=4")
    build(folder, (f"policies.agent.base={folder}/start", *sizes, *small))
    assert (folder / "model/model.safetensors").is_file()
    last = RunDirectory.open(folder / "run").metrics()[-1]
    assert {f"eval/score/{kind}" for kind in KINDS} <= last.keys()


def test_the_same_seed_starts_from_the_same_bytes_and_another_from_others(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_start(tmp_path / name, seed)
        found.append((tmp_path / name / "model.safetensors").read_bytes())
    assert found[0] == found[1] != found[2]


def test_the_recipe_trains_nothing_and_has_the_prompts_that_the_model_was_taught() -> None:
    loaded = recipe.load(RECIPE)
    assert loaded.policies["agent"].frozen
    assert loaded.stages[0].method == NOTES
