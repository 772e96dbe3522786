"""One transformers causal LM in memory: loading, building, adapters, and logprobs of given tokens.

A model is ``fast`` when a probe at opening finds that the flat, prompt-sharing attention and the fused head
give what a plain padded forward gives; otherwise the plain path is taken, and said once.
"""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kolb.chat.batching import FlatBatch, pack
from kolb.chat.templates import ChatTemplate
from kolb.engines.base import LoraSpec, ModelSpec
from kolb.engines.local import attention
from kolb.engines.local.head import Distributions, HeadStats, stats_of
from kolb.engines.local.loading import (
    build,
    enable_checkpointing,
    end_ids,
    load,
    silence_dropout,
)
from kolb.errors import RecipeError
from kolb.types import Example

log = logging.getLogger("kolb.engine")

PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}
"""Largest logprob difference between the fast and the plain path that still counts as the same model."""


class LocalModel:
    """The weights, the template and the adapters on them. ``adapter`` is None for the plain weights."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        device: torch.device,
        compute: torch.dtype,
        checkpointing: bool = False,
        fast: bool = True,
    ) -> None:
        self.device, self.compute = device, compute
        attention.register()
        self.hf, tokenizer = load(spec) if spec.base else build(spec)
        self.template = ChatTemplate(
            tokenizer, template=spec.template or None, extra_end_ids=end_ids(self.hf)
        )
        self.tokenizer = tokenizer
        self.hf.to(device)
        silence_dropout(self.hf)
        self.hf.eval()
        if checkpointing:
            enable_checkpointing(self.hf)
            self.hf.train()  # without dropout this only lets checkpointing act
        self.adapters: dict[str, Any] = {}
        self._adapted: list[Any] = []
        self._adapter: str | None = None
        self._samples_fast: bool | None = None
        self.is_fast = self.has_fused_head = fast
        if fast:
            self._probe()

    @property
    def head(self) -> Any:
        """The output layer: a matrix, with or without a bias."""
        return self.hf.get_output_embeddings()

    @property
    def vocabulary(self) -> int:
        return int(self.hf.get_input_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int:
        config = self.hf.config.get_text_config()
        return int(
            getattr(config, "max_position_embeddings", None)
            or getattr(config, "n_positions", None)
            or 2**20
        )

    # ------------------------------------------------------------------------------------ adapters

    def add_adapter(self, name: str, lora: LoraSpec) -> None:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.tuners_utils import BaseTunerLayer

        targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
        alpha: Any = lora.alpha  # peft says int and takes any number
        # for whoever opens the exported adapter: which weights it belongs to
        base = self.hf.name_or_path or None
        config = LoraConfig(
            base_model_name_or_path=base,
            r=lora.rank,
            lora_alpha=alpha,
            target_modules=targets,
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
        name = adapter_name(name)
        if name in self.adapters:
            raise RecipeError(
                f"this base has an adapter {name!r} already; give each policy a name of its own"
            )
        with warnings.catch_warnings():
            # Several adapters on one model is what we mean.
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            inject_adapter_in_model(config, self.hf, adapter_name=name)
        ends = (self.head, self.hf.get_input_embeddings())
        if any(isinstance(module, BaseTunerLayer) for module in ends):
            raise RecipeError(
                f"lora: targets = {lora.targets!r} adapts the embeddings or the output layer, which kolb computes by "
                'itself; take "all-linear", which leaves them out, or train all weights'
            )
        self.hf.to(self.device)
        self.adapters[name] = config
        self._adapted = [m for m in self.hf.modules() if isinstance(m, BaseTunerLayer)]
        self._adapter = ""  # whatever the injection left active
        self.use(name)

    def use(self, adapter: str | None) -> None:
        """Makes ``adapter`` (None: the plain weights) the one that the next forward sees."""
        if not self.adapters or adapter == self._adapter:
            return
        for module in self._adapted:
            module.enable_adapters(adapter is not None)
            if adapter is not None:
                module.set_adapter(adapter)
        self._adapter = adapter

    def trainable(self, adapter: str | None) -> dict[str, nn.Parameter]:
        """The parameters that a policy owns, by name: one adapter's, or all of a model without adapters."""
        if adapter is None:
            return dict(self.hf.named_parameters())
        return {
            n: p for n, p in self.hf.named_parameters() if ".lora_" in n and f".{adapter}." in n
        }

    # ----------------------------------------------------------------------------------- evaluation

    def autocast(self) -> Any:
        if self.compute is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute)

    def hidden(self, ids: Tensor, positions: Tensor, plan: attention.Plan) -> Tensor:
        """Last hidden states [B, T, D] of ``ids``, ``positions`` [B, T] under an attention plan."""
        with attention.use_plan(plan), self.autocast():
            return self.hf.base_model(
                input_ids=ids, position_ids=positions, use_cache=False
            ).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [N, V] of ``hidden`` [N, D]; only where ``has_fused_head``."""
        with self.autocast():
            return self.head(hidden).float()

    def stats(self, examples: Sequence[Example], **asked: Any) -> tuple[FlatBatch, HeadStats]:
        """HeadStats for every weighted target of ``examples``, in the order of the batch; ``asked`` is what
        ``head.stats_of`` takes. Under ``grad`` the caller must run the backward inside ``keep_plan`` when
        layers are checkpointed."""
        batch, found = self.distributions(examples)
        return batch, stats_of(found, batch.targets, **asked)

    def distributions(self, examples: Sequence[Example]) -> tuple[FlatBatch, Distributions]:
        """The distributions that the weighted targets of ``examples`` were drawn from, in the order of the batch."""
        self._check_lengths(examples)
        batch = pack(examples, self.device)
        if not self.is_fast:
            return batch, Distributions(self._padded_logits(examples, batch))
        plan = attention.FlatPlan(batch)
        if not self.has_fused_head:
            with attention.use_plan(plan), self.autocast():
                out = self.hf(
                    input_ids=batch.ids[None],
                    position_ids=batch.positions[None],
                    use_cache=False,
                    logits_to_keep=batch.source,
                )
            return batch, Distributions(out.logits[0])
        states = self.hidden(batch.ids[None], batch.positions[None], plan)[0][batch.source]
        # The sampler's head computes in the same precision.
        weight, bias = self.head.weight.to(self.compute), getattr(self.head, "bias", None)
        bias = None if bias is None else bias.to(self.compute)
        return batch, Distributions(states.to(self.compute), weight, bias)

    def _check_lengths(self, examples: Sequence[Example]) -> None:
        longest = max((len(e.prompt_ids) + len(e.target_ids) for e in examples), default=0)
        if longest > self.context_length:
            raise RecipeError(
                f"an example of {longest} tokens does not fit into the context of {self.context_length} tokens of "
                f"{type(self.hf).__name__}; shorten the prompts or demonstrations, or take a model with a longer context"
            )

    @torch.no_grad()
    def plain_logprobs(self, examples: Sequence[Example]) -> Tensor:
        """Logprobs [N] of the weighted targets by the plain path, in the order of the batch."""
        batch = pack(examples, self.device)
        logits = self._padded_logits(examples, batch)
        return stats_of(Distributions(logits), batch.targets).logprobs

    @contextmanager
    def keep_plan(self, batch: FlatBatch) -> Iterator[None]:
        """Checkpointed layers run again in the backward and must find the same plan."""
        with attention.use_plan(attention.FlatPlan(batch)) if self.is_fast else nullcontext():
            yield

    def _padded_logits(self, examples: Sequence[Example], batch: FlatBatch) -> Tensor:
        """The plain path: one padded row per example, logits everywhere, then the targets' rows [N, V]."""
        rows = [np.concatenate([e.prompt_ids, e.target_ids]).astype(np.int64) for e in examples]
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.from_numpy(row)
            mask[i, : len(row)] = 1
        with self.plain_attention(), self.autocast():
            logits = self.hf(
                input_ids=ids.to(self.device), attention_mask=mask.to(self.device), use_cache=False
            ).logits
        starts = np.array([len(e.prompt_ids) for e in examples])
        column = starts[batch.example] + batch.offset - 1
        return logits[
            torch.as_tensor(batch.example, device=self.device),
            torch.as_tensor(column, device=self.device),
        ]

    @contextmanager
    def plain_attention(self) -> Iterator[None]:
        """transformers' own attention inside: sdpa where the architecture has it, else eager."""
        config = self.hf.config
        before = config._attn_implementation
        self.hf.set_attn_implementation(
            "sdpa" if getattr(self.hf, "_supports_sdpa", False) else "eager"
        )
        try:
            yield
        finally:
            self.hf.set_attn_implementation(before)

    # ---------------------------------------------------------------------------------------- probe

    def samples_fast(self, probe: Callable[[LocalModel], str]) -> bool:
        """Whether rows with shared prompts may be sampled: ``probe`` (of ``rows``) is asked once."""
        if self._samples_fast is None:
            trouble = probe(self) if self.is_fast and self.has_fused_head else ""
            if trouble:
                log.warning(
                    "%s: no fast sampling (%s); transformers' own cache is used, which is slower",
                    type(self.hf).__name__,
                    trouble,
                )
            self._samples_fast = self.is_fast and self.has_fused_head and not trouble
        return self._samples_fast

    @torch.no_grad()
    def _probe(self) -> None:
        """Decides between the fast and the plain path on a few random tokens with a shared prompt."""
        reasons = [reason] if (reason := beyond_the_probe(self.hf.config.get_text_config())) else []
        examples = probe_examples(self.vocabulary, self.context_length)
        plain = self.plain_logprobs(examples)
        for fused in (True, False) if not reasons else ():
            self.has_fused_head = fused
            try:
                fast = self.stats(examples)[1].logprobs
            except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
                reasons.append(str(error).splitlines()[0])
                continue
            difference = float((fast - plain).abs().max())
            if difference <= PROBE_TOLERANCE[self.compute]:
                if not fused:
                    log.warning(
                        "%s: logits are more than a matrix product here, so the fused head is not used (%s)",
                        type(self.hf).__name__,
                        reasons[0],
                    )
                return
            reasons.append(f"logprobs differ by {difference:.2g}")
        self.is_fast = self.has_fused_head = False
        log.warning(
            "%s: no fast path (%s); the plain padded path is used, which is slower",
            type(self.hf).__name__,
            "; ".join(reasons),
        )


