"""The engine that `initialize` returns: a module with forward, backward and step, as in DeepSpeed."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Sampler

from .checkpoints import SavedModule
from .compat.helpers import ThroughputTimer
from .errors import NotBuilt
from .utils import groups
from .utils.loading import DeepSpeedDataLoader
from .views import TORCH_TYPES


def _says(path: str) -> Callable[[Any], Any]:
    return lambda engine: engine._value(path)


class DeepSpeedEngine(SavedModule):
    """A module with its optimizer and schedule; the ds_config decides how their state is sharded and where it is stored.

    A training step is `loss = engine(inputs)`, `engine.backward(loss)` and `engine.step()`. `initialize` creates engines. The base classes
    are HeldModule (parameters, held.py), SteppedModule (steps, steps.py) and SavedModule (checkpoints, checkpoints.py).
    """

    gradient_clipping = _says("gradient_clipping")
    """Returns the largest gradient norm of the ds_config, 0 without clipping."""
    zero_optimization_stage = _says("zero_optimization.stage")
    """Returns the ZeRO stage."""
    zero_gather_16bit_weights_on_model_save = _says("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    """Returns the value of this key of the ds_config."""
    fp16_enabled = _says("fp16.enabled")
    """Returns True if the ds_config enables fp16."""
    bfloat16_enabled = _says("bf16.enabled")
    """Returns True if the ds_config enables bf16."""

    steps_per_print = _says("steps_per_print")
    """Returns the value of this key of the ds_config."""
    wall_clock_breakdown = _says("wall_clock_breakdown")
    """Returns the value of this key of the ds_config."""

    def autotp_size(self) -> int:
        """Returns the tensor-parallel size."""
        return self.mp_world_size

    def optimizer_name(self) -> str | None:
        """Returns the type of the ds_config's optimizer in lower case."""
        return str(name).lower() if (name := self._configuration.section("optimizer").get("type")) else None

    @property
    def data_parallel_group(self) -> Any:
        """torch's group of the data-parallel ranks."""
        return groups.get_data_parallel_group()

    def zero_optimization(self) -> bool:
        """Returns True if the ZeRO stage is above 0."""
        return bool(self.zero_optimization_stage() > 0)

    def zero_optimization_partition_weights(self) -> bool:
        """Returns True at ZeRO stage 3."""
        return bool(self.zero_optimization_stage() == 3)

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """Returns the type of the parameters and the accumulation type of gradients."""
        return TORCH_TYPES[self._precision], torch.float32

    def _of_groups(self, what: str, read: Callable[[dict[str, Any]], Any]) -> list[Any]:
        self._require_training(what)
        return [read(group) for group in self.optimizer.param_groups] if self.optimizer is not None else []

    def get_lr(self) -> list[float]:
        """Returns the learning rate of each parameter group."""
        return self._of_groups("get_lr", lambda group: float(group["lr"]))

    def get_mom(self) -> list[Any]:
        """Returns the betas, or else the momentum, of each parameter group."""
        return self._of_groups("get_mom", lambda group: group.get("betas", group.get("momentum")))

    def get_type(self) -> list[Any]:
        """Returns the value `type` of each parameter group, 0.0 without one."""
        return self._of_groups("get_type", lambda group: group.get("type", 0.0))

    def get_batch_info(self) -> tuple[Callable[[], int], Callable[[], int], Callable[[], int]]:
        """Returns the methods for the global batch size, the micro-batch size per rank and the number of micro-batches per step."""
        return self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps

    def whole_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the name and the current values of each parameter of the module, for a generator that takes weights one by one.

        Collective: all ranks take the same number of parameters; one rank may send them on (`load_weights` of vLLM,
        `update_named_param` of trl's client). The values are in the module's type on the device, whole, and valid until the next one;
        they are for reading only. At stage 3 one unit is gathered at a time.
        """
        names = self._units.other_names(self.module)
        for unit in self._units.units:
            slots = [slot for slot in unit.slots if slot.name not in self._units.outside]
            with self.gathered([slot.parameter for slot in slots], None):
                for slot in slots:
                    value = slot.parameter.detach()
                    if slot.cut is not None and slot.cut.extents:  # this rank has a part
                        value = self.parameters_of(slot.name).to(value.device, value.dtype)
                    yield slot.name, value
                    yield from ((name, value) for name, first in names.items() if first == slot.name)

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
        """Returns a loader of this rank's share of a Dataset.

        Checkpoints contain the position of the loader that `initialize` creates from `training_data`, and of others after
        `register_loader`.

        Args:
            dataset: a Dataset, or an IterableDataset, which each rank reads completely.
            batch_size: samples per batch and rank (default: the micro-batch size).
            route: "train" shuffles and gives each rank its share; other values give every rank all samples in order.
            pin_memory: pin batches in host memory; only on GPUs.
            data_sampler: replaces the sampler that `route` selects.
            collate_fn: merges samples into a batch, as in `torch.utils.data.DataLoader`.
            num_local_io_workers: worker processes (default: 0).
        """
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

    def sampler_of(self, data: Any) -> Sampler[int] | None:
        """Returns the sampler of the loader that `initialize` creates, or None for that of `deepspeed_io`."""
        return None

    @functools.cached_property
    def tput_timer(self) -> ThroughputTimer:
        """Counts for scripts that print them."""
        return ThroughputTimer(self)

    is_compiled = False

    def compile(
        self,
        backend: str = "inductor",
        compile_kwargs: Mapping[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
    ) -> None:
        """Compiles the module with `torch.compile` at its next call.

        Args:
            backend: of `torch.compile`.
            compile_kwargs: further arguments of `torch.compile`.
            schedule: not supported.
            compiled_autograd_enabled: not supported.
        """
        if schedule is not None or compiled_autograd_enabled:
            raise NotBuilt("compile: schedule and compiled_autograd_enabled are not supported; leave them out")
        self.module.compile(backend=backend, **(compile_kwargs or {}))
        self.is_compiled = True
