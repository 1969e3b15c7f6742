"""Whole fp32 weights of a checkpoint of a script, `cleave train` or DeepSpeed, without a job.

`python -m cleave.utils.zero_to_fp32 CHECKPOINTS OUTPUT` writes them as files for `load_state_dict` and transformers.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from .. import compat, native
from ..errors import CleaveError
from ..saved import Saved


class LazyTensor:
    """A tensor in a checkpoint; `contiguous()` reads it."""

    dtype = torch.float32

    def __init__(self, saved: Saved, name: str) -> None:
        self._saved, self._name = saved, name
        self.shape = saved.shapes[name]

    def numel(self) -> int:
        return self.shape.numel()

    def contiguous(self) -> torch.Tensor:
        return self._saved.read(self._name)


def _names(saved: Saved, exclude_frozen: bool) -> list[str]:
    return [name for name in saved.shapes if not (exclude_frozen and name in saved.beside.frozen)]


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike[str], tag: str | None = None, exclude_frozen_parameters: bool = False, lazy_mode: bool = False
) -> dict[str, Any]:
    """Returns whole fp32 weights, buffers, and parameters that are not floating-point numbers, by name. Tied names have the same tensor.

    Args:
        checkpoint_dir: folder of checkpoints.
        tag: name of the checkpoint (default: the one in the file `latest`).
        exclude_frozen_parameters: leave out frozen parameters.
        lazy_mode: return objects that read their tensor in `contiguous()`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    saved = Saved(checkpoint_dir, tag)
    state: dict[str, Any] = saved.beside.buffers | ({} if exclude_frozen_parameters else saved.whole_bytes())
    for name in _names(saved, exclude_frozen_parameters):
        state[name] = LazyTensor(saved, name) if lazy_mode else saved.read(name)
    state.update({other: state[name] for other, name in saved.shared.items() if name in state})
    return state


def load_state_dict_from_zero_checkpoint(
    model: torch.nn.Module, checkpoint_dir: str | os.PathLike[str], tag: str | None = None
) -> torch.nn.Module:
    """Loads the weights and buffers of a checkpoint into a model, moves it to host memory and returns it."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    max_shard_size: int | str | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes `pytorch_model.bin` or `model.safetensors`. One file at a time is in memory.

    Args:
        checkpoint_dir: folder of checkpoints.
        output_dir: output folder; created if missing.
        max_shard_size: largest file in bytes or as text, such as "500MB"; larger weights are split, with an index. None: one file.
        safe_serialization: write safetensors instead of torch.save files.
        tag: name of the checkpoint (default: the one in the file `latest`).
        exclude_frozen_parameters: leave out frozen parameters.
    """
    saved = Saved(checkpoint_dir, tag)
    output = Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    names = _names(saved, exclude_frozen_parameters)
    sizes = [saved.shapes[name].numel() * 4 for name in names]
    of_each = native.file_of_each(sizes, str(max_shard_size if max_shard_size is not None else max(1, sum(sizes))))
    shards = [[name for name, file in zip(names, of_each, strict=True) if file == number] for number in range(max(of_each, default=0) + 1)]
    stem, end = ("model", ".safetensors") if safe_serialization else ("pytorch_model", ".bin")
    files: dict[str, str] = {}
    for number, shard in enumerate(shards):
        file = f"{stem}{end}" if len(shards) == 1 else f"{stem}-{number + 1:05}-of-{len(shards):05}{end}"
        state = {name: saved.read(name) for name in shard}
        if number == 0:
            state.update(saved.beside.buffers | ({} if exclude_frozen_parameters else saved.whole_bytes()))
        if not safe_serialization:
            state.update({other: state[name] for other, name in saved.shared.items() if name in state})
        files.update(dict.fromkeys(state, file))
        _write(output / file, state, safe_serialization)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": files}
        (output / f"{stem}{end}.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write(path: Path, state: dict[str, torch.Tensor], safe: bool) -> None:
    temporary = path.with_name(f".tmp.{path.name}")
    try:
        torch.save({} if safe else state, temporary)
        if safe:
            from safetensors.torch import save_file

            mode = temporary.stat().st_mode  # usual mode of new files; safetensors replaces the file by a private one
            save_file({name: value.contiguous() for name, value in state.items()}, temporary, metadata={"format": "pt"})
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def __getattr__(name: str) -> Any:
    return compat.name_of("utils.zero_to_fp32", name)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="zero_to_fp32", description="Writes the complete fp32 weights of a checkpoint.")
    parser.add_argument("checkpoint_dir", help="folder of checkpoints, with a file 'latest'")
    parser.add_argument("output_dir", help="output folder")
    parser.add_argument("--max_shard_size", default="5GB", help="largest file, such as 500MB (default: %(default)s)")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors instead of torch.save files")
    parser.add_argument("-t", "--tag", default=None, help="checkpoint to read (default: the one in the file 'latest')")
    parser.add_argument("--exclude_frozen_parameters", action="store_true", help="leave out frozen parameters")
    parser.add_argument("-d", "--debug", action="store_true", help="accepted")
    o = parser.parse_args(arguments)
    try:
        convert_zero_checkpoint_to_fp32_state_dict(
            o.checkpoint_dir, o.output_dir, o.max_shard_size, o.safe_serialization, o.tag, o.exclude_frozen_parameters
        )
    except CleaveError as error:
        parser.exit(error.exit_code, f"error: {error}\n")


if __name__ == "__main__":
    main()
