"""The part of a parameter that a tensor-parallel rank has."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Cut:
    """How tensor-parallel ranks share a parameter.

    Along `dim`, the parameter consists of blocks of these extents, and each rank has an equal part of each block. Without blocks, all ranks
    have the whole parameter, and its gradient is the sum of theirs.
    """

    ranks: int
    rank: int
    dim: int = 0
    extents: tuple[int, ...] = ()

    def declared(self) -> list[Any]:
        """Returns the JSON declaration (cleave_engine_make)."""
        return [self.dim, list(self.extents)] if self.extents else []

    def shapes(self, shape: torch.Size) -> tuple[torch.Size, torch.Size]:
        """Returns the shapes of the rank's part and of the whole parameter, for the shape of either."""
        whole, part = list(shape), list(shape)
        if self.extents:
            whole[self.dim] = sum(self.extents)
            part[self.dim] = whole[self.dim] // self.ranks
        return torch.Size(part), torch.Size(whole)

    def _own(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Returns views of the rank's part of each block."""
        blocks = whole.split(self.extents, self.dim)
        return [block.chunk(self.ranks, self.dim)[self.rank] for block in blocks]

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns the rank's part of a whole value."""
        return torch.cat(self._own(whole), self.dim) if self.extents else whole

    def placed(self, part: torch.Tensor) -> torch.Tensor:
        """Returns a whole value with this part; the parts of other ranks are zero."""
        if not self.extents:
            return part
        whole = part.new_zeros(self.shapes(part.shape)[1])
        sizes = [extent // self.ranks for extent in self.extents]
        for own, value in zip(self._own(whole), part.split(sizes, self.dim), strict=True):
            own.copy_(value)
        return whole
