"""Words are found whole, their tokens are found exactly, and what is counted was sampled."""

from pathlib import Path

import numpy as np
import pytest
from fabricated_runs import broken, group
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kolb.models.tokenizers import train_tokenizer
from kolb.runs.directory import RunDirectory
from kolb.types import Completion, Episode, Trajectory, Turn
from kolb.view.token_ends import TokenEnds, token_at
from kolb.view.word_tables import cloud_table, unlikely_table, word_table
from kolb.view.words import WordBin, WordCounter, cut, pattern_of

TRAINED = train_tokenizer(["Hmm. Wait, let's wait. However we are late"] * 9, vocab_size=290)


def decode(ids):
    return str(TRAINED.decode(list(ids), skip_special_tokens=False))


def said(text, probabilities=(), stop="stop"):
    """``text`` as a completion; each of its tokens had the next of ``probabilities``, the last ones 1."""
    ids = TRAINED.encode(text)
    given = np.array([*probabilities, *[1.0] * (len(ids) - len(probabilities))])
    return Completion(text, np.array(ids, np.int32), np.log(given).astype(np.float32), stop)


def episode(*completions, policy="agent"):
    turns = tuple(Turn((), completion) for completion in completions)
    return Episode("lake-7", 0, (Trajectory("solver", policy, turns),))


def spelt(ids, text):
    return TokenEnds(decode)(Completion(text, np.array(ids, np.int32)))


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("wait", "Wait! (wait) await waiter WAIT", ["Wait", "wait", "WAIT"]),
        ("let", "let's let us; 'let' go", ["let", "let"]),
        ("let's", "let's Let's lets let'self", ["let's", "Let's"]),
        ("s", "let's it's s", ["s"]),
        ("let me", "Let me see. outlet me", ["Let me"]),
        ("<think>", "<think>wait</think> a<think>", ["<think>", "<think>"]),
        ("a.b", "a.b axb", ["a.b"]),
        ("über", "Über, rüber", ["Über"]),
    ],
)
def test_a_word_is_found_whole_and_in_any_case(word, text, found):
    assert [match.group() for match in pattern_of(word).finditer(text)] == found


# --------------------------------------------------------------------------------------------- tokens


def test_a_word_of_several_tokens_with_its_space_begins_at_its_first():
    ids = [*TRAINED.encode("Hmm"), *TRAINED.encode(" "), *TRAINED.encode("x"), *TRAINED.encode("Q")]
    text = decode(ids)
    assert text == "Hmm xQ"
    ends = spelt(ids, text)
    assert ends is not None
    assert ids[token_at(ends, text.index("xQ"))] == TRAINED.encode("x")[0]
    whole = TRAINED.encode("Hmm. wait")
    (last,) = TRAINED.encode(" wait")
    assert whole[token_at(spelt(whole, "Hmm. wait"), 5)] == last


