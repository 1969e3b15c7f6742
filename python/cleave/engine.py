"""The engine that initialize() returns: a module whose step is forward, backward, step, as DeepSpeed's scripts write it."""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from . import job as jobs
from . import native
from .configuration import Configuration
from .errors import NotBuilt, StepOrderError, UsageError
from .optimizers import Declared
from .residency import TORCH_TYPES, Residency
from .saved import Beside, beside
from .schedules import Schedule, kind_of
from .sharded import shard_of, value_of
from .units import ModuleUnits, Slot
from .utils import groups
from .utils.loading import DeepSpeedDataLoader


def _autocast(config: Configuration, device: torch.device) -> torch.autocast | None:
    """What the section torch_autocast asks for around the module's call."""
    section = config.given.get("torch_autocast")
    if not isinstance(section, Mapping) or not section.get("enabled"):
        return None
    dtype = str(section.get("dtype", "bfloat16")).removeprefix("torch.")
    if dtype not in ("bfloat16", "bf16"):
        raise NotBuilt(f"torch_autocast.dtype {dtype} is not built, because fp32 gradients have no loss scale; use bfloat16")
    for other in ("fp16", "bf16"):
        if config.given.get(other, {}).get("enabled"):
            raise UsageError(f"torch_autocast and {other} are both enabled; a module's parameters are fp32 under torch_autocast")
    return torch.autocast(device.type, torch.bfloat16)


def _says(path: str) -> Callable[[Any], Any]:
    return lambda engine: engine._value(path)


