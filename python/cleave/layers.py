"""A model as a list of layers, of which a rank builds those of its stage, and the grid of ranks on which stages stand."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from . import job as jobs
from . import native, zero
from .configuration import Configuration
from .errors import NotBuilt, UsageError

_AGAIN = functools.partial(checkpoint, use_reentrant=False)


class ProcessTopology:
    """A grid of ranks, of whose axes the last varies fastest."""

    def __init__(self, axes: list[str], dims: list[int]) -> None:
        self.axes, self.dims = list(axes), list(dims)
        coord: Any = collections.namedtuple  # the type checker knows none whose fields are values
        self.ProcessCoord: Any = coord("ProcessCoord", self.axes)
        self.mapping: dict[Any, int] = {self.ProcessCoord(*at): rank for rank, at in enumerate(itertools.product(*map(range, self.dims)))}

    def get_rank(self, **coord_kwargs: int) -> int:
        if len(found := self.filter_match(**coord_kwargs)) != 1:
            raise UsageError(
                f"{coord_kwargs}: matches {len(found)} ranks of the grid {self.axes} {self.dims} (expected one); give a place on each axis"
            )
        return found[0]

    def get_axis_names(self) -> list[str]:
        return self.axes

    def get_rank_repr(self, rank: int, omit_axes: Any = ("data", "pipe"), inner_sep: str = "_", outer_sep: str = "-") -> str:
        at = self.get_coord(rank)._asdict()
        return outer_sep.join(f"{axis}{inner_sep}{at[axis]:02d}" for axis in self.axes if axis not in omit_axes)

    def get_dim(self, axis: str) -> int:
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_coord(self, rank: int) -> Any:
        return list(self.mapping)[rank]

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """The groups of ranks that differ in this axis alone."""
        others = {at._replace(**{axis: 0}): 0 for at in self.mapping} if axis in self.axes else {}
        return [[rank for at, rank in self.mapping.items() if at._replace(**{axis: 0}) == other] for other in others]

    def filter_match(self, **filter_kwargs: int) -> list[int]:
        return [rank for at, rank in self.mapping.items() if filter_kwargs.items() <= at._asdict().items()]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        return self.filter_match(**{axis: idx})

    def world_size(self) -> int:
        return len(self.mapping)


def PipeDataParallelTopology(num_pp: int, num_dp: int) -> ProcessTopology:  # noqa: N802
    """Stages of a pipeline, each of ranks that share out the data."""
    return ProcessTopology(["pipe", "data"], [num_pp, num_dp])


def PipeModelDataParallelTopology(num_pp: int, num_mp: int, num_dp: int) -> ProcessTopology:  # noqa: N802
    """The same with layers that are cut, which the engine has for models of its own only."""
    return ProcessTopology(["pipe", "data", "model"], [num_pp, num_dp, num_mp])


class PipelineParallelGrid:
    """This rank's place: get_AXIS_parallel_rank, _world_size and _group, of axes, "model" (all with one share of the data) and "slice"."""

    def __init__(self, topology: ProcessTopology) -> None:
        self._topo, self.global_rank, self._groups = topology, jobs.rank(), dict[str, Any]()
        self.stage_id, self.data_parallel_id = topology.get_coord(self.global_rank)[:2]
        self.topology, self.get_stage_id = lambda: topology, lambda: int(self.stage_id)

    def __getattr__(self, name: str) -> Any:
        axis, found, what = name.removeprefix("get_").replace("model", "pipe").partition("_parallel_")
        if not found or what not in ("rank", "world_size", "group"):
            raise AttributeError(f"{name}: not an attribute of the pipeline grid")
        ranks = next((ranks for ranks in self._topo.get_axis_comm_lists(axis) if self.global_rank in ranks), [self.global_rank])
        if what == "group" and axis not in self._groups:
            self._groups[axis] = dist.new_group(ranks, use_local_synchronization=True)  # they ask for it together
        return lambda: {"rank": ranks.index(self.global_rank), "world_size": len(ranks)}.get(what, self._groups.get(axis))


class LayerSpec:
    """A layer that is built where it runs."""

    def __init__(self, typename: Any, *module_args: Any, **module_kwargs: Any) -> None:
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs

    def build(self, log: bool = False) -> Any:
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """Layers of one key are one module, wherever they stand, with all parameters tied; forward_fn(module, input) runs instead of it."""

    def __init__(self, key: str, typename: Any, *args: Any, forward_fn: Any = None, tied_weight_attr: Any = None, **kwargs: Any) -> None:
        super().__init__(typename, *args, **kwargs)
        self.key, self.forward_fn, self.tied_weight_attr = key, forward_fn, tied_weight_attr


def _trained(layer: Any) -> int:
    """Elements of a layer's parameters, for which it is built."""
    with torch.random.fork_rng(devices=[]):
        module = layer.build() if isinstance(layer, LayerSpec) else layer
    return sum(p.numel() for p in module.parameters() if p.requires_grad) if isinstance(module, torch.nn.Module) else 0


