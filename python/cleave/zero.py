"""Parameters that are whole for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .errors import NotBuilt


def _engine_of(parameter: torch.nn.Parameter) -> Any:
    return getattr(parameter, "ds_engine", None)


@contextlib.contextmanager
def GatheredParameters(  # noqa: N802
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> Iterator[None]:
    """Lets parameters have their values on every rank; what the modifier's rank changes, all get. Collective."""
    listed = [params] if isinstance(params, torch.nn.Parameter) else _listed(params)
    engine = next((e for e in map(_engine_of, listed) if e is not None), None)
    if not enabled or engine is None:
        yield
        return
    with engine.gathered(listed, modifier_rank):
        yield


def _listed(params: Any) -> list[torch.nn.Parameter]:
    if isinstance(params, torch.nn.Module):
        return list(params.parameters())
    if isinstance(params, Iterable):
        return [p for p in params if isinstance(p, torch.nn.Parameter)]
    return []


class Init(contextlib.AbstractContextManager["Init"]):
    """A model that is built sharded: not built yet."""

    def __init__(self, *args: Any, enabled: bool = True, **kwargs: Any) -> None:
        if enabled:
            raise NotBuilt("zero.Init is not built: build the model on the host, and initialize() shards it; or give enabled=False")

    def __exit__(self, *error: Any) -> None:
        return None


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Nothing: a parameter of another module is gathered when a module reads it."""


def unregister_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Nothing, as register_external_parameter."""


__all__ = ["GatheredParameters", "Init", "register_external_parameter", "unregister_external_parameter"]
