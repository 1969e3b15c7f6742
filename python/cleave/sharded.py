"""Parameters that are shared out over the ranks before there is an engine: each rank keeps a part of every one in host memory."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import job as jobs
from .errors import UsageError
from .units import ZeroParamStatus, describe


def part_of(whole: torch.Tensor, number: int, parts: int) -> torch.Tensor:
    """One of equal parts of a tensor's elements, the last of them filled up with zeros."""
    each = -(-whole.numel() // parts)
    part = whole.reshape(-1)[number * each : (number + 1) * each]
    return torch.cat([part, part.new_zeros(each - part.numel())])


def joined(part: torch.Tensor, shape: torch.Size, roots: range) -> torch.Tensor:
    """The whole of the parts that these ranks have, in host memory. Collective."""
    parts = part.repeat(len(roots), 1)
    for root, each in zip(roots, parts, strict=True):
        jobs.broadcast(each, root)
    return parts.view(-1)[: shape.numel()].view(shape)


class Shard:
    """This rank's part of a parameter's elements, in equal parts by rank."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        """Takes the values of rank 0's parameter, and leaves it without. Collective."""
        describe(parameter)
        self.shape, self.dtype = parameter.shape, parameter.dtype
        self.keep(parameter.detach(), 0)
        self.hide(parameter)

    def keep(self, whole: torch.Tensor, root: int) -> None:
        """Overwrites the values by the root's. Collective."""
        values = whole.detach().to("cpu", self.dtype, copy=True).contiguous()
        jobs.broadcast(values, root)
        self._part = part_of(values, jobs.rank(), jobs.world_size())

    def gather(self) -> torch.Tensor:
        """The whole, in host memory. Collective."""
        return joined(self._part, self.shape, range(jobs.world_size()))

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
                f"{func.__name__}: not supported on a part of a parameter (zero.Init has sharded it); gather it first: "
                "with zero.GatheredParameters(parameter, modifier_rank=0)"
            )
        whole = shard.gather()
        func(whole, *args, **kwargs)
        shard.keep(whole, 0)


def shard_of(parameter: Any) -> Shard | None:
    """Of a parameter that has one, and no engine yet."""
    return getattr(parameter, "ds_shard", None)


def share_out(module: torch.nn.Module, checks: bool) -> None:
    """A module's own parameters. Collective."""
    for parameter in module.parameters(recurse=False):
        if shard_of(parameter) is None and parameter.is_floating_point() and parameter.numel() and parameter.device.type != "meta":
            parameter.ds_shard, parameter.ds_enable_sanity_checks = Shard(parameter), checks  # type: ignore[attr-defined]


def value_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A parameter's whole value, wherever it is. Collective."""
    shard = shard_of(parameter)
    return parameter.detach() if shard is None else shard.gather()


# What DeepSpeed's zero.Init wraps, and transformers replaces meanwhile; here constructors of tensors stay as they are.
_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """The function itself."""
    return fn
