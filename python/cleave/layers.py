"""Pipeline modules: a model as a list of layers, and the grid of ranks. Each rank builds the layers of its stage."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from . import job as jobs
from . import native, zero
from .checkpointing import non_reentrant_checkpoint
from .configuration import Configuration
from .errors import NotBuilt, UsageError


class ProcessTopology:
    """A grid of ranks; the last axis varies fastest."""

    def __init__(self, axes: list[str], dims: list[int]) -> None:
        self.axes, self.dims = list(axes), list(dims)
        coord: Any = collections.namedtuple  # mypy rejects fields that are not literals
        self.ProcessCoord: Any = coord("ProcessCoord", self.axes)
        self.mapping: dict[Any, int] = {self.ProcessCoord(*at): rank for rank, at in enumerate(itertools.product(*map(range, self.dims)))}

    def get_rank(self, **coord_kwargs: int) -> int:
        """Returns the rank at a coordinate, given as one keyword per axis."""
        if len(found := self.filter_match(**coord_kwargs)) != 1:
            raise UsageError(
                f"{coord_kwargs}: matches {len(found)} ranks of the grid {self.axes} {self.dims} (expected one); give a place on each axis"
            )
        return found[0]

    def get_axis_names(self) -> list[str]:
        """Returns the names of the axes, slowest first."""
        return self.axes

    def get_rank_repr(self, rank: int, omit_axes: Any = ("data", "pipe"), inner_sep: str = "_", outer_sep: str = "-") -> str:
        """Returns a name of a rank's coordinate for files, such as "model_00"."""
        at = self.get_coord(rank)._asdict()
        return outer_sep.join(f"{axis}{inner_sep}{at[axis]:02d}" for axis in self.axes if axis not in omit_axes)

    def get_dim(self, axis: str) -> int:
        """Returns the size of an axis, 0 for an unknown axis."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_coord(self, rank: int) -> Any:
        """Returns the coordinate of a rank as a named tuple."""
        return list(self.mapping)[rank]

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """Returns the groups of ranks that differ only in this axis."""
        others = {at._replace(**{axis: 0}): 0 for at in self.mapping} if axis in self.axes else {}
        return [[rank for at, rank in self.mapping.items() if at._replace(**{axis: 0}) == other] for other in others]

    def filter_match(self, **filter_kwargs: int) -> list[int]:
        """Returns the ranks that match the given coordinates."""
        return [rank for at, rank in self.mapping.items() if filter_kwargs.items() <= at._asdict().items()]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """Returns the ranks at one index of an axis."""
        return self.filter_match(**{axis: idx})

    def world_size(self) -> int:
        """Returns the number of ranks in the grid."""
        return len(self.mapping)


def PipeDataParallelTopology(num_pp: int, num_dp: int) -> ProcessTopology:  # noqa: N802
    """Returns a grid of pipeline stages and data-parallel ranks."""
    return ProcessTopology(["pipe", "data"], [num_pp, num_dp])


def PipeModelDataParallelTopology(num_pp: int, num_mp: int, num_dp: int) -> ProcessTopology:  # noqa: N802
    """Returns a grid of pipeline stages, data-parallel ranks and tensor-parallel ranks. Only num_mp=1 is supported."""
    return ProcessTopology(["pipe", "data", "model"], [num_pp, num_dp, num_mp])


class PipelineParallelGrid:
    """The place of this rank in the grid: `get_AXIS_parallel_rank`, `get_AXIS_parallel_world_size` and `get_AXIS_parallel_group`.

    AXIS is an axis of the topology, "model" (the ranks with the same data: the stages of a pipeline) or "slice".
    """

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
            self._groups[axis] = dist.new_group(ranks, use_local_synchronization=True)  # all ranks of the group call this together
        return lambda: {"rank": ranks.index(self.global_rank), "world_size": len(ranks)}.get(what, self._groups.get(axis))


class LayerSpec:
    """A layer that is built only on the ranks of its stage."""

    def __init__(self, typename: Any, *module_args: Any, **module_kwargs: Any) -> None:
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs

    def build(self, log: bool = False) -> Any:
        """Builds the layer."""
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """A layer that shares its module, with all parameters, with the other layers of the same key.

    Args:
        key: layers with the same key share one module.
        forward_fn: called as forward_fn(module, input) instead of the module.
        tied_weight_attr: accepted; all parameters are tied.
    """

    def __init__(self, key: str, typename: Any, *args: Any, forward_fn: Any = None, tied_weight_attr: Any = None, **kwargs: Any) -> None:
        super().__init__(typename, *args, **kwargs)
        self.key, self.forward_fn, self.tied_weight_attr = key, forward_fn, tied_weight_attr


def _trained(layer: Any) -> int:
    """Returns the number of trained elements of a layer, which is built to count them."""
    with torch.random.fork_rng(devices=[]):
        module = layer.build() if isinstance(layer, LayerSpec) else layer
    return sum(p.numel() for p in module.parameters() if p.requires_grad) if isinstance(module, torch.nn.Module) else 0


class PipelineModule(torch.nn.Module):
    """A list of layers for pipeline training; each layer receives the output of the previous one, a tensor or a tuple of tensors."""

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
        activation_checkpoint_func: Callable[..., Any] = non_reentrant_checkpoint,
        checkpointable_layers: list[str] | None = None,
        dynamic_shape: bool = False,
        virtual_stages: int = 1,
    ) -> None:
        """Builds the layers of this rank's stage.

        Args:
            layers: modules, functions and `LayerSpec` objects in order, or a Sequential.
            num_stages: number of stages; must divide the number of ranks.
            topology: grid of ranks, instead of `num_stages`.
            loss_fn: called as loss_fn(output, labels) after the last layer.
            seed_layers: seed each layer with seed_fn(base_seed + index) before it is built.
            partition_method: "parameters" ("balanced"), "uniform", "type:REGEX", or the number of layers per piece, "3,4,4,3".
            activation_checkpoint_interval: number of layers to recompute together (0: none).
            activation_checkpoint_func: recomputation function.
            checkpointable_layers: class names of layers to recompute (default: all).
            dynamic_shape: shapes may differ between the micro-batches of a step.
            virtual_stages: pieces per rank, for the schedule "interleaved"; no effect with one stage.

        Raises:
            UsageError: the stages do not match the number of ranks.
            NotBuilt: inside `zero.Init`, or a topology with tensor parallelism.
        """
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
            raise NotBuilt("topology: tensor parallelism is not supported for pipelines; use PipeDataParallelTopology")
        self.grid = PipelineParallelGrid(self._topo)
        self.stage_id, self.virtual_stages = int(self.grid.stage_id), virtual_stages if self.num_stages > 1 else 1
        self.loss_fn, self.dynamic_shape, self.checkpointable_layers = loss_fn, dynamic_shape, checkpointable_layers
        self._seed, self.partition_method = (lambda i: seed_fn(base_seed + i)) if seed_layers else lambda i: None, partition_method.lower()
        self.activation_checkpoint_interval, self.activation_checkpoint_func = activation_checkpoint_interval, activation_checkpoint_func
        specs = list(layers.children() if isinstance(layers, torch.nn.Sequential) else layers)
        kinds = [getattr(layer, "typename", layer if hasattr(layer, "__name__") else type(layer)) for layer in specs]
        counts = [_trained(layer) if self.partition_method in ("parameters", "balanced") else 0 for layer in specs]
        pieces = self.num_stages * self.virtual_stages
        self.parts = native.partition([kind.__name__ for kind in kinds], counts, pieces, self.partition_method)
        self.tied_modules = torch.nn.ModuleDict()
        tied: dict[str, Any] = {spec.key: None for spec in specs if isinstance(spec, TiedLayerSpec)}
        self._chunks = self._build([specs[begin:end] for begin, end in itertools.pairwise(self.parts)], tied)
        self.tied_modules.update({key: module for key, module in tied.items() if module is not None})  # same order on all stages
        self.forward_funcs = [function for chunk in self._chunks for function in chunk]

    def _build(self, pieces: list[list[Any]], tied: dict[str, Any]) -> list[list[Callable[[Any], Any]]]:
        """Builds the layers of this rank's pieces, and the modules that they share."""
        mine = range(self.stage_id, len(pieces), self.num_stages)
        return [[self._built(self.parts[p] + at, layer, tied) for at, layer in enumerate(pieces[p])] for p in mine]

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
        """Runs one chunk of this rank's layers."""
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
        """Returns the grid of ranks."""
        return self._topo

    def set_checkpoint_interval(self, interval: int) -> None:
        """Sets the number of layers to recompute together (0: none)."""
        self.activation_checkpoint_interval = interval

    def configured(self, config: Configuration) -> Configuration:
        """Returns the configuration with the stages of this module in section pipeline.

        Raises:
            UsageError: the section contradicts the module.
        """
        section = dict(config.section("pipeline"))
        says = {"stages": self.num_stages, "virtual_stages": self.virtual_stages, "partition_method": self.partition_method}
        for key, value in says.items():
            if section.pop(key, None) not in (None, "auto", value):
                raise UsageError(f"pipeline.{key}: differs from PipelineModule (expected {value}); remove the key")
        says = {key: value for key, value in says.items() if value != 1 and self.num_stages > 1}
        return config.with_sections(pipeline=section | says)


def _in_turn(functions: list[Any], *args: Any) -> Any:
    return functools.reduce(lambda value, function: function(value), functions, args[0] if len(args) == 1 else args)
