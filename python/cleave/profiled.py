"""Measures the modules of one training step for `flops_profiler`: the time and the arithmetic of each operation, by the module that called
it. The native library prints them."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_OUTSIDE = "(other)"  # losses outside of the module, and sums of gradients


class ModuleProfile(TorchDispatchMode):
    """Measures the operations that run in its contexts. Each belongs to one module, the innermost one.

    An operation of a backward belongs to the module that created its node in the graph: nodes have increasing numbers.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._names = {m: name or type(module).__name__ for name, m in module.named_modules()}
        self._running: list[str] = []
        self._begins, self._creators = [0], [_OUTSIDE]  # first number of a node and the module that created the nodes from there on
        self._ms: Counter[tuple[str, bool]] = Counter()  # by module and whether it was a backward
        self._flops: Counter[tuple[str, bool]] = Counter()
        self._hooks: list[Any] = []

    def __enter__(self) -> Any:
        self._hooks = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave, always_call=True)]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._running.clear()
        self._creates()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        if module in self._names:
            self._running.append(self._names[module])
            self._creates()

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if module in self._names and self._running:
            self._running.pop()
            self._creates()

    def _creates(self) -> None:
        self._begins.append(torch._C._autograd._get_sequence_nr())
        self._creators.append(self._running[-1] if self._running else _OUTSIDE)

    def _owner(self) -> str:
        node = None if self._running else torch._C._current_autograd_node()
        if node is None:
            return self._running[-1] if self._running else _OUTSIDE
        return self._creators[bisect.bisect(self._begins, node._sequence_nr()) - 1]

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, at = kwargs or {}, (self._owner(), torch._C._current_graph_task_id() >= 0)
        begin = self._now()
        out = func(*args, **kwargs)
        self._ms[at] += 1e3 * (self._now() - begin)  # type: ignore[assignment]
        if formula := flop_registry.get(getattr(func, "_overloadpacket", func)):
            self._flops[at] += int(formula(*args, **kwargs, out_val=out))
        return out

    def _merged(self, depth: int) -> dict[str, list[str]]:
        """Returns the modules by row: with a depth, deeper ones belong to the module above them at this depth."""
        rows: dict[str, list[str]] = {}
        root = next(iter(self._names.values()))
        for name in [*self._names.values(), _OUTSIDE]:
            parts = name.split(".")
            top = name if name in (root, _OUTSIDE) else ".".join(parts[:depth] if depth >= 0 else parts)
            rows.setdefault(top or root, []).append(name)
        return rows

    def rows(self, depth: int) -> Iterator[list[Any]]:
        """Yields name, parameters, operations, and milliseconds of forwards and backwards of the modules that have any of these.

        Args:
            depth: of the deepest modules with a row; -1: any.
        """
        seen: set[torch.nn.Parameter] = set()
        counts: Counter[str] = Counter()
        for module, name in self._names.items():
            own = [p for p in module._parameters.values() if p is not None and p not in seen]
            seen.update(own)
            counts[name] += sum(p.numel() for p in own)
        for row, names in self._merged(depth).items():
            params = sum(counts[name] for name in names)
            flops = sum(self._flops[name, back] for name in names for back in (False, True))
            forward, backward = (sum(self._ms[name, back] for name in names) for back in (False, True))
            if params or flops or forward or backward:
                yield [row, params, flops, forward, backward]

    def facts(self) -> list[str]:
        """Returns lines about the measurement."""
        forward, backward = (sum(n for (_, back), n in self._flops.items() if back is of) for of in (False, True))
        return [
            f"arithmetic of rank 0: forward {forward / 1e9:.3f} GFLOP, backward {backward / 1e9:.3f} GFLOP, with recomputation",
            "counted: matrix products, convolutions and attention of torch; operations are timed one by one, which makes the step slower",
        ]
