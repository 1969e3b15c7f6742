"""The engine that initialize() returns: a module whose step is forward, backward, step, as DeepSpeed's scripts write it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .checkpoints import SavedModule
from .errors import NotBuilt
from .residency import TORCH_TYPES
from .utils.loading import DeepSpeedDataLoader


def _says(path: str) -> Callable[[Any], Any]:
    return lambda engine: engine._value(path)


class DeepSpeedEngine(SavedModule):
    """A module, its optimizer and its schedule, with their state sharded and kept where the ds_config says.

    What it does is what its bases do: HeldModule, whose parameters an engine holds (held.py); SteppedModule (steps.py);
    SavedModule (checkpoints.py). Here is what it says of itself, and what else scripts call."""

    gradient_clipping = _says("gradient_clipping")
    zero_optimization_stage = _says("zero_optimization.stage")
    zero_gather_16bit_weights_on_model_save = _says("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    fp16_enabled, bfloat16_enabled = _says("fp16.enabled"), _says("bf16.enabled")

    def zero_optimization(self) -> bool:
        return bool(self.zero_optimization_stage() > 0)

    def zero_optimization_partition_weights(self) -> bool:
        return bool(self.zero_optimization_stage() == 3)

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        return TORCH_TYPES[self._precision], torch.float32

    def _of_groups(self, what: str, read: Callable[[dict[str, Any]], Any]) -> list[Any]:
        self._require_training(what)
        return [read(group) for group in self.optimizer.param_groups] if self.optimizer is not None else []

    def get_lr(self) -> list[float]:
        return self._of_groups("get_lr", lambda group: float(group["lr"]))

    def get_mom(self) -> list[Any]:
        return self._of_groups("get_mom", lambda group: group.get("betas", group.get("momentum")))

    def get_type(self) -> list[Any]:
        return self._of_groups("get_type", lambda group: group.get("type", 0.0))

    def get_batch_info(self) -> tuple[Callable[[], int], Callable[[], int], Callable[[], int]]:
        return self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Any = None,
        num_local_io_workers: int | None = None,
    ) -> DeepSpeedDataLoader:
        """A loader of this rank's share of a Dataset; where the one of initialize() is, checkpoints keep."""
        return DeepSpeedDataLoader(
            dataset,
            batch_size or self.train_micro_batch_size_per_gpu(),
            self._data_rank,
            self.dp_world_size,
            route,
            data_sampler,
            drop_last=bool(self.config.get("dataloader_drop_last", False)),
            collate_fn=collate_fn,
            num_workers=num_local_io_workers or 0,
            pin_memory=pin_memory and self.device.type == "cuda",
        )

    is_compiled = False

    def compile(
        self,
        backend: str = "inductor",
        compile_kwargs: Mapping[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
    ) -> None:
        """torch.compile of the module, when it is next called."""
        if schedule is not None or compiled_autograd_enabled:
            raise NotBuilt("compile: schedule and compiled_autograd_enabled are not supported; leave them out")
        self.module.compile(backend=backend, **(compile_kwargs or {}))
        self.is_compiled = True
