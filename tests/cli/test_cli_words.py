"""``kolb words``: from the record alone, and through the weights of a checkpoint."""

import sys
from pathlib import Path

import numpy as np
import pytest

from kolb.cli.opened import open_learner, opened_engine, read_source
from kolb.cli.recomputing import by_completion, computed, nearest_first, temperature_of_steps
from kolb.cli.scattering import Scatter
from kolb.engines.scripted import Scripted
from kolb.models.tokenizers import byte_tokenizer
from kolb.runs.directory import RunDirectory
from kolb.types import Completion, Episode, Group, Task, Trajectory, Turn

LOCAL = """
[engine]
use = "torch_local"
threads = 1

[policies.agent]
tokenizer = "bytes"
  [policies.agent.build]
  model_type = "llama"
  hidden_size = 32
  intermediate_size = 64
  num_hidden_layers = 2
  num_attention_heads = 2
  max_position_embeddings = 512
  initializer_range = 0.2
  [policies.agent.optimizer]
  lr = 1e-2

[environments.lake]
use = "grid_text"
style = "short"
sizes = [2]
max_steps = 2
train_tasks = 8

[[stages]]
name = "explore"
steps = 3
tasks_per_step = 2
  [stages.method]
  use = "grpo"
  group_size = 3
  [[stages.terms]]
  use = "entropy"
  coefficient = 0.1
  [stages.sampling]
  max_tokens = 12
  temperature = 0.8

[checkpoints]
every = 1
keep = 0
"""


@pytest.fixture
def scripted(here: Path, kolb, capsys) -> Path:
    assert kolb("run", "lake.toml", "--quiet", "--out", here / "run") == 0
    capsys.readouterr()
    return here / "run"


@pytest.fixture
def local(here: Path, kolb, capsys) -> Path:
    byte_tokenizer().save_pretrained(here / "bytes")
    (here / "local.toml").write_text(LOCAL)
    assert kolb("run", "local.toml", "--quiet", "--out", here / "run") == 0
    capsys.readouterr()
    return here / "run"


def said_in(run: Path, steps) -> list[Completion]:
    found = [g for step in steps for g in RunDirectory.open(run).episodes(step)]
    turns = [t for g in found for e in g.episodes for x in e.trajectories for t in x.turns]
    return [t.completion for t in turns]


def row(out: str, *first: str) -> list[str]:
    (line,) = [x for x in out.splitlines() if x.split()[: len(first)] == list(first)]
    return line.split()[len(first) :]


