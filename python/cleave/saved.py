"""Contents of checkpoints: tensors by the engine's reader, and the state that scripts add."""

import base64
import io
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import native
from .errors import CheckpointError
from .values import from_text, loaded_by_torch, printable, to_text

# Keys of DeepSpeed in its model states; all others belong to the script.
_ITS_OWN = """module buffer_names optimizer param_shapes frozen_param_shapes frozen_param_fragments shared_params lr_scheduler data_sampler
    random_ltd sparse_tensor_module_names skipped_steps global_steps dp_world_size mp_world_size checkpoint_parallel_dimensions"""
_TRUST = "if you trust the file, allow its classes with torch.serialization.add_safe_globals([...]) and load it again"


def path_from_json(text: str) -> str:
    """Returns a path from JSON of the native library (core/json_path.h)."""
    return os.fsdecode(re.sub(rb"\\x([0-9a-f]{2})", lambda byte: bytes.fromhex(byte[1].decode()), text.encode()))


@dataclass
class Beside:
    """State of a script in addition to the engine's records; empty for checkpoints of `cleave train` and unreadable ones."""

    client_state: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    loader: dict[str, int] | None = None  # position of training_data in checkpoints of earlier versions
    ranks: list[dict[str, Any]] = field(default_factory=list)  # random states and positions of loaders, by rank
    counters: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)  # first name of a parameter by its other names
    frozen: list[str] = field(default_factory=list)
    shapes: dict[str, list[int]] = field(default_factory=dict)  # of parameters with another shape in the engine
    outside: list[str] = field(default_factory=list)  # parameters that only the optimizer has
    bytes: dict[str, tuple[torch.dtype, torch.Size]] = field(default_factory=dict)  # parameters that are not floating-point numbers

    def packed(self) -> dict[str, str]:
        """Returns the values for the engine's checkpoint.

        Raises:
            UsageError: a value cannot be saved.
        """
        return {"python": to_text({key: value for key, value in vars(self).items() if value})}


def beside(client: dict[str, Any], path: str) -> Beside:
    """Reads the state in a checkpoint of the engine, or in the DeepSpeed files of its folder."""
    if "python" not in client:
        return _of_deepspeed(Path(path))
    kept = client["python"]
    try:  # earlier versions stored a torch.save file in base64
        values = from_text(kept) if kept.startswith("{") else loaded_by_torch(io.BytesIO(base64.b64decode(kept)))
        return Beside(**values)
    except Exception as error:
        raise CheckpointError(f"{path}: the client state cannot be read: {printable(error)}; {_TRUST}") from error


def _of_deepspeed(folder: Path) -> Beside:
    names = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
    file = next((folder / name for name in names if (folder / name).exists()), None)
    if file is None:
        return Beside()
    try:
        state: dict[str, Any] = loaded_by_torch(file, mmap=True)
    except Exception as error:
        native.warn(f"warning: {file}: client state and buffers are not loaded ({printable(error)}); {_TRUST}")
        return Beside()
    module = state.get("module") or {}
    return Beside(
        client_state={key: value for key, value in state.items() if key not in _ITS_OWN.split()},
        scheduler=state.get("lr_scheduler"),
        counters={"global_samples": int(state["global_samples"])} if "global_samples" in state else {},
        buffers={
            name: value.clone()
            for name, value in module.items()
            if name in (state.get("buffer_names") or []) or not value.is_floating_point()
        },
        shared=dict(state.get("shared_params") or {}),
    )


class Saved:
    """Tensors of a checkpoint of the engine, `cleave train` or DeepSpeed, by their names in the module's `state_dict`."""

    def __init__(self, folder: str | os.PathLike[str], tag: str | None = None) -> None:
        self._native = native.Checkpoint(os.fspath(folder), tag or "latest")
        facts = self._native.facts()
        self.path = path_from_json(facts["path"])
        self.beside = beside(facts["client"] or {}, self.path)
        self.shapes = {
            name: torch.Size(self.beside.shapes.get(name, shape))
            for name, shape in facts["tensors"].items()
            if name not in self.beside.outside
        }
        self.shared = {**dict(facts["tied"]), **self.beside.shared}

    def read(self, name: str, kind: str = "master") -> torch.Tensor:
        """Reads a whole tensor in fp32."""
        whole = torch.empty(self.shapes[name], dtype=torch.float32)
        self._native.read(kind, name, whole.numel(), whole.data_ptr())
        return whole

    def whole_bytes(self) -> dict[str, torch.Tensor]:
        """Reads the parameters that are not floating-point numbers."""
        out = {}
        for name, (dtype, shape) in self.beside.bytes.items():
            out[name] = value = torch.empty(shape, dtype=dtype)
            self._native.read_bytes(name, value.numel() * value.element_size(), value.data_ptr())
        return out
