"""Sharded construction of models (`Init`), and access to whole parameters (`GatheredParameters`)."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import job as jobs
from .configuration import configuration_of
from .errors import UsageError
from .sharded import Reads, hidden_in, restored, shard_of, share_out, used
from .tiling import TiledLinear, TiledLinearReturnBias  # noqa: F401


@contextlib.contextmanager
def GatheredParameters(  # noqa: N802
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> Iterator[None]:
    """Context that gives parameters their whole values on every rank. Collective.

    Args:
        params: a module, a parameter or several.
        modifier_rank: the changes of this rank are broadcast at the end. None: changes of sharded parameters are lost.
        fwd_module: accepted.
        enabled: False makes the context empty.

    Raises:
        UsageError: in-place change without modifier_rank, if `zero_optimization.enable_sanity_checks` is set.
    """
    every = params.parameters() if isinstance(params, torch.nn.Module) else [params] if isinstance(params, torch.Tensor) else params or ()
    listed = [p for p in every if isinstance(p, torch.nn.Parameter)]
    engines = dict.fromkeys(engine for p in listed if (engine := getattr(p, "ds_engine", None)) is not None)
    with contextlib.ExitStack() as stack:
        for whole in [_before_an_engine, *(engine.gathered for engine in engines)] if enabled else ():
            stack.enter_context(whole(listed, modifier_rank))
        checked = [(p, p._version) for p in listed if modifier_rank is None and getattr(p, "ds_enable_sanity_checks", False)]
        yield
        if any(p._version != version for p, version in checked):
            raise UsageError("GatheredParameters: an in-place modification is lost without modifier_rank; set it to the rank of the change")


@contextlib.contextmanager
def _before_an_engine(parameters: list[torch.nn.Parameter], modifier_rank: int | None) -> Iterator[None]:
    _reads.hide(parameters)
    shards = [(p, shard) for p in dict.fromkeys(parameters) if (shard := restored(p)) is not None]
    for parameter, shard in shards:
        shard.show(parameter)
    try:
        yield
        for parameter, shard in shards:
            if modifier_rank is not None:
                shard.keep(parameter, modifier_rank)
    finally:
        for parameter, shard in shards:
            shard.hide(parameter)


def _copied(self: torch.nn.Parameter, memo: dict[int, Any]) -> Any:
    """Copies a parameter. The copy of a sharded one is whole outside of `Init`. Collective for those."""
    shard = None if Init._depth or id(self) in memo else restored(self)
    if shard is None:
        return _copied_as_it_is(self, memo)  # type: ignore[no-untyped-call]
    memo[id(self)] = torch.nn.Parameter(shard.gather(), self.requires_grad)
    return memo[id(self)]


_copied_as_it_is = torch.nn.Parameter.__deepcopy__
torch.nn.Parameter.__deepcopy__ = _copied  # type: ignore[method-assign, assignment]


def _applied(self: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    """Converts a module (`to`, `bfloat16`, `cuda`). Sharded parameters stay sharded: each rank converts its part."""
    every = self._parameters
    sharded = {name for name, p in every.items() if (shard := shard_of(p)) is not None and hidden_in(p) is shard}
    if not sharded:
        return _applied_as_it_is(self, function, recurse)
    for name in sharded:
        parameter: Any = every[name]
        parameter.ds_shard.convert(parameter, function)
    self._parameters = {name: p for name, p in every.items() if name not in sharded}
    try:
        return _applied_as_it_is(self, function, recurse)
    finally:
        self._parameters = {**every, **self._parameters}


_applied_as_it_is: Any = torch.nn.Module._apply
torch.nn.Module._apply = _applied  # type: ignore[method-assign]


class Init(contextlib.AbstractContextManager["Init"]):
    """Context that shards parameters over the ranks as soon as their module is built, with the values of rank 0. Collective.

    Constructors may read, copy and change parameters of modules inside them; the use of a sharded parameter is collective. A rank holds
    at most its part of the model, one whole module, and 256 MiB of parameters that a constructor used. The parts are in host memory, in
    the type of the parameters, until `initialize` takes them over. Contexts may be nested.

    Args:
        module: an existing module to shard.
        config_dict_or_path: ds_config; must have ZeRO stage 3. `config` is an alias. Default: stage 3.
        enabled: False makes the context empty.

    The other arguments are accepted for DeepSpeed scripts and have no effect.

    Raises:
        UsageError: the ds_config has another stage.
    """

    _depth, _checks = 0, False

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        zero_param_parallel_group: Any = None,
        zero_quantized_weights: bool = False,
        zero_quantized_nontrainable_weights: bool = False,
        sequence_data_parallel_group: Any = None,
        param_swapper: Any = None,
    ) -> None:
        given = config_dict_or_path if config_dict_or_path is not None else config
        self.enabled = enabled
        if not enabled:
            return
        zero = configuration_of(given).section("zero_optimization") if given is not None else {"stage": 3}
        Init._checks = bool(zero.get("enable_sanity_checks"))
        if (stage := zero.get("stage", 0)) != 3:
            raise UsageError(f"zero.Init: needs ZeRO stage 3 (got zero_optimization.stage {stage}); set 3, or leave zero.Init out")
        jobs.init_torch(None, None)
        for submodule in module.modules() if module is not None else ():
            share_out(submodule, Init._checks)

    def __enter__(self) -> "Init":
        if self.enabled:
            Init._depth += 1
            if Init._depth == 1:
                _watch_classes()
                _reads.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        if self.enabled:
            Init._depth -= 1
            if Init._depth == 0:
                _leave_classes()
                _reads.__exit__(*error)  # type: ignore[no-untyped-call]
                if error[0] is None:  # the other ranks may not have the error
                    _reads.hide(list(_reads.whole))
                _reads.whole.clear()
                used.clear()


_reads = Reads()
_under_way: list[int] = []  # ids of modules with a running constructor
_built: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # modules with shared-out parameters
_watched: list[tuple[Any, str, Any]] = []  # classes and their original functions


def _shares_out(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapped(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if id(self) in _under_way:  # constructor of a base class
            init(self, *args, **kwargs)
            return
        _under_way.append(id(self))
        before = set(_reads.whole)
        try:
            init(self, *args, **kwargs)
        finally:
            _under_way.remove(id(self))
        _built.add(self)
        for module in self.modules():  # a constructor may give new parameters to modules inside it
            if module in _built:
                share_out(module, Init._checks)
        _reads.hide([p for p in _reads.whole if p not in before])

    return wrapped


def _classes(kind: type) -> Iterator[type]:
    below: Any
    for below in kind.__subclasses__():
        yield below
        yield from _classes(below)


def _watch_class(kind: Any, name: str = "__init__") -> None:
    if name in vars(kind):
        _watched.append((kind, name, vars(kind)[name]))
        setattr(kind, name, _shares_out(vars(kind)[name]))


def _watch_classes() -> None:
    for kind in set(_classes(torch.nn.Module)):
        _watch_class(kind)
    _watch_class(torch.nn.Module, "__setstate__")  # of copies

    def watch(cls: Any, **kwargs: Any) -> None:
        super(torch.nn.Module, cls).__init_subclass__(**kwargs)
        _watch_class(cls)

    torch.nn.Module.__init_subclass__ = classmethod(watch)  # type: ignore[assignment, arg-type]


def _leave_classes() -> None:
    for kind, name, function in _watched:
        setattr(kind, name, function)
    _watched.clear()
    del torch.nn.Module.__init_subclass__


@contextlib.contextmanager
def OnDevice(dtype: torch.dtype, device: Any = "meta", enabled: bool = True) -> Iterator[None]:  # noqa: N802
    """Context that creates parameters and buffers on a device, with a default type.

    Args:
        dtype: type of new floating-point tensors.
        device: device of new tensors; "meta" gives them no memory.
        enabled: False makes the context empty.
    """
    before = torch.get_default_dtype()
    with torch.device(device) if enabled else contextlib.nullcontext():
        torch.set_default_dtype(dtype if enabled else before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Has no effect: parameters of other modules are gathered when a module reads them."""


unregister_external_parameter = register_external_parameter
"""Has no effect."""
