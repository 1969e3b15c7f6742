"""Tensor parallelism of a module: the layers to split, the parts of their parameters, and checks of batches and gradients."""

import copy
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from . import job as jobs
from . import native
from .cuts import Cut
from .errors import NotBuilt, UsageError
from .split_blocks import SplitBlocks
from .tensor_layers import Ranks, is_split, split_layer
from .tensor_specs import FUSED_HEADS, HEAD_NORMS, HEADS, KEY, Spec, numbers_of, specs_of

_COUNTS = ["num_heads", "n_heads", "n_head", "num_attention_heads", "num_attn_heads"]
_COUNTS += ["num_key_value_heads", "num_kv_heads", "kv_n_heads", "num_kv"]
_IN_CONFIG = ("num_attention_heads", "num_key_value_heads")
_WIDTHS = ["all_head_size", "split_size", "inner_dim", "embed_dim", "hidden_size", "d_model"]
_READ_BY_PARENT = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)


def _reads_heads(owner: torch.nn.Module) -> bool:
    """Returns True if the forward of a module reads numbers of heads from its config, as of Phi-3."""
    read = inspect.unwrap(type(owner).forward).__code__.co_names
    return "config" in read and any(name in read for name in _IN_CONFIG) and all(hasattr(owner.config, name) for name in _IN_CONFIG)


