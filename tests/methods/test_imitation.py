"""Imitation: every assistant token is a target, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kolb.engines.base import ModelSpec
from kolb.engines.scripted import Scripted
from kolb.loop import run
from kolb.methods.imitation import METHOD, Imitation
from kolb.runs.directory import RunDirectory
from kolb.stage import PolicySpec, Recipe, Stage
from kolb.terms.cross_entropy import CrossEntropy
from kolb.types import Method, Task


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


class Chats:
    """Two-turn chats, whole."""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}") for i in range(4)]

    def environment(self, task: Task) -> Any: ...

    def demonstration(self, task: Task) -> list[dict[str, str]]:
        return [
            message("user", "a"),
            message("assistant", "bc"),
            message("user", "d"),
            message("assistant", "e"),
        ]


def trained(tmp_path: Path, method: Imitation = METHOD, **options: Any) -> Scripted:
    fake = Scripted(lambda messages, seed: "never asked", **options)
    stage = Stage("sft", method, Chats(), 2, {"solver": "agent"}, ("agent",), tasks_per_step=2)
    recipe = Recipe("sft", {"agent": PolicySpec(ModelSpec(base="none"))}, (stage,))
    run(recipe, tmp_path / "run", engine=fake)
    return fake


def test_assistant_tokens_and_their_end_have_weight_and_the_rest_has_none(tmp_path: Path) -> None:
    example = trained(tmp_path).learners["agent"].batches[0][0]
    assert "".join(map(chr, example.prompt_ids)) == "\ue000user\na\ue001\ue000assistant\n"
    assert (
        "".join(map(chr, example.target_ids))
        == "bc\ue001\ue000user\nd\ue001\ue000assistant\ne\ue001"
    )
    learnt = example.target_ids[example.weights["imitation"] > 0]
    assert "".join(map(chr, learnt)) == "bc\ue001e\ue001"
    assert (example.advantages, example.sampler_logprobs) == (None, None)


def test_the_loss_is_the_mean_negative_logprob_of_those_tokens(tmp_path: Path) -> None:
    fake = trained(tmp_path)
    example = fake.learners["agent"].batches[0][0]
    learnt = example.target_ids[example.weights["imitation"] > 0]
    expected = np.mean(1 + (learnt % 16) / 16)
    line = RunDirectory.open(tmp_path / "run").metrics()[0]
    np.testing.assert_allclose(line["loss/cross_entropy"], expected, rtol=1e-6)


def test_an_engine_that_cannot_sample_is_enough(tmp_path: Path) -> None:
    fake = trained(tmp_path, provides=frozenset({"tokens", "train", "full_ft"}))
    assert fake.learners["agent"].version == 2


def test_nothing_is_sampled_and_no_group_is_called_dead(tmp_path: Path) -> None:
    trained(tmp_path)
    line = RunDirectory.open(tmp_path / "run").metrics()[0]
    assert line["tokens/sampled"] == 0
    assert "groups/dead" not in line
    assert "reward/mean" not in line


def test_the_normalisation_reaches_the_term_and_the_default_is_a_method() -> None:
    assert Imitation(normalisation="sequence-mean").terms == (
        CrossEntropy(normalisation="sequence-mean"),
    )
    assert isinstance(METHOD, Method)