def assert_is_picture(path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    assert path.read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------ from the record alone


def test_the_table_counts_what_the_episodes_hold(scripted: Path, kolb, capsys):
    assert kolb("words", scripted, "up", "LEFT", "never", "--bins", 2) == 0
    out = capsys.readouterr().out
    halves = [said_in(scripted, steps) for steps in ((1, 2), (3, 4))]
    assert row(out, "steps") == ["1-2", "3-4"]
    assert row(out, "completions") == [str(len(half)) for half in halves]
    for word in ("Up", "Left"):
        shown = "LEFT" if word == "Left" else word.lower()
        counts = [sum(c.text == word for c in half) for half in halves]
        assert sum(counts) > 0
        assert row(out, shown, "count") == list(map(str, counts))
    assert "'never' was never sampled" in out
    assert_is_picture(scripted / "words.png")


def test_without_a_tokenizer_the_words_count_and_the_reason_is_said(scripted: Path, kolb, capsys):
    assert kolb("words", scripted, "up") == 0
    out = capsys.readouterr().out
    total = len(said_in(scripted, (1, 2, 3, 4)))
    assert f"{total} of {total} completions are without probabilities" in out
    assert "not on this disk" in out
    assert set(row(out, "mean", "p")) == {"-"}


@pytest.mark.parametrize("place", ["trained for the run", "tokenizer", "base"])
def test_the_tokenizer_is_found_and_a_word_has_the_probability_of_its_first_token(
    here: Path, kolb, capsys, place: str
):
    folder = here / ("run/models/agent" if place == "trained for the run" else "there")
    policy = {} if place == "trained for the run" else {place: str(folder)}
    tokenizer = byte_tokenizer()
    said = Completion(
        "é, wait",
        np.array(tokenizer.encode("é, wait"), np.int32),
        np.log(np.array([0.9, 0.9, 0.9, 0.9, 0.03, 0.9, 0.9, 0.9], np.float32)),
    )
    with RunDirectory.create(here / "run", {"policies": {"agent": policy}}) as run:
        episode = Episode("t", 0, (Trajectory("solver", "agent", (Turn((), said),)),))
        run.record(1, [Group(Task("t"), (episode,))], {})
    tokenizer.save_pretrained(folder)
    assert kolb("words", here / "run", "wait") == 0
    out = capsys.readouterr().out
    assert "without probabilities" not in out
    assert row(out, "lowest", "p") == row(out, "mean", "p") == ["0.03"]
    assert kolb("words", here / "run") == 0
    assert row(capsys.readouterr().out, "wait") == ["1"]


def test_without_words_the_unlikely_ones_are_listed(local: Path, kolb, capsys):
    assert kolb("words", local, "--below", 1, "--bins", 3) == 0
    everything = capsys.readouterr().out
    assert kolb("words", local, "--below", 1e-12, "--bins", 3) == 0
    nothing = capsys.readouterr().out
    assert row(everything, "steps") == row(nothing, "steps") == ["1", "2", "3"]
    assert len(everything.splitlines()) > len(nothing.splitlines()) == 5


# ----------------------------------------------------------------------------- through a checkpoint


def test_the_weights_of_a_checkpoint_give_the_next_step_the_probabilities_it_was_sampled_with(
    local: Path,
):
    source = read_source(str(local), checkpoint=1)
    run = RunDirectory.open(local)
    assert temperature_of_steps(source, run) == {1: 0.8, 2: 0.8, 3: 0.8}
    with opened_engine(source) as (engine, recipe):
        learner = open_learner(engine, recipe, "agent", source.checkpoint)
        after = list(computed(run, 2, "agent", learner, 0.8))
        before = list(computed(run, 1, "agent", learner, 0.8))
    for completion, numbers in after:
        assert completion.version == learner.version
        np.testing.assert_allclose(numbers[:, 0], np.exp(completion.logprobs), rtol=1e-3)
        assert (numbers[:, 1] > 0).all()
    gap = max(np.abs(n[:, 0] - np.exp(c.logprobs)).max() for c, n in before)
    assert gap > 1e-3  # other weights give other numbers


def test_the_scatter_says_whose_numbers_it_shows(local: Path, kolb, capsys):
    assert kolb("words", local, "never", "--scatter") == 0
    out = capsys.readouterr().out
    tokens = sum(len(c.token_ids) for c in said_in(local, (1, 2, 3)))
    exact = sum(len(c.token_ids) for c in said_in(local, (3,)))
    assert row(out, "all", "others")[0] == str(tokens)
    assert "of policy 'agent' after step 2, at the training temperature" in out
    assert f"Of the {tokens} tokens (steps 1 to 3) {exact} were sampled from these very" in out
    assert_is_picture(local / "words-scatter.png")


def test_the_scatter_stops_at_its_tokens_and_warns_where_none_is_exact(
    scripted: Path, kolb, capsys
):
    words = ("words", scripted, "up", "left", "--scatter", "--checkpoint", 4, "--tokens", 9)
    assert kolb(*words) == 0
    out = capsys.readouterr().out
    first = said_in(scripted, (4,))
    lengths = np.cumsum([len(c.token_ids) for c in first])
    taken = int(np.searchsorted(lengths, 9)) + 1
    assert f"Of the {lengths[taken - 1]} tokens (steps 4 to 4) 0 were sampled" in out
    assert "not how it was sampled" in out
    up, left = (sum(c.text == word for c in first[:taken]) for word in ("Up", "Left"))
    found = out[out.index("occurrences") :]
    assert (row(found, "up")[0], row(found, "left")[0]) == (str(up), str(left))
    assert row(found, "all", "others")[0] == str(lengths[taken - 1] - up - left)


def test_words_that_share_a_token_each_have_it():
    scatter = Scatter(["let me", "let", "me"])
    numbers = np.array([[0.5, 1.0], [0.25, 2.0], [0.125, 3.0]])
    scatter.add(Completion("Let me go"), numbers, [3, 6, 9])
    clouds, others = scatter.clouds()
    assert {word: cloud[:, 0].tolist() for word, cloud in clouds.items()} == {
        "let me": [0.5],
        "let": [0.5],
        "me": [0.25],
    }
    assert others.tolist() == [[0.125, 3.0]]


def test_numbers_of_given_completions_are_cut_out():
    def turn(ids, stop):
        return Turn((), Completion("x", np.array(ids, np.int32), stop_reason=stop))

    trajectory = Trajectory("solver", "agent", (turn([1, 2], "given"), turn([3], "stop")))
    ((completion, numbers),) = by_completion(trajectory, np.array([[1, 1], [2, 2], [3, 3]]))
    assert (completion.token_ids.tolist(), numbers.tolist()) == ([3], [[3, 3]])


def test_the_step_behind_the_checkpoint_comes_first():
    assert nearest_first([1, 2, 5, 6, 9], 5) == [6, 5, 9, 2, 1]


# ------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scatter"], "--scatter needs words"),
        (["up", "--checkpoint", 3], "belong to --scatter"),
        (["up", "--tokens", 3], "belong to --scatter"),
        (["up", "--below", 0.2], "--below chooses among all words"),
        (["up", "--policy", "agnet"], "no policy 'agnet'; did you mean 'agent'?"),
        (["up", "--scatter", "--checkpoint", 9], "has no checkpoint of step 9"),
        (["up", " "], "a word to count is empty"),
    ],
)
def test_a_mistake_is_named(scripted: Path, kolb, capsys, words, said):
    assert kolb("words", scripted, *words) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_episodes_has_no_words(here: Path, kolb, capsys):
    text = (here / "lake.toml").read_text()
    (here / "silent.toml").write_text(f"record_episodes = false\n{text}")
    assert kolb("run", "silent.toml", "--quiet", "--out", here / "run") == 0
    assert kolb("words", here / "run", "up") == 2
    assert "has no episodes yet (or its recipe says record_episodes = false)" in (
        capsys.readouterr().err
    )


