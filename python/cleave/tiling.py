"""Linear layers in tiles: at ZeRO stage 3, one tile at a time is whole."""

import itertools
from typing import Any

import torch

from .errors import UsageError


def _ends(items: int, parts: int) -> list[int]:
    """Returns the first item of each part, and the end of the last one; larger parts come first."""
    return [0, *itertools.accumulate(items // parts + (part < items % parts) for part in range(parts))]


class TiledLinear(torch.nn.Module):
    """A `torch.nn.Linear` with a weight in tiles; each tile is a module."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: Any = torch.nn.Linear,
        init_linear: Any = None,
        **kwargs: Any,
    ) -> None:
        """Builds the tiles.

        Args:
            in_features: as in `torch.nn.Linear`.
            out_features: as in `torch.nn.Linear`.
            bias: as in `torch.nn.Linear`.
            in_splits: number of tiles along the input.
            out_splits: number of tiles along the output.
            input_is_already_split: the input is a list of `in_splits` tensors.
            combine_out_splits: False returns a list of `out_splits` outputs.
            linear_cls: class of a tile, called as linear_cls(in_features, out_features, bias=..., **kwargs).
            init_linear: layer to copy the values of.

        Raises:
            UsageError: more splits than features.
        """
        super().__init__()
        for name, splits, features in (("in_splits", in_splits, in_features), ("out_splits", out_splits, out_features)):
            if not 1 <= splits <= features:
                raise UsageError(f"TiledLinear: wrong {name} (got {splits}, expected 1 to {features})")
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split, self.combine_out_splits = input_is_already_split, combine_out_splits
        self.in_parts, self.out_parts = _ends(in_features, in_splits), _ends(out_features, out_splits)

        def tile(row: int, column: int) -> torch.nn.Module:
            sizes = (ends[at + 1] - ends[at] for ends, at in ((self.in_parts, column), (self.out_parts, row)))
            return linear_cls(*sizes, bias=bias and column == in_splits - 1, **kwargs)  # type: ignore[no-any-return]

        rows = [torch.nn.ModuleList([tile(row, column) for column in range(in_splits)]) for row in range(out_splits)]
        self.linears = torch.nn.ModuleList(rows)
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def forward(self, input_: Any) -> Any:
        """Returns the output, or the list of its parts."""
        inputs = input_ if self.input_is_already_split else input_.tensor_split(self.in_parts[1:-1], dim=-1)
        if len(inputs) != self.in_splits:
            raise UsageError(f"TiledLinear: wrong input (got {len(inputs)} parts, expected {self.in_splits})")
        outputs = [self._sum([tile(part) for tile, part in zip(row, inputs, strict=True)]) for row in self.linears]  # type: ignore[call-overload]
        return self._joined(outputs) if self.combine_out_splits else outputs

    def _sum(self, parts: list[Any]) -> Any:
        return sum(parts[1:], start=parts[0])

    def _joined(self, outputs: list[Any]) -> Any:
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def copy_params_from(self, other: Any) -> None:
        """Copies the values of a linear layer. Collective at ZeRO stage 3."""
        from . import zero

        if other.weight.shape != (self.out_features, self.in_features) or (other.bias is not None) != self.use_bias:
            raise UsageError(
                f"TiledLinear: the layer to copy differs (got {list(other.weight.shape)} and bias {other.bias is not None}, "
                f"expected {[self.out_features, self.in_features]} and bias {self.use_bias})"
            )
        with zero.GatheredParameters(other):
            for row, tiles in enumerate(self.linears):
                rows = slice(*self.out_parts[row : row + 2])
                for column, tile in enumerate(tiles.children()):
                    with zero.GatheredParameters(tile, modifier_rank=0):
                        for name, parameter in tile.named_parameters(recurse=False):
                            columns = slice(*self.in_parts[column : column + 2])
                            parameter.copy_(other.weight[rows, columns] if name == "weight" else other.bias[rows])


class TiledLinearReturnBias(TiledLinear):
    """Tiles of a class that returns its output and its bias."""

    def _sum(self, parts: list[Any]) -> Any:
        outputs, biases = zip(*parts, strict=True)
        return super()._sum(list(outputs)), next((bias for bias in reversed(biases) if bias is not None), None)

    def _joined(self, outputs: list[Any]) -> Any:
        tensors, biases = zip(*outputs, strict=True)
        given = [bias for bias in biases if bias is not None]
        return super()._joined(list(tensors)), super()._joined(given) if given else None
