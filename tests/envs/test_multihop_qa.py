"""Multi-hop questions: the search, the reward, the files, the conversation, and ERL on it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from playing import play

from kolb import recipe
from kolb.engines.base import ModelSpec
from kolb.engines.scripted import Scripted
from kolb.envs.bm25 import Bm25
from kolb.envs.multihop_data import FIXTURE, read_questions
from kolb.envs.multihop_qa import FORM, MultihopQa, search_of
from kolb.envs.multihop_reward import boxed, f1_score, grade, normalise
from kolb.errors import RecipeError
from kolb.memory.library import ExperienceLibrary
from kolb.methods.erl import METHOD
from kolb.types import SamplingParams
from kolb.world import LiveWorld

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("KOLB_DATA", ROOT.parent / "shared" / "data")) / "qa"

ROW = {
    "_id": "q1",
    "question": "Which lake does the Sile reach?",
    "answer": "Lake Onder",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Sile", 0], ["Onder", 0], ["Sile", 1]],
    "context": [
        ["Brakken", ["The Brakken are hills."]],
        ["Sile", ["The Sile is a river.", " It reaches Lake Onder."]],
        ["Onder", ["Lake Onder is deep."]],
    ],
}
HUGGING_FACE = {
    **{key: ROW[key] for key in ("question", "answer", "type", "level")},
    "id": "q1",
    "supporting_facts": {"title": ["Sile", "Onder", "Sile"], "sent_id": [0, 0, 1]},
    "context": {
        "title": ["Brakken", "Sile", "Onder"],
        "sentences": [sentences for _, sentences in ROW["context"]],
    },
}


def source_of(tmp_path: Path, *rows: dict, **options) -> MultihopQa:
    """The environment on a train file of ``rows``."""
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(list(rows)))
    return MultihopQa({"train": str(file)}, **options)


def shown(result) -> str:
    return "\n".join(m["content"] for m in result.observation)


# ------------------------------------------------------------------------------------------ the search


def test_scores_are_those_of_okapi_worked_by_hand():
    index = Bm25(["red fish", "blue fish", "green tree, stone path"])
    # Mean length 8/3. Short texts: 1.5 * (0.25 + 0.75 * 2 / (8/3)) = 1.21875; the long one: 1.5 * 1.375.
    short, long = 2.5 / 2.21875, 2.5 / (1 + 1.5 * 1.375)
    rare, common = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)
    assert index.scores("Red fish") == pytest.approx([(rare + common) * short, common * short, 0])
    assert index.scores("path") == pytest.approx([0, 0, rare * long])
    assert index.scores("path path") == pytest.approx([0, 0, 2 * rare * long])
    assert rare * short == pytest.approx(1.10516, abs=1e-5)


def test_a_word_said_again_in_a_text_counts_less_each_time():
    once, twice, thrice = Bm25(["a b b", "a a b", "a a a"]).scores("a")
    assert 0 < once < twice < thrice
    assert twice - once > thrice - twice


def test_the_best_come_first_equals_in_their_order_and_strangers_not_at_all():
    index = Bm25(["a fish", "no match", "a fish", "fish, fish"])
    assert [place for place, _ in index.top("FISH", 3)] == [3, 0, 2]
    assert [place for place, _ in index.top("fish", 1)] == [3]
    assert index.top("tree ...", 3) == []
    assert index.top("", 3) == []
    assert Bm25(["", "..."]).top("x", 2) == []


# ------------------------------------------------------------------------------------------ the reward


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"It is \boxed{Lake Onder}.", "Lake Onder"),
        (r"\boxed{ a } then \boxed{b}", "a"),
        (r"\boxed{f_{1} of {a}}", "f_{1} of {a}"),
        (r"\boxed{never closed, \boxed{b}", "b"),
        (r"{ \boxed{a} and } more }", "a"),
        (r"\boxed{outer \boxed{inner}}", r"outer \boxed{inner}"),
        (r"\boxed{}", ""),
        (r"\boxed{São Tomé 東京}", "São Tomé 東京"),
        ("\\boxed{two\nlines}", "two\nlines"),
        (r"\boxed{cut off", None),
        ("boxed{no backslash} {x}", None),
        ("", None),
    ],
)
def test_the_answer_is_what_stands_in_the_first_box_that_closes(text, content):
    assert boxed(text) == content


def test_a_text_of_nothing_but_open_boxes_is_read_in_one_pass():
    assert boxed("\\boxed{" * 200_000) is None
    assert boxed("\\boxed{" * 200_000 + "x}") == "x"


def test_normalising_takes_case_punctuation_articles_and_spaces_away():
    assert normalise("  The  Old-Mill,\ta (ruin)! ") == "oldmill ruin"
    assert normalise("Anthem of the theatre") == "anthem of theatre", (
        "only whole words are articles"
    )
    assert normalise("ÅNGSTRÖM") == "ångström"


@pytest.mark.parametrize(
    ("answer", "gold", "reward", "details"),
    [
        ("the Lake Onder.", "lake onder", 1.0, "exact_match"),
        ("yes", "Yes", 1.0, "exact_match"),
        ("yes indeed", "yes", 0.0, "low_f1"),
        ("yes", "yes indeed", 0.0, "low_f1"),
        ("no", "yes", 0.0, "low_f1"),
        ("Onder", "Lake Onder", 2 / 3, "f1_score"),
        ("Lake Lake", "Lake Onder", 0.5, "f1_score"),
        ("1 2 3 x x x x x x x", "1 2 3 y y y y y y y", 0.3, "f1_score"),
        ("w " * 29 + "x " * 71, "w " * 29 + "y " * 71, 0.0, "low_f1"),
        ("somewhere else", "Lake Onder", 0.0, "low_f1"),
        ("", "Lake Onder", 0.0, "low_f1"),
        ("", "The The", 0.0, "low_f1"),
        ("the the", "The The", 1.0, "exact_match"),
        ("são tomé", "São Tomé", 1.0, "exact_match"),
        (None, "Lake Onder", 0.0, "not_boxed"),
    ],
)
def test_an_exact_match_earns_1_an_f1_of_3_tenths_itself_and_less_nothing(
    answer, gold, reward, details
):
    graded = grade(answer, [gold])
    assert (graded.reward, graded.details) == (reward, details)


def test_an_f1_below_3_tenths_is_still_told():
    assert f1_score("w " * 29 + "x " * 71, "w " * 29 + "y " * 71) == 0.29
    assert grade("w " * 29 + "x " * 71, ["w " * 29 + "y " * 71]).f1 == 0.29


def test_of_several_gold_answers_the_best_counts():
    assert grade("NYC", ["New York City", "NYC"]).reward == 1.0
    assert grade("York", ["Boston", "New York"]).reward == 2 / 3


# ------------------------------------------------------------------------------------------- the files


def test_both_shapes_of_the_format_give_the_same_question(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([ROW]))
    (tmp_path / "b.jsonl").write_text(json.dumps(HUGGING_FACE) + "\n")
    (first,), (second,) = (read_questions(tmp_path / name) for name in ("a.json", "b.jsonl"))
    assert first == second
    assert first.paragraphs[1] == ("Sile", "The Sile is a river. It reaches Lake Onder.")
    assert (first.id, first.supporting, first.answers) == ("q1", ("Sile", "Onder"), ("Lake Onder",))
    assert first.tags == {"type": "bridge", "level": "easy"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question": " "}, "question must be text, given ' '"),
        ({"answer": None}, "answer must be text or a list of texts, given None"),
        ({"answer": []}, r"HotpotQA's own test file has no answers"),
        ({"context": []}, "context is empty"),
        ({"context": [["Sile", "one text"]]}, "the sentences of 'Sile' must be a list of texts"),
        ({"context": {"title": ["a", "b"], "sentences": [["x"]]}}, "columns of one length"),
        ({"context": None}, "context: expected"),
        ({"supporting_facts": ["Sile"]}, "supporting_facts: expected"),
        ({"_id": "q0"}, "the id 'q0' is that of .*rows.json:1 too"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_by_file_and_line(tmp_path, change, said):
    source = source_of(tmp_path, {**ROW, "_id": "q0"}, {**ROW, **change})
    with pytest.raises(RecipeError, match=rf"rows\.json:2: .*{said}"):
        source.tasks("train")


def test_rows_without_id_or_supporting_facts_are_taken(tmp_path):
    bare = {key: ROW[key] for key in ("question", "context")}
    source = source_of(tmp_path, {**bare, "answer": ["Onder", "Lake Onder"]})
    (task,) = source.tasks("train")
    assert (task.id, task.answer) == ("train/1", ("Onder", "Lake Onder"))
    replies = source.expert(task)
    assert "<search>Which lake does the Sile reach?</search>" in replies[0]
    result = play(source, task, replies)[1][-1]
    assert (result.reward, result.terminated) == (1.0, True)
    assert "support" not in result.scores


def test_a_missing_file_is_refused_at_once_and_the_way_out_is_named():
    with pytest.raises(
        RecipeError, match=r"questions.test = 'no.json': there is no file .*hotpotqa"
    ):
        MultihopQa({"test": "no.json"})
    with pytest.raises(RecipeError, match="without `questions`, kolb's own few are taken"):
        MultihopQa("no.json")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"questions": {"tset": "x"}}, "did you mean 'test'"),
        ({"top_k": 0}, "top_k = 0; it is a number of at least 1"),
        ({"max_steps": 0}, "max_steps = 0; it is a number of at least 1"),
        ({"test_tasks": -1}, "test_tasks = -1; it is a number of at least 0"),
    ],
)
def test_options_that_cannot_work_are_refused(options, said):
    with pytest.raises(RecipeError, match=said):
        MultihopQa(**options)


def test_a_single_file_is_divided_by_its_questions_and_a_question_stays_where_it_is(tmp_path):
    rows = [{**ROW, "_id": f"q{i}", "question": f"Question {i}?"} for i in range(300)]

    def splits(given) -> dict[str, str]:
        file = tmp_path / f"{len(given)}.json"
        file.write_text(json.dumps(given))
        source = MultihopQa(str(file))
        every = {split: source.tasks(split) for split in ("train", "dev", "test")}
        return {t.prompt[-1]["content"]: split for split, ts in every.items() for t in ts}

    whole, later = splits(rows), splits(rows[100:])
    assert len(whole) == 300
    assert [list(whole.values()).count(s) for s in ("train", "dev", "test")] == [235, 37, 28]
    assert later == {q: s for q, s in whole.items() if q in later}


def test_a_split_without_a_file_says_which_option_fills_it(tmp_path):
    source = source_of(tmp_path, ROW)
    with pytest.raises(RecipeError, match=r"no questions for split 'dev': add dev = 'FILE.json'"):
        source.tasks("dev")


def test_the_first_so_many_questions_are_taken(tmp_path):
    rows = [{**ROW, "_id": f"q{i}", "question": f"Question {i}?"} for i in range(5)]
    source = source_of(tmp_path, *rows, train_tasks=2)
    assert [t.id for t in source.tasks("train")] == ["train/q0", "train/q1"]
    assert len(replace(source, train_tasks=0).tasks("train")) == 5


# ------------------------------------------------------------------------------------ the conversation


def test_the_prompt_gives_the_form_and_the_budget_and_the_question_stands_alone(tmp_path):
    source = source_of(tmp_path, ROW)
    (system, user), _ = play(source, source.tasks("train")[0], [])
    assert user == {"role": "user", "content": "Which lake does the Sile reach?"}
    assert "You have 5 replies, the answer included." in system["content"]
    assert system["content"].endswith(FORM)
    assert (
        "You have 1 reply," in replace(source, max_steps=1).tasks("train")[0].prompt[0]["content"]
    )


def test_a_search_shows_the_best_paragraphs_with_number_title_and_score(tmp_path):
    source = source_of(tmp_path, ROW, top_k=2)
    (task,) = source.tasks("train")
    _, [result] = play(source, task, ["Hm.\n<search> the river Sile </search>"])
    first, second = Bm25(["\n".join(p) for p in task.data["paragraphs"]]).top("the river Sile", 2)
    assert shown(result) == (
        f"[1] Sile (score {first[1]:.2f})\nThe Sile is a river. It reaches Lake Onder.\n\n"
        f"[2] Brakken (score {second[1]:.2f})\nThe Brakken are hills.\n\nReplies left: 4"
    )
    assert result.feedback == "The search found 2 paragraphs."
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)


def test_a_reply_with_search_and_box_is_a_search_and_its_first_search_counts():
    assert search_of("<search>a</search> <search>b</search>") == "a"
    assert search_of("<search> </search> <SEARCH>b\nc</SEARCH>") == "b\nc"
    assert search_of("<search>never closed") is None
    source = MultihopQa()
    task = source.tasks("train")[0]
    _, [result] = play(source, task, [f"<search>bridge</search> {source.gold(task)}"])
    assert not result.terminated
    assert "[1]" in shown(result)


def test_a_reply_that_is_neither_is_told_the_form_and_costs_a_turn():
    source = MultihopQa()
    _, [result, nothing] = play(
        source, source.tasks("train")[0], ["Lake Onder, I think.", "<search>zzz</search>"]
    )
    assert shown(result) == (
        f"The reply held neither a search nor a boxed answer. {FORM}\n\nReplies left: 4"
    )
    assert result.feedback == "The reply held neither a search nor a boxed answer."
    assert shown(nothing) == "No paragraph matches that search.\n\nReplies left: 3"


@pytest.mark.parametrize(
    ("answer", "reward", "said"),
    [
        (
            "the lake Onder",
            1.0,
            "CORRECT | reward=1.00 | extracted=the lake Onder | details=exact_",
        ),
        ("Onder", 2 / 3, "PARTLY CORRECT | reward=0.67 | extracted=Onder | details=f1_score"),
        ("Onder Lake", 1.0, "CORRECT | reward=1.00 | extracted=Onder Lake | details=f1_score"),
        ("a pond", 0.0, "INCORRECT | reward=0.00 | extracted=a pond | details=low_f1"),
        ("", 0.0, "INCORRECT | reward=0.00 | extracted= | details=low_f1"),
    ],
)
def test_an_answer_ends_the_attempt_and_the_feedback_says_how_it_went(
    tmp_path, answer, reward, said
):
    source = source_of(tmp_path, ROW)
    replies = ["<search>Sile</search>", f"\\boxed{{{answer}}}", "more"]
    _, results = play(source, source.tasks("train")[0], replies)
    assert len(results) == 2
    last = results[-1]
    assert (last.reward, last.terminated, last.truncated) == (pytest.approx(reward), True, False)
    assert last.feedback.startswith(said)
    assert last.feedback.endswith("searches=1 | replies=2 of 5")
    assert last.scores["support"] == 0.5, "of the two paragraphs one was shown"


def test_no_answer_within_the_budget_is_a_timeout_and_earns_nothing():
    source = MultihopQa(max_steps=2)
    for last in ("<search>river</search>", "Lake Onder", "\\boxed{cut off"):
        _, results = play(source, source.tasks("train")[0], ["<search>lake</search>", last])
        assert len(results) == 2
        assert (results[-1].reward, results[-1].terminated, results[-1].truncated) == (
            0,
            False,
            True,
        )
        assert "TIMEOUT | reward=0.00 | extracted=nothing" in results[-1].feedback


def test_what_a_wrong_attempt_hears_does_not_depend_on_the_gold_answer():
    source = MultihopQa()
    for task in (t for split in ("train", "dev", "test") for t in source.tasks(split)):
        for reply in ("\\boxed{nonsense}", "nothing", "<search>zzz</search>"):
            heard = [r.feedback for r in play(source, task, [reply] * 5)[1]]
            other = replace(task, answer=("something else",))
            assert heard == [r.feedback for r in play(source, other, [reply] * 5)[1]]
            assert len(heard) in (1, 5)


def test_a_fork_searches_on_by_itself():
    source = MultihopQa(max_steps=3)
    task = source.tasks("train")[0]

    async def go():
        world = source.environment(task)
        await world.reset()
        await world.step("<search>bridge</search>")
        twin = await world.fork()
        await twin.step("nothing")
        await twin.step("nothing")
        return await world.step(source.gold(task))

    result = asyncio.run(go())
    assert (result.reward, result.info["replies"], result.info["searches"]) == (1.0, 2, 1)


# ---------------------------------------------------------------------------------------- the fixture


def test_the_fixture_has_fourteen_questions_with_six_paragraphs_each():
    questions = {split: read_questions(Path(FIXTURE[split])) for split in FIXTURE}
    assert {split: len(found) for split, found in questions.items()} == {
        "train": 8,
        "dev": 2,
        "test": 4,
    }
    for question in (q for found in questions.values() for q in found):
        titles = [title for title, _ in question.paragraphs]
        assert len(set(titles)) == 6
        assert len(question.supporting) == 2
        assert set(question.supporting) <= set(titles)
    titles = {s: {t for q in qs for t, _ in q.paragraphs} for s, qs in questions.items()}
    assert not titles["train"] & (titles["dev"] | titles["test"]), "what is tested was never read"


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_expert_reads_both_paragraphs_and_wins_on_every_question_of_the_fixture(split):
    source = MultihopQa(max_steps=3, top_k=2)
    for task in source.tasks(split):
        result = play(source, task, source.expert(task))[1][-1]
        assert (result.reward, result.scores["support"], result.terminated) == (1.0, 1.0, True)


def test_whoever_answers_yes_to_everything_wins_one_question_of_the_eight():
    source = MultihopQa()
    rewards = [play(source, t, ["\\boxed{yes}"])[1][0].reward for t in source.tasks("train")]
    assert sum(filter(None, rewards)) == 1.0


# ------------------------------------------------------------------------------------------- real data


def real(name: str) -> MultihopQa:
    file = DATA / name
    if not file.is_file():
        pytest.skip(f"{file} is not there: set KOLB_DATA to a folder with qa/{name}")
    return MultihopQa({"train": str(file)})


@pytest.mark.parametrize(
    ("name", "both"),
    [("hotpotqa_distractor_dev100.jsonl", 0.72), ("hotpotqa_train100_paragraphs.jsonl", 0.63)],
)
def test_on_hotpotqa_the_question_itself_finds_both_paragraphs_far_above_chance(name, both):
    tasks = real(name).tasks("train")
    assert len(tasks) == 100
    found = chance = 0
    draw = random.Random(0)
    for task in tasks:
        paragraphs = task.data["paragraphs"]
        top = Bm25(["\n".join(p) for p in paragraphs]).top(task.prompt[-1]["content"], 5)
        wanted = set(task.data["supporting"])
        found += wanted <= {paragraphs[place][0] for place, _ in top}
        chance += wanted <= {title for title, _ in draw.sample(paragraphs, min(5, len(paragraphs)))}
    assert found / 100 >= both - 0.03, f"measured {both}"
    assert chance / 100 < 0.4


@pytest.mark.parametrize(
    "name", ["hotpotqa_distractor_dev100.jsonl", "hotpotqa_train100_paragraphs.jsonl"]
)
def test_on_hotpotqa_the_expert_wins_every_question_by_searching_for_the_titles(name):
    source = real(name)
    support = []
    for task in source.tasks("train"):
        result = play(source, task, source.expert(task))[1][-1]
        assert (result.reward, result.terminated) == (1.0, True), task.id
        support.append(result.scores["support"])
    assert sum(support) >= 99.5, "one title of one train question is not found by its own words"


# --------------------------------------------------------------------------------------- ERL, recipes

PAPER = [ROOT / "recipes" / "erl" / f"hotpotqa_{m}.toml" for m in ("olmo3_7b", "qwen3_4b")]
SMOKE = ROOT / "recipes" / "smoke" / "erl_multihop.toml"


@pytest.mark.parametrize("path", PAPER, ids=lambda p: p.stem)
def test_a_hotpotqa_recipe_has_the_numbers_of_the_paper_and_of_its_code(path):
    with pytest.raises(RecipeError, match=r"questions.train = .*hotpot_train_v1.1.json.*hotpotqa"):
        recipe.load(path, ["environments.qa.questions.train=data/none/hotpot_train_v1.1.json"])
    loaded = recipe.load(path, ["environments.qa.questions="])
    (stage,) = loaded.stages
    assert stage.method == replace(METHOD, importance_cap=0.0, prompts=stage.method.prompts)
    assert (stage.tasks_per_step, stage.updates_per_step, stage.steps) == (64, 2, 100)
    assert (stage.source.max_steps, stage.source.top_k, stage.limits.max_turns) == (5, 5, 5)
    assert (stage.sampling.max_tokens, stage.sampling.temperature) == (2048, 0.7)
    spec = stage.evaluation
    assert (spec.every, spec.samples, spec.episodes, stage.source.test_tasks) == (5, 1, 1024, 1024)
    assert (spec.temperature, spec.top_p, spec.top_k) == (0.7, 0.8, 20)
    agent = loaded.policies["agent"]
    assert (agent.optimizer.lr, agent.optimizer.weight_decay, agent.lora) == (1e-6, 0.01, None)


@pytest.mark.parametrize("path", [*PAPER, SMOKE], ids=lambda p: p.stem)
def test_the_reminder_of_a_recipe_is_the_form_that_the_prompt_ends_with(path):
    stage = recipe.load(path, ["environments.qa.questions="]).stages[-1]
    assert stage.method.prompts.reminder == FORM
    assert "game" not in stage.method.prompts.reflector
    assert "<prompt>" in stage.method.prompts.reflector


def test_a_partly_right_answer_is_reflected_upon_and_a_right_one_is_remembered():
    """ERL whole, with a scripted agent: it earns 2/3 at first, and 1 once it is told to be exact."""
    stage = recipe.load(SMOKE).stages[-1]
    method = replace(stage.method, group_size=1)
    task = next(t for t in stage.source.tasks("train") if t.answer == ("Lake Onder",))
    replies = stage.source.expert(task)

    def answer(messages, seed):
        system = messages[0]["content"]
        if system == method.prompts.reflector:
            return "<prompt>Give the whole name.</prompt>"
        said = sum(m["role"] == "assistant" for m in messages)
        if said < 2:
            return replies[said]
        return "\\boxed{Lake Onder}" if system.startswith("Give the whole") else "\\boxed{Onder}"

    sampler = Scripted(answer).open_sampler(ModelSpec())
    live = LiveWorld(
        replace(stage, method=method),
        {"agent": sampler},
        ExperienceLibrary(),
        sampling=SamplingParams(max_tokens=2048),
    )
    (group,) = asyncio.run(method.collect([task], live))
    (episode,) = group.episodes
    assert (episode.outcome, episode.info["retry"]["reward"]) == (pytest.approx(2 / 3), 1.0)
    first, second = (episode.trajectory("solver", name) for name in ("first", "second"))
    assert second.turns[0].messages[0]["content"] == f"Give the whole name.\n\n{FORM}"
    assert second.turns[0].messages[1] == first.turns[0].messages[1]
    record = episode.trajectory("reflector").turns[0].messages[1]["content"]
    for part in (
        "PARTLY CORRECT | reward=0.67 | extracted=Onder",
        "[1] Heron Bridge",
        "\\boxed{Onder}",
    ):
        assert part in record
    assert "Success rate: 0.0000" in record
    update = method.credit([group], None)
    assert [(e.action, e.text) for e in update.edits] == [
        ("add", f"Give the whole name.\n\n{FORM}")
    ]


def test_a_second_attempt_that_is_partly_right_is_distilled_by_its_share_and_not_remembered():
    stage = recipe.load(SMOKE).stages[-1]
    method = stage.method
    assert [method.advantages("distill", [r])[0] for r in (1.0, 2 / 3, 0.0)] == [1.0, 2 / 3, 0.0]
    assert method.remembered([{"reward": 2 / 3, "prompt": "p"}]) is None
