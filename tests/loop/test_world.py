"""LiveWorld: what is shown, what is recorded, and what happens when something outside breaks."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from loop_toys import Guess, engine, guess, recipe, user

from kolb.engines.base import ModelSpec
from kolb.errors import CapabilityError, RecipeError
from kolb.memory.library import ExperienceLibrary
from kolb.methods.grpo import Grpo
from kolb.stage import Limits
from kolb.types import Edit, Episode, SamplingParams, Status, Task
from kolb.world import LiveWorld

QUICK = Limits(environment_timeout_s=0.2, episode_timeout_s=20.0)


def world(
    source: Any = None, answer: Any = guess, *, lessons: tuple[str, ...] = (), **stage: Any
) -> LiveWorld:
    options = {k: stage.pop(k) for k in ("context_window", "gives_tokens") if k in stage}
    step = recipe(source=source, **{"limits": QUICK, **stage}).stages[0]
    library = ExperienceLibrary().apply(Edit("add", text) for text in lessons)
    sampler = engine(answer, **options).open_sampler(ModelSpec())
    return LiveWorld(step, {"agent": sampler}, library, seed=7, sampling=step.sampling)


def play(live: LiveWorld, **how: Any) -> Episode:
    return asyncio.run(live.play(live.stage.source.tasks("train")[0], **how))


def one_group(live: LiveWorld, size: int = 1) -> tuple[Episode, ...]:
    async def attempt(task: Task, index: int) -> Episode:
        return await live.play(task, index=index)

    tasks = live.stage.source.tasks("train")[:1]
    return asyncio.run(live.groups(tasks, size, attempt))[0].episodes


def script(*texts: str) -> Any:
    """Says ``texts`` one after the other, by the number of answers in the chat so far."""
    return lambda messages, seed: texts[sum(m["role"] == "assistant" for m in messages)]


# -------------------------------------------------------------------------------------- playing


def test_an_attempt_records_what_was_shown_said_heard_and_earned() -> None:
    episode = play(world(answer=script("blue", "red")))
    trajectory = episode.trajectory("solver")
    assert [t.completion.text for t in trajectory.turns] == ["blue", "red"]
    assert [t.feedback for t in trajectory.turns] == ["wrong", "right"]
    assert trajectory.turns[1].messages == (user("Wrong, again."),)
    assert (episode.outcome, episode.status, trajectory.reward) == (1.0, Status.OK, 1.0)
    assert [t.starts_segment for t in trajectory.turns] == [True, False]


def test_with_history_last_each_turn_is_a_segment_with_the_system_prompt_and_the_newest() -> None:
    heard: list[Any] = []

    def answer(messages: Any, seed: int) -> str:
        heard.append([m["content"] for m in messages])
        return "blue"

    episode = play(world(answer=answer, history="last"))
    assert heard == [["Guess a word.", "Guess train-0."], ["Guess a word.", "Wrong, again."]]
    turns = episode.trajectory().turns
    assert [t.starts_segment for t in turns] == [True, True]
    assert [t.feedback for t in turns] == ["wrong", "wrong"]


def test_a_system_prompt_of_the_methods_replaces_the_environments_and_an_empty_one_removes_it() -> (
    None
):
    live = world(lessons=("Red is rare.",))
    first = play(live, system="Be brief.").trajectory().turns[0].messages
    assert first == ({"role": "system", "content": "Be brief."}, user("Guess train-0."))
    assert play(live, system="").trajectory().turns[0].messages == (user("Guess train-0."),)


def test_lessons_stand_at_the_end_of_the_system_prompt_and_an_empty_library_changes_nothing() -> (
    None
):
    taught = play(world(lessons=("Red is rare.",))).trajectory().turns[0].messages
    assert taught[0]["content"] == "Guess a word.\n\n[G0]. Red is rare."
    assert play(world()).trajectory().turns[0].messages[0]["content"] == "Guess a word."


def test_a_method_that_places_the_library_itself_shows_attempts_nothing_of_it() -> None:
    @dataclass(frozen=True)
    class Places(Grpo):
        places_library: ClassVar[bool] = True

    live = world(method=Places(group_size=2), lessons=("Red is rare.",))
    assert play(live).trajectory().turns[0].messages[0]["content"] == "Guess a word."


def test_a_completion_cut_by_max_tokens_reaches_the_environment_as_it_is() -> None:
    live = world(answer=script("redder", "red"))
    live.sampling = SamplingParams(max_tokens=3)
    episode = play(live)
    (turn,) = episode.trajectory().turns
    assert (turn.completion.text, turn.completion.stop_reason) == ("red", "length")
    assert episode.outcome == 1.0


def test_an_attempt_is_truncated_when_its_context_is_full_and_keeps_what_it_earned() -> None:
    opening = len(
        "\ue000system\nGuess a word.\ue001\ue000user\nGuess train-0.\ue001\ue000assistant\n"
    )
    episode = play(world(answer=script("blue", "red"), context_window=opening + 8))
    assert [t.completion.text for t in episode.trajectory().turns] == ["blue"]
    assert (episode.status, episode.outcome) == (Status.TRUNCATED, 0.0)
    nothing = play(world(context_window=5))
    assert (nothing.status, nothing.outcome, nothing.trajectory().turns) == (
        Status.TRUNCATED,
        0.0,
        (),
    )


def test_an_attempt_is_truncated_after_max_turns() -> None:
    limits = replace(QUICK, max_turns=1)
    episode = play(world(answer=script("blue"), limits=limits))
    assert (episode.status, len(episode.trajectory().turns)) == (Status.TRUNCATED, 1)


def test_an_environment_that_abstains_leaves_no_reward_and_no_outcome() -> None:
    episode = play(world(Guess("abstains", troubled=9)))
    assert episode.outcome is None
    assert "reward" not in episode.trajectory().scores
    assert episode.status is Status.OK


def test_a_sampler_of_messages_is_played_and_recorded_without_tokens() -> None:
    live = world(answer=script("blue", "red"), gives_tokens=False)
    turns = play(live).trajectory().turns
    assert [t.completion.text for t in turns] == ["blue", "red"]
    assert turns[1].messages == (user("Wrong, again."),)
    assert not len(turns[0].context_ids)
    given = live.transcribe("solver", [user("Hi"), {"role": "assistant", "content": "yes"}])
    assert given.turns[0].completion.stop_reason == "given"


def test_the_tokens_on_record_are_exactly_what_the_next_prompt_held() -> None:
    prompts: list[np.ndarray] = []
    live = world(answer=script("blue", "gold"))
    inner = live.samplers["agent"]

    class Recording:
        version, template = 0, inner.template

        def rest(self) -> None:
            """Nothing is kept between answers."""

        async def sample(self, prompt: Any, params: Any, n: int = 1) -> Any:
            prompts.append(prompt)
            return await inner.sample(prompt, params, n)

    live.samplers = {"agent": Recording()}  # type: ignore[dict-item]
    first, second = play(live).trajectory().turns
    assert prompts[0].tolist() == first.context_ids.tolist()
    pieces = [first.context_ids, first.completion.token_ids, second.context_ids]
    assert prompts[1].tolist() == np.concatenate(pieces).tolist()


def test_seeds_differ_by_index_role_name_and_turn_and_by_nothing_else() -> None:
    seeds: list[int] = []

    def answer(messages: Any, seed: int) -> str:
        seeds.append(seed)
        return "none of them"

    live = world(answer=answer)
    for index, name in ((0, ""), (1, ""), (0, "second"), (0, "")):
        play(live, index=index, name=name)
    assert len(set(seeds)) == 6
    assert seeds[:2] == seeds[6:]


# --------------------------------------------------------------------------------- asking, showing


def test_one_answer_has_exactly_the_given_messages_and_no_scores() -> None:
    live = world(answer=lambda messages, seed: f"{len(messages)} heard", lessons=("Red is rare.",))
    asked = live.ask("solver", [user("What now?")], task=Task("t"))
    answer = asyncio.run(asked)
    assert answer.text == "1 heard"
    assert (answer.scores, answer.reward, answer.policy) == ({}, None, "agent")
    assert live.tokens["agent"] == len("1 heard") + 1


def test_an_answer_may_be_shorter_or_longer_than_the_stage_allows() -> None:
    live = world(answer=lambda messages, seed: "0123456789")
    live.sampling = SamplingParams(max_tokens=4)
    for limit, said in ((None, "0123"), (2, "01"), (8, "01234567")):
        asked = live.ask("solver", [user("Count.")], task=Task("t"), max_tokens=limit)
        assert asyncio.run(asked).text == said


@pytest.mark.parametrize("gives_tokens", [True, False])
@pytest.mark.parametrize("history", ["all", "last"])
def test_an_attempt_told_again_after_its_own_opening_is_laid_out_as_before_and_given(
    history: str, gives_tokens: bool
) -> None:
    answer = script("blue", "red") if history == "all" else lambda messages, seed: "blue"
    live = world(answer=answer, history=history, gives_tokens=gives_tokens)
    live.sampling = SamplingParams(max_tokens=4)
    played = play(live).trajectory()
    again = live.retell(played, played.turns[0].messages, task=Task("t"), name="again")
    assert (again.name, again.scores, again.policy) == ("again", played.scores, "agent")
    assert len(again.turns) == 2
    for a, b in zip(played.turns, again.turns, strict=True):
        assert a.context_ids.tolist() == b.context_ids.tolist()
        assert a.completion.token_ids.tolist() == b.completion.token_ids.tolist()
        assert (a.messages, a.feedback, a.starts_segment) == (
            b.messages,
            b.feedback,
            b.starts_segment,
        )
        assert (b.completion.text, b.completion.stop_reason) == (a.completion.text, "given")
        assert not len(b.completion.logprobs)
    assert live.tokens.total() == played.sampled_tokens, "nothing is sampled to tell it again"


@pytest.mark.parametrize("history", ["all", "last"])
def test_told_after_another_opening_only_the_opening_differs(history: str) -> None:
    live = world(answer=lambda messages, seed: "blue", history=history)
    bare, taught = play(live).trajectory(), play(live, system="Try green.").trajectory()
    again = live.retell(taught, bare.turns[0].messages, task=Task("t"))
    for a, b in zip(bare.turns, again.turns, strict=True):
        assert a.context_ids.tolist() == b.context_ids.tolist()
        assert a.messages == b.messages


def test_tools_of_the_task_are_there_when_an_attempt_is_told_again() -> None:
    live = world()
    task = Task("train-0", answer="red", data={"number": 0, "tools": [{"name": "look"}]})
    played = asyncio.run(live.play(task)).trajectory()
    opening = [m for m in played.turns[0].messages if m["role"] != "tools"]
    again = live.retell(played, opening, task=task)
    assert again.turns[0].context_ids.tolist() == played.turns[0].context_ids.tolist()
    assert '"look"' in "".join(map(chr, again.turns[0].context_ids))


def test_an_attempt_without_a_word_is_told_again_without_one() -> None:
    live = world(context_window=5)
    nothing = play(live).trajectory()
    assert live.retell(nothing, [user("Hi")], task=Task("t")).turns == ()


def test_an_unknown_role_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(RecipeError, match="'solvr'; did you mean 'solver'"):
        asyncio.run(world().ask("solvr", [user("?")], task=Task("t")))


@pytest.mark.parametrize("history", ["all", "last"])
def test_the_expert_is_written_down_as_given_turns_with_its_reward(history: str) -> None:
    live = world(history=history)
    episode = asyncio.run(live.demonstrate(live.stage.source.tasks("train")[2]))
    (turn,) = episode.trajectory("solver").turns
    assert (turn.completion.text, turn.completion.stop_reason) == ("blue", "given")
    assert "".join(map(chr, turn.completion.token_ids)) == "blue\ue001"
    assert (turn.feedback, episode.outcome, live.tokens.total()) == ("right", 1.0, 0)


def test_an_expert_is_laid_out_exactly_as_an_agent_that_said_the_same() -> None:
    class Misses(Guess):
        def expert(self, task: Task) -> list[str]:
            return ["gold", "red"]

    for history in ("all", "last"):
        says = script("gold", "red") if history == "all" else lambda messages, seed: "gold"
        live = world(Misses(), says, history=history)
        shown = (
            asyncio.run(live.demonstrate(live.stage.source.tasks("train")[0])).trajectory().turns
        )
        played = play(live).trajectory().turns
        for a, b in zip(shown, played, strict=True):
            assert a.context_ids.tolist() == b.context_ids.tolist()
            assert (a.starts_segment, a.messages) == (b.starts_segment, b.messages)


def test_a_source_without_expert_or_demonstration_says_what_to_add() -> None:
    class Bare:
        def tasks(self, split: str) -> list[Task]:
            return [Task(f"t{i}") for i in range(4)]

        def environment(self, task: Task) -> Any: ...

    with pytest.raises(RecipeError, match=r"Bare has neither expert\(task\) nor demonstration"):
        asyncio.run(world(Bare()).demonstrate(Task("t")))


def test_a_whole_chat_is_preferred_and_every_assistant_message_is_a_target() -> None:
    class Chats(Guess):
        def demonstration(self, task: Task) -> list[Any]:
            say = {"role": "assistant", "content": "one"}
            return [user("a"), say, user("b"), {**say, "content": "two"}]

    live = world(Chats())
    turns = asyncio.run(live.demonstrate(Task("t"))).trajectory().turns
    assert [t.completion.text for t in turns] == ["one", "two"]


def test_the_tools_of_a_task_are_shown_by_the_template_and_refused_by_a_chat_endpoint() -> None:
    class WithTools(Guess):
        def tasks(self, split: str) -> list[Task]:
            return [
                replace(t, data={**t.data, "tools": [{"name": "look"}]})
                for t in super().tasks(split)
            ]

    shown: list[Any] = []

    def answer(messages: Any, seed: int) -> str:
        shown.append(messages[0])
        return "red"

    play(world(WithTools(), answer))
    assert shown[0] == {"role": "tools", "content": '[{"name": "look"}]'}
    live = world(WithTools())
    (turn,) = asyncio.run(live.demonstrate(live.stage.source.tasks("train")[0])).trajectory().turns
    assert '"look"' in "".join(map(chr, turn.context_ids))
    with pytest.raises(CapabilityError, match="takes messages only"):
        play(world(WithTools(), gives_tokens=False))


# ---------------------------------------------------------------------------------------- trouble


@pytest.mark.parametrize(
    ("trouble", "status", "said"),
    [
        (
            "raises",
            Status.ENV_ERROR,
            "step() of task train-0 raised ZeroDivisionError: the world is broken",
        ),
        ("hangs", Status.TIMEOUT, "step() of task train-0 took longer than 0.2 s"),
        ("spins", Status.TIMEOUT, "step() of task train-0 took longer than 0.2 s"),
        ("stubborn", Status.TIMEOUT, "step() of task train-0 took longer than 0.2 s"),
        ("grader", Status.REWARD_ERROR, "correct() of grader.py raised KeyError: 'answer'"),
        ("waits", Status.TIMEOUT, "step() of task train-0 took longer than 0.2 s"),
        ("text", Status.ENV_ERROR, "step() must give a StepResult, not str 'correct!'"),
        ("none", Status.ENV_ERROR, "step() must give a StepResult, not NoneType None"),
        ("nan", Status.REWARD_ERROR, "step(): reward is nan"),
        ("reward text", Status.REWARD_ERROR, "a finite number, or None to abstain, not str '1.0'"),
        ("flag", Status.ENV_ERROR, "terminated must be True or False, not str 'yes'"),
        ("silent", Status.ENV_ERROR, "no observation although the episode goes on"),
    ],
)
def test_trouble_in_an_environment_is_named_recorded_and_the_world_closed(
    trouble: str, status: Status, said: str
) -> None:
    source = Guess(trouble, troubled=1)
    (episode,) = one_group(world(source))
    assert episode.status is status
    assert episode.failure is not None
    assert said in episode.failure.message
    assert "Traceback" in episode.failure.traceback
    assert episode.trajectories == ()
    assert source.log == ["open", "close"] * 2, "one try and one retry, both closed"


def test_a_world_that_swallows_its_cancellation_is_abandoned_at_the_episodes_deadline() -> None:
    limits = Limits(environment_timeout_s=0.1, episode_timeout_s=0.4, retries=0)
    (episode,) = one_group(world(Guess("swallows", troubled=1), limits=limits))
    assert episode.status is Status.TIMEOUT


def test_a_retry_in_a_fresh_world_takes_the_same_seeds() -> None:
    smooth = one_group(world(), size=3)
    bumpy = one_group(
        world(Guess("raises", troubled=1, mends_after=1), limits=replace(QUICK, retries=1)), 1
    )
    assert bumpy[0].status.is_usable
    assert bumpy[0].trajectory().text == smooth[0].trajectory().text


def test_the_cause_of_a_failure_is_kept() -> None:
    (episode,) = one_group(world(Guess("raises", troubled=1)))
    assert episode.failure is not None
    assert 'raise ZeroDivisionError("the world is broken")' in episode.failure.traceback


def test_a_sampler_that_raises_breaks_the_episode_at_its_own_boundary() -> None:
    def answer(messages: Any, seed: int) -> str:
        raise ConnectionError("no route")

    (episode,) = one_group(world(answer=answer))
    assert episode.status is Status.SAMPLER_ERROR
    assert episode.failure is not None
    assert "the sampler raised ConnectionError: no route" in episode.failure.message


def test_a_mistake_in_the_method_is_no_failure_of_the_world_and_stops_the_run() -> None:
    live = world()

    async def attempt(task: Task, index: int) -> Episode:
        return (await live.play(task)).trajectory("nobody")  # type: ignore[return-value]

    with pytest.raises(KeyError, match="no trajectory role='nobody'"):
        asyncio.run(live.groups(live.stage.source.tasks("train")[:2], 2, attempt))


def test_such_a_mistake_keeps_its_own_cause() -> None:
    live = world()

    async def attempt(task: Task, index: int) -> Episode:
        raise RecipeError("no") from ValueError("because")

    with pytest.raises(RecipeError, match="no") as caught:
        asyncio.run(live.groups([Task("t")], 3, attempt))
    assert repr(caught.value.__cause__) == "ValueError('because')"


def test_away_from_the_main_thread_waiting_still_has_its_deadline() -> None:
    episodes: list[Episode] = []
    thread = threading.Thread(
        target=lambda: episodes.extend(one_group(world(Guess("waits", troubled=1))))
    )
    thread.start()
    thread.join()
    assert episodes[0].status is Status.TIMEOUT


def test_interrupting_the_run_is_not_a_failure_of_the_world() -> None:
    class Interrupted(Guess):
        def environment(self, task: Task) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one_group(world(Interrupted()))


def test_an_alarm_clock_of_somebody_elses_rings_on() -> None:
    import signal

    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        one_group(world())
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left < 60.0
        assert signal.getsignal(signal.SIGALRM) is not before
        signal.raise_signal(signal.SIGALRM)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
