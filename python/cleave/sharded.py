"""Parameters that are shared out over the ranks before there is an engine: each rank keeps a part of every one in host memory."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import job as jobs
from .errors import UsageError
from .units import ZeroParamStatus, describe


class Shard:
    """This rank's part of a parameter's elements, in equal parts by rank."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        """Takes the values of rank 0's parameter, and leaves it without. Collective."""
        describe(parameter)
        self.shape, self.dtype = parameter.shape, parameter.dtype
        self._each = -(-parameter.numel() // jobs.world_size())
        self.keep(parameter.detach(), 0)
        self.hide(parameter)

    def _range(self, rank: int) -> slice:
        return slice(rank * self._each, (rank + 1) * self._each)

    def keep(self, whole: torch.Tensor, root: int) -> None:
        """Overwrites the values by the root's. Collective."""
        flat = whole.detach().to("cpu", self.dtype).contiguous().reshape(-1).clone()
        jobs.broadcast(flat, root)
        self._part = flat[self._range(jobs.rank())].clone()

    def gather(self) -> torch.Tensor:
        """The whole, in host memory. Collective."""
        parts = torch.empty(jobs.world_size(), self._each, dtype=self.dtype)
        parts[jobs.rank(), : self._part.numel()] = self._part
        for rank, part in enumerate(parts):
            jobs.broadcast(part, rank)
        return parts.view(-1)[: self.shape.numel()].view(self.shape)

    def show(self, parameter: torch.nn.Parameter) -> None:
        """Lets a parameter have its values. Collective."""
        _hidden.pop(parameter.data_ptr(), None)
        parameter.data = self.gather()
        parameter.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]

    def hide(self, parameter: torch.nn.Parameter) -> None:
        """Leaves a parameter of the whole shape, without values."""
        parameter.data = torch.tensor(float("nan"), dtype=self.dtype).expand(self.shape)
        parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]
        _hidden[parameter.data_ptr()] = self

    def forget(self, parameter: torch.nn.Parameter) -> None:
        """Its values are another's from now on."""
        _hidden.pop(parameter.data_ptr(), None)
        parameter.ds_shard = None  # type: ignore[attr-defined]


_hidden: dict[int, Shard] = {}  # by the address of what a parameter without values shows


class Writes(TorchFunctionMode):
    """Within it a constructor may write to parameters of modules that are shared out already, as `nn.init` does. Collective."""

    _NO_WRITES = frozenset({"requires_grad_", "detach_", "share_memory_"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and name not in self._NO_WRITES:
            to = args[0] if args else kwargs.get("tensor")  # as functions of nn.init are passed on
            shard = _hidden.get(to.data_ptr()) if isinstance(to, torch.Tensor) else None
            if shard is not None:
                self._write(shard, to, func, args[1:], {k: v for k, v in kwargs.items() if k != "tensor"})
                return to
        return func(*args, **kwargs)

    def _write(self, shard: Shard, to: torch.Tensor, func: Any, args: Any, kwargs: Any) -> None:
        if to.shape != shard.shape:
            raise UsageError(
                f"{func.__name__} of a part of a parameter that zero.Init has shared out; gather it first: "
                "with zero.GatheredParameters(parameter, modifier_rank=0)"
            )
        whole = shard.gather()
        func(whole, *args, **kwargs)
        shard.keep(whole, 0)


def shard_of(parameter: Any) -> Shard | None:
    """Of a parameter that has one, and no engine yet."""
    return getattr(parameter, "ds_shard", None)


def share_out(module: torch.nn.Module) -> None:
    """A module's own parameters. Collective."""
    for parameter in module.parameters(recurse=False):
        if shard_of(parameter) is None and parameter.is_floating_point() and parameter.numel() and parameter.device.type != "meta":
            parameter.ds_shard = Shard(parameter)  # type: ignore[attr-defined]


def value_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A parameter's whole value, wherever it is. Collective."""
    shard = shard_of(parameter)
    return parameter.detach() if shard is None else shard.gather()
