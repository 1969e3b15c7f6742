"""Tensors that autograd saves: positions of gathered parameters instead of their values, and the units that a backward takes for them."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from .errors import StepOrderError, UsageError
from .functions import is_of_level, level
from .units import Slot
from .views import ParameterViews

_graph_task, _node = torch._C._current_graph_task_id, torch._C._current_autograd_node


class _Weight(NamedTuple):
    """Reference that autograd saves instead of a gathered parameter or its cast: a position, not the values."""

    slot: Slot
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: Any  # in elements


class _OfLevel(NamedTuple):
    """Tensor of torch.func, which autograd saves as it is."""

    tensor: torch.Tensor


class SavedWeights(ParameterViews):
    """Packs gathered parameters for autograd, and takes their units again when a backward needs them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lent: list[list[int]] = []  # per running module, outermost first: units taken for it
        self._of_nodes: list[list[Any]] = []  # per running backward task, outermost first: node, units taken for it
        self.in_backward = False

    def _begin_within_another(self) -> None:
        """Begins a backward without gradients for this engine, if the backward of another engine reached this module."""
        raise NotImplementedError

    def _lends_copies(self) -> bool:
        """Returns True if a backward inside the forward computes the running module again, or torch.func keeps its parameters longer."""
        return _graph_task() >= 0 or level() is not None

    def _lend(self, u: int) -> None:
        """Takes a unit until the running module ends."""
        self._take(u, self._lends_copies())
        self._lent[-1].append(u)

    def _units_in(self, output: Any) -> set[int]:
        """Returns the units whose gathered parameters an output shows, as of a module that returns its weight or a view of it."""
        if isinstance(output, torch.Tensor):
            slot = self._slot_at(output)
            return set() if slot is None else {slot.unit}
        leaves = tree_leaves(output)
        return {slot.unit for leaf in leaves if isinstance(leaf, torch.Tensor) and (slot := self._slot_at(leaf)) is not None}

    def _copy_of_weight(self, value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) and self._slot_at(value) is not None else value

    def _pack(self, tensor: torch.Tensor) -> Any:
        if is_of_level(tensor):
            return _OfLevel(tensor)
        if self._at:
            slot = self._slot_at(tensor)
            if slot is not None and tensor.dtype != slot.parameter.dtype:  # a view of its bits as another type
                copy = tensor.detach().clone()
                return copy, copy._version
            if slot is None and tensor.dtype != self.torch_dtype and tensor.is_floating_point():
                slot = self._cast_from(tensor) if tensor.requires_grad else self._cast_of_frozen(tensor)
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

    def _cast_of_frozen(self, tensor: torch.Tensor) -> Slot | None:
        """Returns the gathered frozen parameter with the values of a tensor. Casts of frozen parameters have no history."""
        numel = tensor.untyped_storage().nbytes() // tensor.element_size()
        for slot in self._at.values():
            if not slot.trains and slot.shape.numel() == numel:
                cast = slot.parameter.detach().reshape(-1).to(tensor.dtype)
                if torch.equal(cast, tensor.detach().as_strided(cast.shape, cast.stride(), 0)):
                    return slot
        return None

    def _unpack(self, saved: Any) -> torch.Tensor:
        if type(saved) is not tuple:
            return self._weight(*saved) if isinstance(saved, _Weight) else saved.tensor
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
        if dtype != whole.dtype:
            return whole.detach().to(dtype).as_strided(size, stride, offset)
        if offset == 0 and size == whole.shape and stride == whole.stride():
            return whole
        if slot.unit in self._copied or offset or size.numel() != slot.shape.numel():
            return whole.detach().as_strided(size, stride, offset)
        key = (whole.data_ptr(), size, stride)
        turned = self._turned.get(key)
        if turned is None:
            turned = self._turned[key] = whole.detach().as_strided(size, stride)
        return turned

    def _take_for_backward(self, slot: Slot) -> None:
        """Makes a parameter whole for the running node of a backward: one of the engine, or `torch.autograd.grad` inside a forward."""
        u, node = slot.unit, _node()
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
        task = _graph_task()
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
        """Returns the gathered parameter that a tensor shows, or the one without values that it is."""
        if tensor.layout == torch.strided and (hidden := self._placeholders.at(tensor.data_ptr())) and tensor.shape == hidden.shape:
            return hidden.parameter
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