class PipelineModule(torch.nn.Module):
    """Layers in order: each is given what the one before returned, a tensor or a tuple of tensors."""

    def __init__(
        self,
        layers: Iterable[Any],
        num_stages: int | None = None,
        topology: ProcessTopology | None = None,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], Any] = torch.manual_seed,
        base_seed: int = 1234,
        partition_method: str = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] = _AGAIN,
        checkpointable_layers: list[str] | None = None,
        dynamic_shape: bool = False,
        virtual_stages: int = 1,
    ) -> None:
        """virtual_stages: pieces of a rank, for the schedule "interleaved". partition_method may also be numbers of layers, "3,4,4,3"."""
        super().__init__()
        if zero.Init._depth:
            raise NotBuilt("zero.Init: not supported around a PipelineModule, because each rank builds only its own layers; leave it out")
        world = jobs.world_size()
        self._topo = topology or PipeDataParallelTopology(num_stages or 1, world // (num_stages or 1))
        self.num_stages, replicas, *cut = self._topo.dims
        if self._topo.axes[:2] != ["pipe", "data"] or self.num_stages * replicas != world or num_stages not in (None, self.num_stages):
            raise UsageError(
                f"topology: {self._topo.dims} of {self._topo.axes} does not match the job (expected {world} ranks); set "
                "num_stages to a divisor"
            )
        if max(cut, default=1) > 1:
            raise NotBuilt("topology: tensor parallelism is not supported for PyTorch modules; use PipeDataParallelTopology")
        self.grid = PipelineParallelGrid(self._topo)
        self.stage_id, self.virtual_stages = int(self.grid.stage_id), virtual_stages
        self.loss_fn, self.dynamic_shape, self.checkpointable_layers = loss_fn, dynamic_shape, checkpointable_layers
        self._seed, self.partition_method = (lambda i: seed_fn(base_seed + i)) if seed_layers else lambda i: None, partition_method.lower()
        self.activation_checkpoint_interval, self.activation_checkpoint_func = activation_checkpoint_interval, activation_checkpoint_func
        specs = list(layers.children() if isinstance(layers, torch.nn.Sequential) else layers)
        kinds = [getattr(layer, "typename", layer if hasattr(layer, "__name__") else type(layer)) for layer in specs]
        counts = [_trained(layer) if self.partition_method in ("parameters", "balanced") else 0 for layer in specs]
        pieces = self.num_stages * virtual_stages
        self.parts = native.partition([kind.__name__ for kind in kinds], counts, pieces, self.partition_method)
        self.tied_modules = torch.nn.ModuleDict()
        tied: dict[str, Any] = {spec.key: None for spec in specs if isinstance(spec, TiedLayerSpec)}
        mine = [range(*self.parts[piece : piece + 2]) for piece in range(self.stage_id, pieces, self.num_stages)]
        self._chunks = [[self._built(index, specs[index], tied) for index in piece] for piece in mine]
        self.tied_modules.update({key: module for key, module in tied.items() if module is not None})  # in one order on all stages
        self.forward_funcs = [function for chunk in self._chunks for function in chunk]

    def _built(self, index: int, layer: Any, tied: dict[str, Any]) -> Callable[[Any], Any]:
        self._seed(index)
        if isinstance(layer, TiedLayerSpec):
            module = tied[layer.key] = tied[layer.key] or layer.build()
            return functools.partial(layer.forward_fn, module) if layer.forward_fn else module
        layer = layer.build() if isinstance(layer, LayerSpec) else layer
        if isinstance(layer, torch.nn.Module):
            self.add_module(str(index), layer)
        return layer  # type: ignore[no-any-return]

    def forward(self, inputs: Any, chunk: int = 0) -> Any:
        """Runs a chunk of this rank's layers."""
        functions = self._chunks[chunk]
        every = self.activation_checkpoint_interval or len(functions)
        for group in (functions[at : at + every] for at in range(0, len(functions), every)):
            args = inputs if isinstance(inputs, tuple) else (inputs,)
            run = functools.partial(_in_turn, group)
            named = all(type(f).__name__ in (self.checkpointable_layers or [type(f).__name__]) for f in group)
            again = self.activation_checkpoint_interval and named and any(isinstance(f, torch.nn.Module) for f in group)
            inputs = self.activation_checkpoint_func(run, *args) if again else run(*args)
        return inputs

    def topology(self) -> ProcessTopology:
        return self._topo

    def set_checkpoint_interval(self, interval: int) -> None:
        self.activation_checkpoint_interval = interval

    def configured(self, config: Configuration) -> Configuration:
        """The same with what the module says of its stages."""
        section = dict(config.section("pipeline"))
        says = {"stages": self.num_stages, "virtual_stages": self.virtual_stages, "partition_method": self.partition_method}
        for key, value in says.items():
            if section.pop(key, None) not in (None, "auto", value):
                raise UsageError(f"pipeline.{key}: differs from PipelineModule (expected {value}); remove the key")
        says = {key: value for key, value in says.items() if value != 1 and self.num_stages > 1}
        return config.with_sections(pipeline=section | says)


def _in_turn(functions: list[Any], *args: Any) -> Any:
    return functools.reduce(lambda value, function: function(value), functions, args[0] if len(args) == 1 else args)
