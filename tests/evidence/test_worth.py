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

from evidence.worth import NOTES, PLACES, Offer, Worth, good_letters, offer_split
from evidence.worth_base import build, write_start
from evidence.worth_corpus import KINDS, WorthCorpus, answers_to
from evidence.worth_ideal import player
from evidence.worth_notes import answers, choices, draw, lessons, notes_in, posterior
from kolb import recipe
from kolb.engines.scripted import Scripted
from kolb.envs.checker import check
from kolb.errors import RecipeError
from kolb.loop import run
from kolb.runs.directory import RunDirectory
from kolb.types import Message, StepResult

RECIPE = Path(__file__).parents[2] / "evidence" / "tf_grpo_worth.toml"
OFFERED = ("A", "B", "C")
COMPARE = NOTES.prompts.comparison
TENTHS = [n / 10 for n in range(11)]


# ---------------------------------------------------------------------------------------- the task


def tell(source: Worth, message: str) -> StepResult:
    task = source.tasks("train")[0]
    offer = source.offer(task)
    bad = next(x for x in offer.letters if x != offer.good)

    async def attempt() -> StepResult:
        world = source.environment(task)
        await world.reset()
        return await world.step(message.replace("GOOD", offer.good).replace("BAD", bad))

    return asyncio.run(attempt())


def test_the_good_letter_earns_a_tenth_more_than_any_other_and_is_the_success() -> None:
    offer = Offer("goal", OFFERED, good="B", richness=4)
    assert [offer.reward(x) for x in OFFERED] == [0.4, 0.5, 0.4]
    rich, poor = Offer("goal", OFFERED, "B", 9), Offer("goal", OFFERED, "B", 0)
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
    good = good_letters(0, held_out=True)
    assert all(o.good == good[o.place] and o.good in o.letters for o in offers)


@pytest.mark.parametrize("offered", [3, 5])
def test_no_offer_of_the_evaluation_is_made_while_notes_are_taken(offered: int) -> None:
    source = Worth(offered=offered, train_tasks=2000, test_tasks=2000)
    made = {split: [source.offer(t) for t in source.tasks(split)] for split in ("train", "test")}
    sets = {split: {(o.place, *sorted(o.letters)) for o in found} for split, found in made.items()}
    assert not sets["train"] & sets["test"]
    assert min(map(len, sets.values())) > 60
    assert all(offer_split(p, x) == split for split, found in sets.items() for p, *x in found)
    assert all({o.place for o in found} == set(PLACES) for found in made.values())


def test_no_world_of_the_evidence_is_in_the_corpus() -> None:
    held_out, taught = (
        {tuple(good_letters(s, held_out=is_out).values()) for s in range(300)}
        for is_out in (True, False)
    )
    assert {len(set(world)) for world in held_out | taught} == {4}
    assert not held_out & taught
    assert len({tuple(good_letters(s, held_out=True).values()) for s in range(8)}) == 8


def test_the_task_and_the_corpus_keep_the_contract_of_environments() -> None:
    assert check(Worth(train_tasks=20, dev_tasks=20, test_tasks=20)) == []
    assert check(WorthCorpus(train_tasks=20, dev_tasks=20)) == []