class Partition:
    """The layers of a module that tensor-parallel ranks share."""

    def __init__(self, module: torch.nn.Module, section: Mapping[str, Any], ranks: int, rank: int) -> None:
        """Selects the layers; changes nothing.

        Raises:
            UsageError: no layer is selected, or a layer or the heads cannot be divided by the ranks.
            NotBuilt: a selected layer is not supported.
        """
        self.module, self.ranks, self.rank, self._section = module, ranks, rank, section
        self.cuts: dict[int, Cut] = {}  # by id of the parameter
        self._layers: list[tuple[torch.nn.Module, str, bool]] = []
        self._owners: dict[int, list[str]] = {}
        for path, owner in module.named_modules():
            for parameter in owner._parameters.values():
                self._owners.setdefault(id(parameter), []).append(path)
        if section.get("vocab_parallel_lm_head"):
            raise NotBuilt("tensor_parallel.vocab_parallel_lm_head: not supported for PyTorch modules; remove the key")
        if (adapted := next((path for path, layer in module.named_modules() if hasattr(layer, "base_layer")), None)) is not None:
            raise NotBuilt(f"{adapted or 'model'}: {KEY} does not support adapters of peft; remove it, or merge the adapters")
        specs, strict = specs_of(module, section)
        self._select(specs, strict)
        self._select_sums(specs)
        if not self._layers:
            raise UsageError(
                f"{KEY}: no layer of {type(module).__name__} matches a rule; set tensor_parallel.partition_config.layer_specs, with "
                "patterns that match names of weights"
            )
        self._attributes = list(self._heads())
        self._configs = [owner for owner in self._column_owners() if _reads_heads(owner)]

    def _select(self, specs: list[Spec], strict: bool) -> None:
        for path, layer in self.module.named_modules():
            weight = layer._parameters.get("weight")
            if weight is None or len(getattr(weight, "ds_shape", weight.shape)) != 2:
                continue
            name = f"{path}.weight"
            spec = next((spec for spec in specs if spec.matches(name)), None)
            if spec is None and strict:
                raise UsageError(f"{name}: matches no rule in tensor_parallel.partition_config.layer_specs, and strict_mode is true")
            if spec is not None and spec.kind != "skip":
                self._add(path, layer, spec)

    def _add(self, path: str, layer: Any, spec: Spec) -> None:
        turned = type(layer).__name__ == "Conv1D"  # of transformers: inputs come first
        if is_split(layer):
            raise UsageError(f"{path}: already split for tensor parallelism by an earlier engine; create the module again")
        parent = self.module.get_submodule(path.rpartition(".")[0])
        if (type(layer) is not torch.nn.Linear and not turned) or isinstance(parent, _READ_BY_PARENT):
            of = f" in a {type(parent).__name__}" if isinstance(parent, _READ_BY_PARENT) else ""
            raise NotBuilt(
                f"{path}: {KEY} does not split a {type(layer).__name__}{of} (expected a Linear or Conv1D that is called); leave its weight "
                "out of the rules, or add one with partition_type skip"
            )
        if len(self._owners[id(layer.weight)]) > 1:
            if spec.gather_output:
                return  # an output head that is tied to the embedding stays whole
            others = ", ".join(owner for owner in self._owners[id(layer.weight)] if owner != path)
            raise NotBuilt(f"{path}: {KEY} does not split a weight that is tied to {others}; leave it out of the rules")
        row = spec.kind == "row"
        if row and path.split(".")[-1] in HEADS:
            raise NotBuilt(f"{path}: {KEY} does not split the inputs of an output head; use partition_type column with gather_output")
        dim = int(row != turned)
        extent = int(getattr(layer.weight, "ds_shape", layer.weight.shape)[dim])
        blocks = self._blocks(path, spec, extent, "inputs" if row else "outputs")
        if spec.gather_output and len(blocks) > 1:
            raise NotBuilt(f"{path}: gather_output is not supported for fused weights; remove shape")
        self.cuts[id(layer.weight)] = Cut(self.ranks, self.rank, dim, blocks)
        if not row and layer.bias is not None:
            self.cuts[id(layer.bias)] = Cut(self.ranks, self.rank, 0, blocks)
        self._layers.append((layer, spec.kind, spec.gather_output))

    def _blocks(self, path: str, spec: Spec, extent: int, what: str) -> tuple[int, ...]:
        blocks = spec.blocks
        if blocks == FUSED_HEADS:
            heads, keys = (
                numbers_of(self.module, "num_attention_heads"),
                numbers_of(self.module, "num_key_value_heads", "num_attention_heads"),
            )
            parts = (*heads, *keys, *keys) or (1, 1, 1)
            blocks = tuple(extent * part // sum(parts) for part in parts)
        if isinstance(blocks, int):
            if extent % blocks:
                raise UsageError(f"{path}: wrong shape in the rules (got {blocks} fused parts, expected a divisor of {extent} {what})")
            blocks = (extent // blocks,) * blocks
        if sum(blocks) != extent:
            raise UsageError(f"{path}: wrong shape in the rules (got parts of {list(blocks)}, expected a sum of {extent} {what})")
        for block in blocks:
            self._require_divides(path, block, what)
        return blocks

    def _require_divides(self, name: str, count: int, what: str) -> None:
        if count % self.ranks:
            raise UsageError(
                f"{KEY}: the {what} of {name} cannot be divided (got {self.ranks} ranks for {count}); set a divisor of {count}"
            )

    def _select_sums(self, specs: list[Spec]) -> None:
        """Selects whole parameters that are applied to the part of one rank, so that their gradients are summed."""
        columns = {
            path.rpartition(".")[0] for path, layer in self.module.named_modules() if id(layer._parameters.get("weight")) in self.cuts
        }
        for name, parameter in self.module.named_parameters():
            spec = next((spec for spec in specs if spec.matches(name)), None)
            if spec is None or not spec.grad_allreduce or id(parameter) in self.cuts:
                continue
            if spec is not HEAD_NORMS or name.rsplit(".", 2)[0] in columns:
                self.cuts[id(parameter)] = Cut(self.ranks, self.rank)

    def _heads(self) -> Iterable[tuple[torch.nn.Module, str]]:
        """Yields the numbers of heads, and the widths, of modules with layers that are split by columns."""
        for owner, path in self._column_owners().items():
            if "attention" in type(owner).__name__.lower():
                for what, names in (("heads", ("num_attention_heads", "n_head")), ("key/value heads", ("num_key_value_heads",))):
                    for number in numbers_of(self.module, *names):
                        self._require_divides(type(self.module).__name__, number, what)
            counts = [name for name in _COUNTS if isinstance(vars(owner).get(name), int)]
            for name in counts + [name for name in _WIDTHS if counts and isinstance(vars(owner).get(name), int)]:
                self._require_divides(path, getattr(owner, name), name)
                yield owner, name

    def _column_owners(self) -> dict[torch.nn.Module, str]:
        """Returns the modules with layers that are split by columns, and their names."""
        columns = {id(layer) for layer, kind, joins in self._layers if kind == "column" and not joins}
        return {owner: path for path, owner in self.module.named_modules() if any(id(child) in columns for child in owner.children())}

    def apply(self, data_ranks: int) -> None:
        """Makes the module compute with this rank's parts, and gives the ranks of a tensor-parallel group one random state. Collective."""
        if jobs.rank() == 0:
            ignored = [name for name in ("sequence_parallel", "tp_overlap_comm") if self._section.get(name)]
            for name in ignored:
                native.warn(f"warning: tensor_parallel.{name}: has no effect for PyTorch modules; remove it")
            print(f"note: tensor {self.ranks} x data {data_ranks}: {self}", flush=True)
        self.blocks = SplitBlocks(self.module, self._layers)
        for layer, kind, joins in self._layers:
            split_layer(layer, kind, joins, Ranks(self.ranks))
        for owner, name in self._attributes:
            setattr(owner, name, getattr(owner, name) // self.ranks)
        for owner in self._configs:
            owner.config = copy.copy(owner.config)
            for name in _IN_CONFIG:
                setattr(owner.config, name, getattr(owner.config, name) // self.ranks)
        self._share_random_state()

    def _share_random_state(self) -> None:
        ranks, device = Ranks(self.ranks), "cuda" if dist.get_backend() == "nccl" else "cpu"
        for of in [torch] + [torch.cuda] * torch.cuda.is_initialized():
            state = of.get_rng_state().to(device)
            dist.broadcast(state, ranks.first, group=ranks.group)
            of.set_rng_state(state.cpu())

    def __str__(self) -> str:
        columns = sum(kind == "column" for _, kind, _ in self._layers)
        return f"{columns} layers of {type(self.module).__name__} split by columns, {len(self._layers) - columns} by rows"


_CHECKED = 3  # forwards


class SameOnRanks:
    """Checks of the ranks of a tensor-parallel group: the same batch in the first forwards, and the same gradients of whole parameters in
    the first step."""

    def __init__(self, ranks: int, device: torch.device) -> None:
        self._ranks, self._device, self._forwards = Ranks(ranks), device, 0
        self._names: list[str] = []
        self._sums = torch.zeros(0)
        self._handles: list[Any] = []

    def watch(self, named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Records the gradients of whole parameters until `check_gradients`."""
        parameters = dict(named)
        self._names, self._sums = list(parameters), torch.zeros(len(parameters), 2, dtype=torch.float64, device=self._device)
        for index, parameter in enumerate(parameters.values()):
            trains = parameter.requires_grad
            parameter.requires_grad_(True)  # torch registers no hook on a parameter that is frozen at the moment
            self._handles.append(parameter.register_hook(self._recorder(index)))
            parameter.requires_grad_(trains)

    def _recorder(self, index: int) -> Any:
        sums = self._sums

        def record(gradient: torch.Tensor) -> None:
            sums[index] += _print_of(gradient.to_dense() if gradient.is_sparse else gradient)

        return record

    def check_batch(self, *values: Any) -> None:
        """Compares tensors that a script passed to a forward. Collective.

        Raises:
            UsageError: they differ.
        """
        if self._forwards == _CHECKED:
            return
        self._forwards += 1
        tensors = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
        mine = torch.zeros(3, dtype=torch.float64, device=self._device)
        for tensor in tensors:
            mine[:2] += _print_of(tensor.detach()).to(self._device)
            mine[2] += tensor.numel()
        for rank, other in enumerate(self._ranks.each(mine)):
            if not torch.equal(other, mine):
                raise UsageError(
                    f"engine: its inputs differ between the ranks of a tensor-parallel group (forward {self._forwards}, ranks "
                    f"{self._ranks.mine} and {rank} of the group); give them the same batches, by "
                    "deepspeed.utils.groups.get_data_parallel_rank() and get_data_parallel_world_size() in the sampler"
                )

    def check_gradients(self) -> None:
        """Compares the gradients of the first step. Collective.

        Raises:
            UsageError: those of a whole parameter differ.
        """
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for other in self._ranks.each(self._sums):
            far = (other - self._sums).abs().amax(1) > 0.01 * torch.maximum(other[:, 1], self._sums[:, 1])
            for name, differs in zip(self._names, far.tolist(), strict=True):
                if differs:
                    raise UsageError(
                        f"{name}: its gradients differ between the ranks of a tensor-parallel group, because it is applied to the part of "
                        "one rank; add a rule with partition_type skip and grad_allreduce true to "
                        "tensor_parallel.partition_config.layer_specs"
                    )


def _print_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns two sums of the elements: with weights that depend on the position, and of the magnitudes."""
    values = tensor.detach().reshape(-1).double().nan_to_num()
    weights = torch.arange(values.numel(), device=values.device, dtype=torch.float64) % 97 / 97
    return torch.stack([(values * weights).sum(), values.abs().sum()])
