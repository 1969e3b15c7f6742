"""A module with its optimizer in an engine: which parameters train, and the gradients that they show."""

import contextlib
import json
from collections.abc import Set
from typing import Any

import torch

from . import job as jobs
from . import native
from .compat.helpers import OffloadStateTypeEnum
from .configuration import Configuration
from .declared import Declared
from .errors import NotBuilt, StepOrderError, UsageError
from .gradients import ShownGradients
from .held import HeldModule
from .schedules import kind_of
from .views import TORCH_TYPES

_WITHOUT_DDP = "DistributedDataParallel: the engine already sums gradients over the ranks; use the engine without it"
_READ_BY_DDP = "_ddp_params_and_buffers_to_ignore"  # attribute of a module
_MOVABLE = {"hp_params", "optim_states"}  # kinds of state that offload_states moves


class _NoDdp:
    """Raises when DistributedDataParallel wraps the module of an engine. A copy of the module has no engine."""

    def __iter__(self) -> Any:
        raise UsageError(_WITHOUT_DDP)

    def __reduce__(self) -> Any:
        return tuple, ()


class TrainedModule(HeldModule):
    """An engine with an optimizer. Parameters may be frozen, unfrozen and added to the optimizer between steps."""

    _why_fixed = ""  # reason why trained parameters cannot change after initialize()
    _trains: Set[int] = frozenset()  # ids of parameters with optimizer state
    _paused: list[str] | None = None  # names of those that are frozen
    _in_step = False

    def __init__(self, config: Configuration, model: torch.nn.Module, optimizer: Any, model_parameters: Any, lr_scheduler: Any) -> None:
        declared = Declared(config, model, jobs.current(), optimizer, model_parameters, lr_scheduler)
        super().__init__(declared)
        self.optimizer, self._brings_rates = declared.optimizer, declared.brings_rates
        self._show_gradients()
        self.client_optimizer, self.client_lr_scheduler = optimizer, lr_scheduler
        dtype = declared.autocast
        self._autocast = (
            torch.autocast(self.device.type, TORCH_TYPES[dtype], cache_enabled=not self._residency.any_gathers)
            if dtype
            else contextlib.nullcontext()
        )
        if dtype and self._precision != "fp32" and self.global_rank == 0:
            native.warn(
                "warning: torch_autocast: bf16 rounds the parameters, also for operations in fp32; remove bf16 to keep them in fp32"
            )
        if self.optimizer is not None:
            self._trains = set(map(id, self.optimizer.trained()))
            self.optimizer.scale_now = self._native.loss_scale
            self.optimizer.zero_grad = self.zero_grad  # type: ignore[method-assign]
            self.optimizer.offload_states, self.optimizer.reload_states = self.offload_states, self.reload_states
        self.lr_scheduler = declared.schedule or self._schedule_of_engine()

    def _value(self, path: str) -> Any:
        return self._configuration.values[path]

    def _require_training(self, what: str) -> None:
        if self.optimizer is None:
            raise StepOrderError(f"{what}: this engine has no optimizer; give initialize() one, or a section `optimizer` in the ds_config")

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> Any:
        raise UsageError(_WITHOUT_DDP)

    def _why_hidden(self) -> str:
        """Returns the reason why parameters cannot show gradients, or an empty string."""
        stage = self._value("zero_optimization.stage")
        if self._partition:
            return "a tensor-parallel rank has only a part of the gradients"
        return f"a rank has only a part of the gradient at ZeRO stage {stage}" if stage > 1 else ""

    def _show_gradients(self) -> None:
        if self.optimizer is not None and self._value("zero_optimization.stage") == 3:
            self.optimizer.parameter_offload = self._residency.offload
        key, hidden = {"on": True, "off": False}.get(self._value("cleave.visible_gradients")), self._why_hidden()
        if key and hidden and self.global_rank == 0:
            native.warn(f"warning: cleave.visible_gradients: has no effect: {hidden}")
        vars(self.module).setdefault(_READ_BY_DDP, _NoDdp())
        self._shown = ShownGradients(self._job, self._native, self._units, key, hidden)

    def _free(self) -> None:
        self._shown.close()
        if isinstance(vars(self.module).get(_READ_BY_DDP), _NoDdp):
            del self.module.__dict__[_READ_BY_DDP]
        super()._free()

    def next_rates(self) -> native.Rates:
        """Returns the rates of the next step by the schedule of the ds_config."""
        return self._native.next_rates()

    # ---- what is trained ----

    def _follow_growth(self) -> None:
        """Trains parameters that were unfrozen, or added to the optimizer, since the last step. Collective if there are any."""
        if self.optimizer is None or self._in_step:
            return
        if not self.optimizer.regrouped() and not self.optimizer.trains_more_than(self._trains):
            return
        if self._why_fixed:
            raise NotBuilt(
                f"requires_grad, add_param_group: trained parameters cannot change {self._why_fixed}; set them before initialize()"
            )
        trained = self.optimizer.trained()
        grouped = self._grouped()
        paused = [s.parameter for s in self._units.slots() if s.trains and s.parameter not in trained and id(s.parameter) in grouped]
        self._renew(paused)
        self._brings_rates, self._trains = self._declared.brings_rates, {*map(id, trained), *map(id, paused)}
        self._paused = None
        self._show_gradients()

    def _grouped(self) -> set[int]:
        """Returns the ids of the parameters of all groups of the optimizer."""
        return {id(p) for group in self.optimizer.param_groups for p in group["params"]} if self.optimizer else set()

    def _pause_frozen(self) -> None:
        """Excludes trained parameters from the update that left the optimizer, or are frozen now and got no gradient in this step."""
        arrived, grouped = self._residency.arrived, self._grouped()
        trained = [s for s in self._units.slots() if s.trains]
        frozen = {s.name for s in trained if not s.parameter.requires_grad and s.name not in arrived}
        paused = [s.name for s in trained if s.name in frozen or id(s.parameter) not in grouped]
        if paused != (self._paused or []):
            if self._why_fixed:
                raise NotBuilt(f"requires_grad: parameters cannot be frozen {self._why_fixed}; freeze them before initialize()")
            self._native.pause(json.dumps(paused))
        self._paused = paused

    def _schedule_of_engine(self) -> Any:
        if self.optimizer is None or not (section := self._configuration.given.get("scheduler")):
            return None
        return kind_of(section).of_engine(self, self.optimizer, section.get("params") or {})

    # ---- memory of the optimizer ----

    def offload_states(self, include: Any = None, device: Any = "cpu", pin_memory: bool = True, non_blocking: bool = False) -> None:
        """Moves optimizer states and fp32 masters from the device to host memory, which frees their memory on a GPU.

        They return with `reload_states`, and by themselves before the next step and when weights change. Weights, gradients and their
        buffers stay on the device.

        Args:
            include: kinds of state (`runtime.zero.offload_config.OffloadStateTypeEnum`); default: all. `optim_states` and `hp_params` move.
            device: "cpu"; "none" has no effect, with a warning.
            pin_memory: page-lock the host memory.
            non_blocking: accepted; the call waits for the copies.

        Raises:
            UsageError: another device, inside a step, without an optimizer, or with `zero_optimization.offload_param`.
            OutOfMemory: the host memory does not suffice.
        """
        place, kinds = getattr(device, "value", device), {getattr(kind, "value", kind) for kind in include or ()}
        if place not in ("cpu", "none"):
            raise UsageError(f"offload_states: wrong device (got {place}, expected cpu)")
        if unknown := sorted(map(str, kinds - {kind.value for kind in OffloadStateTypeEnum})):
            expected = ", ".join(kind.value for kind in OffloadStateTypeEnum)
            raise UsageError(f"offload_states: unknown kind of state in include (got {', '.join(unknown)}, expected {expected})")
        if self._configuration.values.get("zero_optimization.offload_param.device") not in (None, "none"):
            raise UsageError("offload_states: not supported with zero_optimization.offload_param; remove offload_param")
        if idle := "device is none" if place == "none" else "cleave.native is true" if self._configuration.native() else "":
            if self.global_rank == 0:
                native.warn(f"warning: offload_states: has no effect: {idle}")
            return
        stays = sorted(kinds - _MOVABLE)
        if stays and self.device.type == "cuda" and self.global_rank == 0:
            print(f"note: offload_states: {', '.join(stays)} stay on the GPU", flush=True)
        moves = [int(not kinds or kind in kinds) for kind in ("hp_params", "optim_states")]
        self._native.offload_states(*moves, int(pin_memory))

    def reload_states(self, non_blocking: bool = False) -> None:
        """Moves states that `offload_states` moved back to the device. non_blocking: accepted; the call waits for the copies."""
        if not self._configuration.native():
            self._native.reload_states()

    def empty_partition_cache(self) -> None:
        """Has no effect: gathered parameters use planned memory that the engine keeps."""
