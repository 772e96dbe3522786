"""The loop on the embedded engine: real weights, two learning adapters, stopped and resumed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_toys import Coach, StoppedError, StopsAfter, recipe
from test_loop import metrics_of

from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.engines.torch_local import TorchLocal
from kolb.loop import run
from kolb.models.tokenizers import byte_tokenizer
from kolb.stage import CheckpointSpec, PolicySpec, Recipe
from kolb.types import Group, SamplingParams, Update


class Varied(Coach):
    """Random weights never guess right, so here an attempt is worth a number made of its letters."""

    def credit(self, groups: Any, state: Any) -> Update:
        def scored(group: Group) -> Group:
            episodes = [
                replace(
                    e,
                    trajectories=tuple(
                        replace(t, scores={"reward": sum(map(ord, t.text)) % 101 / 101})
                        for t in e.trajectories
                    ),
                )
                for e in group.episodes
            ]
            return replace(group, episodes=tuple(episodes))

        return super().credit([scored(g) if g.kind == "attempt" else g for g in groups], state)


def local_recipe(tmp_path: Path) -> Recipe:
    folder = tmp_path / "bytes"
    if not folder.exists():
        byte_tokenizer().save_pretrained(folder)
    build = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
    }
    model = ModelSpec(build=build, tokenizer=str(folder), seed=3)
    spec = PolicySpec(model, LoraSpec(rank=4, alpha=8.0), OptimizerSpec(lr=1e-2))
    base = recipe(
        Varied(group_size=3),
        steps=4,
        roles={"player": "small", "coach": "large"},
        tasks_per_step=2,
        updates_per_step=2,
        sampling=SamplingParams(max_tokens=12),
    )
    return replace(
        base, policies={"small": spec, "large": spec}, checkpoints=CheckpointSpec(every=2)
    )


def weights_of(path: Path) -> dict[str, str]:
    files = sorted((path / "checkpoints" / "000004" / "learners").rglob("*.safetensors"))
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.mark.parametrize("killed_after", [1, 3])
def test_two_adapters_stopped_and_resumed_equal_never_stopped_bit_for_bit(
    tmp_path: Path, killed_after: int
) -> None:
    made = local_recipe(tmp_path)
    run(made, tmp_path / "whole", engine=TorchLocal(threads=1))
    with pytest.raises(StoppedError):
        run(
            made,
            tmp_path / "halves",
            engine=TorchLocal(threads=1),
            observer=StopsAfter(killed_after),
        )
    run(made, tmp_path / "halves", engine=TorchLocal(threads=1), resume=True)
    whole, halves = weights_of(tmp_path / "whole"), weights_of(tmp_path / "halves")
    assert len(whole) == 4
    assert whole == halves
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "halves")
    lines = metrics_of(tmp_path / "whole")
    assert all(line["updates/small"] == line["updates/large"] == 2 for line in lines)
    assert all(abs(line["kl/sampler_learner/small"]) < 1e-6 for line in lines)