def test_what_was_only_given_has_no_words(here: Path, kolb, capsys):
    text = (here / "lake.toml").read_text()
    a, b = text.index("  [stages.method]"), text.index("  [stages.sampling]")
    (here / "given.toml").write_text(text[:a] + '  method = "imitation"\n' + text[b:])
    assert kolb("run", "given.toml", "--quiet", "--out", here / "run") == 0
    assert kolb("words", here / "run", "up") == 2
    assert "nothing was sampled in the 4 recorded steps" in capsys.readouterr().err


def test_an_engine_without_entropies_is_named(scripted: Path, kolb, capsys, monkeypatch):
    less = Scripted.__post_init__

    def narrowed(self):
        less(self)
        object.__setattr__(self, "provides", self.provides - {"stats:entropy"})

    monkeypatch.setattr(Scripted, "__post_init__", narrowed)
    assert kolb("words", scripted, "up", "--scatter") == 2
    assert "the engine 'scripted' does not provide 'stats:entropy'" in capsys.readouterr().err


def test_without_matplotlib_the_table_is_there_and_the_picture_is_not(
    scripted: Path, kolb, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert kolb("words", scripted, "up", "--scatter") == 0
    out = capsys.readouterr().out
    assert row(out, "completions")
    assert out.count("no picture: a PNG plot needs matplotlib") == 2
    assert not (scripted / "words.png").exists()
