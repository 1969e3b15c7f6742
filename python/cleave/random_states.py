"""Random states of this process (Python, numpy and torch) as values of a checkpoint, and the choice of this rank's."""

import array
import importlib
import random
import sys
from typing import Any

import torch

from .values import to_text


def random_states(device: torch.device | None = None) -> dict[str, Any]:
    """Returns the states of `random`, `numpy.random` if the script uses it, torch, and a CUDA device."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {"python": (version, array.array("I", words).tobytes(), gauss), "torch": torch.get_rng_state()}
    if "numpy.random" in sys.modules:
        states["numpy"] = sys.modules["numpy.random"].get_state()
    if device is not None and device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Any], device: torch.device | None = None) -> None:
    """Restores the states that `random_states` returned."""
    if "python" in states:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(array.array("I", words)), gauss))
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "numpy" in states:
        importlib.import_module("numpy.random").set_state(states["numpy"])
    if "cuda" in states and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def of_this_rank(ranks: list[dict[str, Any]], rank: int, world: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the random states and the positions of loaders for a rank, from those that each rank saved.

    On another number of ranks, a state is that of all ranks if it is equal, and a position also if it counts samples of all ranks; others
    are None.
    """
    if len(ranks) == world or not ranks:
        own = ranks[rank] if ranks else {"random": {}, "loaders": {}}
        return own["random"], own["loaders"]
    states = {name: _equal([each["random"].get(name) for each in ranks]) for name in ranks[0]["random"]}
    return states, {name: _position([each["loaders"].get(name) for each in ranks]) for name in ranks[0]["loaders"]}


def _equal(values: list[Any]) -> Any:
    return values[0] if len({to_text({"": value}) for value in values}) == 1 else None


def _position(positions: list[Any]) -> Any:
    samples = {(position or {}).get("samples") for position in positions}
    if (same := _equal(positions)) is not None or len(samples) > 1 or None in samples:
        return same
    first = positions[0]
    return {"epoch": first["epoch"], "samples": samples.pop(), "began": {"orders": first["began"].get("orders", ())}}
