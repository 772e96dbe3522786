"""ERL: the cycle, its rows and advantages, the memory, and what the reflector is shown, by worked numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from erl_toys import BARE, Looks, Played, played, rules, text, user
from hypothesis import given, settings
from hypothesis import strategies as st

from kolb import recipe
from kolb.engines.base import ModelSpec
from kolb.engines.scripted import Scripted
from kolb.envs.grid_text import GridText
from kolb.errors import RecipeError
from kolb.evaluate import evaluate
from kolb.loop import run
from kolb.memory.library import ExperienceLibrary
from kolb.methods import erl
from kolb.methods.erl import METHOD, SEGMENTS, Erl
from kolb.methods.grpo import Grpo
from kolb.runs.directory import RunDirectory
from kolb.stage import CheckpointSpec, Evaluation, PolicySpec, Recipe, Stage
from kolb.terms.base import TokenStats, coefficients
from kolb.types import Edit, Episode, Failure, Group, Method, SamplingParams, Status, Task
from kolb.world import LiveWorld

T0 = "train-0"


def segments(one: Played) -> dict[str, int]:
    return {s: sum(e.sequence.endswith(s) for e in one.update.examples) for s in SEGMENTS}


# ------------------------------------------------------------------------------- rows and advantages


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ([1, 1, 0, 0], [0.866, 0.866, -0.866, -0.866]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([1, 1, 1, 1], [0, 0, 0, 0]),
        ([1], [1]),
        ([0], [0]),
    ],
)
@pytest.mark.parametrize("segment", ["first", "reflect", "second"])
def test_advantages_are_the_rewards_standardised_by_the_sample_deviation(
    segment: str, rewards: list[float], expected: list[float]
) -> None:
    assert METHOD.advantages(segment, rewards) == pytest.approx(expected, abs=1e-3)


def test_three_failures_are_tried_again_and_each_segment_is_compared_within_itself() -> None:
    one = played(METHOD, [1, 0, 0, 0], [-9, 1, 0, 0])
    assert segments(one) == {"first": 4, "reflect": 3, "second": 3, "distill": 3}
    assert one.advantages == {
        f"{T0} first": [1.5, -0.5, -0.5, -0.5],
        f"{T0} reflect": [1.1547, -0.5773, -0.5773],
        f"{T0} second": [1.1547, -0.5773, -0.5773],
        f"{T0} distill": [1.0, 0.0, 0.0],
    }
    (memory,) = one.library.experiences
    assert (memory.text, memory.sources) == (rules(T0, 1), (f"{T0}@1#0",))


@pytest.mark.parametrize(
    ("mode", "weights"),
    [("reward", [1, 0.5, 0, 0]), ("indicator", [1, 1, 0, 0]), ("success", [1, 0, 0, 0])],
)
def test_a_half_right_second_attempt_is_distilled_by_its_weight_and_not_remembered(
    mode: Any, weights: list[float]
) -> None:
    one = played(replace(METHOD, distill_weight=mode), [0.5, 0, 0.99, 0], [1, 0.5, 0, 0])
    assert one.advantages[f"{T0} second"] == pytest.approx(
        [1.3056, 0.2611, -0.7833, -0.7833], abs=1e-3
    )
    assert one.advantages[f"{T0} reflect"] == one.advantages[f"{T0} second"]
    assert one.advantages[f"{T0} distill"] == weights
    assert [e.text for e in one.library.experiences] == [rules(T0, 0)]


def test_a_negative_reward_is_never_distilled_and_lambda_scales_what_is() -> None:
    one = played(replace(METHOD, distill_coefficient=0.25), [0, 0], [-1, 1])
    assert one.advantages[f"{T0} distill"] == [0.0, 0.25]


def test_where_all_first_attempts_succeed_nothing_else_happens() -> None:
    one = played(METHOD, [1, 1, 1, 1])
    assert segments(one) == {"first": 4, "reflect": 0, "second": 0, "distill": 0}
    assert one.advantages == {f"{T0} first": [0.0] * 4}
    assert {name for name, _, _ in one.actor.heard} == {"first"}
    assert one.update.edits == ()
    assert (one.update.metrics["retries/total"], one.update.metrics["groups/dead"]) == (0, 1)


def test_where_every_attempt_fails_there_are_sixteen_rows_worth_nothing() -> None:
    lessons = ExperienceLibrary().apply([Edit("add", "Kept.", sources=("train-9@1#0",))])
    one = played(METHOD, [0, 0, 0, 0], [0, 0, 0, 0], library=lessons)
    assert segments(one) == dict.fromkeys(SEGMENTS, 4)
    assert one.advantages == {f"{T0} {s}": [0.0] * 4 for s in SEGMENTS}
    assert one.library is lessons


REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=3, max_size=3)


@settings(max_examples=12, deadline=None)
@given(REWARDS, REWARDS, REWARDS, REWARDS)
def test_other_tasks_and_second_attempts_change_nothing_that_is_not_theirs(
    own: list[float], own_second: list[float], other: list[float], other_second: list[float]
) -> None:
    alone = played(METHOD, own, own_second).advantages
    worse = played(METHOD, own, [0, 0, 0]).advantages
    beside = played(
        METHOD, {T0: own, "train-1": other}, {T0: own_second, "train-1": other_second}
    ).advantages
    assert {k: v for k, v in beside.items() if k.startswith(T0)} == alone
    assert worse[f"{T0} first"] == alone[f"{T0} first"]


def test_with_only_first_attempts_it_is_grpo_to_the_last_row() -> None:
    one = played(erl.RLVR, [1, 0, 0.5, 0])
    other = Grpo(group_size=4).credit(one.groups, None)
    assert erl.RLVR.group_size == 10
    assert {name for name, _, _ in one.actor.heard} == {"first"}
    for mine, theirs in zip(one.update.examples, other.examples, strict=True):
        for what in ("prompt_ids", "target_ids", "advantages", "sampler_logprobs"):
            np.testing.assert_array_equal(getattr(mine, what), getattr(theirs, what))


def test_a_broken_cycle_drops_its_group_and_an_unscored_attempt_its_own_rows_only() -> None:
    one = played(METHOD, [None, 0, 0, 1], [0, None, 1, 0])
    assert segments(one) == {"first": 3, "reflect": 1, "second": 1, "distill": 1}
    assert one.advantages[f"{T0} second"] == [1.0]
    broken = Episode(T0, 4, status=Status.TIMEOUT, failure=Failure("deadline", "late"))
    (group,) = one.groups
    update = METHOD.credit([Group(group.task, (*group.episodes, broken))], None)
    assert (update.examples, update.edits) == ((), ())
    assert (update.metrics["groups/dropped"], update.metrics["retries/total"]) == (1, 0)


def test_a_group_is_dead_only_where_no_segment_teaches() -> None:
    one = played(
        METHOD,
        {T0: [0, 0, 0, 0], "train-1": [0, 0, 0, 0]},
        {T0: [0, 0, 0, 1], "train-1": [0, 0, 0, 0]},
    )
    metrics = one.update.metrics
    assert metrics["groups/dead"] == 1
    assert metrics["reward/mean"] == 0, "an episode is worth what its first attempt was"
    assert (metrics["retries/total"], metrics["retries/reward"]) == (8, 0.125)
    assert (metrics["retries/success"], metrics["retries/parsed"]) == (0.125, 1)
    assert metrics["episodes/turns"] == 2 + 1 + 2, (
        "first, reflection, second; told again counts not"
    )


# ------------------------------------------------------------------------------------- contexts, masks


def test_a_distilled_row_is_the_second_attempt_on_the_bare_prompt_byte_for_byte() -> None:
    one = played(METHOD, [0], [1])
    first, second, distill = (one.row(s) for s in ("first", "second", "distill"))
    assert distill.prompt_ids.tobytes() == first.prompt_ids.tobytes()
    assert distill.target_ids.tobytes() == second.target_ids.tobytes()
    assert distill.weights["policy"].tobytes() == second.weights["policy"].tobytes()
    assert BARE in text(distill.prompt_ids)
    assert rules(T0, 0) in text(second.prompt_ids)
    assert BARE not in text(second.prompt_ids), "the reflection replaces the prompt"
    shown = text(np.concatenate([distill.prompt_ids, distill.target_ids]))
    assert not any(word in shown for word in ("rules", "try 0", "The rules of"))
    assert distill.sampler_logprobs is None, "nobody sampled it there: no correction for the prompt"
    assert second.sampler_logprobs is not None


@pytest.mark.parametrize("segment", ["first", "second", "distill"])
def test_tokens_of_the_environment_carry_no_weight(segment: str) -> None:
    row = played(METHOD, [0], [1]).row(segment)
    learnt = text(row.target_ids[row.weights["policy"] > 0])
    worth = "first 0, worth 0" if segment == "first" else "second 0, worth 1"
    assert learnt == f"{segment.replace('distill', 'second')} 0 looks\ue001{worth}\ue001"
    assert "Second look" in text(row.target_ids)


def test_a_reflection_row_is_the_raw_text_with_its_tags() -> None:
    row = played(METHOD, [0], [1]).row("reflect")
    said = f"Let me see.\n<prompt>\n{rules(T0, 0)}\n</prompt>\nDone.\ue001"
    assert text(row.target_ids) == said
    assert row.weights["policy"].all()


def test_where_only_the_last_messages_are_shown_every_turn_is_distilled_on_the_bare_prompt() -> (
    None
):
    one = played(METHOD, [0], [1], history="last")
    for segment in ("first", "distill"):
        rows = [e for e in one.update.examples if e.sequence.endswith(segment)]
        assert [text(e.prompt_ids).count(BARE) for e in rows] == [1, 1]
        assert ["Second look" in text(e.prompt_ids) for e in rows] == [False, True]
        assert not any("rules" in text(e.prompt_ids) for e in rows)
    first, distill = (
        [e for e in one.update.examples if e.sequence.endswith(s)] for s in ("first", "distill")
    )
    for a, b in zip(first, distill, strict=True):
        assert a.prompt_ids.tobytes() == b.prompt_ids.tobytes()
    weights = coefficients(METHOD.terms[0], one.update.examples)
    assert {round(float(w.max()), 6) for w in weights} == {0.25}, (
        "four rows, of several segments or not"
    )


def test_the_second_attempt_starts_the_same_task_anew() -> None:
    one = played(METHOD, [0], [1])
    first, second = (one.groups[0].episodes[0].trajectory("solver", n) for n in ("first", "second"))
    assert (
        first.turns[0].messages[1:]
        == second.turns[0].messages[1:]
        == (user(f"First look at {T0}."),)
    )


def test_no_memory_reaches_a_first_attempt_or_an_evaluation() -> None:
    lessons = ExperienceLibrary().apply([Edit("add", "Walls are E.", sources=("train-2@4#0",))])
    contexts = set()
    for library in (ExperienceLibrary(), lessons):
        one = played(METHOD, [0], [1], library=library)
        contexts |= {one.row("first").prompt_ids.tobytes(), one.row("distill").prompt_ids.tobytes()}
        sampler = Scripted(lambda messages, seed: "worth 1").open_sampler(ModelSpec())
        spec = Evaluation(split="train", episodes=0)
        result = asyncio.run(evaluate(one.live.stage, spec, {"agent": sampler}, library))
        (turn, _) = result.groups[0].episodes[0].trajectory("solver").turns
        contexts.add(turn.context_ids.tobytes())
    assert len(contexts) == 1


# ---------------------------------------------------------------------------- reflection and memory


def system_of(one: Played, name: str, index: int = 0, task: str = T0) -> str:
    return one.actor.heard[name, task, index][0][0]["content"]


def record_of(one: Played, index: int = 0, task: str = T0) -> str:
    _, record = one.actor.heard["reflect", task, index][0]
    return record["content"]


def test_the_reflector_sees_belief_numbers_turns_and_feedback_in_this_order() -> None:
    record = record_of(played(METHOD, [0.25], [1]))
    parts = [
        BARE,
        "Mean reward: 0.2500\nSuccess rate: 0.0000\nAttempts: 1\n",
        f"## Turn 1\nFirst look at {T0}.\n\nThe agent: first 0 looks\nOutcome: It goes on.",
        f"## Turn 2\nSecond look at {T0}.\n\nThe agent: first 0, worth 0.25\nOutcome: It was worth 0.25.",
        "Total reward: 0.2500",
        "one block in prompt tags",
    ]
    places = [record.index(part) for part in parts]
    assert places == sorted(places)
    assert record.count(BARE) == 1
    assert "<prompt>" not in record  # a model that echoes the request must not seem to answer it


def test_the_memory_is_what_the_reflector_believed_so_far_and_stands_nowhere_else() -> None:
    lessons = ExperienceLibrary().apply(
        [
            Edit("add", "Walls are E.", sources=("train-2@4#0",)),
            Edit("add", "Foreign.", sources=("x@1",)),
        ]
    )
    one = played(METHOD, [0, 0], [0, 1], library=lessons)
    for index in (0, 1):
        assert "Walls are E." in record_of(one, index)
        assert BARE not in record_of(one, index)
        assert system_of(one, "second", index) == rules(T0, index)
    assert [(e.text, e.sources) for e in one.library.experiences] == [
        ("Foreign.", ("x@1",)),
        (rules(T0, 1), (f"{T0}@1#0",)),
    ]


@pytest.mark.parametrize(
    "said", ["no tags at all", "<prompt>never closed", "<prompt> \n </prompt>"]
)
def test_a_reflection_without_a_prompt_falls_back_on_what_was_believed(said: str) -> None:
    lessons = ExperienceLibrary().apply([Edit("add", "Walls are E.", sources=("train-2@4#0",))])
    for library, belief in ((ExperienceLibrary(), BARE), (lessons, "Walls are E.")):
        one = played(METHOD, [0], [1], library=library, reflections={(T0, 0): said})
        assert system_of(one, "second") == belief
        assert one.advantages[f"{T0} reflect"] == [1.0], (
            "the row is there, with the second's reward"
        )
        assert one.update.metrics["retries/parsed"] == 0


def test_the_first_of_several_prompts_counts() -> None:
    said = "<prompt>one</prompt> or <prompt>two</prompt>"
    assert system_of(played(METHOD, [0], [1], reflections={(T0, 0): said}), "second") == "one"


def test_the_reminder_is_added_once_and_only_where_it_is_missing() -> None:
    method = replace(METHOD, prompts=replace(METHOD.prompts, reminder="Answer in one line."))
    one = played(method, [0, 0], [0, 1], reflections={(T0, 0): "no tags"})
    assert system_of(one, "second", 0) == BARE
    assert system_of(one, "second", 1) == f"{rules(T0, 1)}\n\nAnswer in one line."
    assert one.library.experiences[0].text == f"{rules(T0, 1)}\n\nAnswer in one line."


def test_one_memory_is_frozen_during_a_step_and_the_lowest_success_is_kept() -> None:
    one = played(
        METHOD,
        {"train-1": [0, 0, 0, 1], T0: [0, 0, 0, 0]},
        {"train-1": [1, 1, 1, 0], T0: [0, 0, 1, 1]},
    )
    assert all(BARE in record_of(one, i, t) for t in (T0, "train-1") for i in range(3))
    assert [e.text for e in one.library.experiences] == [rules(T0, 2)]
    later = played(METHOD, [0], [1], library=one.library, step=2)
    assert rules(T0, 2) in record_of(later)
    (memory,) = later.library.experiences
    assert (memory.id, memory.text, memory.sources) == ("G1", rules(T0, 0), (f"{T0}@2#0",))


def test_the_best_memory_is_the_text_that_gained_most_over_all_its_attempts() -> None:
    lucky, sound = "<prompt>lucky</prompt>", "<prompt>sound</prompt>"
    reflections = {(T0, 0): lucky, (T0, 1): lucky, (T0, 2): sound, (T0, 3): sound}
    method = replace(METHOD, memory_rule="best")
    one = played(method, [0] * 4, [1, 0, 1, 1], reflections=reflections)
    assert [e.text for e in one.library.experiences] == ["sound"]
    assert [
        e.text
        for e in played(METHOD, [0] * 4, [1, 0, 1, 1], reflections=reflections).library.experiences
    ] == ["lucky"]
    tie = played(method, [0] * 4, [1, 1, 1, 1], reflections=reflections)
    assert [e.text for e in tie.library.experiences] == ["lucky"]


def test_several_memories_take_turns_and_are_written_apart() -> None:
    method = replace(METHOD, memory_slots=3)
    one = played(method, {T0: [0, 0], "train-1": [0, 0]}, {T0: [1, 1], "train-1": [0, 1]})
    by_slot = {e.sources[0].split("#")[1]: e.text for e in one.library.experiences}
    assert by_slot == {"0": rules(T0, 0), "1": rules(T0, 1)}, "the fourth cycle is slot 0's second"
    later = played(
        method,
        {T0: [0, 0], "train-1": [0, 0]},
        {T0: [0, 0], "train-1": [0, 0]},
        library=one.library,
        step=2,
    )
    shown = [record_of(later, i, t) for t in (T0, "train-1") for i in range(2)]
    # Cycles 4 to 7 have slots 1, 2, 0, 1.
    assert [rules(T0, 1) in s for s in shown] == [True, False, False, True]
    assert [rules(T0, 0) in s for s in shown] == [False, False, True, False]
    assert BARE in shown[1]


# ----------------------------------------------------------------------------------------- switches


def test_without_memory_the_bare_prompt_is_always_shown_and_nothing_is_written() -> None:
    lessons = ExperienceLibrary().apply([Edit("add", "Walls are E.", sources=("train-2@4#0",))])
    one = played(erl.NO_MEMORY, [0, 0, 0, 0], [1, 1, 1, 1], library=lessons)
    assert all(BARE in record_of(one, i) and "Walls" not in record_of(one, i) for i in range(4))
    assert one.update.edits == ()


def test_without_reflection_the_second_prompt_holds_the_first_attempt_and_nobody_reflects() -> None:
    one = played(erl.NO_REFLECTION, [0, 0, 1, 1], [1, 0, 0, 0])
    assert segments(one) == {"first": 4, "reflect": 0, "second": 2, "distill": 2}
    assert not any(name == "reflect" for name, _, _ in one.actor.heard)
    assert one.update.edits == ()
    system = system_of(one, "second", 1)
    assert system.startswith(BARE)
    for part in ("first 1 looks", "first 1, worth 0", "It goes on.", f"Second look at {T0}."):
        assert part in system
    assert "Walls" not in system
    assert one.row("distill", 0).prompt_ids.tobytes() == one.row("first", 0).prompt_ids.tobytes()
    assert "retries/parsed" not in one.update.metrics


def test_without_the_gate_successes_are_reflected_upon_too() -> None:
    one = played(erl.NO_GATE, [1, 0, 1, 0], [1, 1, 0, 0])
    assert segments(one) == dict.fromkeys(SEGMENTS, 4)
    assert "Success rate: 1.0000" in record_of(one, 0)


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        (erl.NO_DISTILL, {"first": 4, "reflect": 3, "second": 3, "distill": 0}),
        (erl.REFLECT_NOT_TRAINED, {"first": 4, "reflect": 0, "second": 3, "distill": 3}),
        (erl.DISTILL_ONLY, {"first": 0, "reflect": 0, "second": 0, "distill": 3}),
    ],
)
def test_a_segment_that_is_not_learnt_from_is_still_played(
    method: Erl, kept: dict[str, int]
) -> None:
    one = played(method, [1, 0, 0, 0], [0, 1, 0, 0])
    assert segments(one) == kept
    assert len({k for k in one.actor.heard if k[0] in ("reflect", "second")}) == 6
    assert [e.text for e in one.library.experiences] == [rules(T0, 1)]


def test_tau_moves_the_gate_and_the_memory() -> None:
    one = played(replace(METHOD, threshold=0.5), [0.5, 0.4, 0, 0], [0, 0.5, 0.4, 0])
    assert segments(one)["second"] == 3
    assert [e.text for e in one.library.experiences] == [rules(T0, 1)]


def test_reflections_have_a_limit_of_their_own() -> None:
    one = played(replace(METHOD, reflection_tokens=30), [0], [1])
    assert text(one.row("reflect").target_ids) == f"Let me see.\n<prompt>\n{rules(T0, 0)}"[:30]
    assert system_of(one, "second") == BARE
    assert (
        len(played(replace(METHOD, reflection_tokens=0), [0], [1]).row("reflect").target_ids) > 30
    )


def test_a_recipe_may_write_the_record_its_own_way() -> None:
    short = {"record": "{belief}\n{turns}", "turn": "{observation}\n{reply}\n{feedback} {json}"}
    prompts = replace(METHOD.prompts, **short, shown_turns=1, shown_reply="last_line")
    one = played(replace(METHOD, prompts=prompts), [0], [1])
    expected = f"{BARE}\nSecond look at {T0}.\nfirst 0, worth 0\nIt was worth 0. {{json}}"
    assert record_of(one) == expected
    assert prompts._shown("because\n\n```Up```\n") == "```Up```"
    assert prompts._shown("  ") == ""
    assert erl.fill("{a}{b}", a="{b}", b="x") == "{b}x", "what is filled in is not read again"


def test_the_presets_say_where_paper_and_code_differ() -> None:
    assert (METHOD.distill_weight, erl.PAPER.distill_weight) == ("reward", "indicator")
    assert (METHOD.memory_slots, erl.RELEASED.memory_slots) == (1, 1024)
    assert (METHOD.group_size, METHOD.threshold, METHOD.kl) == (4, 1.0, 0.001)
    assert isinstance(METHOD, Method)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"group_size": 0}, "group_size = 0"),
        ({"memory_slots": -1}, "memory_slots = -1"),
        ({"learns_from": ("frist",)}, "learns_from has 'frist'; did you mean 'first'"),
        ({"distill_weight": "rewards"}, "distill_weight has 'rewards'; did you mean 'reward'"),
        ({"memory_rule": "newest"}, "memory_rule has 'newest'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        replace(METHOD, **wrong)


# ------------------------------------------------------------------------------------------- terms


def stats(logprobs: list[float], advantage: float, **others: list[float]) -> TokenStats:
    current = torch.tensor(logprobs, requires_grad=True)
    zeros = torch.zeros(len(logprobs))
    return TokenStats(
        logprobs=current,
        old_logprobs=zeros,
        sampler_logprobs=zeros,
        advantages=torch.full_like(zeros, advantage),
        coefficients=torch.ones_like(zeros),
        example=torch.zeros(len(logprobs), dtype=torch.long),
        extras={name: torch.tensor(values) for name, values in others.items()},
    )


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "slope"),
    [
        (1, 1.5, -1.28, 0),
        (1, 0.5, -0.5, -0.5),
        (-1, 0.5, 0.8, 0),
        (-1, 5, 3.0, 0),
        (-1, 2, 2.0, 2.0),
    ],
)
def test_the_clip_is_asymmetric_and_dual(
    advantage: float, ratio: float, loss: float, slope: float
) -> None:
    seen = stats([float(np.log(ratio))], advantage)
    result = METHOD.terms[0](seen)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(loss, abs=1e-5)
    assert seen.logprobs.grad is not None
    assert seen.logprobs.grad.item() == pytest.approx(slope, abs=1e-5)


def test_the_kl_is_k3_times_a_thousandth() -> None:
    for distance, expected in ((0.0, 0.0), (np.log(2), 0.3069), (-3.0, 2.0498)):
        loss = METHOD.terms[1](stats([0.0], 0, ref_logprobs=[float(distance)])).loss
        assert loss.item() / 0.001 == pytest.approx(expected, abs=1e-3)
    assert len(replace(METHOD, kl=0.0).terms) == 1


def test_every_row_of_every_segment_counts_one_in_the_mean_of_token_sums() -> None:
    one = played(METHOD, [1, 0, 0, 0], [0, 1, 0, 0])
    for term in METHOD.terms:
        for example, weights in zip(
            one.update.examples, coefficients(term, one.update.examples), strict=True
        ):
            np.testing.assert_allclose(weights, example.weights["policy"] / 13)


# ---------------------------------------------------------------------------------- runs and recipes


def finds_out(messages: Any, seed: int) -> str:
    """Never succeeds on the bare prompt, sometimes on another; every reflection is a different one."""
    system, last = messages[0]["content"], messages[-1]["content"]
    if system == METHOD.prompts.reflector:
        return f"<prompt>Rule {seed % 1000}.</prompt>"
    return "I look" if last.startswith("First") else f"worth {int('Rule' in system and seed % 2)}"


def loop_recipe(steps: int) -> Recipe:
    roles = {"solver": "agent", "reflector": "agent"}
    only = Stage("rl", METHOD, Looks(), steps, roles, ("agent",), tasks_per_step=2)
    policies = {"agent": PolicySpec(ModelSpec(base="none"))}
    return Recipe("erl", policies, (only,), checkpoints=CheckpointSpec(every=1))


def test_a_run_remembers_from_step_to_step_and_a_resumed_one_remembers_the_same(
    tmp_path: Path,
) -> None:
    whole, halves = Scripted(finds_out), Scripted(finds_out)
    expected = run(loop_recipe(4), tmp_path / "whole", engine=whole)
    run(loop_recipe(2), tmp_path / "halves", engine=halves)
    result = run(loop_recipe(4), tmp_path / "halves", engine=halves, resume=True)
    assert result.library == expected.library
    assert whole.learners["agent"].state == halves.learners["agent"].state
    recorded = RunDirectory.open(tmp_path / "halves")
    believed, changes = BARE, 0
    for step in (1, 2, 3, 4):
        groups = recorded.episodes(step)
        for episode in (e for g in groups for e in g.episodes):
            reflection = episode.trajectory("reflector")
            assert believed in reflection.turns[0].messages[1]["content"]
            assert episode.outcome == 0.0
        if edits := METHOD.edits(groups):
            believed, changes = edits[-1].text, changes + 1
    assert [e.text for e in result.library.experiences] == [believed]
    assert changes == 3, "in the third step nothing succeeded, and the memory stayed"


@pytest.mark.parametrize("game", ["frozenlake", "sokoban"])
def test_on_a_grid_the_rules_of_the_game_reach_the_reflector_by_feedback_alone(game: str) -> None:
    source = GridText(game=game, train_tasks=1, sizes=(4,) if game == "frozenlake" else (6,))
    (task,) = source.tasks("train")
    replies = source.expert(task)

    def answer(messages: Any, seed: int) -> str:
        if messages[0]["content"] == METHOD.prompts.reflector:
            return "<prompt>Now I know.</prompt>"
        said = sum(m["role"] == "assistant" for m in messages)
        return replies[said] if messages[0]["content"] == "Now I know." else "No idea.\n```Jump```"

    prompts = replace(METHOD.prompts, shown_reply="last_line")
    method = replace(METHOD, prompts=prompts, group_size=1)
    only = Stage("rl", method, source, 1, {"solver": "agent", "reflector": "agent"}, ("agent",))
    sampler = Scripted(answer).open_sampler(ModelSpec())
    live = LiveWorld(
        only, {"agent": sampler}, ExperienceLibrary(), sampling=SamplingParams(max_tokens=2048)
    )
    (group,) = asyncio.run(method.collect([task], live))
    (episode,) = group.episodes
    assert (episode.outcome, episode.info["retry"]["reward"]) == (0.0, 1.0)

    first, second = (episode.trajectory("solver", name) for name in ("first", "second"))
    assert first.turns[0].messages[1] == second.turns[0].messages[1], (
        "the same board, before any move"
    )
    record = episode.trajectory("reflector").turns[0].messages[1]["content"]
    assert record.count("The agent: ```Jump```\nOutcome: ") == 8
    assert "The step limit was hit" in record
    assert "Reward=0.0, steps=8." in record
    assert game not in record.lower()
    shown = "".join(m["content"] for turn in first.turns for m in turn.messages)
    for word in ("hole", "wall", "puzzle", "ice"):
        assert word not in shown


FOLDER = Path(__file__).parents[2] / "recipes" / "erl"
RECIPES = sorted(p for p in FOLDER.glob("*.toml") if not p.stem.startswith("hotpotqa"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_of_the_paper_has_its_numbers_and_a_reminder_that_gives_no_rule_away(
    path: Path,
) -> None:
    loaded = recipe.load(path)
    (stage,) = loaded.stages
    reminder = stage.method.prompts.reminder
    assert stage.method == replace(
        METHOD,
        importance_cap=0.0,
        prompts=replace(METHOD.prompts, reminder=reminder, shown_reply="last_line"),
    )
    task = Task(
        "t",
        data={
            "board": ("#####", "#@$.#", "#####") if stage.source.game == "sokoban" else ("SG", "FF")
        },
    )
    opening = asyncio.run(stage.source.environment(task).reset())
    assert opening[0]["content"].endswith(reminder)
    assert (stage.tasks_per_step, stage.method.group_size, stage.sampling.temperature) == (
        64,
        4,
        0.7,
    )
    assert (stage.source.max_steps, stage.limits.max_turns) == (8, 8)
    agent = loaded.policies["agent"]
    assert (agent.optimizer.lr, agent.optimizer.weight_decay, agent.lora) == (1e-6, 0.01, None)


def test_there_are_the_two_games_and_the_two_models_of_the_paper() -> None:
    assert [p.stem for p in RECIPES] == [
        "frozenlake_olmo3_7b",
        "frozenlake_qwen3_4b",
        "sokoban_olmo3_7b",
        "sokoban_qwen3_4b",
    ]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (['learns_from=["first"]', "group_size=10"], erl.RLVR),
        (["memory_slots=0"], erl.NO_MEMORY),
        (["reflects=false"], erl.NO_REFLECTION),
        (['learns_from=["first", "reflect", "second"]'], erl.NO_DISTILL),
        (["is_gated=false"], erl.NO_GATE),
    ],
)
def test_what_the_recipes_say_turns_them_into_the_baseline_and_the_ablations(
    sets: list[str], expected: Erl
) -> None:
    loaded = recipe.load(RECIPES[0], [f"stages.rl.method.{s}" for s in sets])
    method = loaded.stages[0].method
    assert replace(method, prompts=METHOD.prompts, importance_cap=None) == expected