@pytest.mark.parametrize(
    "options", [{"offered": 1}, {"offered": 13}, {"richest": -1}, {"train_tasks": 0}]
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(RecipeError):
        Worth(**options)


# ----------------------------------------------------------------------------------- the ideal player


def test_an_agent_says_what_a_note_names_for_the_place_if_it_is_offered() -> None:
    notes = notes_in("[G0]. goal B\n[G7]. hole A")
    assert choices(notes, "goal", OFFERED) == ["B"]
    assert choices(notes, "hole", ("B", "C")) == choices(notes, "frozen", ("B", "C")) == ["B", "C"]


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
        offer = Offer("goal", OFFERED, rng.choice(OFFERED), rng.randint(0, 9))
        good[offer.reward("A"), offer.good == "A"] += 1
    for reward in TENTHS:
        share = good[reward, True] / (good[reward, True] + good[reward, False])
        assert share == pytest.approx(posterior(OFFERED, [("A", reward)])["A"], abs=0.04)


@pytest.mark.parametrize("result", ["reward [REDACTED]", "its answer is the majority's"])
def test_without_rewards_nothing_is_certain_and_a_guess_may_be_any_letter(result: str) -> None:
    shown = f"<task>\noffer goal A B C\n</task>\n\nAttempt 1 ({result}):\n## Turn 1\nThe agent: B"
    assert answers(COMPARE, shown) == {"nothing <experiences> </experiences>": 1.0}
    told = answers(COMPARE, shown, guesses=True)
    third = pytest.approx(1 / 3)
    assert told == {f"nothing <experiences> 1. goal {x} </experiences>": third for x in OFFERED}


def test_without_any_attempt_a_lesson_is_a_guess_about_any_place_and_letter() -> None:
    [_, user] = NOTES.message(NOTES.prompts.tips, "<attempt>\nNone\n</attempt>")
    told = answers(COMPARE, str(user["content"]))
    assert len(told) == 4 * 12
    assert sum(p for text, p in told.items() if "goal L" in text) == pytest.approx(1 / 48)


def test_what_is_certain_is_said_and_what_is_open_is_drawn_from_the_posterior_or_left_out() -> None:
    open_ = [("B", 0.4)]
    assert lessons("goal", OFFERED, open_) == {"same 0.4 <experiences> </experiences>": 1.0}
    third = pytest.approx(1 / 3)
    assert list(lessons("goal", OFFERED, open_, guesses=True).values()) == [third] * 3
    for guesses in (True, False):
        told = lessons("goal", OFFERED, [("C", 0.4), ("B", 0.5)], guesses=guesses)
        assert told == {"more 0.5 B less 0.4 C <experiences> 1. goal B </experiences>": 1.0}
        told = lessons("goal", OFFERED, [("C", 0.4), ("A", 0.4)], guesses=guesses)
        assert told == {"same 0.4 <experiences> 1. goal B </experiences>": 1.0}
        told = lessons("goal", OFFERED, [("B", 1.0)], guesses=guesses)
        assert told == {"same 1 <experiences> 1. goal B </experiences>": 1.0}


def rows(text: str) -> list[list[Any]]:
    return [
        [op["operation"], op["id"], op["content"].strip(), op.get("from")]
        for op in json.loads(text)
    ]


KNOWN = "<library>\n[G5]. goal A\n  (1) revise: goal C\n  (3) revise: goal C\n[G2]. hole B\n</library>\n\n"


def test_each_lesson_is_added_or_turns_the_note_about_its_place_or_is_known() -> None:
    new = "<lessons>\n1. frozen D 2. goal C 3. hole B\n</lessons>"
    [said] = answers(NOTES.prompts.proposals, KNOWN + new)
    assert rows(said) == [
        ["UPDATE", "G5", "goal C", None],
        ["NONE", "G2", "hole B", None],
        ["ADD", None, "frozen D", None],
    ]


def test_the_plan_has_one_operation_for_each_place_with_the_numbers_behind_it() -> None:
    [said] = answers(NOTES.prompts.plan, f"{KNOWN}<new>\n(2) frozen D\n</new>")
    assert rows(said) == [["UPDATE", "G5", "goal C", [1, 3]], ["ADD", None, "frozen D", [2]]]


# ----------------------------------------------------------------------- through the method itself


WORLD = 100
METHOD = "stages.notes.method"
FAST = ("environments.worth.test_tasks=60", f"{METHOD}.note_tokens=4000", f"seed={WORLD}")


def learnt(folder: Path, *sets: str, guesses: bool = False) -> tuple[float, float, list[str]]:
    """Success before and after, and the library, of the ideal player."""
    only = (*FAST, f"environments.worth.seed={WORLD}", "stages.notes.evaluation.every=0", *sets)
    result = run(recipe.load(RECIPE, only), folder, engine=player(guesses=guesses))
    [first, *_, last] = RunDirectory.open(folder).metrics()
    before, after = first["eval_start/score/success"], last["eval/score/success"]
    return before, after, [e.text for e in result.library.experiences]


TRUE = {f"{place} {letter}" for place, letter in good_letters(WORLD, held_out=True).items()}


def test_an_ideal_player_learns_the_world_from_groups(tmp_path: Path) -> None:
    before, after, notes = learnt(tmp_path / "run")
    assert before == pytest.approx(1 / 3, abs=0.15)
    assert after == 1.0
    assert set(notes) == TRUE


def test_from_single_attempts_little_is_learnt_and_all_of_it_true_unless_it_guesses(
    tmp_path: Path,
) -> None:
    single = (f"{METHOD}.group_size=1", f"{METHOD}.gate=none", "stages.notes.steps=8")
    _, _, guessed = learnt(tmp_path / "guesses", *single, guesses=True)
    _, _, certain = learnt(tmp_path / "certain", *single)
    assert set(certain) < TRUE
    assert len(guessed) == 4
    assert set(guessed) != TRUE


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
    text = re.sub(r"agent X|goal X|hole X|frozen X", "place X", text)
    text = re.sub(r"offer place[ X]+", "offer", text)
    text = re.sub(r"majority's\)|another\)", "it)", text)
    return "\n".join(dict.fromkeys(line for line in text.splitlines() if line))


def test_what_the_corpus_says_is_what_the_ideal_player_says_to_the_same_prompt() -> None:
    for _, (*asked, answer) in chats(WorthCorpus()):
        assert answer["content"] in answers_to(asked)
    silent = [c for k, c in chats(WorthCorpus()) if k == "compare"]
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
