"""The schedules of a ds_config, which the engine follows."""

from __future__ import annotations

from typing import Any

from .optimizers import ConfigScheduler

LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = (
    "LRRangeTest",
    "OneCycle",
    "WarmupLR",
    "WarmupDecayLR",
    "WarmupCosineLR",
)
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
_KINDS: dict[str, type[ConfigScheduler]] = {name: type(name, (ConfigScheduler,), {}) for name in VALID_LR_SCHEDULES}


def kind_of(section: dict[str, Any]) -> type[ConfigScheduler]:
    """The class of a section `scheduler`; clients know a schedule by its class's name."""
    return _KINDS.get(str(section.get("type", "")), ConfigScheduler)


def __getattr__(name: str) -> Any:
    if name in _KINDS:
        return _KINDS[name]
    raise AttributeError(f"cleave.runtime.lr_schedules has no {name}; wanted one of {', '.join(VALID_LR_SCHEDULES)}")
