"""Residency of a module's parameters between calls, and the path of their gradients to the engine.

The parameters are views of the engine's memory. Units that are whole on every rank stay there. Other units are gathered while a module
uses them; in between, a parameter has its shape and reads as NaN, so that a use outside of a call is visible. Autograd does not save
gathered weights or casts of them: it saves their position, and the unit is gathered again when the backward needs it. This works for any
module code.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from . import compiled, functions, memory_errors, native, state_dicts
from .arriving import ArrivingGradients
from .errors import CleaveError, StepOrderError, TrainingError, UsageError
from .functions import in_derivative
from .units import ModuleUnits
from .views import OUTSIDE
from .watched import Hook, ParameterOffload, Watched

_BACKWARD, _OTHER = OUTSIDE + 1, OUTSIDE + 2  # kinds of passes; from _OTHER on, one per root module, part and grad mode


class Residency(ArrivingGradients):
    """Moves the parameters of a module between the engine and torch."""

    def __init__(self, module: torch.nn.Module, engine: native.NativeEngine, units: ModuleUnits, dtype: str, device: torch.device) -> None:
        """Makes the parameters show the engine's memory, which already has their values. Collective."""
        super().__init__(module, engine, units, dtype, device)
        self._in_pass = self._own_pass = False
        self._called = False  # inside `forward`
        self._kinds: dict[tuple[int, int, bool], int] = {}
        self.part = 0  # part of the module that passes belong to
        self._saved_hooks: Any = None
        self.broken: str | None = None
        self.offload = ParameterOffload(self)
        if self.any_gathers:
            self._watch_parameters()
            self.offload._register_deepspeed_module(module)
            functions.watch(self)
            compiled.watch(self)
            self._handles += state_dicts.watch(self, module)
        self._watch_gradients()

    # ---- passes ----

    def _require_whole(self) -> None:
        if self.broken:
            raise StepOrderError(f"the engine cannot continue: {self.broken}; start the script again from a checkpoint")
        self.engine.require_stream()

    def require_no_pass(self, what: str) -> None:
        if self._in_pass:
            raise StepOrderError(f"{what}: called inside a forward, GatheredParameters or a loop over whole_weights; call it afterwards")

    def break_use(self, where: str, error: BaseException | str) -> None:
        """Ends the use of the engine after an error that leaves a pass open or a step incomplete."""
        self.broken = self.broken or f"{where} failed with {error if isinstance(error, str) else f'{type(error).__name__}: {error}'}"
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

        The values are copies, because other tensors refer to them after the context: `parameter.detach()`, and tensors that the graph of
        another module saves for its backward, when this engine may have other weights in the memory.
        """
        self._require_whole()
        self.require_placeholders()
        own = not self._in_pass and any(self.gathers[u] for u in units)
        if own:
            self.engine.begin_pass(OUTSIDE, False)
            self._in_pass = True
        for u in units:
            self._take(u, copied=True)
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
        self._require_whole()
        self.require_placeholders()
        self._called = True
        try:
            with memory_errors.explained(self.engine, self.device):
                return call()
        except BaseException as error:
            if self.any_gathers and not self.in_backward and (self._lent or isinstance(error, CleaveError)):
                self.break_use("a forward", error)
            if self.any_gathers and isinstance(error, RuntimeError) and "support saved tensor hooks" in str(error):
                raise UsageError(
                    "torch.func: derivatives (grad, vjp, jacrev, hessian) do not run inside hooks for saved tensors, such as those of "
                    "activation checkpointing; use torch.autograd.grad(..., create_graph=True), or leave the hooks out"
                ) from error
            raise
        finally:
            self._called = False

    def _watch_parameters(self) -> None:
        for submodule in self.module.modules():
            if any(self.gathers[u] for u in self.units.used_by(submodule)):
                submodule._parameters = Watched(submodule._parameters, self)

    def watch_calls(self, module: torch.nn.Module) -> list[Any]:
        """Returns the handles of hooks that gather the parameters of submodules while they run.

        Submodules with only whole parameters have none: a rank may call them alone. Those of a compiled module have none either.
        """
        handles: list[Any] = []
        passed: set[torch.nn.Module] = set()
        for submodule in module.modules():
            if submodule in passed:
                continue
            below = self.gathered_below(submodule)
            if not below and submodule is not self.module:
                passed.update(submodule.modules())
                continue
            if compiled.is_compiled(submodule):
                handles.append(compiled.Visit(self, submodule, below))
                passed.update(submodule.modules())
                continue
            if compiled.is_wrapper(submodule):
                handles.append(compiled.Split(submodule))
            used = [u for u in self.units.used_by(submodule) if self.gathers[u]]
            frozen = [u for u in used if not self.units.units[u].trains]
            handles.append(submodule.register_forward_pre_hook(Hook(self._before, used), prepend=True))
            handles.append(submodule.register_forward_hook(Hook(self._after, used), always_call=True))
            if frozen:
                hook = Hook(self._after_frozen, frozen)
                handles.append(submodule.register_forward_hook(hook, with_kwargs=True, always_call=True))
        return handles

    def gathered_below(self, module: torch.nn.Module) -> list[int]:
        """Returns the units of a module and its submodules that are gathered."""
        every = (u for submodule in module.modules() for u in self.units.used_by(submodule))
        return [u for u in dict.fromkeys(every) if self.gathers[u]]

    def _before(self, used: list[int], module: torch.nn.Module, args: Any) -> None:
        if self.in_backward:  # recomputation
            for u in used:
                self._hold(u)
            return
        if not self._lent:
            self._begin_forward(module)
        lent: list[int] = []
        self._lent.append(lent)
        if used:
            copied = self._lends_copies()
            for u in used:
                self._take(u, copied)
                lent.append(u)

    def _after(self, used: list[int], module: torch.nn.Module, args: Any, output: Any) -> Any:
        if self.in_backward or not self._lent:
            return None
        taken, replaced = self._lent.pop(), None
        derived = bool(taken) and in_derivative()
        returned = set(taken) if derived and self._lent else self._units_in(output) if taken else set()
        lost = [u for u in taken if self._users[u] == 1] if derived and not self._lent else []
        if returned and not self._lent:
            replaced, returned = tree_map(self._copy_of_weight, output), set()
        for u in taken:
            if u in returned:
                self._lent[-1].append(u)
            else:
                self._drop(u)
        if not self._lent:
            self._end_forward()
        if lost:
            raise UsageError(
                "torch.func: a derivative of the whole module needs its parameters after the forward; call it inside "
                "zero.GatheredParameters(module.parameters())"
            )
        return replaced

    def read(self, parameter: torch.nn.Parameter) -> None:
        """Makes a parameter that is read within a call whole until the call ends."""
        slot = self.units.of_parameter.get(id(parameter))
        if slot is None or not self.gathers[slot.unit] or (self._users[slot.unit] > 0 and not self._of_nodes):
            return
        if self.in_backward:  # nodes leave their units earlier
            self._hold(slot.unit)
        elif self._lent and slot.unit not in self._lent[-1]:
            self._lend(slot.unit)

    def _after_frozen(self, frozen: list[int], module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Lets frozen units of a recomputed module go when the gradients of its inputs are computed."""
        if not (self.in_backward and torch.is_grad_enabled()):
            return
        values = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.requires_grad]
        if not values:
            return

        def let_go(_: Any) -> None:
            for u in frozen:
                self._let_go(u)

        torch.autograd.graph.register_multi_grad_hook(values, let_go)

    def _begin_forward(self, root: torch.nn.Module) -> None:
        self._require_whole()
        if not self._called:
            self.require_placeholders()
        hooks = functions.saving(self)
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

    def _begin_within_another(self) -> None:
        if any(other is not self for other in self.training):
            self.begin_backward(False, trains=False)
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)

    # ---- backwards ----

    def backward(self, run: Callable[[], None], last: bool, recovers: bool = False) -> None:
        """Runs a backward; the engine takes its gradients. Collective.

        Args:
            last: last backward of the step.
            recovers: `leave_failed` follows an exception of the script; otherwise all errors end the use of the engine.
        """
        self.begin_backward(last)
        try:
            with memory_errors.explained(self.engine, self.device):
                run()
                self.end_backward()
        except BaseException as error:
            other = isinstance(error, CleaveError) and not isinstance(error, TrainingError)  # that of another rank
            if other or not recovers or not isinstance(error, Exception):
                self.break_use("a backward", error)
            raise

    def leave_failed(self, recovers: bool) -> bool:
        """Ends a backward that failed, which other ranks wait for, or the use of the engine. Collective. Returns True if the backward had
        gradients for the engine."""
        if not self.in_backward or torch._C._current_graph_task_id() >= 0:
            return False
        if not recovers:
            self.break_use("a backward", "an exception of the script")
            return False
        self._leave_backward(gives=False)
        self.engine.abandon_pass()
        return self._trains

    def begin_backward(self, last: bool, factor: float = 1.0, trains: bool = True, creates_graph: bool = False) -> None:
        """Begins a backward that ends with `end_backward`. Collective.

        Args:
            last: last backward of the step.
            factor: multiplied with its gradients.
            trains: False for `torch.autograd.grad` and backwards of other engines, which give the engine no gradients.
            creates_graph: the backward can be differentiated again.
        """
        self._require_whole()
        self.require_placeholders()
        self.require_no_pass("backward")
        self._trains, self._creates_graph = trains, creates_graph and self.any_gathers
        self.engine.begin_pass(_BACKWARD if trains and not self.part else self._kind(None), last)
        self._in_pass = self.in_backward = True
        self._factor = factor
        if trains:
            self.training.add(self)

    def end_backward(self) -> None:
        """Ends a backward. Raises TrainingError if it failed on another rank. Collective."""
        self._leave_backward(gives=True)
        self.engine.end_pass()

    def _leave_backward(self, gives: bool) -> None:
        self._in_pass = self.in_backward = self._creates_graph = False
        self.training.discard(self)
        self._leave_nodes(0)
        for u, arrived in enumerate(self._arrived):
            if arrived and gives:
                self._give(u)
            arrived.clear()
            if self._held[u]:
                self._let_go(u)

    def close(self, keeps: bool = True) -> None:
        """Detaches the parameters from the engine. keeps: those that are whole on this rank keep their values; others lose them."""
        functions.leave(self)
        compiled.leave(self)
        self.offload.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for submodule in self.module.modules():
            if isinstance(submodule._parameters, Watched):
                submodule._parameters = dict(submodule._parameters)
        for slot in self.units.slots():
            if not self.gathers[slot.unit]:
                slot.parameter.data = slot.parameter.data.clone() if keeps else self._placeholders.value_of(slot)
        self._views.clear()
        self._turned.clear()
        self._staying.clear()
