"""Learning-rate schedules of a ds_config as scripts hold or create them; the engine computes their rates."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import native
from .errors import UsageError

# Arguments after the optimizer, in order.
_ARGUMENTS = {
    "LRRangeTest": "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase",
    "OneCycle": "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size cycle_first_stair_count "
    "cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom cycle_max_mom decay_mom_rate",
    "WarmupLR": "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type",
    "WarmupDecayLR": "total_num_steps warmup_min_lr warmup_max_lr warmup_num_steps warmup_type",
    "WarmupCosineLR": "total_num_steps warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type",
}
VALID_LR_SCHEDULES = list(_ARGUMENTS)
LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = VALID_LR_SCHEDULES


class Schedule:
    """Rates of an optimizer's groups as a function of the number of updates."""

    of_groups: list[tuple[str, float]]  # section and own rate of each group; missing if the engine computes one rate for all

    def __init__(self, optimizer: Any, *args: Any, last_batch_iteration: int = -1, **kwargs: Any) -> None:
        """Sets the first rates.

        Args:
            optimizer: its groups get the rates.
            args: by position or name, the `params` of the section `scheduler`; lists have one value per group.
            last_batch_iteration: number of updates so far, minus one.
        """
        names = _ARGUMENTS[type(self).__name__].split()
        given = dict(zip([*names, "last_batch_iteration"], args, strict=False))
        last = given.pop("last_batch_iteration", last_batch_iteration)
        if unknown := [name for name in kwargs if name not in names]:
            raise UsageError(f"{type(self).__name__}: unknown arguments {', '.join(unknown)} (expected some of {', '.join(names)})")
        given.update(kwargs)
        self.of_groups = _of_groups(type(self).__name__, given, optimizer.param_groups)
        self._begin(optimizer, lambda updates, group: native.schedule_rates(*self.of_groups[group], updates), given, last)

    def _begin(self, optimizer: Any, rates: Callable[[int, int], native.Rates], given: dict[str, Any], last: int = -1) -> None:
        self.__dict__.update(given)  # arguments are attributes
        self.optimizer, self._rates, self.last_batch_iteration = optimizer, rates, last
        self._own = [float(group["lr"]) for group in optimizer.param_groups]
        self._first, self._groups = self._own[0], len(self._own)
        self.show()

    @classmethod
    def of_engine(cls, engine: Any, optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> "Schedule":
        """Returns a schedule that shows `next_rates()` of an engine, which follows it by itself."""
        made = cls.__new__(cls)
        made._begin(optimizer, lambda updates, group: engine.next_rates(), given)
        return made

    def show(self) -> None:
        for number, group in enumerate(self.optimizer.param_groups[: self._groups]):  # groups added later keep their rates
            rates = self._rates(self.last_batch_iteration + 1, number)
            group["lr"] = group["lr"].fill_(rates.lr) if isinstance(group["lr"], torch.Tensor) else rates.lr
            if rates.momentum >= 0 and "betas" in group:
                group["betas"] = (rates.momentum, rates.beta2 if rates.beta2 >= 0 else group["betas"][1])

    def step(self, last_batch_iteration: int | None = None, **kwargs: Any) -> None:
        """Advances the rates; `engine.step` calls this after each update.

        The engine counts the updates of a ds_config schedule, so additional calls do not change its rates.
        """
        self.last_batch_iteration = self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        self.show()

    def follow(self, updates: int) -> None:
        """Sets the number of updates after a checkpoint was loaded."""
        self.last_batch_iteration = updates - 1
        self.show()

    def get_lr_ratio(self) -> float:
        """Returns the current rate of the first group divided by its initial rate."""
        return float(self.optimizer.param_groups[0]["lr"]) / self._first

    def get_mom(self) -> list[Any]:
        return [group.get("betas", group.get("momentum")) for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.follow(state["last_batch_iteration"] + 1)


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _of_groups(name: str, given: dict[str, Any], groups: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Returns the section `scheduler` and the own rate of each group."""
    for key, value in given.items():
        if _listed(value) and len(value) != len(groups):
            raise UsageError(
                f"{name}: {key} has the wrong length (got {len(value)} values, expected {len(groups)}, one per parameter group)"
            )
    each = [{key: value[g] if _listed(value) else value for key, value in given.items()} for g in range(len(groups))]
    return [(json.dumps({"type": name, "params": params}), float(g["lr"])) for params, g in zip(each, groups, strict=True)]


class LRRangeTest(Schedule):
    """DeepSpeed's LRRangeTest."""


class _Bounded(Schedule):
    """A schedule between two rates of each group."""

    _bounds = "warmup_min_lr", "warmup_max_lr"

    def _each(self, name: str, missing: list[float]) -> list[float]:
        value = getattr(self, name, None)
        return missing if value is None else list(value) if _listed(value) else [value] * self._groups

    min_lrs = property(lambda self: self._each(self._bounds[0], [0.0] * self._groups))
    max_lrs = property(lambda self: self._each(self._bounds[1], self._own))


class OneCycle(_Bounded):
    """DeepSpeed's OneCycle."""

    _bounds = "cycle_min_lr", "cycle_max_lr"

    @property
    def step_ratio(self) -> float:
        """The increasing half of the cycle divided by the cycle."""
        first = float(getattr(self, "cycle_first_step_size", 2000))
        second = getattr(self, "cycle_second_step_size", None)
        return first / (first + (first if second is None else second))

    def get_mom(self) -> list[Any]:
        """Returns the betas of the groups: before the first step the cycle's largest, although the first update uses the smallest."""
        shown = super().get_mom()
        if self.last_batch_iteration >= 0 or not getattr(self, "cycle_momentum", True):
            return shown
        largest = self._each("cycle_max_mom", [0.9] * self._groups)
        return [(first, betas[1]) if _listed(betas) else betas for first, betas in zip(largest, shown, strict=False)]


class WarmupLR(_Bounded):
    """DeepSpeed's WarmupLR."""


class WarmupDecayLR(WarmupLR):
    """DeepSpeed's WarmupDecayLR."""


class WarmupCosineLR(Schedule):
    """DeepSpeed's WarmupCosineLR."""


_KINDS: dict[str, type[Schedule]] = {kind.__name__: kind for kind in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)}


def kind_of(section: Mapping[str, Any]) -> type[Schedule]:
    """Returns the class of a section `scheduler`. Clients identify a schedule by its class name."""
    return _KINDS.get(str(section.get("type", "")), Schedule)


def differs(section: Mapping[str, Any], groups: list[Any], chosen: bool) -> bool:
    """Returns True if a section `scheduler` of a ds_config gives groups other rates than the engine's schedule, which has one rate.

    Args:
        section: the section, or an empty one.
        groups: parameter groups, or parameters.
        chosen: True if the groups belong to an optimizer; the engine has its first rate.
    """
    rates = {float(group["lr"]) if isinstance(group, dict) and "lr" in group else None for group in groups}
    params = section.get("params")
    lists = isinstance(params, Mapping) and any(map(_listed, params.values()))
    return str(section.get("type")) in _KINDS and (lists or (len(rates) > 1 if chosen else rates != {None}))
