"""The embedded engine: transformers models in this process, on a CPU or one GPU. The reference semantics.

Policies with adapters on the same base share its weights in memory; a fully trained policy owns a copy.
Sampler and learner run the same modules, in float32 on a CPU; on a GPU they compute in bfloat16 over
float32 master weights (built and tested on CPU; not yet measured on a GPU).

This module loads torch only when something is opened, so that a recipe can be checked without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from kolb.engines.base import LoraSpec, ModelSpec, OptimizerSpec
from kolb.errors import RecipeError, check_local

if TYPE_CHECKING:
    from kolb.engines.local.learner import LocalLearner
    from kolb.engines.local.model import LocalModel
    from kolb.engines.local.sampler import LocalSampler


@dataclass
class TorchLocal:
    """Options of ``[engine]``. Zeros choose by device and model."""

    device: str = "auto"
    """``cpu``, ``cuda``, ``cuda:1``, ... ; ``auto`` takes a GPU where there is one."""
    compute: str = "auto"
    """``float32`` or ``bfloat16``; ``auto`` is float32 on a CPU (bfloat16 is many times slower there)."""
    threads: int = 0
    """torch's threads on a CPU; 0 leaves torch's own choice. On a busy machine 1 can be far faster."""
    max_rows: int = 0
    """Rows sampled at once; 0: 128 on a CPU, 256 on a GPU."""
    micro_tokens: int = 0
    """Tokens of one forward and backward; 0: what about 1 GiB of activations allows (8 GiB on a GPU), and
    1024 at least: below the size of a group its prompt would be computed again and again."""
    parking_mib: int = 256
    """Memory for the keys and values of finished turns, kept so that a conversation's next turn is cheap."""
    gradient_checkpointing: bool = False
    fast: bool = True
    """False takes the plain padded path everywhere: for debugging, and for models whose probe is wrong."""

    provides: ClassVar[frozenset[str]] = frozenset(
        {
            "sample",
            "logprobs",
            "tokens",
            "score",
            "train",
            "full_ft",
            "lora",
            "policies",
            "stats:entropy",
            "stats:minp",
            "stats:proxy_kl",
            "base",
        }
    )

    def __post_init__(self) -> None:
        check_local("engine 'torch_local'")
        if self.compute not in ("auto", "float32", "bfloat16"):
            raise RecipeError(
                f"engine: compute = {self.compute!r}; it is auto, float32 or bfloat16"
            )
        self._shared: dict[Any, LocalModel] = {}

    def open_policy(
        self,
        name: str,
        model: ModelSpec,
        *,
        lora: LoraSpec | None = None,
        optimizer: OptimizerSpec = OptimizerSpec(),
        keep_base: bool = False,
    ) -> LocalLearner:
        import torch

        from kolb.engines.local.learner import LocalLearner
        from kolb.engines.local.sampler import LocalSampler

        local = self._model(model, own=lora is None)
        if lora is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(model.seed)
                local.add_adapter(name, lora)

        def new_sampler(owner: LocalLearner, version: int) -> LocalSampler:
            # A parking of its own: keys of other weights must never be met again.
            decoder = self._decoder(local, owner.adapter, self._parking())
            return LocalSampler(decoder, owner, version)

        return LocalLearner(
            local,
            name,
            optimizer,
            lora=lora,
            keep_base=keep_base,
            micro_tokens=self._micro_tokens(local),
            new_sampler=new_sampler,
        )

    def open_sampler(self, model: ModelSpec) -> LocalSampler:
        from kolb.engines.local.sampler import LocalSampler

        local = self._model(model, own=False)
        return LocalSampler(self._decoder(local, None, self._parking()), None, 0)

    def close(self) -> None:
        self._shared.clear()

    def _model(self, spec: ModelSpec, *, own: bool) -> LocalModel:
        """A model of its own, or the one that adapters and frozen samplers of the same base share."""
        from kolb.engines.local.model import LocalModel

        self._set_threads()
        key = repr(replace(spec, seed=spec.seed if spec.build else 0))
        if not own and key in self._shared:
            return self._shared[key]
        device, compute = self._place()
        local = LocalModel(
            spec,
            device=device,
            compute=compute,
            checkpointing=self.gradient_checkpointing,
            fast=self.fast,
        )
        if not own:
            self._shared[key] = local
        return local

    def _set_threads(self) -> None:
        import torch

        if self.threads:
            torch.set_num_threads(self.threads)

    def _place(self) -> tuple[Any, Any]:
        import torch

        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(name)
        compute = self.compute
        if compute == "auto":
            compute = "float32" if device.type == "cpu" else "bfloat16"
        return device, getattr(torch, compute)

    def _decoder(self, local: LocalModel, adapter: str | None, parking: Any) -> Any:
        from kolb.engines.local.sampler import Decoder

        rows = self.max_rows or (128 if local.device.type == "cpu" else 256)
        return Decoder(local, adapter, parking, rows, self._micro_tokens(local))

    def _parking(self) -> Any:
        from kolb.engines.local.rows import Parking

        return Parking(budget=self.parking_mib * 2**20)

    def _micro_tokens(self, local: LocalModel) -> int:
        """The option, or what memory allows: the activations of one token are about a dozen hidden vectors and
        four of the inner width per layer. On a CPU nothing is gained beyond 4096 (docs/log.md)."""
        if self.micro_tokens:
            return self.micro_tokens
        config = local.hf.config.get_text_config()
        hidden, layers = config.hidden_size, config.num_hidden_layers
        inner = getattr(config, "intermediate_size", None) or 4 * hidden
        per_token = 4 * layers * (14 * hidden + 4 * inner)
        if local.device.type == "cpu":
            return max(1024, min(4096, 2**30 // per_token))
        return max(1024, min(32768, 2**33 // per_token))


ENGINE = TorchLocal
