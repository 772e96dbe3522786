"""The weights of one policy: losses to gradients, gradients to steps, steps to files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kolb.chat.batching import FlatBatch, micro_batches, scatter
from kolb.chat.templates import ChatTemplate
from kolb.engines.base import LoraSpec, OptimizerSpec, Report, Stats
from kolb.engines.local.head import Distributions, HeadStats, proxy_kl, stats_of
from kolb.engines.local.loading import save_folder
from kolb.engines.local.model import LocalModel, adapter_name, clone_frozen
from kolb.engines.local.sampler import LocalSampler
from kolb.errors import NonFiniteError, PublishMismatchError, RecipeError, RunDirectoryError
from kolb.terms.base import PINNED, TokenStats, mean_of_all, prepare, proxy_rule
from kolb.types import Example, Floats, SamplingParams

PUBLISH_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3}
PROBE_TOKENS = 4


class LocalLearner:
    """One policy on a LocalModel: all of its weights, or one adapter."""

    def __init__(
        self,
        model: LocalModel,
        name: str,
        optimizer: OptimizerSpec,
        *,
        lora: LoraSpec | None,
        keep_base: bool,
        micro_tokens: int,
        new_sampler: Callable[[Any, int], LocalSampler],
    ) -> None:
        self.model, self.name, self.spec, self.micro_tokens = model, name, optimizer, micro_tokens
        self.lora, self.adapter = lora, adapter_name(name) if lora else None
        self._new_sampler = new_sampler
        self._base = clone_frozen(model) if keep_base and not lora else None
        self.parameters: dict[str, nn.Parameter] = model.trainable(self.adapter)
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()),
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self.version = 0
        self._remembered: dict[str, Tensor] = {}
        self._remembered_version = -1

    @property
    def template(self) -> ChatTemplate:
        return self.model.template

    @property
    def context_length(self) -> int:
        return self.model.context_length

    # ----------------------------------------------------------------------------------- evaluation

    @torch.no_grad()
    def forward(
        self,
        examples: Sequence[Example],
        *,
        stats: Stats = Stats(),
        temperature: float = 1.0,
        use_base: bool = False,
    ) -> list[dict[str, Floats]]:
        model = self._evaluated(use_base)
        if stats.remember:
            self._remembered = {n: p.detach().clone() for n, p in self.parameters.items()}
            self._remembered_version = self.version
        out: list[dict[str, Floats]] = [{} for _ in examples]
        for numbers in micro_batches(examples, self.micro_tokens):
            part = [examples[i] for i in numbers]
            batch, seen = model.stats(
                part, temperature=temperature, entropy=stats.entropy, minp=stats.minp
            )
            for key, values in _named(seen).items():
                for i, row in zip(numbers, scatter(batch, values, part), strict=True):
                    out[i][key] = row
        return out

    def _evaluated(self, use_base: bool) -> LocalModel:
        if use_base and self._base is not None:
            return self._base
        if use_base and self.adapter is None:
            raise ValueError(
                f"policy {self.name!r} was opened without keep_base, so its initial weights are gone"
            )
        self.model.use(None if use_base else self.adapter)
        return self.model

    # ------------------------------------------------------------------------------------- learning

    def forward_backward(
        self, examples: Sequence[Example], terms: Sequence[Any], *, temperature: float = 1.0
    ) -> Report:
        self.model.use(self.adapter)
        report = Report()
        coefficients = prepare(terms, examples)
        minp = proxy_rule(terms)
        for numbers in micro_batches(examples, self.micro_tokens):
            part = [examples[i] for i in numbers]
            old = self._old_distributions(part) if minp else None
            batch, found = self.model.distributions(part)
            seen = stats_of(found, batch.targets, temperature=temperature, entropy=True)
            if minp:
                kl = proxy_kl(found, old or found.detached(), minp, temperature)
                seen = replace(seen, proxy_kl=kl)
            loss, seen_by_terms = _losses(
                batch, seen, part, [coefficients[i] for i in numbers], terms
            )
            if not bool(torch.isfinite(loss)):
                self._drop_gradients()
                raise NonFiniteError(
                    f"policy {self.name!r}: the loss of {len(part)} examples is {float(loss.detach())}"
                )
            with self.model.keep_plan(batch):
                loss.backward()
            seen_by_terms.tokens, seen_by_terms.targets = len(batch.ids), len(batch.targets)
            report.add(seen_by_terms)
        return report

    def optim_step(self, lr: float) -> dict[str, float]:
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        if not gradients:
            return {"grad_norm": 0.0}
        norm = torch.nn.utils.get_total_norm(gradients)
        if not bool(torch.isfinite(norm)):
            self._drop_gradients()
            raise NonFiniteError(f"policy {self.name!r}: the gradient norm is {float(norm)}")
        if self.spec.max_grad_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(
                list(self.parameters.values()), self.spec.max_grad_norm, norm
            )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self._drop_gradients()
        self.version += 1
        return {"grad_norm": float(norm)}

    @torch.no_grad()
    def _old_distributions(self, examples: Sequence[Example]) -> Distributions | None:
        """Those of the remembered weights, which take the place of the current ones for a moment; None where
        they are the current ones."""
        if not self._remembered:
            raise RecipeError(
                f"policy {self.name!r}: a loss compares with weights that nobody asked to remember; call "
                "forward(examples, stats=Stats(remember=True)) before the first update"
            )
        if self._remembered_version == self.version:
            return None
        self._exchange()
        try:
            return self.model.distributions(examples)[1].detached()
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.data, self._remembered[name] = self._remembered[name], parameter.data

    def _drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    # ---------------------------------------------------------------------------------- publication

    def publish(self) -> LocalSampler:
        sampler = self._new_sampler(self, self.version)
        self._probe(sampler)
        return sampler

    def _probe(self, sampler: LocalSampler) -> None:
        """A few tokens drawn through the sampler's own path must have the learner's logprobs."""
        prompt = (np.arange(8) * 7 % self.model.vocabulary).astype(np.int32)
        drawn = sampler.sample_now(
            prompt, SamplingParams(max_tokens=PROBE_TOKENS, seed=self.version)
        )
        example = Example(
            self.name, prompt, drawn.token_ids, {"probe": np.ones(len(drawn.token_ids), np.float32)}
        )
        learnt = self.forward([example])[0]["logprobs"]
        if not np.isfinite(learnt).all():
            raise NonFiniteError(
                f"policy {self.name!r} at version {self.version}: its weights give logprobs that are not finite; the last update was too large: lower the learning rate and resume, the last checkpoint is from before"
            )
        difference = float(np.abs(learnt - drawn.logprobs).max())
        if not difference <= PUBLISH_TOLERANCE[self.model.compute]:
            raise PublishMismatchError(
                f"policy {self.name!r} at version {self.version}: sampler and learner differ by {difference:.3g} in logprob on a probe; this is a fault of the engine, or a model whose cache computes something else: set fast = false under [engine]"
            )

    # ---------------------------------------------------------------------------------------- files

    def save(self, path: Path) -> None:
        """``weights.safetensors``, ``optimizer.safetensors`` and ``learner.json`` into ``path``."""
        from safetensors.torch import save_file

        state = self.optimizer.state
        moments = {
            f"{key}.{name}": value.detach().contiguous().clone()
            for name, parameter in self.parameters.items()
            for key, value in state.get(parameter, {}).items()
        }
        save_file(
            {n: p.detach().contiguous().clone() for n, p in self.parameters.items()},
            str(path / "weights.safetensors"),
        )
        save_file(moments, str(path / "optimizer.safetensors"))
        (path / "learner.json").write_text(
            json.dumps({"schema": 1, "policy": self.name, "version": self.version})
        )

    @torch.no_grad()
    def load(self, path: Path) -> None:
        from safetensors.torch import load_file

        weights = load_file(str(path / "weights.safetensors"))
        if weights.keys() != self.parameters.keys():
            odd = sorted(weights.keys() ^ self.parameters.keys())
            raise RunDirectoryError(
                f"{path}: the checkpoint does not fit policy {self.name!r}; names that only one of them has: {odd[:4]}"
            )
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])
        moments = load_file(str(path / "optimizer.safetensors"))
        self.optimizer.state.clear()
        for key, value in moments.items():
            kind, name = key.split(".", 1)
            parameter = self.parameters[name]
            # fused AdamW keeps its step count, too, beside the weights
            self.optimizer.state[parameter][kind] = value.to(parameter.device)
        self.version = int(json.loads((path / "learner.json").read_text())["version"])

    def export(self, path: Path, *, merge: bool = False) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            save_folder(self.model.hf, self.model.tokenizer, path)
        elif merge:
            save_folder(self._merged(), self.model.tokenizer, path)
        else:
            self._export_adapter(path)

    def _export_adapter(self, path: Path) -> None:
        """peft's own layout, so that ``PeftModel.from_pretrained`` and vLLM read it."""
        from safetensors.torch import save_file

        state = {
            f"base_model.model.{n.replace(f'.{self.adapter}.', '.')}": p.detach().contiguous()
            for n, p in self.parameters.items()
        }
        save_file(state, str(path / "adapter_model.safetensors"))
        self.model.adapters[str(self.adapter)].save_pretrained(str(path))
        self.model.tokenizer.save_pretrained(path)

    @torch.no_grad()
    def _merged(self) -> Any:
        """A fresh model whose matrices hold base plus adapter."""
        from peft.tuners.lora import LoraLayer
        from transformers import AutoModelForCausalLM

        state = {}
        lora: dict[str, Any] = {
            n: m for n, m in self.model.hf.named_modules() if isinstance(m, LoraLayer)
        }
        for key, value in self.model.hf.state_dict().items():
            if "lora_" in key:
                continue
            owner = key.split(".base_layer.")[0]
            if ".base_layer.weight" in key and owner in lora:
                value = value + lora[owner].get_delta_weight(self.adapter).to(value.dtype)
            state[key.replace(".base_layer.", ".")] = value
        merged = AutoModelForCausalLM.from_config(
            self.model.hf.config, dtype=torch.float32, attn_implementation="eager"
        )
        merged.load_state_dict(state)
        return merged


