"""Optimizers of the reference in plain torch, and one update of a parameter in double precision with its rounding errors."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..optimizers import TORCHS_OWN, DeepSpeedCPUAdagrad, DeepSpeedCPULion, FusedAdam

State = dict[str, Any]


class _Rule(torch.optim.Optimizer):
    """An optimizer that torch does not have."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0, **more: Any
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, **more})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                p.data -= self._change(group, p.data, p.grad, state)

    def _change(self, group: dict[str, Any], w: torch.Tensor, g: Any, state: State) -> torch.Tensor:
        raise NotImplementedError


class Lion(_Rule):
    """Lion (arXiv 2302.06675). `state["c"]` is the interpolated moment, of which the update takes the sign."""

    def _change(self, group: dict[str, Any], w: torch.Tensor, g: Any, state: State) -> torch.Tensor:
        first, second = group["betas"]
        state["c"] = first * state["m"] + (1 - first) * g
        state["m"] = second * state["m"] + (1 - second) * g
        return group["lr"] * (state["c"].sign() + group["weight_decay"] * w)  # type: ignore[no-any-return]


class UncorrectedAdam(_Rule):
    """Adam without the correction of its moments; with decoupled decay if the group has `decoupled`."""

    def _change(self, group: dict[str, Any], w: torch.Tensor, g: Any, state: State) -> torch.Tensor:
        (first, second), decay = group["betas"], group["weight_decay"]
        g = g if group.get("decoupled", True) else g + decay * w
        state["m"] = first * state["m"] + (1 - first) * g
        state["v"] = second * state["v"] + (1 - second) * g * g
        change = state["m"] / (state["v"].sqrt() + group["eps"])
        return group["lr"] * (change + (decay * w if group.get("decoupled", True) else 0))  # type: ignore[no-any-return]


class Lamb(_Rule):
    """LAMB (arXiv 1904.00962) with the bounds of DeepSpeed's FusedLamb."""

    def _change(self, group: dict[str, Any], w: torch.Tensor, g: Any, state: State) -> torch.Tensor:
        first, second = group["betas"]
        state["m"] = first * state["m"] + (1 - first) * g
        state["v"] = second * state["v"] + (1 - second) * g * g
        rate = group["lr"]
        if group.get("bias_correction", True):
            rate *= (1 - second ** state["step"]) ** 0.5 / (1 - first ** state["step"])
        change = state["m"] / (state["v"].sqrt() + group["eps"]) + group["weight_decay"] * w
        norms = w.norm(), change.norm()
        trust = norms[0] / norms[1] if min(norms) > 0 else torch.tensor(1.0)
        return rate * trust.clamp(group.get("min_coeff", 0.01), group.get("max_coeff", 10.0)) * change  # type: ignore[no-any-return]


def _adam(section: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    given = dict(section.get("params") or {})
    decoupled = str(section["type"]).lower() == "adamw" or given.pop("adam_w_mode", True)
    given.pop("adam_w_mode", None)
    corrected, torchs = given.pop("bias_correction", True), given.pop("torch_adam", False)
    given.setdefault("weight_decay", 0.01 if torchs and decoupled else 0.0)
    if not corrected:
        return UncorrectedAdam, {**given, "decoupled": decoupled}
    return (torch.optim.AdamW if decoupled else torch.optim.Adam), given


_UNUSED = ("fp32_optimizer_states", "set_grad_none", "foreach", "fused", "differentiable", "capturable", "amsgrad", "eps_inside_sqrt")


def optimizer_of(section: Mapping[str, Any], given: Any, parameters: list[Any]) -> torch.optim.Optimizer | None:
    """Returns the script's optimizer, or one of torch for the section `optimizer` of a ds_config, or None without both."""
    if given is not None:
        return given(parameters) if callable(given) and not isinstance(given, torch.optim.Optimizer) else given  # type: ignore[no-any-return]
    if not (name := section.get("type")):
        return None
    kind, values = _adam(section)
    if name in TORCHS_OWN:
        return getattr(torch.optim, name)(parameters, **(section.get("params") or {}))  # type: ignore[no-any-return]
    others: dict[str, tuple[Any, dict[str, Any]]] = {
        "sgd": (torch.optim.SGD, {}),
        "adagrad": (torch.optim.Adagrad, {}),
        "lion": (Lion, {}),
        "lamb": (Lamb, {}),
    }
    if name.lower() in others:
        kind, first = others[name.lower()]
        values = {**first, **(section.get("params") or {})}
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key not in _UNUSED and v is not None}
    return kind(parameters, **values)  # type: ignore[no-any-return]