KNOWN_LAYERS = {"full_attention", "sliding_attention"}
LENGTH_DEPENDENT_ROPE = {"longrope", "dynamic"}


def beyond_the_probe(config: Any) -> str:
    """What a probe of a few tokens cannot see, in words: attention in chunks, and rotary positions that
    depend on the longest sequence of a batch, so that examples packed together would change each other."""
    layers = set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS
    if layers:
        return f"layers of type {', '.join(sorted(map(str, layers)))}"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(v for v in rope.values() if isinstance(v, dict))]
    found = {str(k.get("rope_type", k.get("type", ""))) for k in kinds} & LENGTH_DEPENDENT_ROPE
    return f"rotary positions of type {', '.join(sorted(found))}" if found else ""


def adapter_name(policy: str) -> str:
    """A policy's adapter inside the model: no name that a module of the model could have."""
    return "policy_" + re.sub(r"\W", lambda odd: f"_{ord(odd[0]):x}_", policy)


def probe_examples(vocabulary: int, context: int) -> list[Example]:
    """Two continuations of one prompt and a longer lone sequence, seeded."""
    rng = np.random.default_rng(0)
    size = max(4, min(24, context // 2))

    def example(prompt: np.ndarray, n: int) -> Example:
        targets = rng.integers(0, vocabulary, n).astype(np.int32)
        return Example("probe", prompt, targets, {"probe": np.ones(n, np.float32)})

    shared = rng.integers(0, vocabulary, size // 2).astype(np.int32)
    alone = rng.integers(0, vocabulary, size - 2).astype(np.int32)
    return [example(shared, size // 2), example(alone, 2), example(shared, size // 3)]


def clone_frozen(model: LocalModel) -> LocalModel:
    """A copy whose weights never move: the reference of a fully trained policy."""
    twin = copy.copy(model)
    twin.hf = copy.deepcopy(model.hf).requires_grad_(False)
    return twin
