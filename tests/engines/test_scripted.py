"""The public fake keeps the promises of the engine boundary."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolb.engines.base import Learner, ModelSpec, Sampler, Stats
from kolb.engines.scripted import Scripted, cut_at_stop, logprobs_of
from kolb.engines.scripted_text import END, OPENING, START, ScriptedTemplate, messages_of
from kolb.errors import NonFiniteError, RecipeError, StaleSamplerError
from kolb.terms.cross_entropy import CrossEntropy
from kolb.terms.policy_gradient import PolicyGradient
from kolb.types import Completion, Example, Message, MinP, SamplingParams

TEXT = st.text(
    st.characters(exclude_characters=START + END, exclude_categories=("Cs",)), max_size=20
)


def engine(answer: Any = lambda messages, seed: f"seed {seed}", **options: Any) -> Scripted:
    return Scripted(answer, **options)


def sample(sampler: Any, messages: list[Message], n: int = 1, **params: Any) -> list[Completion]:
    prompt = messages if sampler.template is None else sampler.template.open(messages).prompt_ids
    return asyncio.run(sampler.sample(prompt, SamplingParams(**params), n))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def example(ids: list[int], advantage: float = 1.0) -> Example:
    n = len(ids)
    return Example(
        "agent",
        np.array([1, 2], np.int32),
        np.array(ids, np.int32),
        {"policy": np.ones(n, np.float32)},
        advantages=np.full(n, advantage, np.float32),
    )


# ----------------------------------------------------------------------------------------- sampling


def test_it_says_what_the_function_answers_to_the_messages_it_was_shown() -> None:
    shown: list[Any] = []

    def answer(messages: Any, seed: int) -> str:
        shown.append(list(messages))
        return f"{messages[-1]['content']}!"

    chat = [{"role": "system", "content": "S\nline two"}, user("hello")]
    (completion,) = sample(engine(answer).open_sampler(ModelSpec()), chat)
    assert shown == [chat]
    assert (completion.text, completion.stop_reason) == ("hello!", "stop")
    assert "".join(map(chr, completion.token_ids)) == f"hello!{END}"
    np.testing.assert_array_equal(completion.logprobs, logprobs_of(completion.token_ids, 0))


def test_n_completions_take_consecutive_seeds() -> None:
    completions = sample(engine().open_sampler(ModelSpec()), [user("?")], n=3, seed=40)
    assert [c.text for c in completions] == ["seed 40", "seed 41", "seed 42"]


def test_a_completion_is_cut_by_max_tokens_by_the_context_and_by_stop_strings() -> None:
    sampler = engine(lambda messages, seed: "one. two.").open_sampler(ModelSpec())
    (cut,) = sample(sampler, [user("?")], max_tokens=3)
    assert (cut.text, cut.stop_reason, len(cut.token_ids)) == ("one", "length", 3)
    (stopped,) = sample(sampler, [user("?")], stop=(".",))
    assert (stopped.text, stopped.stop_reason, len(stopped.token_ids)) == ("one.", "stop", 4)
    prompt = len(sampler.template.open([user("?")]).prompt_ids)
    for window, length in ((prompt + 2, 2), (prompt, 0), (prompt - 3, 0)):
        small = engine(lambda messages, seed: "long", context_window=window).open_sampler(
            ModelSpec()
        )
        (full,) = sample(small, [user("?")])
        assert (len(full.token_ids), full.stop_reason) == (length, "length")


def test_stop_strings_end_at_the_first_of_them() -> None:
    assert cut_at_stop("a;b.c", (".", ";")) == "a;"
    assert cut_at_stop("abc", (".",)) == "abc"


def test_a_coroutine_may_answer_and_what_it_raises_comes_through() -> None:
    async def slow(messages: Any, seed: int) -> str:
        await asyncio.sleep(0)
        if seed:
            raise ConnectionError("no route")
        return "at last"

    sampler = engine(slow).open_sampler(ModelSpec())
    assert sample(sampler, [user("?")])[0].text == "at last"
    with pytest.raises(ConnectionError):
        sample(sampler, [user("?")], seed=1)


def test_a_chat_endpoint_takes_messages_gives_text_and_promises_no_tokens() -> None:
    fake = engine(lambda messages, seed: messages[0]["content"], gives_tokens=False)
    (completion,) = sample(fake.open_sampler(ModelSpec()), [user("echo")])
    assert (completion.text, len(completion.token_ids), len(completion.logprobs)) == ("echo", 0, 0)
    assert not {"tokens", "logprobs", "score"} & fake.provides


def test_scores_are_the_sampled_logprobs() -> None:
    learner = engine().open_policy("agent", ModelSpec())
    learner.version = 3
    sampler = learner.publish()
    (completion,) = sample(sampler, [user("?")])
    tokens = np.concatenate([sampler.template.open([user("?")]).prompt_ids, completion.token_ids])
    scored = asyncio.run(sampler.score(tokens, start=len(tokens) - len(completion.token_ids)))
    np.testing.assert_array_equal(scored, completion.logprobs)


# ----------------------------------------------------------------------------------------- learning


def test_it_implements_the_protocols_of_the_boundary() -> None:
    learner = engine().open_policy("agent", ModelSpec())
    assert isinstance(learner, Learner)
    assert isinstance(learner.publish(), Sampler)


def test_a_step_makes_a_new_version_and_the_old_handle_stale() -> None:
    learner = engine().open_policy("agent", ModelSpec())
    old = learner.publish()
    learner.forward_backward([example([5])], (PolicyGradient(),))
    learner.optim_step(0.1)
    with pytest.raises(StaleSamplerError, match="version 0 of policy 'agent', which is now at 1"):
        sample(old, [user("?")])
    assert sample(learner.publish(), [user("?")])[0].version == 1


def test_the_losses_are_the_terms_own_on_its_logprobs() -> None:
    learner = engine().open_policy("agent", ModelSpec())
    report = learner.forward_backward(
        [example([0, 8]), example([4], advantage=-2.0)], (PolicyGradient(),)
    )
    assert report.losses["policy_gradient"] == pytest.approx(-(1 + 1 - 2) / 3)
    assert (report.tokens, report.targets) == (7, 3)
    assert learner.optim_step(0.1)["grad_norm"] == pytest.approx((1 + 1 + 4) ** 0.5 / 3)
    imitation = CrossEntropy(stream="policy")
    nll = learner.forward_backward([example([0, 8])], (imitation,)).losses["cross_entropy"]
    assert nll == pytest.approx((1 + 1.5) / 2 - 1 / 64)


def test_the_gradient_does_not_depend_on_how_the_step_is_cut() -> None:
    from kolb.terms.base import pin

    examples = pin(
        (PolicyGradient(),), [example([1, 2], 0.5), example([3]), example([4, 5, 6], -1.0)]
    )
    norms = []
    for cut in ((3,), (1, 2), (1, 1, 1)):
        learner, rest = engine().open_policy("agent", ModelSpec()), list(examples)
        for size in cut:
            learner.forward_backward(rest[:size], (PolicyGradient(),))
            rest = rest[size:]
        norms.append(learner.optim_step(0.1)["grad_norm"])
    assert norms == pytest.approx(norms[:1] * 3)


def test_a_loss_that_is_not_finite_raises_and_leaves_nothing_behind() -> None:
    learner, clean = (engine().open_policy("agent", ModelSpec()) for _ in range(2))
    learner.forward_backward([example([1])], (PolicyGradient(),))
    with pytest.raises(NonFiniteError, match="loss is nan"):
        learner.forward_backward([example([1], float("nan"))], (PolicyGradient(),))
    assert learner.version == 0
    for one in (learner, clean):
        one.forward_backward([example([2])], (PolicyGradient(),))
        one.optim_step(0.1)
    assert learner.state == clean.state


def test_what_it_learnt_and_in_which_order_is_its_state() -> None:
    def taught(*batches: list[int], lr: float = 0.1) -> dict[str, Any]:
        learner = engine().open_policy("agent", ModelSpec())
        for ids in batches:
            learner.forward_backward([example(ids)], (PolicyGradient(),))
            learner.optim_step(lr)
        return learner.state

    assert taught([1], [2]) == taught([1], [2])
    states = [
        taught([1], [2]),
        taught([2], [1]),
        taught([1], [3]),
        taught([1]),
        taught([1], [2], lr=0.2),
    ]
    assert len({s["digest"] for s in states}) == 5


def test_saved_and_loaded_it_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole, first, second = (engine().open_policy("agent", ModelSpec()) for _ in range(3))
    for learner in (whole, first):
        learner.forward_backward([example([1])], (PolicyGradient(),))
        learner.optim_step(0.1)
    first.save(tmp_path)
    second.load(tmp_path)
    for learner in (whole, second):
        learner.forward_backward([example([2])], (PolicyGradient(),))
        learner.optim_step(0.1)
    assert whole.state == second.state
    second.export(tmp_path / "out")
    third = engine().open_policy("agent", ModelSpec())
    third.load(tmp_path / "out")
    assert third.state == second.state


def test_forward_is_zero_without_weight_and_gives_the_statistics_it_is_asked_for() -> None:
    learner = engine().open_policy("agent", ModelSpec())
    part = Example(
        "agent",
        np.array([1], np.int32),
        np.array([5, 6], np.int32),
        {"policy": np.array([0, 1], np.float32), "imitation": np.zeros(2, np.float32)},
    )
    (numbers,) = learner.forward([part], stats=Stats(entropy=True, minp=MinP(0.1)))
    assert numbers["logprobs"].tolist() == [0.0, -1.375]
    assert {k: v[0] for k, v in numbers.items()} == dict.fromkeys(numbers, 0.0)
    assert set(numbers) == {"logprobs", "entropy", "max_logprob", "minp_logmass"}


def test_the_base_is_there_only_if_it_was_to_be_kept() -> None:
    learner = engine().open_policy("agent", ModelSpec(), keep_base=True)
    before = learner.forward([example([1])])[0]["logprobs"]
    learner.version = 4
    np.testing.assert_array_equal(
        learner.forward([example([1])], use_base=True)[0]["logprobs"], before
    )
    with pytest.raises(RecipeError, match="keep_base"):
        engine().open_policy("other", ModelSpec()).forward([example([1])], use_base=True)


# ------------------------------------------------------------------------------------------- tokens


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), TEXT)
def test_what_was_shown_is_read_back_and_sampled_tokens_stay_in_place(
    rounds: list[tuple[str, str]], system: str
) -> None:
    template = ScriptedTemplate()
    messages: list[Message] = [{"role": "system", "content": system}]
    chat = template.open(messages)
    for asked, said in rounds:
        chat.extend([user(asked)])
        messages.append(user(asked))
        assert messages_of(chat.prompt_ids) == messages
        chat.add(Completion(said, np.array([*map(ord, said), ord(END)], np.int32)))
        messages.append({"role": "assistant", "content": said})
    pieces = [ids for turn in chat.turns for ids in (turn.context_ids, turn.completion.token_ids)]
    chat.extend([user("last")])
    assert chat.prompt_ids[: sum(map(len, pieces))].tolist() == np.concatenate(pieces).tolist()
    written = template.transcribe(messages).turns
    assert [t.completion.token_ids.tolist() for t in written] == [
        t.completion.token_ids.tolist() for t in chat.turns
    ]
    assert [t.context_ids.tolist() for t in written] == [t.context_ids.tolist() for t in chat.turns]


def test_a_completion_that_was_cut_is_closed_before_the_next_message() -> None:
    chat = ScriptedTemplate().open([user("a")])
    chat.add(Completion("bc", np.array([ord("b")], np.int32), stop_reason="length"))
    chat.extend([user("d")])
    assert "".join(map(chr, chat.prompt_ids)).endswith(
        f"{OPENING}b{END}{START}user\nd{END}{OPENING}"
    )
    assert messages_of(chat.prompt_ids)[1] == {"role": "assistant", "content": "b"}
