"""Parameters sharded over the ranks before there is an engine; each rank keeps its part in host memory."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import job as jobs
from .errors import UsageError
from .units import ZeroParamStatus, describe


def part_of(whole: torch.Tensor, number: int, parts: int) -> torch.Tensor:
    """Returns one of `parts` equal parts of a tensor's elements; the last is padded with zeros."""
    each = -(-whole.numel() // parts)
    part = whole.reshape(-1)[number * each : (number + 1) * each]
    return torch.cat([part, part.new_zeros(each - part.numel())])


def joined(part: torch.Tensor, shape: torch.Size, roots: range) -> torch.Tensor:
    """Joins the parts of the given ranks to the whole tensor in host memory. Collective."""
    parts = part.repeat(len(roots), 1)
    for root, each in zip(roots, parts, strict=True):
        jobs.broadcast(each, root)
    return parts.view(-1)[: shape.numel()].view(shape)


class Shard:
    """This rank's part of a parameter's elements."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        """Takes the values of rank 0 and leaves the parameter without values. Collective."""
        describe(parameter)
        self.shape, self.dtype = parameter.shape, parameter.dtype
        self.keep(parameter.detach(), 0)
        self.hide(parameter)

    def keep(self, whole: torch.Tensor, root: int) -> None:
        """Overwrites the values with those of the root. Collective."""
        values = whole.detach().to("cpu", self.dtype, copy=True).contiguous()
        jobs.broadcast(values, root)
        self._part = part_of(values, jobs.rank(), jobs.world_size())

    def gather(self) -> torch.Tensor:
        """Returns the whole values in host memory. Collective."""
        return joined(self._part, self.shape, range(jobs.world_size()))

    def show(self, parameter: torch.nn.Parameter) -> None:
        """Gives the parameter its values. Collective."""
        _hidden.pop(parameter.data_ptr(), None)
        parameter.data = self.gather()
        parameter.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]

    def hide(self, parameter: torch.nn.Parameter) -> None:
        """Gives the parameter its whole shape, with NaN as values."""
        parameter.data = torch.tensor(float("nan"), dtype=self.dtype).expand(self.shape)
        parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]
        _hidden[parameter.data_ptr()] = self

    def forget(self, parameter: torch.nn.Parameter) -> None:
        """Ends the sharding of a parameter; another owner has its values."""
        _hidden.pop(parameter.data_ptr(), None)
        parameter.ds_shard = None  # type: ignore[attr-defined]


_hidden: dict[int, Shard] = {}  # by the address that hidden parameters show


class Writes(TorchFunctionMode):
    """Context that lets constructors write to sharded parameters of submodules, as `nn.init` does. Collective."""

    _NO_WRITES = frozenset({"requires_grad_", "detach_", "share_memory_"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and name not in self._NO_WRITES:
            to = args[0] if args else kwargs.get("tensor")  # keyword of nn.init functions
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
    """Returns the shard of a parameter, None after an engine took it over."""
    return getattr(parameter, "ds_shard", None)


def share_out(module: torch.nn.Module, checks: bool) -> None:
    """Shards the direct parameters of a module. Collective."""
    for parameter in module.parameters(recurse=False):
        if shard_of(parameter) is None and parameter.is_floating_point() and parameter.numel() and parameter.device.type != "meta":
            parameter.ds_shard, parameter.ds_enable_sanity_checks = Shard(parameter), checks  # type: ignore[attr-defined]


def value_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the whole value of a parameter. Collective."""
    shard = shard_of(parameter)
    return parameter.detach() if shard is None else shard.gather()


# DeepSpeed's zero.Init replaces constructors of tensors, and transformers resets this one meanwhile. Cleave leaves them unchanged.
_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the function unchanged."""
    return fn
