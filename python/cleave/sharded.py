"""Parameters sharded over the ranks before there is an engine; each rank keeps its part in host memory."""

import re
import weakref
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from . import job as jobs
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
        self.renew(parameter)

    def renew(self, parameter: Any) -> None:
        """Takes the shape, the type and the values that a parameter has on rank 0, and hides the values. Collective."""
        self.shape, self.dtype = parameter.shape, parameter.dtype
        parameter.ds_shape, parameter.ds_numel = self.shape, self.shape.numel()
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
        _hidden.pop(self._nothing.data_ptr(), None)
        parameter.data = self.gather()
        parameter.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]

    def hide(self, parameter: torch.nn.Parameter) -> None:
        """Gives the parameter its whole shape, with NaN as values."""
        self._nothing = torch.tensor(float("nan"), dtype=self.dtype)
        parameter.data = self._nothing.expand(self.shape)
        parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]
        _hidden[self._nothing.data_ptr()] = self

    def convert(self, parameter: torch.nn.Parameter, function: Any) -> None:
        """Applies a function to this rank's part, such as a conversion to another type. The part stays in host memory."""
        self._part = function(self._part).detach().to("cpu")
        self.dtype = self._part.dtype
        _hidden.pop(self._nothing.data_ptr(), None)
        self.hide(parameter)

    def __reduce__(self) -> Any:
        """Pickles None: a pickled parameter is whole."""
        return type(None), ()

    def forget(self, parameter: torch.nn.Parameter) -> None:
        """Ends the sharding of a parameter; another owner has its values."""
        _hidden.pop(self._nothing.data_ptr(), None)
        parameter.ds_shard = None  # type: ignore[attr-defined]


used: list[Shard] = []  # of an Init, also those of freed parameters, which others may be made of
_hidden: weakref.WeakValueDictionary[int, Shard] = weakref.WeakValueDictionary()  # by the address that hidden parameters show


def hidden_in(what: Any) -> Shard | None:
    """Returns the shard of a parameter without values, or of the parameter that it was made of."""
    if type(what) is not torch.nn.Parameter and shard_of(what) is None:
        return None
    return _hidden.get(what.data_ptr()) if what.layout == torch.strided else None


class Reads(TorchFunctionMode):
    """Context that gives sharded parameters their values when a constructor reads or writes them. Collective.

    A parameter stays whole until the constructor that used it ends, or until later ones need the room.
    """

    ROOM = 1 << 28  # bytes of whole parameters
    # Functions and attributes that need no values.
    _NO_VALUES = frozenset(
        re.findall(
            r"\w+",
            "shape dtype device layout requires_grad grad grad_fn is_leaf ndim names is_cuda is_cpu is_meta is_sparse is_quantized "
            "retains_grad _version __repr__ __format__ __hash__ __len__ size dim numel nelement element_size stride is_floating_point "
            "is_complex is_contiguous data_ptr get_device requires_grad_ detach_ share_memory_ register_hook "
            "register_post_accumulate_grad_hook",
        )
    )

    def __init__(self) -> None:
        super().__init__()
        self.whole: dict[torch.nn.Parameter, None] = {}  # in the order of their reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if (func.__self__.__name__ if name in ("__get__", "__set__") else name) not in self._NO_VALUES:
            self._show([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.nn.Parameter)])
        return func(*args, **(kwargs or {}))

    def _show(self, parameters: list[torch.nn.Parameter]) -> None:
        shown = [(p, shard) for p in dict.fromkeys(parameters) if (shard := hidden_in(p)) is not None]
        for parameter, shard in shown:
            shard.show(parameter)
            if shard_of(parameter) is not None:
                self.whole[parameter] = None
        if shown:
            self.hide([p for p in self.whole if all(p is not q for q in parameters)], self.ROOM)

    def hide(self, parameters: list[torch.nn.Parameter], room: int = 0) -> None:
        """Shards whole parameters again, with the values of rank 0, until all whole ones fit into `room` bytes. Collective."""
        for parameter in parameters:
            if sum(p.nbytes for p in self.whole) <= room:
                return
            if parameter in self.whole and (shard := shard_of(parameter)) is not None:
                shard.renew(parameter)
            self.whole.pop(parameter, None)


def shard_of(parameter: Any) -> Shard | None:
    """Returns the shard of a parameter, None after an engine took it over."""
    return getattr(parameter, "ds_shard", None)


def restored(parameter: torch.nn.Parameter) -> Shard | None:
    """Returns the shard that `hidden_in` returns, also if the script replaced the data of the parameter by a conversion of it.

    After such a conversion (`p.data = p.data.float()`), the parameter is sharded in the new type.
    """
    hidden, shard = hidden_in(parameter), shard_of(parameter)
    if hidden is not None or shard is None:
        return hidden
    data = parameter.detach()
    if data.shape != shard.shape or not data.is_floating_point() or not data.flatten()[:1].isnan().all() or not data.isnan().all():
        return None
    shard.convert(parameter, lambda part: part.to(data.dtype))
    return shard


def share_out(module: torch.nn.Module, checks: bool) -> None:
    """Shards the direct parameters of a module. Collective."""
    for parameter in module.parameters(recurse=False):
        if shard_of(parameter) is not None or is_lazy(parameter):
            continue
        if parameter.is_floating_point() and parameter.numel() and parameter.device.type != "meta":
            if (shard := hidden_in(parameter)) is not None:
                parameter.data = shard.gather()
            parameter.ds_shard, parameter.ds_enable_sanity_checks = Shard(parameter), checks  # type: ignore[attr-defined]
            used.append(parameter.ds_shard)  # type: ignore[attr-defined]


def engine_of(parameter: Any) -> Any:
    """Returns the engine that holds a parameter, None without one or after its end."""
    engine = getattr(parameter, "ds_engine", None)
    return None if engine is None or engine._native.freed else engine


def value_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the whole value of a parameter. Collective."""
    engine = engine_of(parameter)
    if engine is not None and parameter.ds_status == ZeroParamStatus.NOT_AVAILABLE:  # type: ignore[attr-defined]
        return engine.parameters_of(engine.name_of(parameter))  # type: ignore[no-any-return]
    shard = shard_of(parameter)
    return parameter.detach() if shard is None or restored(parameter) is None else shard.gather()


# DeepSpeed's zero.Init replaces constructors of tensors, and transformers resets this one meanwhile. Cleave leaves them unchanged.
_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the function unchanged."""
    return fn
