"""The same recipe and seed give the same run; what must not matter does not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.engines.local.decode import Prompt
from kolb.engines.local.rows import Parked, Parking
from kolb.engines.torch_local import TorchLocal
from kolb.envs.base import SingleUse
from kolb.loop import run
from kolb.methods.grpo import Grpo
from kolb.methods.imitation import Imitation
from kolb.models.tokenizers import byte_tokenizer
from kolb.runs.directory import RunDirectory
from kolb.stage import CheckpointSpec, Evaluation, Limits, PolicySpec, Recipe, Stage
from kolb.types import Message, SamplingParams, StepResult, Task


@dataclass(frozen=True)
class Letters:
    """A few turns, each with a reward that depends on every letter: hardly any group is dead."""

    turns: int = 3

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", seed=i) for i in range(12)]

    def environment(self, task: Task) -> SingleUse:
        return SingleUse(LettersWorld(task.id, self.turns))

    def expert(self, task: Task) -> Sequence[str]:
        return [f"go {i}" for i in range(self.turns)]


class LettersWorld:
    def __init__(self, name: str, turns: int) -> None:
        self.name, self.left = name, turns

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "system", "content": "Talk."}, {"role": "user", "content": self.name})

    async def step(self, message: str) -> StepResult:
        self.left -= 1
        heard: Message = {"role": "user", "content": f"{self.left} more"}
        worth = sum(ord(letter) % 7 for letter in message) / 24
        return StepResult((heard,), reward=worth, terminated=self.left == 0)


BUILD = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bytes")
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stage(method: Any, name: str, steps: int, **rest: Any) -> Stage:
    given: dict[str, Any] = {
        "tasks_per_step": 3,
        "sampling": SamplingParams(max_tokens=4),
        "source": Letters(),
        "learn": ("agent",),
    }
    return Stage(name, method, steps=steps, roles={"solver": "agent"}, **given | rest)


CALM = OptimizerSpec(lr=5e-2, eps=1.0)
"""Adam divides by the root of its second moment, which blows rounding up where gradients are small: after a
few steps a token can flip. With this epsilon it steps nearly as SGD does, and rounding stays rounding."""


def recipe(tokenizer: str, *stages: Stage, lora: LoraSpec | None = None, **rest: Any) -> Recipe:
    model = ModelSpec(build=BUILD, tokenizer=tokenizer, seed=1)
    spec = PolicySpec(model, lora, rest.pop("optimizer", OptimizerSpec(lr=5e-3)))
    return Recipe("same", {"agent": spec}, stages, checkpoints=CheckpointSpec(1, 0), **rest)


def imitation_then_grpo(
    tokenizer: str, optimizer: OptimizerSpec = OptimizerSpec(lr=5e-3), **grpo: Any
) -> Recipe:
    return recipe(
        tokenizer,
        stage(Imitation(), "imitate", 4, tasks_per_step=6),
        stage(Grpo(group_size=4), "explore", 3, **grpo),
        optimizer=optimizer,
    )


def engine(**options: Any) -> TorchLocal:
    return TorchLocal(**{"threads": 1, **options})


def files(path: Path, folder: str, ending: str) -> dict[str, str]:
    found = sorted((path / folder).rglob(f"*{ending}"))
    assert found
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in found}


def weights(path: Path) -> np.ndarray:
    last = RunDirectory.open(path).numbered("checkpoints")[-1]
    tensors = load_file(path / f"checkpoints/{last:06d}/learners/agent/weights.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def said(path: Path) -> list[list[int]]:
    """Every sampled or given token of every episode."""
    directory = RunDirectory.open(path)
    return [
        turn.completion.token_ids.tolist()
        for step in directory.steps()
        for group in directory.episodes(step)
        for episode in group.episodes
        for turn in episode.trajectory("solver").turns
    ]


# --------------------------------------------------------------------------------------- the seed


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_episodes(
    tokenizer: str, tmp_path: Path
) -> None:
    first = imitation_then_grpo(tokenizer, updates_per_step=2, epochs=2)
    for name, made in (("a", first), ("b", first), ("c", replace(first, seed=1))):
        run(made, tmp_path / name, engine=engine())
    a, b, c = (tmp_path / name for name in "abc")
    assert files(a, "episodes", ".gz") == files(b, "episodes", ".gz")
    assert files(a, "checkpoints", ".safetensors") == files(b, "checkpoints", ".safetensors")
    different = files(c, "episodes", ".gz")
    assert all(different[name] != digest for name, digest in files(a, "episodes", ".gz").items())
    assert np.abs(weights(a) - weights(c)).max() > 1e-3


def test_what_ran_before_in_the_same_process_changes_nothing(
    tokenizer: str, tmp_path: Path
) -> None:
    """Neither torch's global generator nor numpy's is used, and runs leave nothing behind."""
    made = recipe(tokenizer, stage(Grpo(group_size=4), "explore", 2), lora=LoraSpec(rank=2))
    run(made, tmp_path / "a", engine=engine())
    torch.manual_seed(99)
    np.random.seed(99)
    run(imitation_then_grpo(tokenizer), tmp_path / "other", engine=engine())
    state = torch.get_rng_state()
    run(made, tmp_path / "b", engine=engine())
    assert torch.equal(state, torch.get_rng_state())
    assert files(tmp_path / "a", "episodes", ".gz") == files(tmp_path / "b", "episodes", ".gz")
    assert np.array_equal(weights(tmp_path / "a"), weights(tmp_path / "b"))


# ------------------------------------------------------------------------- what must not matter


@pytest.mark.parametrize("history", ["all", "last"])
def test_how_many_episodes_run_at_once_changes_no_token(
    tokenizer: str, tmp_path: Path, history: str
) -> None:
    """Other batches, other rounding: tokens are the same, weights equal to 1e-5."""
    for seats in (1, 5, 256):
        made = imitation_then_grpo(
            tokenizer, CALM, history=history, limits=Limits(max_concurrent=seats)
        )
        run(made, tmp_path / str(seats), engine=engine())
    for seats in (1, 5):
        assert said(tmp_path / str(seats)) == said(tmp_path / "256")
        assert np.allclose(weights(tmp_path / str(seats)), weights(tmp_path / "256"), atol=1e-5)


@pytest.mark.parametrize(("rows", "micro_tokens"), [(3, 0), (0, 300)])
def test_the_size_of_batches_changes_no_token(
    tokenizer: str, tmp_path: Path, rows: int, micro_tokens: int
) -> None:
    made = imitation_then_grpo(tokenizer, CALM)
    run(made, tmp_path / "whole", engine=engine())
    run(made, tmp_path / "cut", engine=engine(max_rows=rows, micro_tokens=micro_tokens))
    assert said(tmp_path / "cut") == said(tmp_path / "whole")
    assert np.allclose(weights(tmp_path / "cut"), weights(tmp_path / "whole"), atol=1e-5)


@pytest.mark.parametrize("normalisation", ["token-mean", "sequence-mean"])
def test_a_step_accumulated_in_many_micro_batches_equals_one_taken_whole(
    tokenizer: str, tmp_path: Path, normalisation: str
) -> None:
    """One example at a time (micro_tokens = 1) and all at once: 1x8 = 8x1."""
    method = Imitation(normalisation=normalisation)
    made = recipe(tokenizer, stage(method, "imitate", 3, tasks_per_step=8), optimizer=CALM)
    run(made, tmp_path / "whole", engine=engine())
    run(made, tmp_path / "cut", engine=engine(micro_tokens=1))
    assert np.abs(weights(tmp_path / "whole") - weights(tmp_path / "cut")).max() < 1e-5
    lines = [RunDirectory.open(tmp_path / name).metrics() for name in ("whole", "cut")]
    for whole, cut in zip(*lines, strict=True):
        for name in ("loss/cross_entropy", "grad_norm/agent"):
            assert cut[name] == pytest.approx(whole[name], rel=1e-5)


# ------------------------------------------------------------------------------- updates x epochs


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (3, 1), (1, 3), (2, 3)])
def test_a_step_takes_updates_times_epochs_optimiser_steps(
    tokenizer: str, tmp_path: Path, updates: int, epochs: int
) -> None:
    made = imitation_then_grpo(tokenizer, updates_per_step=updates, epochs=epochs)
    run(made, tmp_path / "run", engine=engine())
    lines = [m for m in RunDirectory.open(tmp_path / "run").metrics() if m["stage"] == "explore"]
    taken = [m["updates/agent"] for m in lines if "updates/agent" in m]
    assert taken == [updates * epochs] * 3


def test_the_first_of_several_updates_starts_at_ratio_1_and_later_ones_leave_it(
    tokenizer: str, tmp_path: Path
) -> None:
    for name, epochs in (("one", 1), ("many", 4)):
        made = imitation_then_grpo(tokenizer, epochs=epochs)
        run(made, tmp_path / name, engine=engine())
    one, many = (
        [m for m in RunDirectory.open(tmp_path / n).metrics() if "ratio/mean" in m]
        for n in ("one", "many")
    )
    assert all(m["ratio/mean"] == 1.0 for m in one)
    assert any(abs(m["ratio/mean"] - 1.0) > 1e-4 for m in many)


# ----------------------------------------------------- what a resumed process cannot remember


def test_a_first_stage_of_one_turn_leaves_no_trace_in_how_the_second_is_computed(
    tokenizer: str, tmp_path: Path
) -> None:
    """More than 256 single turns once taught the sampler not to park finished rows, for the rest of the
    process; a resumed run did not know, computed second turns otherwise, and differed in the last bits."""
    source = Letters(turns=1)
    short = stage(Grpo(group_size=24), "short", 1, source=source, tasks_per_step=12)
    short = replace(short, learning_rate=0.0)
    long = stage(Grpo(group_size=4), "long", 2)
    made = recipe(tokenizer, short, long)
    run(made, tmp_path / "whole", engine=engine())
    run(replace(made, stages=(short,)), tmp_path / "halves", engine=engine())
    run(made, tmp_path / "halves", engine=engine(), resume=True)
    assert files(tmp_path / "whole", "episodes", ".gz") == files(
        tmp_path / "halves", "episodes", ".gz"
    )
    assert np.array_equal(weights(tmp_path / "whole"), weights(tmp_path / "halves"))


def test_parking_the_same_tokens_again_counts_their_memory_once() -> None:
    kv = [(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))]
    prompt = Prompt(4, kv, torch.zeros(3))
    parking = Parking(budget=10_000)
    for _ in range(100):
        parking.put(b"same", Parked(prompt, kv, 4))
    assert parking.used == 256 + 256
    assert list(parking.rows) == [b"same"]


def test_an_evaluation_in_between_changes_nothing_of_the_training(
    tokenizer: str, tmp_path: Path
) -> None:
    plain = imitation_then_grpo(tokenizer)
    measured = imitation_then_grpo(
        tokenizer, evaluation=Evaluation(every=1, episodes=4, samples=2, at_start=True)
    )
    run(plain, tmp_path / "plain", engine=engine())
    run(measured, tmp_path / "measured", engine=engine())
    assert np.array_equal(weights(tmp_path / "plain"), weights(tmp_path / "measured"))


@dataclass(frozen=True)
class OneTask:
    """The same task in every split, so that evaluation leaves rows behind that the next step could meet."""

    def tasks(self, split: str) -> list[Task]:
        return [Task("t")]

    def environment(self, task: Task) -> SingleUse:
        return SingleUse(EarlyEnd())


class EarlyEnd:
    def __init__(self) -> None:
        self.turns = 0

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "user", "content": "go"},)

    async def step(self, message: str) -> StepResult:
        self.turns += 1
        heard: Message = {"role": "user", "content": "more"}
        worth = (sum(map(ord, message)) % 7) / 7
        return StepResult((heard,), worth, terminated=self.turns >= 2 or message[:1] < "n")


class StopBeforeStep:
    def __init__(self, number: int) -> None:
        self.left = number

    def step(self, stage: str, step: int, metrics: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def activity(self, text: str) -> None:
        if text == "collecting":
            self.left -= 1
            if self.left == 0:
                raise InterruptedError


def test_what_an_evaluation_left_in_the_sampler_does_not_reach_the_next_step(
    tokenizer: str, tmp_path: Path
) -> None:
    learning = stage(
        Grpo(group_size=24),
        "g",
        4,
        source=OneTask(),
        tasks_per_step=1,
        sampling=SamplingParams(
            max_tokens=6, temperature=0.35, stop=tuple("abcdefgh ABCDEFGH0123456789")
        ),
        evaluation=Evaluation(every=1, episodes=0, samples=48, temperature=1.0),
    )
    model = ModelSpec(build={**BUILD, "initializer_range": 0.3}, tokenizer=tokenizer, seed=1)
    policy = PolicySpec(model, None, OptimizerSpec(lr=1e-3))
    made = Recipe("same", {"agent": policy}, (learning,), checkpoints=CheckpointSpec(1, 0))
    run(made, tmp_path / "whole", engine=engine())
    with pytest.raises(InterruptedError):
        run(made, tmp_path / "halves", engine=engine(), observer=StopBeforeStep(3))
    run(made, tmp_path / "halves", engine=engine(), resume=True)
    assert files(tmp_path / "whole", "episodes", ".gz") == files(
        tmp_path / "halves", "episodes", ".gz"
    )
    np.testing.assert_array_equal(weights(tmp_path / "whole"), weights(tmp_path / "halves"))