def _named(stats: HeadStats) -> dict[str, Tensor]:
    found = {
        "logprobs": stats.logprobs,
        "entropy": stats.entropy,
        "max_logprob": stats.max_logprob,
        "minp_logmass": stats.minp_logmass,
    }
    return {k: v for k, v in found.items() if v is not None}


def _losses(
    batch: FlatBatch,
    seen: HeadStats,
    examples: Sequence[Example],
    coefficients: Sequence[dict[str, Floats]],
    terms: Sequence[Any],
) -> tuple[Tensor, Report]:
    """The summed loss of one micro-batch over all terms, each on the tokens of its own stream."""
    report = Report()
    total = seen.logprobs.sum() * 0.0
    gather = _Gather(batch, examples, seen.logprobs.device)
    for term in terms:
        mask = gather([e.weights.get(term.stream) for e in examples]) != 0
        if not bool(mask.any()):
            continue
        stats = _token_stats(term, mask, gather, seen, coefficients, examples)
        result = term(stats)
        total = total + result.loss
        report.losses[term.name] = float(result.loss.detach())
        report.record(result.metrics)
        if stats.entropy is not None and term is terms[0]:
            report.record({"entropy/mean": mean_of_all(stats.entropy)})
    return total, report


def _token_stats(
    term: Any,
    mask: Tensor,
    gather: _Gather,
    seen: HeadStats,
    coefficients: Sequence[dict[str, Floats]],
    examples: Sequence[Example],
) -> TokenStats:
    logprobs = seen.logprobs[mask]
    old = gather.present([e.old_logprobs for e in examples], mask, logprobs.detach())
    sampler = gather.present([e.sampler_logprobs for e in examples], mask, old)
    extras = {key for e in examples for key in e.extras if not key.startswith(PINNED)}
    return TokenStats(
        logprobs=logprobs,
        old_logprobs=old,
        sampler_logprobs=sampler,
        advantages=gather([e.advantages for e in examples])[mask],
        coefficients=gather([c[term.name] for c in coefficients])[mask],
        example=gather.example[mask],
        entropy=None if seen.entropy is None else seen.entropy[mask],
        proxy_kl=None if seen.proxy_kl is None else seen.proxy_kl[mask],
        extras={key: gather([e.extras.get(key) for e in examples])[mask] for key in sorted(extras)},
    )


class _Gather:
    """Per-example arrays [len(target_ids)] (None: zeros) to one tensor [N] in the order of the targets."""

    def __init__(self, batch: FlatBatch, examples: Sequence[Example], device: torch.device) -> None:
        starts = np.cumsum([0, *(len(e.target_ids) for e in examples)])
        self.lengths = [len(e.target_ids) for e in examples]
        self.index = starts[batch.example] + batch.offset
        self.example = torch.as_tensor(batch.example, device=device)
        self.device = device

    def __call__(self, arrays: Sequence[Floats | None]) -> Tensor:
        flat = [
            np.zeros(n, np.float32) if a is None else np.asarray(a, np.float32)
            for a, n in zip(arrays, self.lengths, strict=True)
        ]
        return torch.as_tensor(np.concatenate(flat)[self.index], device=self.device)

    def present(self, arrays: Sequence[Floats | None], mask: Tensor, otherwise: Tensor) -> Tensor:
        """The arrays under ``mask``; ``otherwise`` for the tokens of examples that have none."""
        has = torch.as_tensor([a is not None for a in arrays], device=self.device)[self.example][
            mask
        ]
        return torch.where(has, self(arrays)[mask], otherwise)