@given(st.text(alphabet="wait Hm.é→😀語\n", max_size=30), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_tokens_end_where_decoding_the_tokens_before_says(text, marks):
    ids = [*TRAINED.encode(text), *[TRAINED.eos_token_id] * marks]
    ends = spelt(ids, text)
    assert ends == [len(decode(ids[: i + 1])) for i in range(len(ids))] or not ids


def test_a_tokenizer_that_drops_the_first_space_is_read_right():
    vocabulary = {"<unk>": 0, "▁": 1, "▁no": 2, "▁wa": 3, "it": 4, ",": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    ids = [3, 4, 5, 2, 3, 4]
    assert tokenizer.decode(ids) == "wait, no wait"
    ends = TokenEnds(lambda tokens: tokenizer.decode(list(tokens)))(
        Completion("wait, no wait", np.array(ids, np.int32))
    )
    assert ends == [2, 4, 5, 8, 11, 13]
    assert [token_at(ends, at) for at in (0, 6, 9)] == [0, 3, 4]


def test_tokens_that_do_not_spell_the_text_are_not_guessed_at():
    assert spelt(TRAINED.encode("wait"), "However") is None
    assert spelt([], "However") is None


# ------------------------------------------------------------------------------------------- counting


@pytest.fixture
def run(tmp_path: Path):
    with RunDirectory.create(tmp_path / "run", {"name": "lake"}) as run:
        # "Wait" is one token, ", wait" are two: the comma, and the word with its space
        first = episode(said("Wait, wait", (0.5, 0.9, 0.02)), said("waiter", stop="given"))
        run.record(1, [group(first, broken(1)), group(episode(said("wait.", (0.25,))))], {})
        other = episode(said("wait wait", (0.125, 1.0)), policy="coach")
        run.record(2, [group(other)], {})
        endpoint = episode(Completion("However, wait"))
        run.record(5, [group(episode(said("However", (0.04,))), endpoint)], {})
        yield run


def counter(*words, **options):
    return WordCounter(lambda policy: decode, words, **options)


def test_counts_and_probabilities_are_those_of_the_sampled_completions(run):
    assert [len(TRAINED.encode(t)) for t in ("Wait, wait", "wait.", "wait wait")] == [3, 2, 2]
    counted = counter("wait", "however").count(run, [1, 2])
    tally = counted.tallies["wait"]
    assert (counted.completions, counted.tokens, counted.unplaced) == (3, 7, 0)
    assert tally.count == tally.known == 5
    assert tally.mean == pytest.approx((0.5 + 0.02 + 0.25 + 0.125 + 1.0) / 5)
    assert tally.lowest == pytest.approx(0.02)
    assert counted.per_thousand("wait") == pytest.approx(5000 / 7)
    assert counted.tallies["however"].mean is None


def test_one_policy_can_be_counted_alone(run):
    assert counter("wait", policy="agent").count(run, [1, 2]).tallies["wait"].count == 3
    assert counter("wait", policy="coach").count(run, [1, 2]).tallies["wait"].count == 2


def test_text_without_tokens_counts_without_a_probability(run):
    counted = counter("wait", "however").count(run, [5])
    assert (counted.unplaced, counted.texts, counted.per_thousand("wait")) == (1, 1, None)
    assert (counted.tallies["however"].count, counted.tallies["however"].known) == (2, 1)
    assert (counted.tallies["wait"].count, counted.tallies["wait"].mean) == (1, None)
    unknown = WordCounter(lambda policy: None, ["wait"]).count(run, [1])
    assert (unknown.tallies["wait"].count, unknown.unplaced) == (3, 2)


def test_unlikely_words_are_those_whose_first_token_was(run):
    assert counter(below=0.1).count(run, [1, 2]).unlikely == {"wait": 1}
    assert counter(below=0.3).count(run, [1, 2]).unlikely == {"wait": 3}
    assert counter(below=0.1).count(run, [5]).unlikely == {"however": 1}


def test_steps_counted_one_by_one_and_joined_are_the_steps_counted_at_once(run):
    count = counter("wait", below=0.3).count
    assert WordBin.joined([count(run, [s]) for s in (1, 2, 5)]) == count(run, [1, 2, 5])


@given(st.lists(st.integers()), st.integers(1, 9))
def test_parts_hold_everything_once_in_order_and_differ_by_one_at_most(items, count):
    parts = cut(items, count)
    assert [x for part in parts for x in part] == items
    assert len(parts) == min(count, len(items))
    assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= 1


# --------------------------------------------------------------------------------------------- tables


def test_the_table_of_words_shows_every_bin(run):
    bins = [counter("wait", "However").count(run, steps) for steps in ([1, 2], [5])]
    assert word_table(bins, ["wait", "However"]).splitlines() == [
        "steps                           1-2     5",
        "completions                       3     2",
        "tokens                            7     2",
        "wait         count                5     1",
        "             per 1000 tokens    714     -",
        "             mean p           0.379     -",
        "             lowest p          0.02     -",
        "However      count                0     2",
        "             per 1000 tokens      0     -",
        "             mean p               -  0.04",
        "             lowest p             -  0.04",
    ]


def test_the_table_of_unlikely_words_keeps_those_that_one_bin_lost(run):
    bins = [counter(below=0.3).count(run, steps) for steps in ([1], [2], [5])]
    assert [line.split() for line in unlikely_table(bins).splitlines()[3:]] == [
        ["wait", "2", "1", "0"],
        ["however", "0", "0", "1"],
    ]


def test_the_table_of_clouds_compares_with_tokens_no_likelier_than_the_word():
    wait = np.array([[0.1, 2.0], [0.3, 1.0]])
    others = np.array([[0.05, 0.5], [0.2, 1.5], [0.9, 0.1]])
    lines = cloud_table({"wait": wait, "never": wait[:0]}, others).splitlines()
    assert lines[1].split() == ["wait", "2", "0.2", "0.12", "0.28", "1.5", "1.1", "1.9", "2", "1"]
    assert lines[2].split() == ["never", "0", *["-"] * 8]
    assert lines[3].split()[:4] == ["all", "others", "3", "0.383"]
