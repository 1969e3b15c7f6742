"""A module with its parameters in an engine: transfer of the parameters, and reads and writes of whole parameters at any ZeRO stage."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import devices, memory_errors, native, streams
from . import job as jobs
from .cuts import Cut
from .declared import Declared
from .errors import NotBuilt, UsageError, names_the_call
from .materialized import Materialized
from .reports import MonitorMaster
from .residency import Residency
from .sharded import engine_of, joined, part_of, shard_of, value_of
from .units import Slot, describe_shape
from .utils import groups
from .views import TORCH_TYPES


def _type_outside(slot: Slot) -> torch.dtype:
    """Returns the type of a parameter's values that the engine gives and takes."""
    return slot.parameter.dtype if slot.has_bits else torch.float32


class HeldModule(torch.nn.Module):
    """A module and its native engine."""

    def __init__(self, declared: Declared) -> None:
        """Makes the parameters show the engine's memory. Collective."""
        super().__init__()
        self._job = jobs.current()
        facts = self._job.facts()
        self.global_rank, self.local_rank = int(facts["rank"]), int(facts["local_rank"])
        self.world_size = int(facts["world"])
        self.device: torch.device = devices.adopt(facts["device"])
        self.module, self._configuration, self._precision = declared.module, declared.config, declared.config.precision()
        self._declared, self._outside = declared, declared.outside
        self._materialized = Materialized(self.module)
        self._materialized.buffers(self.module)
        self._move_buffers()
        self._make()
        groups.mpu = None
        groups.use_tensor_parallel(self.mp_world_size, float(self._configuration.values["cleave.comm_timeout_s"]))
        self._partition = declared.partition
        if self._partition:
            self._partition.apply(self.dp_world_size)
        earlier = self._earlier_engines()
        self._hand_over(self._units.slots())
        self._native.publish()
        self._take_buffers()
        for engine in earlier:
            engine._residency.close(keeps=False)
            engine._free()
        self._attach()

    def _earlier_engines(self) -> list["HeldModule"]:
        """Returns the engines that hold parameters of this module. This engine takes over all of theirs.

        Raises:
            UsageError: one also holds other parameters.
        """
        found = dict.fromkeys(engine for slot in self._units.slots() if (engine := engine_of(slot.parameter)) is not None)
        for engine in found:
            rest = [slot.name for slot in engine._units.slots() if id(slot.parameter) not in self._units.of_parameter]
            if rest:
                other = f"another engine, of a {type(engine.module).__name__} that also has {rest[0]}"
                raise UsageError(f"model: shares parameters with {other}; call destroy() on that engine, or pass the same module")
        return list(found)

    def _make(self) -> None:
        """Makes the native engine of the declared units. Collective."""
        declared, outside = self._declared, self._outside
        self._units = units = declared.units
        with memory_errors.refused(self.device):
            self._native: native.NativeEngine = native.NativeEngine(
                self._job,
                *declared.of_engine(),
                stream=streams.current(self.device),
                update=(lambda part: outside.update(part, units.units[part.unit].slots[part.parameter], self._native)) if outside else None,
                states=outside.kinds if outside else (),
                **declared.options(),
            )
        if any(self._configuration.values.get(key) for key in ("checkpoint.async", "checkpoint.writer.decoupled", "nebula.enabled")):
            jobs.engines.append(self._native)
        self.monitor = MonitorMaster(self._native, self._configuration.values, self.global_rank)
        if self.monitor.reports_at_end:
            jobs.reports.append(self.monitor)
        about = self._native.facts()
        self.dp_world_size, self._data_rank = int(about["mesh"]["data"]), int(about["place"]["data"])
        self.mp_world_size = int(about["mesh"]["tensor"])
        self._shapes = {name: torch.Size(shape) for name, shape in about["parameters"].items()}  # of the whole model
        self._shapes.update({slot.name: slot.whole for slot in units.slots()})
        self._with_bits = units.with_bits()

    def _attach(self) -> None:
        """Makes the parameters show the native engine's memory. Collective."""
        self._residency = Residency(self.module, self._native, self._units, self._precision, self.device)
        checks = self._configuration.values.get("zero_optimization.enable_sanity_checks") and self._residency.any_gathers
        for slot in self._units.slots():
            slot.parameter.ds_engine, slot.parameter.ds_enable_sanity_checks = self, checks  # type: ignore[attr-defined]

    def _move_buffers(self) -> None:
        """Moves buffers to the engine's device, in their own type or in data_types.buffer_dtype. Rotary frequencies must stay fp32."""
        dtype = TORCH_TYPES.get(str((self.config.get("data_types") or {}).get("buffer_dtype")))
        for submodule in self.module.modules():
            for name, buffer in submodule.named_buffers(recurse=False):
                submodule._buffers[name] = buffer.to(self.device, dtype if buffer.is_floating_point() else None)

    def _hand_over(self, slots: list[Slot]) -> None:
        """Copies each parameter from the first rank that has it, and frees the original before the next one. Collective."""
        for slot in slots:
            self._materialized.parameter(slot.parameter)
            whole = value_of(slot.parameter).to("cpu", _type_outside(slot)).contiguous()
            self._native.take_first(slot.unit, whole.data_ptr(), whole.nbytes)
            self._put(slot.name, whole)
            if shard := shard_of(slot.parameter):
                shard.forget(slot.parameter)
            slot.parameter.data = whole.new_empty(0) if slot.has_bits else whole.new_full((), float("nan")).expand(slot.shape)
            if (state := getattr(slot.parameter, "quant_state", None)) is not None:
                state.to(self.device)  # scales of packed numbers
            if slot.is_part and hasattr(slot.parameter, "ds_shape"):
                describe_shape(slot.parameter, slot.shape)

    def _take_buffers(self) -> None:
        """Gives buffers the values of the first rank. Collective."""
        for buffer in self.module.buffers():
            held = buffer.detach().to("cpu").contiguous()
            if held.numel():
                self._native.take_first(-1, held.data_ptr(), held.numel() * held.element_size())
                buffer.data.copy_(held)

    def _renew(self, also: list[torch.nn.Parameter]) -> None:
        """Replaces the native engine by one that trains the parameters which the optimizer trains now. Collective.

        States wait in host memory meanwhile, in equal parts on the ranks.

        Args:
            also: parameters that stay trained although they are frozen at the moment.
        """
        self._native.finish_save()
        position, kinds = self._native.asked("position"), self._native.facts()["kinds"]
        parts: dict[str, dict[str, torch.Tensor]] = {}
        for slot in self._units.slots():
            whole = {kind: self.parameters_of(slot.name, kind) for kind in (kinds if slot.trains else kinds[:1])}
            parts[slot.name] = {kind: part_of(value, self.global_rank, self.world_size) for kind, value in whole.items()}
        named = {slot.parameter: parts[slot.name] for slot in self._units.slots()}
        self._residency.close(keeps=False)
        self._free()
        self._declared.declare(also)
        self._make()
        for slot in self._units.slots():
            for kind, part in named.get(slot.parameter, {}).items():
                self._put(slot.name, joined(part, slot.whole, range(self.world_size)), kind)
            if slot.parameter not in named:
                self._hand_over([slot])
        self._native.publish()
        fresh = [slot.name for slot in self._units.slots() if slot.trains and len(named.get(slot.parameter, {})) < len(kinds)]
        self._native.set_position(position, json.dumps(fresh))
        self._attach()

    def __reduce__(self) -> Any:
        raise UsageError(
            "engine: cannot be copied or pickled, nor can a parameter that refers to it; use copy.deepcopy(engine.module), "
            "torch.save(engine.module.state_dict(), FILE) or engine.save_16bit_model"
        )

    @property
    def config(self) -> dict[str, Any]:
        """The ds_config as the script passed it."""
        return self._configuration.given

    def memory(self) -> dict[str, Any]:
        """Returns bytes of this rank: `planned`, `live` and `peak`, each by memory kind and category."""
        return {key: value for key, value in self._native.facts().items() if key in ("planned", "live", "peak")}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is not None and hasattr(module, name):
                return getattr(module, name)
            raise AttributeError(f"the engine and its module {type(module).__name__} have no attribute {name}") from None

    # ---- one parameter ----

    def name_of(self, parameter: torch.nn.Parameter) -> str:
        """Returns the name of a parameter in checkpoints."""
        return self._units.of_parameter[id(parameter)].name

    def cut_of(self, parameter: torch.nn.Parameter) -> Cut | None:
        """Returns how tensor-parallel ranks share a parameter, None if it is whole with equal gradients on each."""
        return self._units.of_parameter[id(parameter)].cut

    def parameters_of(self, name: str, kind: str = "master") -> torch.Tensor:
        """Returns one whole state of a parameter in host memory, in fp32; a parameter that is not of floating-point numbers in its type.
        Collective.

        Args:
            name: name of the parameter in the module.
            kind: "master" for the value, "gradient" for the gradient of the current step, or an optimizer state such as "exp_avg".
        """
        if name not in self._shapes:
            raise UsageError(f"{name}: not a parameter of {type(self.module).__name__}")
        if kind == "master" and (slot := self._with_bits.get(name)):
            whole = torch.empty(slot.shape, dtype=slot.parameter.dtype)
            self._native.get_bytes(name, whole.nbytes, whole.data_ptr())
        else:
            whole = torch.empty(self._shapes[name], dtype=torch.float32)
            self._native.get_state(kind, name, whole.data_ptr())
        return whole

    def set_parameter(self, name: str, value: torch.Tensor, kind: str = "master") -> None:
        """Overwrites one whole state of a parameter; every rank passes the same value. Collective.

        Args:
            name: name of the parameter in the module.
            value: whole value, in any type and on any device.
            kind: as in `parameters_of`.
        """
        self._put(name, value, kind)
        if kind == "master":
            self._native.publish()

    def _put(self, name: str, value: torch.Tensor, kind: str = "master") -> None:
        if kind == "master" and (slot := self._with_bits.get(name)):
            whole = value.detach().to("cpu", slot.parameter.dtype).contiguous()
            self._native.put_bytes(name, whole.nbytes, whole.data_ptr())
        else:
            whole = value.detach().to("cpu", torch.float32).contiguous()
            self._native.put_state(kind, name, whole.numel(), whole.data_ptr())

    # ---- whole for a while ----

    @contextlib.contextmanager
    def gathered(self, parameters: list[torch.nn.Parameter], modifier_rank: int | None) -> Iterator[None]:
        """Implements `zero.GatheredParameters` for the parameters of this engine. Collective."""
        slots = [self._units.of_parameter[id(p)] for p in parameters if id(p) in self._units.of_parameter]
        modifies = modifier_rank == self.global_rank
        with self._residency.outside(list(dict.fromkeys(slot.unit for slot in slots))):
            before = [slot.parameter.detach().clone() if modifies else None for slot in slots]
            yield
            after = [slot.parameter.detach().to("cpu", _type_outside(slot), copy=True) for slot in slots] if modifies else []
            changed = [b is not None and not torch.equal(b, slot.parameter) for b, slot in zip(before, slots, strict=True)]
        if modifier_rank is not None:
            self._residency.show_again()
            self._take_over(slots, after, changed, modifier_rank)

    def _take_over(self, slots: list[Slot], after: list[torch.Tensor], changed: list[bool], root: int) -> None:
        """Broadcasts the values that one rank changed. Unchanged parameters keep their fp32 masters."""
        anywhere = self._job.sum([float(c) for c in changed]) if changed else []
        for i, slot in enumerate(slots):
            if anywhere[i]:
                slot.require_whole("GatheredParameters(modifier_rank=...)")
                value = after[i] if after else torch.empty(slot.shape, dtype=_type_outside(slot))
                jobs.broadcast(value, root)
                self.set_parameter(slot.name, value)

    # ---- all of them ----

    def module_state_dict(
        self, destination: Any = None, prefix: str = "", keep_vars: bool = False, exclude_frozen_parameters: bool = False
    ) -> Any:
        """Returns the `state_dict` of the module. At stage 3 its parameters have no values; use `save_16bit_model` or `parameters_of`
        there."""
        state = self.module.state_dict(prefix=prefix, keep_vars=keep_vars)
        frozen = [name for name, p in self.module.named_parameters(remove_duplicate=False) if not p.requires_grad]
        for name in frozen if exclude_frozen_parameters else ():
            state.pop(prefix + name, None)
        return state

    def load_module_state_dict(
        self, checkpoint: Mapping[str, Any], strict: bool = True, custom_load_fn: Any = None, fetch_z3_params: bool = False
    ) -> None:
        """Overwrites the parameters and buffers of the module; every rank passes the same values. Collective.

        Args:
            checkpoint: a `state_dict`, or a dictionary with one in `module`.
            strict: missing and unexpected names are errors.
            custom_load_fn: not supported.
            fetch_z3_params: accepted; parameters are gathered at every stage.

        Raises:
            UsageError: wrong names or shapes; nothing was changed.
        """
        if custom_load_fn is not None:
            raise NotBuilt("custom_load_fn: not supported; change the state_dict before the call")
        given: Mapping[str, torch.Tensor] = checkpoint["module"] if isinstance(checkpoint.get("module"), Mapping) else checkpoint
        wanted = set(self.module.state_dict(keep_vars=True))
        missing, unexpected = sorted(wanted - given.keys()), sorted(given.keys() - wanted - self._shapes.keys())
        if strict and (missing or unexpected):
            what = f"missing {', '.join(missing) or 'nothing'}; unexpected {', '.join(unexpected) or 'nothing'}"
            raise UsageError(f"load_module_state_dict: wrong names ({what}); use the names of the state_dict of the module")
        slots = [slot for slot in self._units.slots() if slot.name in given]
        for slot in slots:
            if given[slot.name].shape != slot.whole:
                shapes = f"(got {list(given[slot.name].shape)}, expected {list(slot.whole)})"
                raise UsageError(f"load_module_state_dict: {slot.name} has the wrong shape {shapes}")
        for slot in slots:
            self._put(slot.name, given[slot.name])
        self._native.publish()
        self._load_buffers(given)

    def _load_buffers(self, given: Mapping[str, torch.Tensor]) -> None:
        for name, buffer in self.module.named_buffers():
            if name in given:
                buffer.data.copy_(given[name])

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, torch.Tensor] | None:
        """Returns whole weights in the type of the model on the first rank, None on the others. Collective."""
        whole = {}
        for u, unit in enumerate(self._units.units):
            with self._residency.outside([u]):
                for slot in unit.slots if self.global_rank == 0 else []:
                    whole[id(slot.parameter)] = slot.parameter.detach().to("cpu", copy=True)
            for slot in [slot for slot in unit.slots if slot.is_part]:
                value = self.parameters_of(slot.name).to(slot.parameter.dtype)
                whole |= {id(slot.parameter): value} if self.global_rank == 0 else {}
        if self.global_rank != 0:
            return None
        state = self.module_state_dict(keep_vars=True, exclude_frozen_parameters=exclude_frozen_parameters)
        return {name: whole.get(id(value), value.detach().to("cpu")) for name, value in state.items()}

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    @names_the_call
    def save_16bit_model(self, save_dir: str, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False) -> bool:
        """Writes whole weights in the type of the model from the first rank with `torch.save`, and returns True. Collective.

        At stage 3, DeepSpeed returns False without `stage3_gather_16bit_weights_on_model_save`; Cleave always writes the file.
        """
        state = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if state is not None:
            os.makedirs(save_dir, exist_ok=True)
            torch.save(state, os.path.join(save_dir, save_filename))
        self._job.barrier()
        return True

    save_fp16_model = save_16bit_model

    def destroy(self) -> None:
        """Frees the memory of the engine. Parameters that are whole on this rank keep their values; others lose them.

        Tensors that share memory with a parameter, such as those of an earlier `state_dict`, keep the memory until they are freed.
        """
        self._residency.close()
        self._native.finish_save()
        self._free()

    def _free(self) -> None:
        self.monitor.end()
        if self.monitor in jobs.reports:
            jobs.reports.remove(self.monitor)
        self._native.free()
        if self._native in jobs.engines:
            jobs.engines.remove(self._native)