class DeepSpeedEngine(torch.nn.Module):
    """A module, its optimizer and its schedule, with their state sharded and kept where the ds_config says."""

    def __init__(
        self,
        config: Configuration,
        model: torch.nn.Module,
        optimizer: Any = None,
        model_parameters: Any = None,
        lr_scheduler: Any = None,
        seed: int = 42,
    ) -> None:
        super().__init__()
        self._job = jobs.current()
        facts = self._job.facts()
        self.global_rank, self.local_rank = int(facts["rank"]), int(facts["local_rank"])
        self.world_size, self.mp_world_size = int(facts["world"]), 1
        self.device = torch.device(facts["device"])
        self.module = model
        self.client_optimizer, self.client_lr_scheduler = optimizer, lr_scheduler

        self._autocast = _autocast(config, self.device)
        declared = Declared(config, model, self._read, optimizer, model_parameters, lr_scheduler)
        self._configuration = config = declared.config
        self.optimizer, units = declared.optimizer, declared.units
        self._outside = outside = declared.outside
        self._brings_rates = declared.brings_rates
        self._precision = config.precision()
        self._move_buffers()
        self._native: native.NativeEngine = native.NativeEngine(
            self._job,
            config.text,
            config.name,
            type(model).__name__,
            units.declared(),
            seed=seed,
            rates_given=self._brings_rates,
            inference=self.optimizer is None,
            has_stream=self.device.type == "cuda",
            stream=torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else None,
            update=(lambda part: outside.update(part, units.units[part.unit].slots[part.parameter], self._native)) if outside else None,
            states=outside.kinds if outside else (),
            model_config=config.computed(model),
        )
        jobs.keep_until_saved(self._native)
        groups.mpu = None
        about = self._native.facts()
        self.dp_world_size, self._data_rank = int(about["mesh"]["data"]), int(about["place"]["data"])
        self._shapes = {name: torch.Size(shape) for name, shape in about["parameters"].items()}  # of the whole model
        self._shapes.update({slot.name: slot.shape for slot in units.slots()})
        self._hand_over(units)
        self._residency = Residency(model, self._native, units, self._precision, self.device)
        for slot in units.slots():
            slot.parameter.ds_engine = self  # type: ignore[attr-defined]
        self._units = units
        if self.optimizer is not None:
            self.optimizer.scale_now = lambda: float(self._native.facts()["loss_scale"])
        self.lr_scheduler = self._scheduler(lr_scheduler)
        self.training_dataloader: DeepSpeedDataLoader | None = None
        self._counters()

    # ---- set-up ----

    def _read(self, config: Configuration) -> None:
        config.read(self._job)
        if config.warnings and self.global_rank == 0:
            print(config.warnings, end="")

    def _move_buffers(self) -> None:
        """Buffers are where the engine computes, in their own type, as fp32 frequencies of rotations have to be, or in buffer_dtype."""
        dtype = TORCH_TYPES.get(str((self.config.get("data_types") or {}).get("buffer_dtype")))
        for submodule in self.module.modules():
            for name, buffer in submodule.named_buffers(recurse=False):
                submodule._buffers[name] = buffer.to(self.device, dtype if buffer.is_floating_point() else None)

    def _hand_over(self, units: ModuleUnits) -> None:
        """The engine's masters take the values of the first rank that has a parameter, one at a time. Collective."""
        for slot in units.slots():
            value = value_of(slot.parameter)
            whole = value.to("cpu", torch.float32).contiguous()
            if whole.data_ptr() == value.data_ptr():
                whole = whole.clone()
            self._native.take_first(slot.unit, whole.data_ptr(), whole.numel() * 4)
            self._native.put_state(0, slot.name, whole.numel(), whole.data_ptr())
            if shard := shard_of(slot.parameter):
                shard.forget(slot.parameter)
        self._native.publish()
        for buffer in self.module.buffers():
            held = buffer.detach().to("cpu").contiguous()
            if held.numel():
                self._native.take_first(-1, held.data_ptr(), held.numel() * held.element_size())
                buffer.data.copy_(held)

    def _scheduler(self, given: Any) -> Any:
        if self.optimizer is None:
            return None
        if given is None:
            section = self._configuration.given.get("scheduler")
            return kind_of(section).of_engine(self._native, self.optimizer) if section else None
        if callable(given) and not hasattr(given, "step"):
            return given(self.optimizer.optimizer or self.optimizer)
        return given

    def _counters(self) -> None:
        self.global_steps = self.global_samples = self.skipped_steps = self.micro_steps = 0
        self._boundary: bool | None = None
        self._unsynced = False
        self._losses: list[torch.Tensor] = []
        self._in_step = self._has_gradients = self._applied = False
        self._norm: float | None = None
        self.loaded_checkpoint_tag: str | None = None
        self._compiled = False
        self.data_iterator: Any = None  # over training_dataloader, where the engine reads it
        self._micro_batch = int(self._value("train_micro_batch_size_per_gpu"))
        self._micro_batches = int(self._value("gradient_accumulation_steps"))

    # ---- a step ----

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        with self._autocast or contextlib.nullcontext():
            return self._residency.forward(lambda: self.module(*inputs, **kwargs))

    def _require_training(self, what: str) -> None:
        if self.optimizer is None:
            raise StepOrderError(
                f"{what}: this engine has no optimizer, so it trains nothing; give initialize() one, or a section "
                "`optimizer` in the ds_config"
            )

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Takes the gradients of the loss, a mean over this rank's micro-batch, which the engine averages over micro-batches and ranks.

        Returns the loss as a share of the step's. With scale_wrt_gas=False the loss is divided by the micro-batches already.
        """
        self._require_training("backward")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(f"backward of a {type(loss).__name__}{list(getattr(loss, 'shape', []))}; wanted a loss of one element")
        if not self._in_step:
            self._native.begin_step()
            self._in_step = True
        micros = self.gradient_accumulation_steps()
        scale = self._native.scale() * (1 if scale_wrt_gas else micros)
        seed = torch.full_like(loss, scale * int(self._value("gradient_accumulation_steps")) / micros)
        self._residency.backward(
            lambda: torch.autograd.backward(loss, seed, retain_graph=retain_graph),
            self.is_gradient_accumulation_boundary() and not self._unsynced,
        )
        self._has_gradients = True
        self._losses.append(loss.detach() * (1 if scale_wrt_gas else micros))
        return loss.detach() / micros if scale_wrt_gas else loss.detach()

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """At the boundary of accumulation the update, else nothing but the count of micro-batches."""
        self._require_training("step")
        self._applied = False
        if self._unsynced:
            raise StepOrderError("step within no_sync, before gradients are summed; call it behind the context and a backward there")
        if not self._has_gradients:
            raise StepOrderError("step without a backward since the last one; call engine.backward(loss) first")
        if self.is_gradient_accumulation_boundary():
            self._update(lr_kwargs or {})
        self._has_gradients = False
        self.micro_steps += 1

    def _update(self, lr_kwargs: Mapping[str, Any]) -> None:
        assert self.optimizer is not None
        rates = self.optimizer.rates() if self._brings_rates else []
        self._in_step = False
        result = self._native.finish_step(self._losses_of_micros(), rates)
        self._losses.clear()
        self._norm = float("inf") if result.skipped else result.grad_norm
        self.optimizer.updated(result.skipped)
        self._applied = not result.skipped
        if result.skipped:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        self.global_steps += 1
        self.global_samples += self.train_batch_size()
        self.last_result = result

    def _losses_of_micros(self) -> list[float]:
        """One for each micro-batch of the ds_config, also where the script took another number of them."""
        if not self._losses:
            return []
        losses = torch.stack([loss.float().reshape(()) for loss in self._losses]).tolist()
        micros = int(self._value("gradient_accumulation_steps"))
        return losses if len(losses) == micros else [sum(losses) / len(losses)] * micros

    def is_gradient_accumulation_boundary(self) -> bool:
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self._boundary = is_boundary

    def was_step_applied(self) -> bool:
        return self._applied

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes of a step whose gradients are not summed over ranks yet; the pass behind the context sums them all."""
        if self.zero_optimization_stage() >= 2:
            raise UsageError(
                f"no_sync at ZeRO stage {self.zero_optimization_stage()}, whose gradients are summed with each backward; leave it out"
            )
        self._unsynced = True
        try:
            yield
        finally:
            self._unsynced = False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss, whose backward() is engine.backward(loss), which multiplies it by the loss scale."""
        self._require_training("scale")
        scaled = loss * 1.0
        scaled.backward = lambda gradient=None, retain_graph=False: self.backward(loss, retain_graph)  # type: ignore
        return scaled

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
        size = batch_size or self.train_micro_batch_size_per_gpu()
        return DeepSpeedDataLoader(
            dataset,
            size,
            self._data_rank,
            self.dp_world_size,
            route,
            data_sampler,
            drop_last=bool(self.config.get("dataloader_drop_last", False)),
            collate_fn=collate_fn,
            num_workers=num_local_io_workers or 0,
            pin_memory=pin_memory and self.device.type == "cuda",
        )

    def allreduce_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: engine.backward and engine.step sum gradients."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: gradients are the engine's, which begins each step without any."""

    # ---- what it says of itself ----

    @property
    def config(self) -> dict[str, Any]:
        return self._configuration.given

    def _value(self, path: str) -> Any:
        return self._configuration.values[path]

    def train_batch_size(self) -> int:
        return self._micro_batch * self._micro_batches * self.dp_world_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._micro_batch

    def gradient_accumulation_steps(self) -> int:
        return self._micro_batches

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """From the next step on, by other micro-batches of the same size."""
        each = self._micro_batch * self.dp_world_size
        if train_batch_size < 1 or train_batch_size % each:
            raise UsageError(f"set_train_batch_size({train_batch_size}): wanted a multiple of {each}, the micro-batches of all ranks")
        self._require_no_step("set_train_batch_size")
        if self._value("cleave.exact_sums") and train_batch_size // each > int(self._value("gradient_accumulation_steps")):
            raise UsageError("set_train_batch_size: with cleave.exact_sums a step has at most the micro-batches of the ds_config")
        self._micro_batches = train_batch_size // each
        self.micro_steps = 0

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """From the next step on, as many of them: the batch is another one, too."""
        if micro_batch_size < 1:
            raise UsageError(f"set_train_micro_batch_size({micro_batch_size}): wanted at least 1")
        self._require_no_step("set_train_micro_batch_size")
        self._micro_batch = micro_batch_size

    def _require_no_step(self, what: str) -> None:
        if self._in_step:
            raise StepOrderError(f"{what} within a step; call it after a boundary's engine.step()")

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

    def get_global_grad_norm(self) -> float | None:
        """Of the last step: averaged and unscaled, before clipping; None before the first."""
        return self._norm

    def get_batch_info(self) -> tuple[Callable[[], int], Callable[[], int], Callable[[], int]]:
        return self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps

    def memory(self) -> dict[str, Any]:
        """Bytes of this rank by kind and category: planned, live and peak."""
        facts = self._native.facts()
        return {key: facts[key] for key in ("planned", "live", "peak")}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is not None and hasattr(module, name):
                return getattr(module, name)
            raise AttributeError(f"the engine and its module {type(module).__name__} have no attribute {name}") from None

    # ---- state ----

    def name_of(self, parameter: torch.nn.Parameter) -> str:
        """The name by which checkpoints know a parameter."""
        return self._units.of_parameter[id(parameter)].name

    def _kind(self, kind: str) -> int:
        kinds = list(self._native.facts()["kinds"])
        if kind not in kinds:
            raise UsageError(f"a parameter has the states {', '.join(kinds)}; got {kind}")
        return kinds.index(kind)

    def parameters_of(self, name: str, kind: str = "master") -> torch.Tensor:
        """One whole state of a parameter in fp32 on the host: "master" is its value. Collective."""
        number = self._kind(kind)
        if name not in self._shapes:
            raise UsageError(f"{type(self.module).__name__} has no parameter {name}")
        whole = torch.empty(self._shapes[name], dtype=torch.float32)
        self._native.get_state(number, name, whole.data_ptr())
        return whole

    def gradient_of(self, name: str) -> torch.Tensor | None:
        """A whole gradient of the step's loss in fp32 on the host: averaged, before clipping. Collective.

        None outside of a step, and for what is not trained; between the last backward of a step and engine.step() it is there.
        """
        slot = next(s for s in self._units.slots() if s.name == name)
        if not self._in_step or not slot.trains:
            return None
        whole = torch.empty(slot.shape, dtype=torch.float32)
        self._native.get_gradient(name, whole.data_ptr())
        return whole

    @contextlib.contextmanager
    def gathered(self, parameters: list[torch.nn.Parameter], modifier_rank: int | None) -> Iterator[None]:
        """zero.GatheredParameters of this engine's parameters. Collective."""
        slots = [self._units.of_parameter[id(p)] for p in parameters if id(p) in self._units.of_parameter]
        modifies = modifier_rank == self.global_rank
        with self._residency.outside(list(dict.fromkeys(slot.unit for slot in slots))):
            before = [slot.parameter.detach().clone() if modifies else None for slot in slots]
            yield
            after = [slot.parameter.detach().to("cpu", torch.float32, copy=True) for slot in slots] if modifies else []
            changed = [b is not None and not torch.equal(b, slot.parameter) for b, slot in zip(before, slots, strict=True)]
        if modifier_rank is not None:
            self._take_over(slots, after, changed, modifier_rank)

    def _take_over(self, slots: list[Slot], after: list[torch.Tensor], changed: list[bool], root: int) -> None:
        """What one rank changed becomes the value on all; what it left alone keeps its master."""
        anywhere = self._job.sum([float(c) for c in changed]) if changed else []
        for i, slot in enumerate(slots):
            if anywhere[i]:
                value = after[i] if after else torch.empty(slot.shape)
                self._job.broadcast(value.data_ptr(), value.numel() * 4, root)
                self.set_parameter(slot.name, value)

    def set_parameter(self, name: str, value: torch.Tensor, kind: str = "master") -> None:
        """Overwrites a state of a parameter with the same value on every rank. Collective."""
        whole = value.detach().to("cpu", torch.float32).contiguous()
        number = self._kind(kind)
        self._native.put_state(number, name, whole.numel(), whole.data_ptr())
        if number == 0:
            self._native.publish()

    def module_state_dict(
        self, destination: Any = None, prefix: str = "", keep_vars: bool = False, exclude_frozen_parameters: bool = False
    ) -> Any:
        """The module's own: at stage 3 its parameters have no values there; see _zero3_consolidated_16bit_state_dict."""
        state = self.module.state_dict(prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters():
                if not parameter.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def load_module_state_dict(
        self, checkpoint: Mapping[str, Any], strict: bool = True, custom_load_fn: Any = None, fetch_z3_params: bool = False
    ) -> None:
        """Overwrites the module's parameters and buffers by those of a state_dict, or of a dictionary that has one as `module`.

        Every rank gives the same. Collective.
        """
        if custom_load_fn is not None:
            raise NotBuilt("custom_load_fn is not built; change what the state_dict has before it is given")
        given: Mapping[str, torch.Tensor] = checkpoint["module"] if isinstance(checkpoint.get("module"), Mapping) else checkpoint
        wanted = set(self.module.state_dict(keep_vars=True))
        missing, unexpected = sorted(wanted - given.keys()), sorted(given.keys() - wanted - self._shapes.keys())
        if strict and (missing or unexpected):
            what = f"missing {', '.join(missing) or 'nothing'}; unexpected {', '.join(unexpected) or 'nothing'}"
            raise UsageError(f"load_module_state_dict: {what}; names are those of the module's state_dict")
        slots = [slot for slot in self._units.slots() if slot.name in given]
        for slot in slots:
            if given[slot.name].shape != slot.shape:
                shapes = f"{list(given[slot.name].shape)}; wanted {list(slot.shape)}"
                raise UsageError(f"load_module_state_dict: {slot.name} has the shape {shapes}")
        for slot in slots:
            whole = given[slot.name].detach().to("cpu", torch.float32).contiguous()
            self._native.put_state(0, slot.name, whole.numel(), whole.data_ptr())
        self._native.publish()
        self._load_buffers(given)

    def _load_buffers(self, given: Mapping[str, torch.Tensor]) -> None:
        for name, buffer in self.module.named_buffers():
            if name in given:
                buffer.data.copy_(given[name])

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, torch.Tensor] | None:
        """Whole weights in the model's type, on the first rank only. Collective."""
        state: dict[str, torch.Tensor] = {}
        whole = {}
        for u, unit in enumerate(self._units.units):
            with self._residency.outside([u]):
                for slot in unit.slots if self.global_rank == 0 else []:
                    whole[id(slot.parameter)] = slot.parameter.detach().to("cpu", copy=True)
        if self.global_rank != 0:
            return None
        for name, value in self.module.state_dict(keep_vars=True).items():
            if exclude_frozen_parameters and isinstance(value, torch.nn.Parameter) and not value.requires_grad:
                continue
            state[name] = whole.get(id(value), value.detach().to("cpu"))
        return state

    def save_16bit_model(self, save_dir: str, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False) -> bool:
        """Writes whole weights from the first rank. Collective."""
        state = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if state is not None:
            os.makedirs(save_dir, exist_ok=True)
            torch.save(state, os.path.join(save_dir, save_filename))
        self._job.barrier()
        return True

    save_fp16_model = save_16bit_model

    def _beside(self, client_state: Mapping[str, Any] | None) -> Beside:
        """What a checkpoint keeps beside the engine's records."""
        scheduler = self.lr_scheduler.state_dict() if hasattr(self.lr_scheduler, "state_dict") else None
        slots, named = self._units.slots(), self.module.state_dict(keep_vars=True)
        return Beside(
            client_state=dict(client_state or {}),
            scheduler=scheduler,
            optimizer=self.optimizer.state_dict() if self.optimizer else None,
            loader=self.training_dataloader.state_dict(self._begun()) if self.training_dataloader is not None else None,
            buffers={name: b.detach().to("cpu") for name, b in self.module.named_buffers() if b.numel() and name in named},
            counters={key: getattr(self, key) for key in ("global_steps", "global_samples", "skipped_steps")}
            | {"micro_steps": self.micro_steps - self._begun()},
            shared=self._units.other_names(self.module),
            frozen=[slot.name for slot in slots if not slot.trains],
            shapes={slot.name: list(slot.shape) for slot in slots if not 1 <= len(slot.shape) <= 4},
        )

    def save_checkpoint(
        self,
        save_dir: str,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes SAVE_DIR/TAG from all ranks, as the command line does. Collective; False where it could not be."""
        self._require_training("save_checkpoint")
        self._require_no_update_under_way()
        name = str(tag or f"global_step{self.global_steps}")
        crc = float(zlib.crc32(name.encode()))
        if self._job.sum([crc])[0] != crc * self.world_size:
            raise UsageError(f"save_checkpoint: the tag is {name} on rank {self.global_rank} and another on another rank; give one")
        os.makedirs(save_dir, exist_ok=True)
        self._native.save_checkpoint(os.fspath(save_dir), name, json.dumps(self._beside(client_state).packed()))
        return True

    def _require_no_update_under_way(self) -> None:
        """Units may be updated during a step's last backward already; what earlier ones added to gradients is no part of a checkpoint."""
        if self._in_step and self._has_gradients and self.is_gradient_accumulation_boundary():
            raise StepOrderError("save_checkpoint between the last backward of a step and engine.step(); call it after that")
        if self._in_step and self.global_rank == 0:
            micros = f"{self._begun()} of {self.gradient_accumulation_steps()} micro-batches"
            print(f"warning: a step is under way; its {micros} are not in the checkpoint, which has what the step before left")

    def _begun(self) -> int:
        """The micro-batches of a step under way."""
        return len(self._losses)

    def load_checkpoint(
        self,
        load_dir: str,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any]]:
        """Restores a checkpoint of any layout; returns its path and what the script stored. Collective."""
        if custom_load_fn is not None:
            raise NotBuilt("custom_load_fn is not built; load what is of your own from the client state that load_checkpoint returns")
        if self._in_step:
            raise StepOrderError(
                "load_checkpoint within a step, whose gradients are of other weights; call it after a boundary's engine.step()"
            )
        folder, self.data_iterator = os.fspath(load_dir), None
        if tag is None and not os.path.exists(os.path.join(folder, "latest")):
            if self.global_rank == 0:
                print(f"warning: {folder} has no file latest, so no checkpoint was loaded; name one by tag")
            return None, {}
        with_optimizer = load_optimizer_states and not load_module_only
        client = json.loads(self._native.asked("load_checkpoint", folder, tag or "latest", with_optimizer) or "{}")
        found = tag or Path(folder, "latest").read_text(encoding="utf-8").strip()
        path = os.path.join(folder, found)
        kept = beside(client, path)
        if not load_module_only:
            self._restore(kept, with_optimizer, load_lr_scheduler_states)
        if self._outside:
            anew = not with_optimizer or bool(self._native.facts()["optimizer_is_new"])
            self._outside.load((kept.optimizer or {}).get("outside"), anew)
        self._load_buffers(kept.buffers)
        self.loaded_checkpoint_tag = found
        return path, kept.client_state

    def _restore(self, kept: Beside, with_optimizer: bool, with_scheduler: bool) -> None:
        steps = int(self._native.facts()["step"])
        own = {"global_steps": steps, "global_samples": steps * self.train_batch_size(), "skipped_steps": 0}
        own["micro_steps"] = steps * self.gradient_accumulation_steps()
        for key, value in {**own, **kept.counters}.items():
            setattr(self, key, value)
        if self.training_dataloader is not None and kept.loader:
            self.training_dataloader.load_state_dict(kept.loader)
        if with_optimizer and self.optimizer and kept.optimizer:
            self.optimizer.load_state_dict(kept.optimizer)
        if with_scheduler and isinstance(self.lr_scheduler, Schedule):
            self.lr_scheduler.follow(self.global_steps - self.skipped_steps)
        elif with_scheduler and self.lr_scheduler is not None and kept.scheduler is not None:
            self.lr_scheduler.load_state_dict(kept.scheduler)

    def compile(
        self,
        backend: str = "inductor",
        compile_kwargs: Mapping[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
    ) -> None:
        """torch.compile of the module, when it is next called."""
        if schedule is not None or compiled_autograd_enabled:
            raise NotBuilt("compile(schedule=, compiled_autograd_enabled=) is not built; leave these out")
        self.module.compile(backend=backend, **(compile_kwargs or {}))
        self._compiled = True

    @property
    def is_compiled(self) -> bool:
        return self._compiled

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        raise NotBuilt("offload_states is not built; zero_optimization.offload_optimizer and offload_param say where state lives")

    reload_states = offload_states

    def empty_partition_cache(self) -> None:
        """Nothing: gathered parameters are in memory that is planned and stays."""

    def destroy(self) -> None:
        """Gives the engine's memory back. Parameters that are whole on a rank keep their values."""
        self._residency.close()
        self._native.finish_save()
        self._native.free()
