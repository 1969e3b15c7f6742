"""Residency of a module's parameters between calls, and the path of their gradients to the engine.

The parameters are views of the engine's memory. Units that are whole on every rank stay there. Other units are gathered while a module
uses them; in between, a parameter has its shape and reads as NaN, so that a use outside of a call is visible. Autograd does not save
gathered weights: it saves their position, and the unit is gathered again when the backward needs it. This works for any module code.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch

from . import native
from .errors import StepOrderError
from .gradients import OWN
from .units import ModuleUnits, Slot, ZeroParamStatus, describe

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_CODES = {dtype: native.DTYPES[name] for name, dtype in TORCH_TYPES.items()}  # gradients have the type of their parameter
_OUTSIDE, _BACKWARD, _FORWARD = 0, 1, 2  # kinds of passes; from _FORWARD on, one per root module, part and grad mode


class _Weight(NamedTuple):
    """Reference that autograd saves instead of a gathered parameter: a position, not the values."""

    slot: Slot
    size: torch.Size
    stride: tuple[int, ...]
    offset: Any  # in elements


class _Watched(dict[str, Any]):
    """Parameters of a submodule; reading one gathers its unit."""

    def __init__(self, parameters: dict[str, Any], residency: "Residency") -> None:
        super().__init__(parameters)
        self._residency = residency

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._residency.read(parameter)
        return parameter


class Residency:
    """Moves the parameters of a module between the engine and torch."""

    training: ClassVar[weakref.WeakSet["Residency"]] = weakref.WeakSet()  # those in a backward that gives gradients to their engine

    def __init__(self, module: torch.nn.Module, engine: native.NativeEngine, units: ModuleUnits, dtype: str, device: torch.device) -> None:
        """Makes the parameters show the engine's memory, which already has their values. Collective."""
        self.module, self.engine, self.units = module, engine, units
        self.dtype = native.DTYPES[dtype]
        self.torch_dtype = TORCH_TYPES[dtype]
        count = len(units.units)
        self.gathers = [engine.gathers(u) for u in range(count)]
        self.any_gathers = any(self.gathers)
        self._users, self._held = [0] * count, [False] * count
        self._arrived: list[dict[int, torch.Tensor]] = [{} for _ in range(count)]  # by index, until all gradients of the unit arrived
        self._nothing = torch.tensor(float("nan"), dtype=self.torch_dtype, device=device)
        self._views: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._copied: set[int] = set()  # units with copies as parameters
        self._at: dict[int, Slot] = {}  # gathered parameters by address
        self._lent: list[list[int]] = []  # per running module, outermost first: foreign units that it reads
        self._in_pass = self.in_backward = False
        self._kinds: dict[tuple[int, int, bool], int] = {}
        self.part = 0  # part of the module that passes belong to
        self._saved_hooks: Any = None
        self._broken: str | None = None
        self.arrived: set[str] = set()  # parameters with a gradient in the current step
        self._handles: list[Any] = []
        self._attach()
        if self.any_gathers:
            self._watch_calls()
        self._watch_gradients()

    # ---- values ----

    def _attach(self) -> None:
        self.engine.begin_pass(_OUTSIDE, False)
        for slot in self.units.slots():
            describe(slot.parameter)
            self._take_away(slot)
        for u in range(len(self.units.units)):
            if not self.gathers[u]:
                self._show(u)
                self.engine.release(u)
        self.engine.end_pass()

    def _take_away(self, slot: Slot) -> None:
        slot.parameter.data = self._nothing.expand(slot.shape)
        slot.parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]

    def _show(self, u: int, copied: bool = False) -> None:
        """Acquires a unit and makes its parameters views of its memory, or copies."""
        addresses = self.engine.acquire(u)
        key = (u, addresses[0])
        views = self._views.get(key)
        unit = self.units.units[u]
        if views is None:
            views = self._views[key] = [
                torch.from_dlpack(self.engine.dlpack(address, self.dtype, tuple(slot.shape)))
                for address, slot in zip(addresses, unit.slots, strict=True)
            ]
        gathers = self.gathers[u]
        for slot, view in zip(unit.slots, views, strict=True):
            slot.parameter.data = view.clone() if copied else view
            slot.parameter.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]
            if gathers:
                self._at[slot.parameter.data_ptr()] = slot
        if copied:
            self._copied.add(u)
            self.engine.release(u)

    def _hide(self, u: int) -> None:
        """Releases a unit and removes the values of its parameters."""
        for slot in self.units.units[u].slots:
            self._at.pop(slot.parameter.data_ptr(), None)
            self._take_away(slot)
        if u not in self._copied:
            self.engine.release(u)
        self._copied.discard(u)

    def _take(self, u: int, copied: bool = False) -> None:
        self._users[u] += 1
        if self.gathers[u] and self._users[u] == 1:
            self._show(u, copied)

    def _drop(self, u: int) -> None:
        self._users[u] -= 1
        if self.gathers[u] and self._users[u] == 0:
            self._hide(u)

    def _hold(self, u: int) -> None:
        """Takes a unit for the backward, at most once until it is let go."""
        if not self._held[u]:
            self._held[u] = True
            self._take(u)

    def _let_go(self, u: int) -> None:
        if self._held[u]:
            self._held[u] = False
            self._drop(u)

    # ---- passes ----

    def _require_whole(self) -> None:
        if self._broken:
            raise StepOrderError(f"the engine cannot continue: {self._broken}")

    @contextlib.contextmanager
    def _broken_by_errors(self, where: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._broken = self._broken or f"{where} failed with {type(error).__name__}: {error}"
            self._in_pass = self.in_backward = False
            self.training.discard(self)
            if self._saved_hooks is not None:
                hooks, self._saved_hooks = self._saved_hooks, None
                hooks.__exit__(None, None, None)
            raise

    def _kind(self, root: torch.nn.Module | None) -> int:
        key = (id(root), self.part, torch.is_grad_enabled())
        return self._kinds.setdefault(key, _FORWARD + len(self._kinds))

    @contextlib.contextmanager
    def outside(self, units: list[int]) -> Iterator[None]:
        """Makes units whole, inside or outside of a module's call. Collective outside of a call.

        On a CPU the values are copies, because `parameter.detach().cpu()` would otherwise show memory that is released later.
        """
        self._require_whole()
        own = not self._in_pass and any(self.gathers[u] for u in units)
        if own:
            self.engine.begin_pass(_OUTSIDE, False)
            self._in_pass = True
        for u in units:
            self._take(u, self._nothing.device.type == "cpu")
        try:
            yield
        finally:
            for u in units:
                self._drop(u)
            if own:
                self._in_pass = False
                self.engine.end_pass()

    def forward(self, call: Callable[[], Any]) -> Any:
        """Runs the module. An error leaves other ranks inside a pass, so the engine cannot continue after it."""
        if self.in_backward and torch._C._current_graph_task_id() < 0:
            self._broken = self._broken or "a backward of the script failed"
        self._require_whole()
        with self._broken_by_errors("a forward") if self.any_gathers else contextlib.nullcontext():
            return call()

    def _watch_calls(self) -> None:
        for submodule in self.module.modules():
            used = [u for u in self.units.used_by(submodule) if self.gathers[u]]
            frozen = [u for u in used if not self.units.units[u].trains]
            if used:
                submodule._parameters = _Watched(submodule._parameters, self)
            self._handles.append(submodule.register_forward_pre_hook(partial(self._before, used), prepend=True))
            self._handles.append(submodule.register_forward_hook(partial(self._after, used, frozen), with_kwargs=True))

    def _before(self, used: list[int], module: torch.nn.Module, args: Any) -> None:
        if self.in_backward:  # recomputation
            for u in used:
                self._hold(u)
            return
        if not self._lent and not self._in_pass:
            self._begin_forward(module)
        self._lent.append([])
        for u in used:
            self._take(u)

    def _after(self, used: list[int], frozen: list[int], module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if frozen and torch.is_grad_enabled():
            self._let_go_behind(args, kwargs, frozen)
        if self.in_backward:
            return
        for u in (*used, *self._lent.pop()):
            self._drop(u)
        if not self._lent and self._saved_hooks is not None:
            self._end_forward()

    def read(self, parameter: torch.nn.Parameter) -> None:
        """Makes a parameter that is read within a call whole until the call ends."""
        slot = self.units.of_parameter.get(id(parameter))
        if slot is None or not self.gathers[slot.unit] or self._users[slot.unit] > 0:
            return
        if self.in_backward:
            self._hold(slot.unit)
        elif self._lent:
            self._take(slot.unit)
            self._lent[-1].append(slot.unit)

    def _let_go_behind(self, args: Any, kwargs: Any, frozen: list[int]) -> None:
        """Lets frozen units go in the backward when the gradient of their module's input is computed."""
        value = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.requires_grad), None)
        if value is not None:
            value.register_hook(lambda _: list(map(self._let_go, frozen)) and None)

    def _begin_forward(self, root: torch.nn.Module) -> None:
        self._require_whole()
        self.engine.begin_pass(self._kind(root), False)
        self._in_pass = True
        self._saved_hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._saved_hooks.__enter__()

    def _end_forward(self) -> None:
        hooks, self._saved_hooks = self._saved_hooks, None
        hooks.__exit__(None, None, None)
        self._in_pass = False
        self.engine.end_pass()

    # ---- tensors that autograd saves ----

    def _pack(self, tensor: torch.Tensor) -> Any:
        slot = self._at.get(tensor.untyped_storage().data_ptr()) if self._at else None
        return (tensor, tensor._version) if slot is None else _Weight(slot, tensor.size(), tensor.stride(), tensor.storage_offset())

    def _unpack(self, saved: Any) -> torch.Tensor:
        if isinstance(saved, _Weight):
            return self._weight(*saved)
        tensor, version = saved
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of shape "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
            )
        return tensor  # type: ignore[no-any-return]

    def _weight(self, slot: Slot, size: torch.Size, stride: tuple[int, ...], offset: Any) -> torch.Tensor:
        if not self.in_backward and not self._users[slot.unit]:
            self._begin_within_another()
        if not self.in_backward and not self._users[slot.unit]:
            raise StepOrderError(
                f"{slot.name}: this rank has only a part of it, because the backward does not start at an output of the engine; "
                "call the engine, not its module, or engine.backward(loss)"
            )
        if self.in_backward:
            self._hold(slot.unit)
        whole = slot.parameter
        if (size, stride, offset) == (whole.shape, whole.stride(), 0):
            return whole
        return whole.detach().as_strided(size, stride, offset)

    def _begin_within_another(self) -> None:
        """Begins a backward without gradients for this engine, if the backward of another engine reached this module."""
        if any(other is not self for other in self.training):
            self.begin_backward(False, trains=False)
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)

    # ---- gradients ----

    def _watch_gradients(self) -> None:
        for slot in self.units.slots():
            if slot.trains:
                trains = slot.parameter.requires_grad
                slot.parameter.requires_grad_(True)  # torch registers no hook on a parameter that is frozen at the moment
                self._handles.append(slot.parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, slot)))
                slot.parameter.requires_grad_(trains)

    def _on_gradient(self, slot: Slot, parameter: torch.Tensor) -> None:
        if self not in self.training and self.training:
            return  # the backward of another engine: the script may drop the gradient, as by module.zero_grad()
        gradient = OWN.__get__(parameter)
        OWN.__set__(parameter, None)
        if gradient is None:
            return
        if not self.in_backward:
            past = f"{slot.name}: got a gradient before a backward reached an output of the engine"
            raise StepOrderError(f"{past}; call the engine, not its module, or engine.backward(loss)")
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if self._factor != 1:
            gradient = gradient * self._factor
        self.arrived.add(slot.name)
        u, index, arrived = slot.unit, slot.index, self._arrived[slot.unit]
        arrived[index] = arrived[index] + gradient if index in arrived else gradient.contiguous()
        if len(arrived) == len(self.units.units[u].slots):
            self._give(u)
            self._let_go(u)

    def _give(self, u: int) -> None:
        """Adds the gradients that arrived to the engine; other parameters of the unit have gradient zero."""
        for index, gradient in self._arrived[u].items():
            self.engine.add_gradient(u, index, gradient.data_ptr(), _CODES[gradient.dtype])
        self._arrived[u].clear()
        self.engine.give(u)

    def backward(self, run: Callable[[], None], last: bool) -> None:
        """Runs a backward; the engine takes its gradients. last: last backward of the step. Collective."""
        self.begin_backward(last)
        with self._broken_by_errors("a backward"):
            run()
            self.end_backward()

    def begin_backward(self, last: bool, factor: float = 1.0, trains: bool = True) -> None:
        """Begins a backward that ends with `end_backward`. Collective.

        Args:
            last: last backward of the step.
            factor: multiplied with its gradients.
            trains: False leaves the gradients in the parameters.
        """
        self._require_whole()
        if self._in_pass:
            raise StepOrderError("backward: called inside a forward or GatheredParameters; call it afterwards")
        self.engine.begin_pass(self._kind(None) if self.part else _BACKWARD, last)
        self._in_pass = self.in_backward = True
        self._factor = factor
        if trains:
            self.training.add(self)

    def end_backward(self) -> None:
        self._in_pass = self.in_backward = False
        self.training.discard(self)
        for u in range(len(self.units.units)):
            if self._arrived[u]:
                self._give(u)
            self._let_go(u)
        self.engine.end_pass()

    def close(self, keeps: bool = True) -> None:
        """Detaches the parameters from the engine. keeps: those that are whole on this rank keep their values; others lose them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for submodule in self.module.modules():
            if isinstance(submodule._parameters, _Watched):
                submodule._parameters = dict(submodule._parameters)
        for slot in self.units.slots():
            if not self.gathers[slot.unit]:
                slot.parameter.data = slot.parameter.data.clone() if keeps else self._nothing.expand(slot.shape)
        self._views.clear()
