"""ERL on real weights: gradients of the distilled rows by hand, and what distillation does to a small model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from erl_toys import BARE, user

from kolb.engines.base import ModelSpec, OptimizerSpec
from kolb.engines.scripted import Scripted
from kolb.engines.torch_local import TorchLocal
from kolb.learning import with_logprobs
from kolb.loop import run
from kolb.memory.library import ExperienceLibrary
from kolb.methods.erl import METHOD, NO_DISTILL, RLVR, Erl
from kolb.methods.imitation import Imitation
from kolb.models.tokenizers import byte_tokenizer
from kolb.runs.directory import RunDirectory
from kolb.stage import Evaluation, Limits, PolicySpec, Recipe, Stage
from kolb.terms.base import pin
from kolb.types import Example, Message, SamplingParams, StepResult, Task
from kolb.world import LiveWorld

BUILD = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "initializer_range": 0.1,
}
TEMPERATURE = 0.7


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bytes")
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


class Failing:
    """Two messages. The first attempt at a task earns 0, the second what ``worth`` says."""

    def __init__(self, task: Task, worth: float) -> None:
        self.task, self.worth, self.steps = task, worth, 0

    async def reset(self) -> tuple[Message, ...]:
        return ({"role": "system", "content": BARE}, user(f"Look at {self.task.id}."))

    async def step(self, message: str) -> StepResult:
        self.steps += 1
        done = self.steps == 2
        return StepResult(
            (user("Look."),), self.worth if done else 0.0, terminated=done, feedback="Oh."
        )

    async def fork(self) -> Failing:
        return Failing(self.task, self.worth)

    async def close(self) -> None: ...


@dataclass(frozen=True)
class FailsFirst:
    worths: tuple[float, ...] = (1.0, 0.5)
    built: dict[str, int] = field(default_factory=dict, compare=False)

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"t{i}", data={"number": i}) for i in range(len(self.worths))]

    def environment(self, task: Task) -> Failing:
        self.built[task.id] = self.built.get(task.id, 0) + 1
        return Failing(task, self.worths[task.data["number"]] if self.built[task.id] > 1 else 0.0)


def stage(method: Erl, source: Any, **rest: Any) -> Stage:
    sampling = SamplingParams(max_tokens=6, temperature=TEMPERATURE)
    roles = {"solver": "agent", "reflector": "agent"}
    return Stage(
        "rl",
        method,
        source,
        1,
        roles,
        ("agent",),
        sampling=sampling,
        limits=Limits(retries=0),
        **rest,
    )


def rows_of(learner: Any, method: Erl) -> tuple[list[Example], Stage]:
    only = stage(method, FailsFirst(), updates_per_step=2)
    live = LiveWorld(only, {"agent": learner.publish()}, ExperienceLibrary(), 3, 1, only.sampling)
    groups = asyncio.run(method.collect(only.source.tasks("train"), live))
    return list(method.credit(groups, None).examples), only


def segment_of(examples: list[Example], segment: str) -> list[Example]:
    return [e for e in examples if e.sequence.endswith(segment)]


def gradients(learner: Any) -> dict[str, torch.Tensor]:
    found = {n: p.grad.clone() for n, p in learner.parameters.items() if p.grad is not None}
    learner.optimizer.zero_grad(set_to_none=True)
    return found


def relative(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    norm = sum(float((g**2).sum()) for g in b.values()) ** 0.5
    return sum(float(((a[n] - b[n]) ** 2).sum()) for n in b) ** 0.5 / norm


def log_likelihood(learner: Any, example: Example) -> torch.Tensor:
    """Sum of log pi(y2 | S0, x) over the tokens that were said, by a plain forward pass."""
    ids = torch.tensor(np.concatenate([example.prompt_ids, example.target_ids]).astype(np.int64))[
        None
    ]
    with learner.model.plain_attention():
        logits = learner.model.hf(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    start = len(example.prompt_ids)
    rows = torch.log_softmax(logits / TEMPERATURE, -1)[start - 1 : -1]
    said = torch.tensor(example.weights["policy"] > 0)
    return rows.gather(1, ids[0, start:, None])[:, 0][said].sum()


@pytest.mark.parametrize("importance_cap", [None, 2.0])
def test_at_the_old_weights_the_distilled_gradient_is_that_of_reward_weighted_imitation(
    tokenizer: str, importance_cap: float | None
) -> None:
    learner = TorchLocal(threads=1).open_policy(
        "agent", ModelSpec(build=BUILD, tokenizer=tokenizer, seed=1)
    )
    method = replace(METHOD, group_size=1, kl=0.0, importance_cap=importance_cap)
    examples, only = rows_of(learner, method)
    assert len(examples) == 8, "two tasks of four segments"
    ready = with_logprobs(learner, examples, only, TEMPERATURE)
    distilled = segment_of(pin(method.terms, ready), "distill")
    report = learner.forward_backward(distilled, method.terms, temperature=TEMPERATURE)
    found = gradients(learner)

    rewards = (1.0, 0.5)
    loss = -sum(r * log_likelihood(learner, e) for r, e in zip(rewards, distilled, strict=True)) / 8
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    assert relative(found, gradients(learner)) < 1e-4
    assert report.means()["ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert report.means()["importance/mean"] == 1.0
    for example in distilled:
        bare = float(log_likelihood(learner, example).detach())
        assert example.old_logprobs is not None
        assert float(example.old_logprobs.sum()) == pytest.approx(bare, abs=1e-3)


def test_at_the_old_weights_every_ratio_is_one_and_the_kl_to_the_start_is_zero(
    tokenizer: str,
) -> None:
    learner = TorchLocal(threads=1).open_policy(
        "agent", ModelSpec(build=BUILD, tokenizer=tokenizer, seed=2), keep_base=True
    )
    method = replace(METHOD, group_size=1)
    examples, only = rows_of(learner, method)
    ready = with_logprobs(learner, examples, only, TEMPERATURE)
    report = learner.forward_backward(
        pin(method.terms, ready), method.terms, temperature=TEMPERATURE
    )
    means = report.means()
    assert means["ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert means["kl/reference"] == pytest.approx(0.0, abs=1e-6)
    assert means["clip/share"] == 0.0


def test_distilled_rows_have_the_very_prompt_of_the_first_attempt(tokenizer: str) -> None:
    learner = TorchLocal(threads=1).open_policy(
        "agent", ModelSpec(build=BUILD, tokenizer=tokenizer, seed=3)
    )
    examples, _ = rows_of(learner, replace(METHOD, group_size=1))
    for i in range(2):
        first, second, distill = (
            segment_of(examples, s)[i] for s in ("first", "second", "distill")
        )
        assert distill.prompt_ids.tobytes() == first.prompt_ids.tobytes()
        assert distill.target_ids.tobytes() == second.target_ids.tobytes()
        assert first.weights["policy"].sum() < len(first.target_ids)


# ------------------------------------------------------------------------------ a small model learns

LETTERS = "abcdefghijklmnop"
PAIRS = [a + b for a in LETTERS for b in LETTERS]
SECRET = "kd"


def say(pair: str) -> str:
    return f"Say {pair}."


def chat(system: str) -> tuple[Message, ...]:
    return ({"role": "system", "content": system}, user("?"))


class Secret:
    """One pair of letters of 256 earns 1. Only the feedback says which."""

    async def reset(self) -> tuple[Message, ...]:
        return chat(say("__"))

    async def step(self, message: str) -> StepResult:
        return StepResult(
            (), float(message == SECRET), terminated=True, feedback=f"It was {SECRET}"
        )

    async def fork(self) -> Secret:
        return Secret()

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Secrets:
    """Demonstrations teach to say the pair that the system prompt names, any pair where it names none."""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", seed=i) for i in range(512)]

    def environment(self, task: Task) -> Secret:
        return Secret()

    def demonstration(self, task: Task) -> list[Message]:
        pair = PAIRS[task.seed % 256]
        shown = "__" if task.seed < 256 else pair
        return [*chat(say(shown)), {"role": "assistant", "content": pair}]


def coach(messages: Sequence[Message], seed: int) -> str:
    """Reads the pair off the record, as an instructed model would."""
    pair = messages[-1]["content"].partition("It was ")[2][:2]
    return f"<prompt>{say(pair)}</prompt>"


class WithCoach:
    """Trains small models; whoever does not learn is the coach."""

    provides = TorchLocal.provides

    def __init__(self) -> None:
        self.inner = TorchLocal(threads=1)
        self.learner: Any = None

    def open_policy(self, name: str, model: ModelSpec, **how: Any) -> Any:
        self.learner = self.inner.open_policy(name, model, **how)
        return self.learner

    def open_sampler(self, model: ModelSpec) -> Any:
        return Scripted(coach, gives_tokens=False).open_sampler(model)

    def close(self) -> None: ...


def trained(folder: Path, model: ModelSpec, method: Any, lr: float, **how: Any) -> tuple[Any, Path]:
    roles = {"solver": "agent", "reflector": "coach"}
    only = Stage(
        "only",
        method,
        Secrets(),
        roles=roles,
        learn=("agent",),
        sampling=SamplingParams(max_tokens=3),
        evaluation=Evaluation(at_start=True, episodes=64),
        **how,
    )
    policies = {
        "agent": PolicySpec(model, optimizer=OptimizerSpec(lr=lr)),
        "coach": PolicySpec(ModelSpec(base="none"), frozen=True),
    }
    engine = WithCoach()
    run(Recipe("letters", policies, (only,)), folder, engine=engine)
    return engine.learner, folder


def log_likelihood_of_successes(learner: Any, folder: Path) -> float:
    """Mean log pi(y2 | S0) of the second attempts that succeeded in the first step of the run."""
    groups = RunDirectory.open(folder).episodes(1)
    rows = [e for group in groups for e in METHOD.examples(group) if e.sequence.endswith("distill")]
    won = [e for e in rows if e.advantages is not None and e.advantages.any()]
    assert len(won) > 8
    return float(np.mean([n["logprobs"].sum() for n in learner.forward(won)]))


@pytest.mark.slow
def test_second_attempts_become_first_attempts_by_distillation_and_by_nothing_else(
    tmp_path: Path, tokenizer: str
) -> None:
    """Who holds the reflection succeeds, who does not has a chance of 1 in 256."""
    model = ModelSpec(build=BUILD, tokenizer=tokenizer, seed=5)
    taught, _ = trained(tmp_path / "taught", model, Imitation(), 1e-2, steps=80, tasks_per_step=64)
    taught.export(tmp_path / "base")
    base = ModelSpec(base=str(tmp_path / "base"))
    rewards: dict[str, tuple[float, float]] = {}
    likely: dict[str, float] = {}
    for name, method in (("erl", METHOD), ("no_distill", NO_DISTILL), ("rlvr", RLVR)):
        learner, folder = trained(tmp_path / name, base, method, 1e-3, steps=32, tasks_per_step=4)
        lines = RunDirectory.open(folder).metrics()
        rewards[name] = lines[0]["eval_start/mean"], lines[-1]["eval/mean"]
        likely[name] = log_likelihood_of_successes(learner, tmp_path / "erl")
        if name != "rlvr":
            assert lines[0]["retries/success"] > 0.7
    before = log_likelihood_of_successes(taught, tmp_path / "erl")
    assert rewards["erl"][0] < 0.1
    assert rewards["erl"][1] > 0.5
    assert rewards["no_distill"][1] < 0.1
    assert rewards["rlvr"][1] < 0.1
    assert likely["erl"] > before + 3
    assert likely["no_distill"] < before + 1
