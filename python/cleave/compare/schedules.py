"""DeepSpeed's learning-rate schedules in Python, written from their definition, for the reference run."""

import math
from collections.abc import Callable
from typing import Any

Params = dict[str, Any]


def _share(p: Params, i: int) -> float:
    """Returns the finished share of a warm-up, 1 afterwards. i: number of updates minus one."""
    count = max(2, p.get("warmup_num_steps", 1000))
    if i >= count:
        return 1.0
    return i / count if p.get("warmup_type", "log") == "linear" else math.log(i + 1) / math.log(count)


def _warmup(p: Params, own: float, i: int) -> float:
    low = p.get("warmup_min_lr", 0.0)
    high = own if p.get("warmup_max_lr") is None else p["warmup_max_lr"]
    if i < 0:
        return float(low)
    count, total = max(2, p.get("warmup_num_steps", 1000)), p.get("total_num_steps")
    share = _share(p, i) if total is None or i < count else max(0.0, (total - i) / max(1.0, total - count))
    return float(low + (high - low) * share)


def _cosine(p: Params, own: float, i: int) -> float:
    if i < 0:
        return 0.0
    count = max(2, p.get("warmup_num_steps", 1000))
    low = p.get("warmup_min_ratio", 0.0)
    if i < count:
        return float(own * (low + _share(p, i) * (1 - low)))
    done = min(1.0, (i - count + 1) / max(1, p["total_num_steps"] - count))
    least = p.get("cos_min_ratio", 0.0001)
    return float(own * max(0.0, least + (1 - least) * (1 + math.cos(math.pi * done)) / 2))


def _range(p: Params, own: float, i: int) -> float:
    intervals = (i + 1) / p.get("lr_range_test_step_size", 2000)
    grown = math.floor(intervals) if p.get("lr_range_test_staircase", False) else intervals
    return float(p.get("lr_range_test_min_lr", 1e-3) * (1 + p.get("lr_range_test_step_rate", 1.0) * grown))


def _height(p: Params, i: int) -> float:
    """Returns the height within a cycle: 0 at its ends, 1 at its peak."""
    first = p.get("cycle_first_step_size", 2000)
    second = first if p.get("cycle_second_step_size") is None else p["cycle_second_step_size"]
    at = (i + 1) % (first + second)
    rising = at <= first
    stairs = p.get("cycle_first_stair_count", 0)
    if not rising and p.get("cycle_second_stair_count") is not None:
        stairs = p["cycle_second_stair_count"]
    part = at / first if rising else (first + second - at) / second
    return math.floor(part * stairs) / stairs if stairs > 0 else float(part)


def _cycle(p: Params, own: float, i: int) -> tuple[float, float | None]:
    first = p.get("cycle_first_step_size", 2000)
    total = first + (first if p.get("cycle_second_step_size") is None else p["cycle_second_step_size"])
    cycling, size = i < total, p.get("decay_step_size", 0)
    height = _height(p, i) if cycling else 0.0
    decays = 0.0 if cycling or not size else (i - total + 1) / size
    rate = (p["cycle_min_lr"] + (p["cycle_max_lr"] - p["cycle_min_lr"]) * height) / (1 + p.get("decay_lr_rate", 0.0) * decays)
    if not p.get("cycle_momentum", True):
        return rate, None
    low, high = p.get("cycle_min_mom", 0.8), p.get("cycle_max_mom", 0.9)
    return rate, low if i < 0 else (high - (high - low) * height) * (1 + p.get("decay_mom_rate", 0.0) * decays)


_RATES: dict[str, Callable[[Params, float, int], Any]] = {
    "WarmupLR": lambda p, own, i: _warmup({**p, "total_num_steps": None}, own, i),
    "WarmupDecayLR": _warmup,
    "WarmupCosineLR": _cosine,
    "LRRangeTest": _range,
    "OneCycle": _cycle,
}


class PlainSchedule:
    """Sets the rates of the groups of an optimizer before each update."""

    def __init__(self, optimizer: Any, kind: str, params: Params) -> None:
        self.optimizer, self.last_batch_iteration, self._rates = optimizer, -1, _RATES[kind]
        count = len(optimizer.param_groups)
        self._own = [float(group["lr"]) for group in optimizer.param_groups]
        self._params = [{k: v[g] if isinstance(v, list | tuple) else v for k, v in params.items()} for g in range(count)]
        self._show()

    def _show(self) -> None:
        for group, own, params in zip(self.optimizer.param_groups, self._own, self._params, strict=False):
            found = self._rates(params, own, self.last_batch_iteration)
            rate, momentum = found if isinstance(found, tuple) else (found, None)
            group["lr"] = rate
            if momentum is not None and "betas" in group:
                group["betas"] = (momentum, 0.99)  # DeepSpeed sets both

    def step(self, last_batch_iteration: int | None = None, **kwargs: Any) -> None:
        self.last_batch_iteration = self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        self._show()

    def get_last_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step(state["last_batch_iteration"])
