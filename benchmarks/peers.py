"""One contestant of the engine benchmark in a process of its own: it does one unit of work per line it is sent.

    python benchmarks/peers.py PEER '{"model": "3m", "workload": "long", "tasks": 8, "threads": 2}'

It prints ``{"ready": ...}``, then one JSON line per unit (seconds, CPU seconds, tokens, parts), and at the
end of its input the most memory it ever held.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import shapes
import torch
from shapes import GEOMETRIES, SAMPLES, Geometry, Workload

STEPS = 10_000
"""More than anybody asks for: a contestant stops when its input ends."""

LEARNING_RATE = 1e-4


class Pacer:
    """Reads the orders and writes the answers."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever libraries print goes to stderr
        self._wall = self._cpu = 0.0

    def say(self, **answer: Any) -> None:
        self._answers.write(json.dumps(answer) + "\n")

    def wait(self) -> None:
        """Until the next order; the process ends where there is none."""
        if not sys.stdin.readline():
            self.say(peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            os._exit(0)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def done(self, tokens: int, parts: Mapping[str, float] | None = None) -> None:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.say(wall_s=wall, cpu_s=cpu, tokens=tokens, parts=dict(parts or {}))

    def units(self, work: Callable[[], int]) -> None:
        """One call of ``work``, which gives its number of tokens, per order."""
        self.say(ready=True)
        while True:
            self.wait()
            self.done(work())


# ------------------------------------------------------------------------------------------ ours


def open_learner(g: Geometry, folder: Path, threads: int) -> Any:
    from kolb.engines.torch_local import TorchLocal

    policy = our_policy(g, folder)
    return TorchLocal(threads=threads).open_policy(
        "agent", policy.model, optimizer=policy.optimizer
    )


def our_policy(g: Geometry, folder: Path) -> Any:
    """The end token's id lies behind the vocabulary, so that only ``max_tokens`` ends a completion."""
    from kolb.engines.base import ModelSpec, OptimizerSpec
    from kolb.stage import PolicySpec

    shapes.tokenizer(g.vocabulary).save_pretrained(folder / "tokenizer")
    build = g.config(model_type="llama", eos_token_id=None)
    model = ModelSpec(build=build, tokenizer=str(folder / "tokenizer"))
    return PolicySpec(model, optimizer=OptimizerSpec(lr=LEARNING_RATE))


def rollout_ours(pacer: Pacer, g: Geometry, w: Workload, threads: int, folder: Path) -> None:
    """Publish, probe included, then all completions as concurrent requests, with logprobs."""
    import numpy as np

    from kolb.types import SamplingParams

    learner = open_learner(g, folder, threads)
    prompts = [np.array(p, np.int32) for p in w.prompts]

    async def sample_all(sampler: Any) -> int:
        requests = (
            sampler.sample(prompts[i // SAMPLES], SamplingParams(max_tokens=n, seed=i))
            for i, n in enumerate(w.lengths)
        )
        return sum(len(done[0].logprobs) for done in await asyncio.gather(*requests))

    pacer.units(lambda: asyncio.run(sample_all(learner.publish())))


class FixedLengths:
    """A sampler whose requests get the workload's lengths, in the order in which they arrive."""

    def __init__(self, sampler: Any, lengths: Iterator[int]) -> None:
        self._sampler, self._lengths = sampler, lengths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def rest(self) -> None:
        """Nothing is kept between answers."""

    async def sample(self, prompt: Any, params: Any, n: int = 1) -> Any:
        return await self._sampler.sample(
            prompt, replace(params, max_tokens=next(self._lengths)), n
        )


def step_ours(pacer: Pacer, g: Geometry, w: Workload, threads: int, folder: Path) -> None:
    """GRPO as a user runs it: a data file, a reward function, the loop, the run directory."""
    from kolb.engines.torch_local import TorchLocal
    from kolb.envs.dataset import Dataset
    from kolb.loop import run
    from kolb.methods.grpo import Grpo
    from kolb.stage import CheckpointSpec, Recipe, Stage
    from kolb.types import SamplingParams

    class Engine(TorchLocal):
        def open_policy(self, *args: Any, **options: Any) -> Any:
            learner: Any = super().open_policy(*args, **options)
            lengths, publish = cycle(w.lengths), learner.publish
            learner.publish = lambda: FixedLengths(publish(), lengths)
            return learner

    class Observer:
        def activity(self, text: str) -> None:
            if text == "collecting":
                pacer.wait()

        def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
            parts = {k: metrics[f"time/{k}_s"] for k in ("collect", "update", "publish")}
            pacer.done(int(metrics["tokens/sampled"]), parts)

        def note(self, text: str) -> None:
            print(text, file=sys.stderr)

    shapes.write_tasks(w, folder / "tasks.jsonl")
    method: Any = Grpo(group_size=SAMPLES)
    engine: Any = Engine(threads=threads)
    stage = Stage(
        "grpo",
        method,
        Dataset(str(folder / "tasks.jsonl"), reward=f"{shapes.__file__}:even_words"),
        steps=STEPS,
        roles={"solver": "agent"},
        learn=("agent",),
        tasks_per_step=w.tasks,
        sampling=SamplingParams(max_tokens=max(w.lengths)),
    )
    recipe = Recipe(
        "bench", {"agent": our_policy(g, folder)}, (stage,), checkpoints=CheckpointSpec(0)
    )
    pacer.say(ready=True)
    run(recipe, folder / "run", engine=engine, observer=Observer())


# ------------------------------------------------------------------------------------ transformers


def llama(g: Geometry) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**g.config(eos_token_id=2)))


def rollout_generate(
    pacer: Pacer, g: Geometry, w: Workload, threads: int, folder: Path, cache: str = "dynamic"
) -> None:
    """One batch, padded on the left; rows end at their lengths, the batch with its longest. Without
    logprobs, which would cost more."""
    from transformers import StoppingCriteria

    model = llama(g).eval()
    longest = max(map(len, w.prompts))
    lengths = torch.tensor(w.lengths)
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in w.prompts])

    class RowsEnd(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return input_ids.shape[1] - longest >= lengths

    options: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": max(w.lengths)}
    if cache == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    model.generation_config.eos_token_id = None  # only RowsEnd ends a row

    def work() -> int:
        made = model.generate(
            ids,
            attention_mask=(ids != 0).long(),
            num_return_sequences=SAMPLES,
            stopping_criteria=[RowsEnd()],
            **options,
        )
        assert made.shape == (len(lengths), longest + max(w.lengths)), made.shape
        return w.tokens

    pacer.units(work)


def rollout_static(pacer: Pacer, g: Geometry, w: Workload, threads: int, folder: Path) -> None:
    rollout_generate(pacer, g, w, threads, folder, "static")


# --------------------------------------------------------------------------------------------- TRL


def step_trl(pacer: Pacer, g: Geometry, w: Workload, threads: int, folder: Path) -> None:
    """GRPOTrainer, tuned: float32, no gradient checkpointing, micro-batches of 8, no reference model."""
    from datasets import Dataset
    from transformers import LogitsProcessor, TrainerCallback

    trl: Any = import_module("trl")
    model, lengths = llama(g), torch.tensor(w.lengths)
    plain_generate = model.generate
    seen = {"generate": 0.0, "tokens": 0.0}

    class EndAtLength(LogitsProcessor):
        """The end token is impossible before a row's last token, and certain there."""

        def __init__(self, width: int) -> None:
            self.width = width

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            ends = input_ids.shape[1] - self.width == lengths - 1
            scores = scores.masked_fill(ends[:, None], -torch.inf)
            scores[:, 2] = torch.where(ends, 0.0, -torch.inf)
            return scores

    def generate(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        made = plain_generate(
            *args, **options, logits_processor=[EndAtLength(options["input_ids"].shape[1])]
        )
        seen["generate"] = time.perf_counter() - start
        return made

    class Trainer(trl.GRPOTrainer):
        def _generate_and_score_completions(self, *args: Any, **options: Any) -> Any:
            made = super()._generate_and_score_completions(*args, **options)
            seen["tokens"] = int(made["completion_mask"].sum())
            return made

    class Paced(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            pacer.wait()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            pacer.done(int(seen["tokens"]), {"generate": seen["generate"]})

    model.generate = generate
    settings = trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        per_device_train_batch_size=SAMPLES,
        gradient_accumulation_steps=w.tasks,
        num_generations=SAMPLES,
        max_completion_length=max(w.lengths),
        max_steps=STEPS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        report_to=[],
        save_strategy="no",
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        reward_funcs=shapes.even_words,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": text} for text in w.texts()]),
        processing_class=shapes.tokenizer(2),
        callbacks=[Paced()],
    )
    pacer.say(ready=True)
    trainer.train()


# ------------------------------------------------------------------------------------------- rates


def rates(pacer: Pacer, g: Geometry, w: Workload, threads: int, folder: Path) -> None:
    """The best of several tries of a large product, of one with 64 rows, and of reading 128 MiB."""
    a, rows, wide = torch.randn(768, 768), torch.randn(64, 512), torch.randn(512, 2048)
    block = torch.ones(32 * 2**20)

    def best(work: Callable[[], Any], amount: float) -> float:
        times = []
        for _ in range(60):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return amount / min(times)

    pacer.say(ready=True)
    while True:
        pacer.wait()
        found = {
            "large": best(lambda: a @ a, 2 * 768**3),
            "rows64": best(lambda: rows @ wide, 2 * 64 * 512 * 2048),
            "read": best(block.sum, block.nbytes),
        }
        pacer.done(0, found)


PEERS = (rollout_ours, rollout_generate, rollout_static, step_ours, step_trl, rates)


def main() -> None:
    name, order = sys.argv[1], json.loads(sys.argv[2])
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(order["threads"])
    peer = {p.__name__: p for p in PEERS}[name]
    workload = Workload(order["workload"], order["tasks"])
    with tempfile.TemporaryDirectory() as folder:
        peer(Pacer(), GEOMETRIES[order["model"]], workload, order["threads"], Path(folder))


if __name__ == "__main__":
    main()
