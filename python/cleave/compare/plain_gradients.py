"""Gradients of the reference engine: sums in double over micro-batches and ranks, and what the script sees of them."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..engine import DeepSpeedEngine


class PlainGradients(DeepSpeedEngine):
    """An engine that adds the gradients of its module itself."""

    names: dict[str, torch.nn.Parameter]
    scale_now: float
    _name_of: dict[int, str]
    _factor: float
    _after: float

    def _begin_sums(self) -> None:
        self._shows = self._precision == "fp32" and int(self._value("zero_optimization.stage")) < 2
        self._queued = False  # the end of a backward that the script called
        self._visible: dict[str, Any] = {}  # complete gradients of the step, with the tensors in parameter.grad
        self._set: dict[str, torch.Tensor] = {}  # gradients that the script set
        self._sums: dict[str, list[Any]] = {}  # of each parameter: sum, sum of magnitudes, number of summands
        self._watched: set[int] = set()

    def _watch_trained(self) -> None:
        """Watches the gradients of the parameters that the optimizer has now."""
        for name, p in self.trained().items():
            if id(p) not in self._watched and p.requires_grad:
                self._watched.add(id(p))
                p.register_hook(partial(self._hide, name))
                p.register_post_accumulate_grad_hook(partial(self._take, name))

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Returns the parameters of the optimizer by name."""
        every = [p for group in (self.optimizer.param_groups if self.optimizer else ()) for p in group["params"] if p.numel()]
        return {self._name_of[id(p)]: p for p in every if id(p) in self._name_of}

    def _hide(self, name: str, gradient: torch.Tensor) -> None:
        """Called before a gradient is added to `parameter.grad`."""
        if self._visible.pop(name, None):
            self.names[name].grad = None

    def _take(self, name: str, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        if self._factor != 1:
            gradient = gradient * self._factor
        whole = gradient.detach().to("cpu", torch.float64)
        if name not in self._sums:
            self._sums[name] = [whole.clone(), whole.abs(), 1]
            return
        kept = self._sums[name]
        kept[0] += whole
        kept[1] += whole.abs()
        kept[2] += 1

    def gradient_sums(self, name: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Returns sum, sum of magnitudes and number of summands of a gradient over micro-batches and ranks. Collective."""
        if name in self._set:
            total, sizes, count = self._summed(name)
            changed = self._set[name]
        elif name not in self._visible:
            return self._summed(name)
        else:
            (total, sizes, count), shown, version = self._visible[name]
            now = self.names[name].grad
            if now is None or (now is shown and now._version == version):
                return total, sizes, count
            changed = now.detach().to("cpu", torch.float64)  # the script did, as by clip_grad_norm_
        return changed, sizes * (changed.norm() / total.norm().clamp_min(1e-300)) + changed.abs(), count

    def _end_of_backward(self) -> None:
        """Shows complete gradients to the script, which may change them. Collective."""
        self._queued = False
        if not self._shows or self._unsynced or not self.is_gradient_accumulation_boundary():
            return
        for name, p in self.trained().items():
            if p.requires_grad:
                summed = self._summed(name)
                p.grad = summed[0].to(p.device, p.dtype)
                self._visible[name] = summed, p.grad, p.grad._version

    def _summed(self, name: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        zeros = torch.zeros(self.names[name].shape, dtype=torch.float64)
        total, sizes, count = self._sums.get(name) or [zeros, zeros, 0]
        total, sizes = total.clone(), sizes.clone()
        if self.world_size > 1:
            dist.all_reduce(total)
            dist.all_reduce(sizes)
            count = int(self._job.sum([float(count)])[0])
        return total * self._after / self.scale_now, sizes * self._after / self.scale_now, count

    def gradient_of(self, name: str) -> torch.Tensor | None:
        if name in self._set:
            return self._set[name].float()
        if name not in self._sums:
            return None
        total: torch.Tensor = self._sums[name][0].clone()
        if self.world_size > 1:
            dist.all_reduce(total)
        return (total * self._after / self.scale_now).float()
