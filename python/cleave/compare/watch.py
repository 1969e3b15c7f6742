"""Outputs of the submodules of a module, in the order of their calls."""

from collections.abc import Callable
from typing import Any

import torch

from ..outputs import tensors_in
from ..watched import Hook
from .records import fingerprint

Emit = Callable[..., None]  # called with what, and keywords


class Watch:
    """Reports inputs of the module and outputs of its submodules for calls that compute gradients.

    Calls inside a backward, as of activation checkpointing, are not reported, so each output is reported once.
    """

    def __init__(self, module: torch.nn.Module, emit: Emit) -> None:
        self._emit, self._depth, self._on = emit, 0, False
        self._last: tuple[Any, int, dict[str, Any]] = (None, 0, {})
        module.register_forward_pre_hook(Hook(self._before), with_kwargs=True, prepend=True)
        self.alignments: dict[int, int] = {}  # address of each parameter in a call, modulo 64, by id
        for path, submodule in module.named_modules():
            submodule.register_forward_pre_hook(Hook(self._see))
            submodule.register_forward_hook(Hook(self._after, path))
        module.register_forward_hook(Hook(self._end), always_call=True)

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._on = torch.is_grad_enabled() and not self._silent()
            if self._on:
                self._report("input", "", module, (args, kwargs))

    def _see(self, module: torch.nn.Module, args: Any) -> None:
        for p in module._parameters.values() if self._on and not self._silent() else ():
            if p is not None:
                self.alignments.setdefault(id(p), p.data_ptr() % 64)

    def _end(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        self._on = self._on and self._depth > 0
        if self._depth == 0:
            self._last = (None, 0, {})

    def _after(self, path: str, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._on and not self._silent():
            self._report("output", path, module, output)

    @staticmethod
    def _silent() -> bool:
        return torch._C._current_graph_task_id() >= 0 or torch.compiler.is_compiling()

    def _report(self, what: str, path: str, module: torch.nn.Module, value: Any) -> None:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for index, tensor in enumerate(tensors_in(value)):
                if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                    continue
                self._emit(what, module=path, kind=type(module).__name__, index=index, **self._of(tensor))

    def _of(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Returns the fingerprint; a container returns the tensor of its last submodule, which is not read again."""
        version = 0 if tensor.is_inference() else tensor._version
        if self._last[0] is not tensor or self._last[1] != version:
            self._last = (tensor, version, fingerprint(tensor))
        return self._last[2]
