"""Residency of a module's parameters between calls, and the path of their gradients to the engine.

The parameters are views of the engine's memory. Units that are whole on every rank stay there. Other units are gathered while a module
uses them; in between, a parameter has its shape and reads as NaN, so that a use outside of a call is visible. Autograd does not save
gathered weights or casts of them: it saves their position, and the unit is gathered again when the backward needs it. This works for any
module code.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import functions, native
from .errors import CleaveError, StepOrderError, UsageError
from .gradients import OWN
from .units import ModuleUnits, Slot, ZeroParamStatus, describe

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_CODES = {dtype: native.DTYPES[name] for name, dtype in TORCH_TYPES.items()}  # gradients have the type of their parameter
_OUTSIDE, _BACKWARD, _OTHER = 0, 1, 2  # kinds of passes; from _OTHER on, one per root module, part and grad mode


class _Weight(NamedTuple):
    """Reference that autograd saves instead of a gathered parameter or its cast: a position, not the values."""

    slot: Slot
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: Any  # in elements


class _Watched(dict[str, Any]):
    """Parameters of a submodule; reading one gathers its unit. Copies are plain dictionaries."""

    def __init__(self, parameters: dict[str, Any], residency: "Residency") -> None:
        super().__init__(parameters)
        self._residency = residency

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._residency.read(parameter)
        return parameter

    def __reduce__(self) -> Any:
        self._residency.require_values(self.values())
        return dict, (dict(self),)


def _no_hook(*args: Any) -> None:
    """Replaces a hook in copies of a module."""


class _Hook(partial[Any]):
    """Hook of a module; copies of the module have no hooks."""

    def __reduce__(self) -> Any:
        return getattr, (_no_hook, "__call__")


class ParameterOffload:
    """The hooks of a module under the names of DeepSpeed, for clients that remove them for generation and add them again."""

    def __init__(self, residency: "Residency") -> None:
        self.module = residency.module
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []
        self._add = residency.watch_calls
        for submodule in self.module.modules():
            submodule.ds_external_parameters = {}.items  # type: ignore[assignment]  # none: reading one gathers it

    def _register_deepspeed_module(self, module: torch.nn.Module) -> None:
        """Adds the hooks of the module and of its submodules."""
        self.forward_hooks += self._add(module)


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
        self._hidden = {slot: self._nothing.expand(slot.shape) for slot in units.slots()}
        self._views: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._copied: set[int] = set()  # units with copies as parameters
        self._pool: set[int] = set()  # addresses of gathered memory where parameters have been
        self._at: dict[int, Slot] = {}  # gathered parameters by address
        self._shown: list[list[int]] = [[] for _ in range(count)]  # addresses of each unit in `_at`
        self._lent: list[list[int]] = []  # per running module, outermost first: units taken for it
        self._of_nodes: list[list[Any]] = []  # per running backward task, outermost first: node, units taken for it
        self._in_pass = self._own_pass = self.in_backward = False
        self._trains = True  # the backward gives gradients to the engine
        self._creates_graph = False  # the backward can be differentiated again
        self._kinds: dict[tuple[int, int, bool], int] = {}
        self.part = 0  # part of the module that passes belong to
        self._saved_hooks: Any = None
        self._broken: str | None = None
        self.arrived: set[str] = set()  # parameters with a gradient in the current step
        self._handles: list[Any] = []
        self._attach()
        self.offload = ParameterOffload(self)
        if self.any_gathers:
            self._watch_parameters()
            self.offload._register_deepspeed_module(module)
            functions.watch(self)
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
        views = [(slot, view) for (u, _), views in self._views.items() for slot, view in zip(self.units.units[u].slots, views, strict=True)]
        self._staying = [(slot, view, slot.parameter.data_ptr, view.data_ptr()) for slot, view in views]

    def _take_away(self, slot: Slot) -> None:
        slot.parameter.data = self._hidden[slot]
        slot.parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]

    def _show(self, u: int, copied: bool = False) -> None:
        """Acquires a unit and makes its parameters views of its memory, or copies."""
        addresses = self.engine.acquire(u)
        key = (u, addresses[0])
        views = self._views.get(key)
        unit = self.units.units[u]
        if views is None:
            with torch.inference_mode(False):
                views = self._views[key] = [
                    torch.from_dlpack(self.engine.dlpack(address, self.dtype, tuple(slot.shape)))
                    for address, slot in zip(addresses, unit.slots, strict=True)
                ]
            if self.gathers[u]:
                self._pool.update(addresses)
        if copied:
            with torch.inference_mode(False):
                views = [view.clone() for view in views]
            self._copied.add(u)
            self.engine.release(u)
        gathers, shown = self.gathers[u], self._shown[u]
        for slot, view in zip(unit.slots, views, strict=True):
            slot.parameter.data = view
            slot.parameter.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]
            if gathers:
                self._at[address := view.data_ptr()] = slot
                shown.append(address)

    def _hide(self, u: int) -> None:
        """Releases a unit and removes the values of its parameters."""
        for address in self._shown[u]:  # a script may have replaced the data of a parameter
            del self._at[address]
        self._shown[u].clear()
        for slot in self.units.units[u].slots:
            self._take_away(slot)
        if u not in self._copied:
            self.engine.release(u)
        self._copied.discard(u)

    def _replaced(self) -> list[tuple[Slot, torch.Tensor]]:
        """Returns parameters that stay on this rank and whose data a script replaced, with the views that belong there."""
        return [(slot, view) for slot, view, address_of, address in self._staying if address_of() != address]

    def show_again(self) -> None:
        """Makes parameters whose data a script replaced views of the engine's memory again."""
        for slot, view in self._replaced():
            slot.parameter.data = view

    def require_views(self) -> None:
        """Checks that no script replaced the data of a parameter."""
        for slot, _ in self._replaced():
            raise UsageError(
                f"{slot.name}: its data was replaced, so it does not show the engine's values; change it inside "
                "zero.GatheredParameters with modifier_rank, or with engine.set_parameter"
            )

    def require_values(self, parameters: Iterable[Any]) -> None:
        """Checks that parameters are whole, so that copies of them have values."""
        for parameter in parameters:
            slot = self.units.of_parameter.get(id(parameter))
            if slot is not None and self.gathers[slot.unit] and not self._users[slot.unit]:
                raise UsageError(
                    f"{slot.name}: this rank has only a part of it, so a copy would have no values; copy or save the module inside "
                    "zero.GatheredParameters(module.parameters())"
                )

    def _take(self, u: int, copied: bool = False) -> None:
        if self.gathers[u] and not self._users[u]:
            self._show(u, copied)
        self._users[u] += 1

    def _drop(self, u: int) -> None:
        self._users[u] -= 1
        if self.gathers[u] and self._users[u] == 0:
            self._hide(u)

    def _hold(self, u: int) -> None:
        """Takes a unit that is computed with again in the backward, until its gradient arrived."""
        if not self._held[u]:
            self._take(u, self._creates_graph)
            self._held[u] = True

    def _let_go(self, u: int) -> None:
        if self._held[u]:
            self._held[u] = False
            self._drop(u)

    # ---- passes ----

    def _require_whole(self) -> None:
        if self._broken:
            raise StepOrderError(f"the engine cannot continue: {self._broken}")

    def _break(self, where: str, error: BaseException) -> None:
        """Ends the use of the engine after an error that leaves a pass open."""
        self._broken = self._broken or f"{where} failed with {type(error).__name__}: {error}"
        self._in_pass = self.in_backward = False
        self.training.discard(self)
        self._lent.clear()
        self._of_nodes.clear()
        if self._saved_hooks is not None:
            hooks, self._saved_hooks = self._saved_hooks, None
            hooks.__exit__(None, None, None)

    def _kind(self, root: torch.nn.Module | None) -> int:
        key = (id(root), self.part, self._trains if root is None else torch.is_grad_enabled())
        return self._kinds.setdefault(key, _OTHER + len(self._kinds))

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
        """Runs the module. Hooks end the pass after an exception of the script, which may continue on all ranks."""
        if self.in_backward and torch._C._current_graph_task_id() < 0:
            self._broken = self._broken or "a backward of the script failed"
        self._require_whole()
        try:
            return call()
        except BaseException as error:
            if self.any_gathers and not self.in_backward and (self._lent or isinstance(error, CleaveError)):
                self._break("a forward", error)
            if self.any_gathers and isinstance(error, RuntimeError) and "support saved tensor hooks" in str(error):
                raise UsageError(
                    "torch.func: derivatives (grad, vjp, jacrev, hessian) do not run in a forward at ZeRO stage 3; use "
                    "torch.autograd.grad(..., create_graph=True), or stage 2"
                ) from error
            raise

    def leave_to_torch(self) -> None:
        """Keeps torch.compile from tracing the transfers of parameters, which it cannot compile."""
        for name in ("_show", "_hide", "_begin_forward", "_end_forward"):
            setattr(self, name, torch.compiler.disable(getattr(self, name)))

    def _watch_parameters(self) -> None:
        for submodule in self.module.modules():
            if any(self.gathers[u] for u in self.units.used_by(submodule)):
                submodule._parameters = _Watched(submodule._parameters, self)

    def watch_calls(self, module: torch.nn.Module) -> list[Any]:
        """Returns the handles of hooks that gather the parameters of submodules while they run."""
        handles = []
        for submodule in module.modules():
            used = [u for u in self.units.used_by(submodule) if self.gathers[u]]
            frozen = [u for u in used if not self.units.units[u].trains]
            handles.append(submodule.register_forward_pre_hook(_Hook(self._before, used), prepend=True))
            handles.append(submodule.register_forward_hook(_Hook(self._after, used, frozen), with_kwargs=True, always_call=True))
        return handles

    def _before(self, used: list[int], module: torch.nn.Module, args: Any) -> None:
        if self.in_backward:  # recomputation
            for u in used:
                self._hold(u)
            return
        if not self._lent:
            self._begin_forward(module)
        self._lent.append([])
        for u in used:
            self._lend(u)

    def _lend(self, u: int) -> None:
        """Takes a unit until the running module ends; copies if a backward inside the forward computes the module again."""
        self._take(u, torch._C._current_graph_task_id() >= 0)
        self._lent[-1].append(u)

    def _after(self, used: list[int], frozen: list[int], module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self.in_backward or not self._lent:
            if frozen and self.in_backward and torch.is_grad_enabled():
                self._let_go_behind(args, kwargs, frozen)
            return None
        taken, replaced = self._lent.pop(), None
        returned = self._units_in(output) if taken else ()
        if returned and not self._lent:
            replaced, returned = tree_map(self._copy_of_weight, output), ()
        for u in taken:
            if u in returned:
                self._lent[-1].append(u)
            else:
                self._drop(u)
        if not self._lent:
            self._end_forward()
        return replaced

    def _units_in(self, output: Any) -> set[int]:
        """Returns the units whose gathered parameters an output shows, as of a module that returns its weight or a view of it."""
        leaves = (output,) if isinstance(output, torch.Tensor) else tree_leaves(output)
        return {slot.unit for leaf in leaves if isinstance(leaf, torch.Tensor) and (slot := self._slot_at(leaf)) is not None}

    def _copy_of_weight(self, value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) and self._slot_at(value) is not None else value

    def _slot_at(self, tensor: torch.Tensor) -> Slot | None:
        """Returns the gathered parameter whose memory a tensor shows."""
        if not self._at or tensor.layout != torch.strided:
            return None
        return self._at.get(tensor.untyped_storage().data_ptr())

    def read(self, parameter: torch.nn.Parameter) -> None:
        """Makes a parameter that is read within a call whole until the call ends."""
        slot = self.units.of_parameter.get(id(parameter))
        if slot is None or not self.gathers[slot.unit] or (self._users[slot.unit] > 0 and not self._of_nodes):
            return
        if self.in_backward:  # nodes leave their units earlier
            self._hold(slot.unit)
        elif self._lent and slot.unit not in self._lent[-1]:
            self._lend(slot.unit)

    def _let_go_behind(self, args: Any, kwargs: Any, frozen: list[int]) -> None:
        """Lets frozen units go in the backward when the gradient of their module's input is computed."""
        value = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.requires_grad), None)
        if value is not None:
            value.register_hook(lambda _: list(map(self._let_go, frozen)) and None)

    def _begin_forward(self, root: torch.nn.Module) -> None:
        self._require_whole()
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._saved_hooks = hooks
        self._own_pass = not self._in_pass  # otherwise inside GatheredParameters
        if self._own_pass:
            self.engine.begin_pass(self._kind(root), False)
            self._in_pass = True

    def _end_forward(self) -> None:
        hooks, self._saved_hooks = self._saved_hooks, None
        hooks.__exit__(None, None, None)
        self._leave_nodes(0)
        if self._own_pass:
            self._in_pass = False
            self.engine.end_pass()

    # ---- tensors that autograd saves ----

    def _pack(self, tensor: torch.Tensor) -> Any:
        if self._at:
            slot = self._slot_at(tensor)
            if slot is None and tensor.dtype != self.torch_dtype and tensor.requires_grad:
                slot = self._cast_from(tensor)
            if slot is not None:
                return _Weight(slot, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())
        # An output of the node would keep the node, and so itself.
        return tensor.detach() if tensor.requires_grad else tensor, tensor._version

    def _cast_from(self, tensor: torch.Tensor) -> Slot | None:
        """Returns the gathered parameter that a tensor is a cast of, as autocast makes them, or a view of such a cast."""
        whole = tensor if tensor._base is None else tensor._base
        if whole.grad_fn is None or whole.grad_fn.name() != "ToCopyBackward0" or not whole.is_contiguous():
            return None
        leaf = whole.grad_fn.next_functions[0][0]
        slot = self.units.of_parameter.get(id(getattr(leaf, "variable", None)))
        return slot if slot is not None and self.gathers[slot.unit] and whole._version == 0 else None

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

    def _weight(self, slot: Slot, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: Any) -> torch.Tensor:
        self._take_for_backward(slot)
        whole = slot.parameter
        if dtype == whole.dtype and (size, stride, offset) == (whole.shape, whole.stride(), 0):
            return whole
        return whole.detach().to(dtype).as_strided(size, stride, offset)

    def _take_for_backward(self, slot: Slot) -> None:
        """Makes a parameter whole for the running node of a backward: one of the engine, or `torch.autograd.grad` inside a forward."""
        u, node = slot.unit, torch._C._current_autograd_node()
        if not self.in_backward and not self._lent and not self._users[u]:
            self._begin_within_another()
        if not self.in_backward and not self._lent:
            if not self._users[u]:  # otherwise inside GatheredParameters
                raise StepOrderError(
                    f"{slot.name}: this rank has only a part of it, because the backward does not start at an output of the engine; "
                    "call the engine, not its module, or engine.backward(loss)"
                )
        elif node is not None:
            self._take_for_node(u, node._sequence_nr())
            if self._creates_graph:  # until the node ends: autograd restores the hooks after each node
                torch._C._autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)
        elif self._lent:
            self._lend(u)
        else:
            self._hold(u)

    def _take_for_node(self, u: int, node: int) -> None:
        """Takes a unit until another node of the same backward needs one."""
        task = torch._C._current_graph_task_id()
        while self._of_nodes and self._of_nodes[-1][0] > task:  # ended by an exception
            self._leave_nodes(len(self._of_nodes) - 1)
        if not self._of_nodes or self._of_nodes[-1][0] != task:
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._leave_task, task))
            self._of_nodes.append([task, node, []])
        running = self._of_nodes[-1]
        taken = running[2]
        if running[1] != node:
            running[1], running[2] = node, [u] if u in taken else []
            for other in taken:
                if other != u:
                    self._drop(other)
        if u not in running[2]:
            self._take(u, self._creates_graph)
            running[2].append(u)

    def _leave_task(self, task: int) -> None:
        """Called at the end of a backward."""
        if self._of_nodes and self._of_nodes[-1][0] >= task:
            self._leave_nodes(len(self._of_nodes) - 1)

    def _leave_nodes(self, first: int) -> None:
        while len(self._of_nodes) > first:
            for u in self._of_nodes.pop()[2]:
                self._drop(u)

    # ---- custom autograd functions ----

    def parameter_at(self, tensor: torch.Tensor) -> torch.nn.Parameter | None:
        """Returns the gathered parameter whose whole values a tensor shows."""
        slot = self._slot_at(tensor)
        if slot is None or tensor.shape != slot.shape or tensor.stride() != slot.parameter.stride() or tensor.dtype != slot.parameter.dtype:
            return None
        return slot.parameter

    def gather_kept(self, values: Iterable[Any]) -> None:
        """Makes parameters whole that a function keeps outside of autograd, for its backward."""
        for value in values:
            if isinstance(value, list | tuple):
                self.gather_kept(value)
            elif isinstance(value, torch.nn.Parameter):
                slot = self.units.of_parameter.get(id(value))
                if slot is not None and self.gathers[slot.unit] and (self.in_backward or self._lent):
                    self._take_for_backward(slot)
            elif isinstance(value, torch.Tensor) and value.layout == torch.strided and value.untyped_storage().data_ptr() in self._pool:
                raise UsageError(
                    f"autograd function: an attribute of ctx is a view of a gathered parameter (shape {list(value.shape)}), which has "
                    "lost its values; pass it to ctx.save_for_backward, or keep the parameter itself"
                )

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
                self._handles.append(slot.parameter.register_post_accumulate_grad_hook(_of_slot(self, slot)))
                slot.parameter.requires_grad_(trains)
            elif self.gathers[slot.unit] and slot.parameter.requires_grad:
                self._handles.append(slot.parameter.register_post_accumulate_grad_hook(_forget_gradient))

    def forget_gradients(self) -> None:
        """Removes the gradients that are not the engine's."""
        for slot in self.units.slots():
            OWN.__set__(slot.parameter, None)

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
        if not self._trains:
            raise StepOrderError(f"{slot.name}: got a gradient from backward(inputs=...); leave inputs out, or call torch.autograd.grad")
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
        try:
            run()
            self.end_backward()
        except BaseException as error:
            self._break("a backward", error)
            raise

    def begin_backward(self, last: bool, factor: float = 1.0, trains: bool = True, creates_graph: bool = False) -> None:
        """Begins a backward that ends with `end_backward`. Collective.

        Args:
            last: last backward of the step.
            factor: multiplied with its gradients.
            trains: False for `torch.autograd.grad` and backwards of other engines, which give the engine no gradients.
            creates_graph: the backward can be differentiated again.
        """
        self._require_whole()
        if self._in_pass:
            raise StepOrderError("backward: called inside a forward or GatheredParameters; call it afterwards")
        self._trains, self._creates_graph = trains, creates_graph and self.any_gathers
        self.engine.begin_pass(_BACKWARD if trains and not self.part else self._kind(None), last)
        self._in_pass = self.in_backward = True
        self._factor = factor
        if trains:
            self.training.add(self)

    def end_backward(self) -> None:
        self._in_pass = self.in_backward = self._creates_graph = False
        self.training.discard(self)
        self._leave_nodes(0)
        for u in range(len(self.units.units)):
            if self._arrived[u]:
                self._give(u)
            self._let_go(u)
        self.engine.end_pass()

    def close(self, keeps: bool = True) -> None:
        """Detaches the parameters from the engine. keeps: those that are whole on this rank keep their values; others lose them."""
        functions.leave(self)
        for handle in (*self._handles, *self.offload.forward_hooks):
            handle.remove()
        self._handles.clear()
        for submodule in self.module.modules():
            if isinstance(submodule._parameters, _Watched):
                submodule._parameters = dict(submodule._parameters)
        for slot in self.units.slots():
            if not self.gathers[slot.unit]:
                slot.parameter.data = slot.parameter.data.clone() if keeps else self._nothing.expand(slot.shape)
        self._views.clear()
        self._staying.clear()


def _of_slot(residency: Residency, slot: Slot) -> Callable[[torch.Tensor], None]:
    """Returns the hook of a parameter. Torch hides hooks from the garbage collector, so it keeps neither alive."""
    residency_now, slot_now = weakref.ref(residency), weakref.ref(slot)

    def arrive(parameter: torch.Tensor) -> None:
        if (to := residency_now()) is not None and (its_slot := slot_now()) is not None:
            to._on_gradient(its_slot, parameter)

    return arrive


def _forget_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None