def _plain_class(optimizer: Any, group: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the class that updates in torch, and its group, for an optimizer of this package or of torch."""
    if isinstance(optimizer, FusedAdam):
        if not group.get("bias_correction", True):
            return UncorrectedAdam, {**group, "decoupled": optimizer.adam_w_mode}
        return (torch.optim.AdamW if optimizer.adam_w_mode else torch.optim.Adam), group
    if isinstance(optimizer, DeepSpeedCPUAdagrad):
        return torch.optim.Adagrad, {"lr_decay": 0, "initial_accumulator_value": 0, **group}
    return (Lion if isinstance(optimizer, DeepSpeedCPULion) else type(optimizer)), group


def _stepped(optimizer: Any, group: dict[str, Any], value: torch.Tensor, gradient: torch.Tensor, state: State) -> torch.Tensor:
    """Runs one step of a class of optimizers on one parameter, changes its state, and returns the new value."""
    optimizer = getattr(optimizer, "optimizer", optimizer)
    kind, group = _plain_class(optimizer, {**optimizer.param_groups[0], **group})
    parameter = torch.nn.Parameter(value.clone())
    parameter.grad = gradient.clone()
    off = {key: False for key in ("foreach", "fused", "capturable") if key in group}
    alone: Any = object.__new__(kind)
    if type(optimizer) is kind:
        alone.__dict__.update({key: held for key, held in vars(optimizer).items() if key != "step"})
    else:
        alone.__dict__.update(vars(torch.optim.SGD([torch.zeros(1)])))
        alone.__dict__["defaults"] = dict(group)
    alone.param_groups = [{**_missing(kind), **group, **off, "params": [parameter]}]
    if kind is torch.optim.Adagrad and not state:
        state.update(step=torch.tensor(0.0), sum=torch.full_like(value, group.get("initial_accumulator_value", 0)))
    alone.state = collections.defaultdict(dict, {parameter: state} if state else {})
    alone.step()
    state.update(alone.state[parameter])
    return parameter.detach()


def _missing(kind: Any) -> dict[str, Any]:
    """Returns the values of a group that a class of torch needs and an optimizer of this package does not have."""
    if kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        off = dict.fromkeys(("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused"), False)
        return {**off, "decoupled_weight_decay": kind is torch.optim.AdamW}
    return {}


class Update:
    """Updates of one parameter in double precision, step after step."""

    def __init__(self) -> None:
        self._state: State = {}
        self._sizes: State = {}

    def __call__(self, optimizer: Any, group: dict[str, Any], value: torch.Tensor, gradient: torch.Tensor) -> Any:
        """Returns the new value and, by element, the rounding error of the same update in fp32.

        The error is 2 roundings of the weight, and 16 of the change that the rule computes from magnitudes of weight and gradient.
        """
        group = in_fp32(group)
        after = _stepped(optimizer, group, value, gradient, self._state)
        sizes = value.abs() - _stepped(optimizer, group, value.abs(), gradient.abs(), self._sizes)
        eps = torch.finfo(torch.float32).eps
        error = eps * (2 * value.abs() + 16 * (sizes.abs() + (after - value).abs())) + torch.finfo(torch.float32).tiny
        if isinstance(optimizer, Lamb):  # the engine's rate has the betas in double, its moments in fp32
            error += (after - value).abs() * eps / (1 - max(group["betas"]))
        if "c" in self._state:  # a sign is undecided if rounding errors exceed the number
            error[self._state["c"].abs() <= 4 * eps * self._sizes["c"]] += 2 * group["lr"]
        return after, error

    def tried(self, optimizer: Any, group: dict[str, Any], value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the new value without changing the state."""
        return _stepped(optimizer, in_fp32(group), value, gradient, copied(self._state))

    def before(self) -> Callable[[], None]:
        """Returns a function that restores the state of now."""
        kept = copied(self._state), copied(self._sizes)

        def restore() -> None:
            self._state, self._sizes = kept

        return restore


def copied(state: State) -> State:
    """Returns a state with copies of its tensors."""
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def in_fp32(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a group with its numbers rounded to fp32, in which the engine's kernels have them."""

    def rounded(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = float(value)
        if isinstance(value, tuple | list):
            return tuple(map(rounded, value))
        return float(torch.tensor(value, dtype=torch.float32)) if isinstance(value, float) else value

    return {key: value if key == "params" else rounded(value) for key, value in group.items()}
