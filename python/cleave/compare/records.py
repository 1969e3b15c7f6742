"""Tensors of a comparison: whole tensors in fp32 in files, and fingerprints of others."""

import contextlib
import ctypes
import json
import math
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import CheckpointError

_CHUNK = 1 << 20  # elements that are converted to double at a time
_FIXED = torch.arange(_CHUNK, dtype=torch.float64).cos()


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Returns the memory of a contiguous tensor on the host, which the caller keeps."""
    return (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()) if tensor.numel() else b""


def checksum(tensor: torch.Tensor) -> int:
    """Returns the checksum of the bytes of a tensor."""
    whole = tensor.detach().to("cpu").contiguous()
    return zlib.crc32(_bytes_of(whole))


def fingerprint(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns type, shape, checksum, and in double the norm and the product with a fixed vector."""
    whole = tensor.detach()
    whole = (whole.to_dense() if whole.layout != torch.strided else whole).to("cpu").contiguous()
    norm = product = 0.0
    for chunk in whole.flatten().split(_CHUNK) if not whole.is_complex() else ():
        values = chunk.double()
        norm += float(values.square().sum())
        product += float(values @ _FIXED[: values.numel()])
    made = {"type": str(whole.dtype).removeprefix("torch."), "shape": list(whole.shape), "sum": zlib.crc32(_bytes_of(whole))}
    return made | {"norm": math.sqrt(norm), "product": product}


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
    """Context for writes; a failed one is a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"compare: {folder} cannot be written ({error.strerror}); set TMPDIR or --keep to another disk, or use fewer --steps"
        ) from error


class TensorWriter:
    """Writes named tensors of several steps; a tensor that equals the one of the step before takes no space."""

    def __init__(self, folder: pathlib.Path, kind: str) -> None:
        self._folder, self._kind, self._last = folder, kind, dict[str, tuple[int, list[Any]]]()
        self.bytes = 0

    def write(self, step: int, named: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Writes the tensors of a step; holds one at a time."""
        index, name_of_file, at = {}, f"{self._kind}{step}.bin", 0
        with writing(self._folder), open(self._folder / name_of_file, "wb") as file:
            for name, tensor in named:
                whole = tensor.detach().to("cpu", torch.float32).contiguous()
                found = checksum(whole)
                last = self._last.get(name)
                if last is None or last[0] != found:
                    file.write(_bytes_of(whole))
                    last = self._last[name] = (found, [name_of_file, at, list(whole.shape)])
                    at += whole.numel()
                index[name] = last[1]
        self.bytes += 4 * at
        with writing(self._folder):
            (self._folder / f"{self._kind}{step}.json").write_text(json.dumps(index))


class TensorReader:
    """The tensors of a kind and step as views of their file."""

    def __init__(self, folder: pathlib.Path, kind: str, step: int) -> None:
        self._folder, path = folder, folder / f"{kind}{step}.json"
        self._index: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self._files: dict[str, torch.Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def names(self) -> list[str]:
        return list(self._index)

    def __getitem__(self, name: str) -> torch.Tensor:
        file, at, shape = self._index[name]
        path = self._folder / file
        if file not in self._files:
            self._files[file] = torch.from_file(str(path), shared=False, size=path.stat().st_size // 4, dtype=torch.float32)
        return self._files[file][at : at + math.prod(shape)].view(shape)
