"""Check of tensor parallelism: blocks with split layers have the outputs of whole blocks.

Rules can be wrong for a module: a fused weight that is cut as one, a layer without its partner. The shapes often fit, and only the numbers
are wrong. After the first forward, one block of each kind runs again with its inputs, split and whole.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .errors import UsageError
from .tensor_specs import CONFIG, KEY

_FAR = 0.02  # allowed difference relative to what the block adds to its input; a wrong cut changes most of it


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _as(value: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda v: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v, value)


def _copied(value: Any) -> Any:
    """Returns a copy; a block may change its inputs, such as a cache."""
    return tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v), value)


class _Block:
    """A block: its path, the module with split layers, a copy without values, and the inputs of its first call."""

    def __init__(self, path: str, module: torch.nn.Module) -> None:
        self.path, self.module = path, module
        hidden = {id(p): torch.nn.Parameter(torch.empty(0, device="meta"), False) for p in module.parameters()}
        self.whole = copy.deepcopy(module, dict(hidden))
        self.given: tuple[Any, Any] | None = None
        self._handle = module.register_forward_pre_hook(torch.compiler.disable(self._record), with_kwargs=True)

    def _record(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._handle.remove()
        try:
            self.given = _copied((args, kwargs))
        except Exception as error:
            print(f"note: {self.path}: its split layers are not checked, because its inputs cannot be copied ({error})", flush=True)

    def forget(self) -> None:
        self._handle.remove()

    def far(self, engine: Any) -> tuple[float, float]:
        """Returns the difference of the outputs and the allowed one. Collective."""
        values = {name: engine.parameters_of(engine.name_of(p)) for name, p in self.module.named_parameters()}
        was = {module: module.training for module in self.module.modules()}
        self.module.eval()
        split = self._outputs(self.module, engine, None)
        for module, trains in was.items():
            module.training = trains
        exact = self._outputs(self._filled(values, torch.float32), engine, torch.float32)
        rounded = self._outputs(self._filled(values, engine.get_data_types()[0]), engine, None)
        first = next(iter(_tensors(self.given)), None)
        far = allowed = 0.0
        for got, want, near in zip(split, exact, rounded, strict=True):
            if got.shape != want.shape:  # of one rank, such as the attention of its heads
                continue
            added = want - first.to(want.dtype) if first is not None and first.shape == want.shape else want
            far = max(far, float((got.float() - want).norm() / added.norm().clamp_min(1e-30)))
            allowed = max(allowed, _FAR + 4 * float((near.float() - want).norm() / added.norm().clamp_min(1e-30)))
        return far, allowed

    def _filled(self, values: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.nn.Module:
        for name, p in self.module.named_parameters():
            owner, _, own = name.rpartition(".")
            value = values[name].to(p.device)
            made = torch.nn.Parameter(value.to(dtype) if value.is_floating_point() else value, False)
            self.whole.get_submodule(owner)._parameters[own] = made
        for name, buffer in self.module.named_buffers():
            owner, _, own = name.rpartition(".")
            self.whole.get_submodule(owner)._buffers[own] = _as(buffer, torch.float32) if dtype == torch.float32 else buffer
        return self.whole.eval()

    def _outputs(self, module: torch.nn.Module, engine: Any, dtype: torch.dtype | None) -> list[torch.Tensor]:
        args, kwargs = _copied(self.given)
        if dtype is not None:
            (args, kwargs) = _as((args, kwargs), dtype)
        with torch.no_grad(), torch.autocast(engine.device.type, enabled=False) if dtype else engine._autocast:
            return _tensors(module(*args, **kwargs))


class SplitBlocks:
    """The first block of each kind in the lists of a module."""

    def __init__(self, module: torch.nn.Module, split: Iterable[tuple[torch.nn.Module, str, bool]]) -> None:
        """Copies the structure of the blocks, and records the inputs of their first calls.

        Args:
            module: the module, still whole.
            split: layers that will be split, with their kind, and True for columns that join their outputs.
        """
        kinds, seen = {id(layer): kind for layer, kind, joins in split if not joins}, set[Any]()
        self._blocks: list[_Block] = []
        self._checked = False
        for path, blocks in module.named_modules():
            if not isinstance(blocks, torch.nn.ModuleList) or any(path.startswith(b.path + ".") for b in self._blocks):
                continue
            for name, block in blocks.named_children():
                found = tuple((below, kinds[id(layer)]) for below, layer in block.named_modules() if id(layer) in kinds)
                # Columns without rows, as in a list of layers, have parts as outputs.
                if {kind for _, kind in found} == {"column", "row"} and (kind := (path, type(block), found)) not in seen:
                    seen.add(kind)
                    try:
                        self._blocks.append(_Block(f"{path}.{name}", block))
                    except Exception as error:
                        print(f"note: {path}.{name}: its split layers are not checked, because it cannot be copied ({error})", flush=True)

    def explain(self, error: RuntimeError) -> None:
        """Raises UsageError for an error of the first forward about shapes."""
        text = str(error).partition("\n")[0]
        if type(error) is RuntimeError and not self._checked and any(word in text for word in ("shape", "size", "dimension")):
            raise UsageError(
                f"{KEY}: the first forward with split layers failed ({text}); if it works without {KEY}, a layer lacks its partner or a "
                f"weight is fused: set {CONFIG}.layer_specs"
            ) from error

    def check(self, engine: Any) -> None:
        """Compares the blocks that the first forward called. Collective.

        Raises:
            UsageError: the outputs of one differ.
        """
        blocks, self._blocks, self._checked = self._blocks, [], True
        for block in blocks:
            block.forget()
            called = block.given is not None
            if not engine._job.sum([float(not called)])[0]:
                with torch.random.fork_rng():
                    far, allowed = block.far(engine)
                worst = engine._job.sum([float(not far <= allowed)])[0]
                if worst:
                    raise UsageError(
                        f"{block.path}: its outputs differ if its layers are split by {KEY} (relative difference {far:.2g}, expected at "
                        f"most {allowed:.2g}); a weight may be fused, or a layer may lack a rule: set {CONFIG}.layer_specs, with shape for "
                        "fused weights"
                    )
