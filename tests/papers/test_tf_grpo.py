"""Training-Free GRPO: gate, calls, proposals, the plan, what may enter the library, and what nobody is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tf_grpo_toys import (
    BARE,
    FAILURE,
    Played,
    Words,
    add,
    as_json,
    delete,
    library_of,
    played,
    update,
    user,
)

from kolb.engines.scripted import ScriptedSampler
from kolb.errors import RecipeError
from kolb.memory.library import ExperienceLibrary
from kolb.memory.proposals import json_list, read_proposals
from kolb.memory.reconciling import as_edits, read_plan
from kolb.methods import tf_grpo
from kolb.methods.tf_grpo import METHOD
from kolb.methods.tf_grpo_edits import is_worse
from kolb.methods.tf_grpo_prompts import lessons_in
from kolb.order import TaskOrder
from kolb.stage import Stage
from kolb.types import Completion, Episode, Group, SamplingParams, Task, Trajectory, Turn

ABC = library_of("a", "b", "c")
MERGE = replace(tf_grpo.PAPER_ERA, lessons_per_group=4)


def alike(tasks: str) -> dict[str, list[float]]:
    """A success and a failure at each task."""
    return {task: [1, 0] for task in tasks}


# --------------------------------------------------------------------------------------------- gate


@pytest.mark.parametrize(
    ("rewards", "ours", "code"),
    [
        ([1, 0, 1, 1, 0], True, True),
        ([1, 1, 1, 1, 1], False, False),
        ([0, 0, 0, 0, 0], False, False),
        ([0.5, 0.5], False, True),
        ([2, 0], True, False),
    ],
)
def test_a_group_teaches_where_its_rewards_differ(
    rewards: list[float], ours: bool, code: bool
) -> None:
    for method, teaches in ((METHOD, ours), (tf_grpo.RELEASED, code)):
        one = played(method, rewards)
        assert one.model.count("lessons") == teaches
        assert one.metrics["groups/compared"] == teaches


@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0, 0], [1, 0, 1]])
def test_without_ground_truth_every_group_is_compared(rewards: list[float]) -> None:
    one = played(tf_grpo.NO_GROUND_TRUTH, rewards)
    assert one.model.count("lessons") == 1
    assert one.texts == ["Lesson of t."]


def test_where_all_groups_are_alike_nobody_is_asked_and_the_library_is_the_very_same() -> None:
    one = played(METHOD, {"t": [1, 1], "u": [0, 0]}, library=ABC)
    assert {name for name, _, _ in one.model.heard} == {""}
    assert one.library is ABC


def test_single_attempts_are_compared_with_nothing_and_still_give_lessons() -> None:
    assert played(tf_grpo.SINGLE, [0]).texts == ["Lesson of t."]
    with pytest.raises(RecipeError, match='set gate = "none"'):
        replace(METHOD, group_size=1)


def tips(worths: Any, *, library: ExperienceLibrary = ABC, **options: Any) -> Played:
    """A step without attempts at tasks of these rewards."""
    return played(tf_grpo.TIPS, worths, library=library, **options)


def test_tips_are_written_without_an_attempt_one_for_each_task_and_reconciled_as_ever() -> None:
    one = tips(alike("tuv"), library=ExperienceLibrary())
    calls = {name: one.model.count(name) for name in ("", "summary", "lessons", "proposals")}
    assert calls == {"": 0, "summary": 0, "lessons": 3, "proposals": 3}
    assert [g.kind for g in one.groups] == [*["comparison"] * 3, "reconciliation"]
    assert one.texts == ["Lesson of t.", "Lesson of u.", "Lesson of v."]
    assert [e.sources for e in one.library.experiences] == [("t@1",), ("u@1",), ("v@1",)]
    assert (one.metrics["groups/compared"], one.metrics["lessons/edits"]) == (3, 3)
    assert "reward/mean" not in one.metrics


def test_whoever_writes_tips_is_shown_nothing_of_the_task() -> None:
    one = tips({"t": [1, 0]}, answer="Napoleon", feedback="It was")
    (asked,) = one.model.prompts("lessons")
    system, _, shown = asked.rpartition("\n\n")
    assert shown == "<attempt>\nNone\n</attempt>"
    assert system.startswith("You give advice to an agent before its first attempt.")
    heard = "\n".join(one.model.prompts())
    assert not any(word in heard for word in ("Napoleon", "It was", "Say a word"))
    seeing = replace(tf_grpo.TIPS, comparer_sees_library=True)
    (asked,) = played(seeing, [1], library=ABC).model.prompts("lessons")
    assert asked.endswith("</attempt>\n\n<library>\n[G0]. a\n[G1]. b\n[G2]. c\n</library>")


def test_a_tip_with_an_answer_in_it_is_refused_as_any_lesson() -> None:
    one = tips({"t": [1]}, answer="Lesson of t")
    assert (one.texts, one.metrics["lessons/with_answer"]) == (["a", "b", "c"], 1)


@pytest.mark.parametrize("change", [{"style": "merge"}, {"held_out": 1}])
def test_tips_have_nothing_to_criticise_and_no_attempts_to_try_a_library_by(
    change: dict[str, Any],
) -> None:
    with pytest.raises(RecipeError, match="group_size = 0 makes no attempts"):
        replace(tf_grpo.TIPS, **change)


@pytest.mark.parametrize(("temperature", "tokens"), [(None, 0), (0.0, 9)])
def test_notes_may_have_a_temperature_and_a_length_of_their_own(
    monkeypatch: pytest.MonkeyPatch, temperature: float | None, tokens: int
) -> None:
    heard: set[tuple[float, int]] = set()
    sample = ScriptedSampler.sample

    async def listening(self: Any, prompt: Any, params: SamplingParams, n: int = 1) -> Any:
        if prompt[0]["content"] != BARE:
            heard.add((params.temperature, params.max_tokens))
        return await sample(self, prompt, params, n)

    monkeypatch.setattr(ScriptedSampler, "sample", listening)
    played(replace(METHOD, note_temperature=temperature, note_tokens=tokens), [1, 0])
    stage = SamplingParams()
    assert heard == {(0.0, 9) if tokens else (stage.temperature, stage.max_tokens)}


def test_an_attempt_without_a_score_is_left_out_and_a_broken_one_drops_its_group() -> None:
    one = played(METHOD, [1, None, 0])
    assert (one.model.count("summary"), one.library.experiences[0].sources) == (2, ("t@1:0,2",))
    assert played(METHOD, [None, None, 1]).model.count("summary") == 0
    broken = played(METHOD, {"t": [1, 0], "u": [1, 0]}, {("", "t", 1): FAILURE})
    assert broken.texts == ["Lesson of u."]
    assert (broken.metrics["groups/dropped"], broken.metrics["errors/sampler"]) == (1, 1)


# -------------------------------------------------------------------------------------------- calls


def test_four_tasks_of_five_attempts_two_of_which_teach_take_so_many_calls() -> None:
    one = played(
        METHOD,
        {"a": [1, 0, 1, 1, 0], "b": [1] * 5, "c": [0] * 5, "d": [0, 0, 0, 0, 1]},
    )
    calls = {name: one.model.count(name) for name in ("", "summary", "lessons", "proposals")}
    assert calls == {"": 20, "summary": 10, "lessons": 2, "proposals": 2}
    assert (one.model.count("plan-1"), one.model.count("plan-2")) == (1, 0)
    assert [(g.kind, len(g.episodes)) for g in one.groups] == [
        *[("attempt", 5)] * 4,
        *[("summary", 5)] * 2,
        *[("comparison", 1)] * 2,
        ("reconciliation", 1),
    ]


def test_a_group_whose_only_success_lost_its_summary_is_dropped_by_the_gate() -> None:
    one = played(
        METHOD, {"t": [1, 0, 0, 0, 0], "u": [0, 1, 1, 0, 0]}, {("summary", "t", 0): FAILURE}
    )
    assert one.model.count("summary") == 10
    assert [task for name, task, _ in one.model.heard if name == "lessons"] == ["u"]
    blank = played(METHOD, [1, 0, 0], {("summary", "t", 1): "  "})
    assert blank.library.experiences[0].sources == ("t@1:0,2",)


def test_without_summaries_the_comparer_reads_the_attempts_themselves() -> None:
    one = played(replace(METHOD, summarises=False), [1, 0])
    assert one.model.count("summary") == 0
    (asked,) = one.model.prompts("lessons")
    assert "Attempt 1 (reward 1):\n## Turn 1\nThe agent: word 0\nFeedback: It was worth 1" in asked
    assert "Attempt 2 (reward 0):\n## Turn 1\nThe agent: word 1\nFeedback: It was worth 0" in asked


def test_every_call_of_a_step_reads_the_library_of_the_step_before() -> None:
    one = played(METHOD, {"t": [1, 0], "u": [1, 0]}, library=library_of("Look first."))
    for name in ("", "proposals", "plan-1"):
        assert all("[G0]. Look first." in text for text in one.model.prompts(name)), name
    assert not any("Look first." in t for n in ("summary", "lessons") for t in one.model.prompts(n))
    seen = replace(METHOD, comparer_sees_library=True)
    (asked,) = played(seen, [1, 0], library=ABC).model.prompts("lessons")
    assert asked.endswith("<library>\n[G0]. a\n[G1]. b\n[G2]. c\n</library>")


def test_epochs_and_batches_of_a_hundred_tasks() -> None:
    def order(tasks: int, batch: int) -> TaskOrder:
        source = Words({f"t{i}": [0, 1] for i in range(tasks)})
        roles = dict.fromkeys(METHOD.roles, "agent")
        return TaskOrder(Stage("s", METHOD, source, 6, roles, tasks_per_step=batch), 0)

    fifty = [[t.id for t in order(100, 50).of(n)] for n in range(6)]
    assert all(len(b) == 50 for b in fifty)
    assert sorted(fifty[4] + fifty[5]) == sorted(fifty[0] + fifty[1]), "step 5 is the third epoch's"
    assert fifty[0] != fifty[2], "the code's shuffle has no effect; ours has"
    rest = [[t.id for t in order(100, 32).of(n)] for n in range(4)]
    assert len({*rest[0], *rest[1], *rest[2]}) == 96
    assert set(rest[3]) & set(rest[0] + rest[1] + rest[2]), "the fourth batch is the next epoch's"
    with pytest.raises(RecipeError, match="20 tasks, fewer than tasks_per_step = 50"):
        order(20, 50)


def test_refill_is_refused() -> None:
    roles = dict.fromkeys(METHOD.roles, "agent")
    with pytest.raises(RecipeError, match="one conclusion from all tasks of a step"):
        Stage("s", METHOD, Words({}), 1, roles, refill=1)


# ------------------------------------------------------------------------------- the plan, by cases


def applied(library: ExperienceLibrary, *plan: Any, **options: Any) -> list[str]:
    known = {e.id: e.sources for e in library.experiences}
    found, _ = read_plan(plan, known, [], merges=False, **options)
    return [e.text for e in library.apply(as_edits(found)).experiences]


CASE = (
    update("G1", "b2"),
    add("d"),
    delete("G0", "a"),
    {"operation": "NONE", "id": None, "content": "x"},
    update("G9", "e"),
    delete("G2"),
)


def test_a_plan_is_applied_in_order_and_a_removal_needs_no_text() -> None:
    assert applied(ABC, *CASE) == ["b2", "d", "e"]
    assert applied(ABC, *CASE, removes_without_text=False) == ["b2", "c", "d", "e"]


@pytest.mark.parametrize(
    ("plan", "left"),
    [
        ((update("G0", "z"), {"content": "y"}), ["z", "y"]),
        ((), []),
    ],
)
def test_an_empty_library_takes_updates_and_bare_contents_as_additions(
    plan: tuple[Any, ...], left: list[str]
) -> None:
    assert applied(ExperienceLibrary(), *plan) == left


def test_of_two_updates_the_last_wins_and_one_after_a_removal_is_an_addition() -> None:
    assert applied(ABC, update("G1", "b2"), update("G1", "b3")) == ["a", "b3", "c"]
    assert applied(ABC, delete("G1"), update("G1", "b2")) == ["a", "c", "b2"]


@pytest.mark.parametrize("said", [as_json(), "no list", '["never closed"'])
def test_an_empty_plan_or_three_that_cannot_be_read_leave_the_library_as_it_is(said: str) -> None:
    one = played(METHOD, [1, 0], {"plan-1": said, "plan-2": said, "plan-3": said}, library=ABC)
    is_list = said == as_json()
    assert one.library is ABC
    assert one.model.count("plan-3") == (not is_list)
    assert one.metrics["lessons/unparsed"] == (not is_list)


def test_a_plan_that_cannot_be_read_is_asked_for_again_and_told_why() -> None:
    one = played(METHOD, [1, 0], {"plan-1": "Well, ADD it."})
    assert one.texts == ["Lesson of t."]
    first, second = one.model.prompts("plan-1")[0], one.model.prompts("plan-2")[0]
    assert second.startswith(first)
    assert "no list that could be read" in second.removeprefix(first)
    assert one.model.count("plan-3") == 0


def test_the_papers_time_merges_candidates_and_never_removes() -> None:
    library = library_of("a", "b")
    operations = [
        {"option": "modify", "experience": "b'", "modified_from": "G1"},
        {"option": "add", "experience": "d"},
        {"option": "modify", "experience": "z", "modified_from": "G7"},
        {"option": "delete", "modified_from": "G0", "experience": "q"},
    ]
    plan = [
        {"option": "modify", "experience": "b2", "modified_from": "G1"},
        {"option": "merge", "experience": "ad", "merged_from": ["G0", "C0", "C9"]},
    ]
    said = {"proposals": as_json(*operations), "plan-1": as_json(*plan)}
    one = played(MERGE, [1, 0], said, library=library)
    assert one.texts == ["b2", "ad"]
    assert [e.sources for e in one.library.experiences] == [("b@0", "t@1:0,1"), ("a@0", "t@1:0,1")]
    assert one.model.count("lessons") == 0, "the comparison proposes by itself"
    (asked,) = one.model.prompts("plan-1")
    assert (
        "<library>\n[G0]. a\n[G1]. b\n  (1) revise: b'\n</library>\n\n<new>\n(2) [C0]. d\n</new>"
        in asked
    )
    assert one.metrics["lessons/unknown_id"] == 2, "G7 and C9"
    assert one.metrics["lessons/unknown_action"] == 1


def test_in_style_merge_what_the_plan_does_not_touch_enters_and_can_be_revised() -> None:
    said = {
        "proposals": as_json(add("d"), add("e"), add("f")),
        "plan-1": as_json(update("C1", "e2")),
    }
    assert played(MERGE, [1, 0], said).texts == ["d", "e2", "f"]
    unread = {**said, **dict.fromkeys(("plan-1", "plan-2", "plan-3"), "no list")}
    assert played(MERGE, [1, 0], unread, library=ABC).library is ABC


def test_groups_propose_against_the_same_library_and_one_plan_reconciles_them() -> None:
    said = {
        ("proposals", "t"): as_json(update("G0", "a by t")),
        ("proposals", "u"): as_json(update("G0", "a by u")),
        ("proposals", "v"): as_json(delete("G1")),
        ("proposals", "w"): as_json(update("G8", "new by w")),
        "plan-1": as_json(update("G0", "a by both"), delete("G1"), add("new by w")),
    }
    one = played(METHOD, alike("tuvw"), said, library=ABC, step=3)
    (asked,) = one.model.prompts("plan-1")
    assert "[G0]. a\n  (1) revise: a by t\n  (2) revise: a by u\n[G1]. b\n  (3) remove:\n" in asked
    assert "<new>\n(4) new by w\n</new>" in asked, "the code loses what names an unknown id"
    assert one.texts == ["a by both", "c", "new by w"]
    assert one.library.version == 2
    assert [e.sources for e in one.library.experiences] == [
        ("a@0", "t@3:0,1", "u@3:0,1"),
        ("c@0",),
        ("w@3:0,1",),
    ]
    assert one.update.edits[1].sources == ("v@3:0,1",), "a removal says who wanted it"


def test_a_lesson_that_cites_nothing_names_every_group_that_may_be_behind_it() -> None:
    said = {"plan-1": as_json(add("One for all."), add("One.", **{"from": [2, 7, "x"]}))}
    one = played(METHOD, {"t": [1, 0], "u": [0, 1]}, said)
    assert [e.sources for e in one.library.experiences] == [("t@1:0,1", "u@1:0,1"), ("u@1:0,1",)]
    assert one.metrics["lessons/unattributed"] == 1


# ------------------------------------------------------------------------------------------ parsing


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('Two things.\n```json\n["a"]\n```\nDone.', ["a"]),
        ('```json\n["a"]\n```\nor\n```json\n["b"]\n```', ["b"]),
        ('["a"]', ["a"]),
        (' ["a"]\n', ["a"]),
        ('It is ["a"]', None),
        ('```\n["a"]\n```', None),
        ('```json\n["a",]\n```', None),
        ('```json\n["a"', None),
        ('```json\n{"operation": "ADD"}\n```', None),
        ("", None),
        ("[" * 100_000, None),
        ("1" * 10_000, None),
    ],
)
def test_a_list_is_the_last_json_block_or_the_whole_answer(answer: str, found: Any) -> None:
    assert json_list(answer) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("<experiences> x </EXPERIENCES>", "x"),
        ("<Experiences>\n1. x\n2. y\n</Experiences>", "1. x\n2. y"),
        ("x", ""),
        ("<experiences> never closed", ""),
    ],
)
def test_lessons_stand_between_tags(answer: str, found: str) -> None:
    assert lessons_in(answer) == found


def test_a_group_that_cannot_be_read_is_asked_once_more_then_left_out_and_others_are_not() -> None:
    said = {
        ("lessons", "t"): "no tags",
        ("proposals", "u"): 'It is [{"operation": "ADD", "content": "u"}]',
        ("proposals-again", "u"): "still none",
        ("proposals", "v"): "none at first",
    }
    one = played(METHOD, alike("tuvw"), said)
    assert one.texts == ["Second thought of v.", "Lesson of w."]
    assert one.model.count("proposals-again") == 2
    assert (one.metrics["lessons/no_lesson"], one.metrics["lessons/unparsed"]) == (1, 1)
    broken = played(METHOD, alike("tu"), {("lessons", "t"): FAILURE})
    assert broken.texts == ["Lesson of u."]


NONSENSE: list[Any] = [
    "ADD",
    None,
    7,
    ["ADD", "x"],
    {"operation": 3, "content": "x"},
    {"operation": "ADD", "content": ["x"]},
    {"operation": "UPDATE", "id": 4, "content": "x"},
    {"operation": "UPDATE", "id": {"G0": 1}, "content": "x"},
    {"operation": "EXPLODE", "id": "G0", "content": "x"},
    {"operation": "MERGE", "ids": ["G0", "G1"], "content": "x"},
    {"operation": "ADD", "content": " "},
    {"operation": "UPDATE", "id": "G0", "content": None},
    {"operation": "DELETE", "id": "G9"},
    {"operation": "delete", "id": " [G1] "},
    {"operation": "add", "content": "half \ud800 a\ncharacter"},
]


def test_nonsense_is_counted_part_by_part_and_the_rest_is_done() -> None:
    found, faults = read_proposals(NONSENSE, ["G0", "G1"])
    assert [(p.action, p.ids, p.text) for p in found] == [
        ("remove", ("G1",), ""),
        ("add", (), "half ? a character"),
    ]
    assert faults == {"malformed": 8, "unknown_action": 2, "empty": 2, "unknown_id": 1}


def test_nonsense_in_every_answer_raises_nothing_and_is_in_the_metrics() -> None:
    said = {"proposals": as_json(*NONSENSE), "plan-1": as_json(*NONSENSE)}
    method = replace(METHOD, lessons_per_group=9)
    one = played(method, [1, 0], said, library=library_of("a", "b"))
    assert one.texts == ["a", "half ? a character"]
    faults = {k: v for k, v in one.metrics.items() if k.startswith("lessons/") and v}
    assert faults == {
        **{"lessons/malformed": 16, "lessons/unknown_action": 4, "lessons/empty": 4},
        **{"lessons/unknown_id": 2, "lessons/proposed": 2, "lessons/edits": 2},
    }


def test_a_group_has_no_more_than_its_share_of_proposals() -> None:
    said = {"proposals": as_json(add("one"), add("two"), add("three"))}
    one = played(METHOD, [1, 0], said)
    assert (one.texts, one.metrics["lessons/too_many"]) == (["one"], 2)
    assert played(replace(METHOD, lessons_per_group=2), [1, 0], said).texts == ["one", "two"]


# -------------------------------------------------------------------- what may not enter the library


def test_an_answer_of_any_task_of_the_step_cannot_enter_the_library() -> None:
    said = {
        ("proposals", "t"): as_json(add("The total is 204.")),
        ("proposals", "u"): as_json(update("G0", "Say napoleon BONAPARTE, always.")),
        ("proposals", "v"): as_json(add("Check 2040 and 204.5 twice.")),
    }
    plan = as_json(*(json_list(said["proposals", task])[0] for task in "tuv"))  # type: ignore[index]
    one = played(
        METHOD,
        alike("tuv"),
        {**said, "plan-1": plan},
        library=ABC,
        answer=["204", {"name": "Napoleon  Bonaparte"}, "a"],
    )
    assert one.texts == ["a", "b", "c", "Check 2040 and 204.5 twice."]
    assert one.metrics["lessons/with_answer"] == 2


def test_a_merge_that_gives_an_answer_away_removes_nothing_either() -> None:
    said = {
        "proposals": as_json(add("d")),
        "plan-1": as_json({"operation": "MERGE", "ids": ["G0", "G1"], "content": "It is 42."}),
    }
    one = played(MERGE, [1, 0], said, library=ABC, answer=42)
    assert one.texts == ["a", "b", "c", "d"]


def test_a_lesson_of_more_than_twice_the_words_is_refused() -> None:
    method = replace(METHOD, max_words=3, lessons_per_group=2)
    plan = as_json(add("one two three four five six"), add("one two three four five six seven"))
    one = played(method, [1, 0], {"plan-1": plan})
    assert one.texts == ["one two three four five six"]
    assert one.metrics["lessons/too_long"] == 1


def test_a_plan_that_does_not_fit_is_consolidated_and_what_still_does_not_fit_is_refused() -> None:
    method = replace(METHOD, max_lessons=3, tries=2)
    worths = {"t": [1, 0], "u": [1, 0]}
    too_much = as_json(add("d"), add("e"), delete("G0"))
    said = {"plan-1": too_much, "plan-2": as_json(update("G0", "a and d"), delete("G1"), add("e"))}
    one = played(method, worths, said, library=ABC)
    assert one.texts == ["a and d", "c", "e"]
    assert "would leave 4 lessons in the library, and at most 3" in one.model.prompts("plan-2")[0]
    stubborn = played(method, worths, {"plan-1": too_much, "plan-2": too_much}, library=ABC)
    assert stubborn.texts == ["b", "c", "d"]
    assert stubborn.metrics["lessons/no_room"] == 1
    method, said = replace(method, max_lessons=1), dict.fromkeys(("plan-1", "plan-2"), too_much)
    full = played(method, worths, said, library=ABC)
    assert full.texts == ["b", "c"], "nothing is added while it is too large"


# ------------------------------------------------------------------------------- what nobody is told


def test_without_ground_truth_no_prompt_depends_on_answer_reward_or_feedback() -> None:
    told = []
    for worths, answer, feedback in (
        ({"t": [1, 0, 0], "u": [0.25, 0.25, 0.25]}, "Napoleon", "Right, for the reason"),
        ({"t": [0, 0.75, 1], "u": [-3, 8, 1]}, "Wellington", "No, since the truth is"),
    ):
        one = played(tf_grpo.NO_GROUND_TRUTH, worths, library=ABC, answer=answer, feedback=feedback)
        told.append(one.model.heard)
        text = "\n".join(one.model.prompts())
        assert not any(word in text for word in (answer, feedback, "0.25", "0.75", "-3"))
        assert "reward [REDACTED]" in text
        assert "<answer>\n[REDACTED]\n</answer>" in text
    assert told[0] == told[1]


def test_with_ground_truth_the_comparer_is_told_answer_rewards_and_feedback() -> None:
    one = played(METHOD, [1, 0.25], answer="Napoleon", feedback="Right, for the reason")
    (asked,) = one.model.prompts("lessons")
    assert "<answer>\nNapoleon\n</answer>" in asked
    assert "Attempt 2 (reward 0.25)" in asked
    assert "Feedback: Right, for the reason 0.25" in one.model.prompts("summary")[1]


def vote(answers: list[str]) -> list[float | None]:
    """The pseudo-rewards of attempts that said ``answers``."""
    method = replace(tf_grpo.VOTE, group_size=len(answers))
    turns = [(Turn((user("q"),), Completion(a)),) for a in answers]
    episodes = [Episode("t", i, (Trajectory("solver", turns=t),), 9.0) for i, t in enumerate(turns)]
    return [a.reward for a in method.attempts(Group(Task("t"), tuple(episodes)))]


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        ([r"So \boxed{7}.", r"\boxed{8} no, \boxed{ 7 }", r"\boxed{8}"], [1, 1, 0]),
        ([r"\boxed{\frac{1}{2}}", r"Thus \boxed{\frac{1}{2}}", "x"], [1, 1, 0]),
        (["First.\nAnswer: Paris.", "answer: paris", "Answer: Rome"], [1, 1, 0]),
        (["I think\nup", "up", "", "left"], [1, 1, 0, 0]),
        (["7", "8", "7", "8"], []),
        (["7", "8", "9"], []),
        (["", "", "7"], []),
    ],
)
def test_a_vote_gives_the_most_frequent_answer_one_and_a_tie_teaches_nothing(
    answers: list[str], rewards: list[float]
) -> None:
    assert vote(answers) == rewards


def test_a_vote_knows_no_truth_either() -> None:
    def run(worths: list[float], answer: str) -> Any:
        said = {("", "t", 0): "It is\nup", ("", "t", 1): "up", ("", "t", 2): "left"}
        return played(tf_grpo.VOTE, worths, said, answer=answer)

    one, other = run([1, 0, 0], "Napoleon"), run([0, 0, 1], "Wellington")
    assert one.model.heard == other.model.heard
    (asked,) = one.model.prompts("lessons")
    assert "Attempt 1 (its answer is the majority's)" in asked
    assert "Attempt 3 (its answer is another)" in asked
    assert "<answer>\n[REDACTED]\n</answer>" in asked


# ---------------------------------------------------------------------------------- where it stands


def test_the_library_stands_in_the_same_place_in_learning_and_in_use() -> None:
    heading = METHOD.prompts.heading
    for method, opening in (
        (METHOD, [f"{BARE}\n\n{heading}\n[G0]. a", "Say a word about t."]),
        (replace(METHOD, site="user"), [BARE, f"{heading}\n[G0]. a\n\nSay a word about t."]),
    ):
        library = library_of("a")
        one = played(method, [1, 0], library=library)
        assert [m["content"] for m in one.model.heard["", "t", 0]] == opening
        assert "<task>\nSay a word about t.\n</task>" in one.model.prompts("lessons")[0]


def test_an_empty_library_leaves_the_prompt_bare() -> None:
    one = played(METHOD, [1, 0])
    assert [m["content"] for m in one.model.heard["", "t", 0]] == [BARE, "Say a word about t."]
    assert "<library>\nNone\n</library>" in one.model.prompts("proposals")[0]


def test_where_there_is_no_system_prompt_the_library_becomes_one() -> None:
    placed = METHOD.place_library((user("q"),), "[G0]. a")
    assert [m["role"] for m in placed] == ["system", "user"]


# ---------------------------------------------------------------------------------------- held out


def test_a_library_that_is_worse_on_the_held_out_tasks_is_refused() -> None:
    method = replace(METHOD, held_out=2)
    worths = {"t": [1, 0], "u": [1, 0], "v": [1, 0]}

    def run(after: dict[str, str]) -> Any:
        return played(method, worths, {("after", task): word for task, word in after.items()})

    worse = run({"u": "word 1", "v": "word 1"})
    assert worse.model.count("lessons") == 1, "held-out tasks are not learnt from"
    assert worse.update.edits == ()
    assert worse.metrics["held_out/gain"] == -0.5
    assert (worse.metrics["held_out/refused"], worse.metrics["lessons/edits"]) == (1, 0)
    better = run({"u": "word 0", "v": "word 0"})
    assert (better.metrics["held_out/gain"], better.texts) == (0.5, ["Lesson of t."])
    noisy = run({"u": "word 1", "v": "word 0"})
    assert (noisy.metrics["held_out/gain"], noisy.texts) == (0.0, ["Lesson of t."])
    (new,) = {t for t in better.model.prompts("after") if "about u" in t}
    assert "[G0]. Lesson of t." in new
    assert not any("Lesson of t." in t for t in better.model.prompts("before"))


def test_the_library_that_is_tried_is_the_one_that_is_kept() -> None:
    answers = {"t": "Napoleon", "u": "Wellington"}
    worths = {"t": [1, 0], "u": [1, 0]}
    said = {"plan-1": as_json(add("Ask Wellington."), add("Look first."))}
    one = played(replace(METHOD, held_out=1), worths, said, answer=answers)
    assert one.texts == ["Look first."]
    assert one.metrics["lessons/with_answer"] == 1
    tried = one.model.prompts("after")
    assert len(tried) == 2
    assert all("[G0]. Look first." in text and "Wellington" not in text for text in tried)


def test_a_library_that_could_not_be_tried_is_refused() -> None:
    method = replace(METHOD, held_out=1)
    one = played(method, {"t": [1, 0], "u": [1, 0]})
    assert one.texts == ["Lesson of t."]
    untried = [g for g in one.update.groups if g.kind not in ("before", "after")]
    found = method.credit(untried, None)
    assert found.edits == ()
    assert found.metrics["held_out/refused"] == 1
    assert "held_out/gain" not in found.metrics


def test_within_one_standard_error_a_loss_is_noise() -> None:
    assert is_worse([-0.5])
    assert is_worse([-0.5, -0.5])
    assert not is_worse([-1.0, 0.5])  # mean -0.25, error 0.75
    assert is_worse([-1.0, -0.2, 0.1, -0.5])  # mean -0.4, error 0.23
    assert not is_worse([])
    assert not is_worse([0.0, 0.0])


def test_nothing_is_tried_where_nothing_would_change() -> None:
    one = played(replace(METHOD, held_out=1), {"t": [1, 1], "u": [1, 0]})
    assert one.model.count("before") == one.model.count("after") == 0
    with pytest.raises(RecipeError, match="held_out = 1 of 1 tasks in a step"):
        played(replace(METHOD, held_out=1), [1, 0])
    with pytest.raises(RecipeError, match="held_out = 1 compares rewards"):
        replace(tf_grpo.VOTE, held_out=1)


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"judged_by": "nobodi"}, "did you mean 'nobody'"),
        ({"gate": "std"}, "gate = 'std'"),
        ({"style": "x"}, "style = 'x'"),
        ({"site": "usr"}, "did you mean 'user'"),
        ({"judged_by": "vote", "group_size": 2}, "a vote takes 3 or more attempts"),
        ({"max_lessons": 0}, "max_lessons = 0"),
        ({"tries": 0}, "tries = 0"),
        ({"group_size": -1}, "group_size = -1"),
        ({"note_temperature": -0.5}, "note_temperature = -0.5"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        replace(METHOD, **change)


def test_the_numbers_are_the_papers() -> None:
    assert (METHOD.group_size, METHOD.lessons_per_group, METHOD.max_words) == (5, 1, 32)
    assert (tf_grpo.WEB.group_size, tf_grpo.WEB.lessons_per_group) == (3, 2)


def test_the_prompts_say_the_limits_and_no_brace_is_left() -> None:
    method = replace(METHOD, lessons_per_group=3, max_words=21, max_lessons=17)
    one = played(method, [1, 0])
    assert "3 at most" in one.model.prompts("lessons")[0]
    for name in ("lessons", "proposals", "plan-1"):
        assert "at most 21 words" in one.model.prompts(name)[0]
    assert "At most 17 lessons" in one.model.prompts("plan-1")[0]
    merged = played(replace(MERGE, max_lessons=17), [1, 0], {"proposals": as_json(add("d"))})
    for text in (*one.model.prompts(), *merged.model.prompts()):
        for name in ("agent", "wanted", "lessons", "words", "most", "size"):
            assert f"{{{name}}}" not in text


# ------------------------------------------------------------------------------ sameness, no weights


def test_the_order_in_which_answers_arrive_changes_nothing() -> None:
    worths = {name: [1, 0, 0.5] for name in "tuvwx"}
    runs = [played(METHOD, worths, library=ABC, shuffle=s) for s in (None, 1, 2, 3)]
    assert len({one.library.to_json() for one in runs}) == 1
    assert all(one.model.heard == runs[0].model.heard for one in runs)
    orders = {tuple(one.model.heard) for one in runs}
    assert len(orders) > 1, "the answers must have come in different orders"


def test_the_metrics_of_a_step_that_taught() -> None:
    one = played(METHOD, {"t": [1, 0], "u": [1, 1]})
    metrics = one.metrics
    assert (metrics["reward/mean"], metrics["groups/total"], metrics["groups/dead"]) == (0.75, 2, 1)
    assert (metrics["groups/compared"], metrics["lessons/proposed"]) == (1, 1)
    assert one.update.examples == ()


# --------------------------------------------------------------------------------------- in words


def test_a_step_that_teaches_nothing_says_why() -> None:
    mixed, same = {"t": [1, 0]}, {"t": [1, 1]}
    assert METHOD.remark(played(METHOD, mixed).metrics) == ""
    assert "no group was compared" in METHOD.remark(played(METHOD, same).metrics)
    silent = played(METHOD, mixed, {"lessons": "Both were fine."})
    assert "1 comparisons changed nothing in the library. Left out: no_lesson 1" in METHOD.remark(
        silent.metrics
    )
    known = played(METHOD, mixed, {"proposals": as_json({"operation": "NONE"})})
    assert METHOD.remark(known.metrics) == "", "it is known already"
