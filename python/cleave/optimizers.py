"""Optimizers as scripts hold them; their updates run in the engine.

A `torch.optim` optimizer that a script passes selects the engine's kernel and its values. Scripts and schedules read and change the same
`param_groups`.
"""

import types
from collections.abc import Callable, Container
from typing import Any

import torch

from . import native
from .configuration import Configuration
from .errors import NotBuilt, StepOrderError, UsageError
from .outside import OutsideOptimizer


class _HyperparametersOnly(torch.optim.Optimizer):
    """An optimizer with groups and without state; the engine runs its update."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise StepOrderError(
            f"{type(self).__name__}.step(): only the engine can step; pass the optimizer to initialize(), and call engine.step()"
        )


class FusedAdam(_HyperparametersOnly):
    """Adam with decoupled weight decay (adam_w_mode), or with weight decay added to the gradient.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        bias_correction: correct the bias of both moments.
        betas: decay rates of the first and second moment.
        eps: added to the denominator.
        adam_w_mode: True for AdamW, False for Adam.
        weight_decay: weight decay.
        amsgrad: not supported.
        set_grad_none: accepted.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise UsageError("amsgrad: not supported; leave it out")
        self.adam_w_mode = adam_w_mode
        super().__init__(params, {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class DeepSpeedCPUAdam(FusedAdam):
    """FusedAdam with the arguments of the DeepSpeed class. The ds_config decides where the state is stored and the update runs."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, bias_correction, betas, eps, adamw_mode, weight_decay, amsgrad)


class DeepSpeedCPUAdagrad(_HyperparametersOnly):
    """Adagrad, with the update of torch.optim.Adagrad."""

    def __init__(self, model_params: Any, lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0.0, amsgrad: bool = False) -> None:
        super().__init__(model_params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})


class DeepSpeedCPULion(_HyperparametersOnly):
    """Lion (https://arxiv.org/abs/2302.06675)."""

    def __init__(self, model_params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0) -> None:
        super().__init__(model_params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


FusedLion = DeepSpeedCPULion
"""The same as `DeepSpeedCPULion`."""


def _adam(o: Any, g: dict[str, Any], decoupled: bool) -> dict[str, Any]:
    params = {"lr": float(g["lr"]), "betas": list(g["betas"]), "eps": g["eps"], "weight_decay": g["weight_decay"]}
    if not g.get("bias_correction", True):
        params["bias_correction"] = False
    return {"type": "AdamW", "params": params} if decoupled else {"type": "Adam", "params": {**params, "adam_w_mode": False}}


def _as(kind: str, *keys: str) -> Callable[[Any, dict[str, Any]], dict[str, Any]]:
    return lambda o, g: {"type": kind, "params": {key: g[key] for key in keys if key in g}}


_adagrad = _as("Adagrad", "lr", "lr_decay", "eps", "weight_decay")
# Section `optimizer` of a group, by class; subclasses come first.
_SECTIONS: list[tuple[type, Callable[[Any, dict[str, Any]], dict[str, Any]]]] = [
    (FusedAdam, lambda o, g: _adam(o, g, o.adam_w_mode)),
    (DeepSpeedCPUAdagrad, _adagrad),
    (DeepSpeedCPULion, _as("Lion", "lr", "betas", "weight_decay")),
    (torch.optim.AdamW, lambda o, g: _adam(o, g, True)),
    (torch.optim.Adam, lambda o, g: _adam(o, g, bool(g.get("decoupled_weight_decay", False)))),
    (torch.optim.SGD, _as("SGD", "lr", "momentum", "dampening", "weight_decay", "nesterov")),
    (torch.optim.Adagrad, _adagrad),
]
# torch.optim optimizers that a ds_config may name, in addition to those of the engine.
TORCHS_OWN = ["Adadelta", "Adafactor", "Adamax", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop"]
_OFF = {"amsgrad": False, "maximize": False, "initial_accumulator_value": 0, "differentiable": False}


def section_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the equivalent section `optimizer` of a ds_config.

    Raises:
        NotBuilt: the engine has no kernel for the optimizer or for one of its options.
    """
    for kind, section in _SECTIONS:
        if type(optimizer) is kind or (isinstance(optimizer, _HyperparametersOnly) and isinstance(optimizer, kind)):
            for group in optimizer.param_groups:
                for key, off in _OFF.items():
                    if group.get(key, off) != off:
                        raise NotBuilt(f"{kind.__name__}: {key}={group[key]} is not supported; leave it out")
            decays = {g["weight_decay"] for g in optimizer.param_groups if g["weight_decay"]}
            first = {**optimizer.param_groups[0], "weight_decay": decays.pop() if decays else 0.0}
            return section(optimizer, first)
    raise NotBuilt(
        f"optimizer: {type(optimizer).__module__}.{type(optimizer).__qualname__} is not supported; use Adam, AdamW, SGD or Adagrad of "
        "torch.optim, FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad or DeepSpeedCPULion, or a section `optimizer` in the ds_config"
    )


def section_and_outside(optimizer: torch.optim.Optimizer, config: Configuration) -> tuple[dict[str, Any], OutsideOptimizer | None]:
    """Returns the section `optimizer` for the engine, and the optimizer that runs in torch if the engine has no kernel."""
    try:
        check_groups(optimizer.param_groups)
        return section_of(optimizer), None
    except NotBuilt as refused:
        zero = config.given.get("zero_optimization")
        stage = zero.get("stage", 0) if isinstance(zero, dict) else zero
        stage = int(stage) if isinstance(stage, int | float) else 0  # the engine reports wrong types
        if isinstance(optimizer, _HyperparametersOnly):
            raise
        if stage and not config.given.get("zero_allow_untested_optimizer"):
            raise NotBuilt(f'{refused}, or "zero_allow_untested_optimizer": true, with which torch updates the part of each rank') from None
        first = optimizer.param_groups[0]
        kind = "AdamW" if "betas" in first else "SGD"  # for the engine's schedules, which change betas or momentum
        return {"type": kind, "params": {"lr": float(first["lr"])}}, OutsideOptimizer(optimizer, stage)


_OF_A_GROUP = ("lr", "betas", "weight_decay")  # values that may differ between the groups in a step


def check_groups(groups: list[dict[str, Any]]) -> None:
    """Raises NotBuilt if groups differ in other values than rate, betas and weight decay."""
    first = groups[0]
    for group in groups[1:]:
        for key, value in first.items():
            if key not in ("params", "initial_lr", "name", "param_names", *_OF_A_GROUP) and group.get(key, value) != value:
                raise NotBuilt(
                    f"optimizer: parameter groups with different {key} are not supported (got {value} and {group[key]}); use one value"
                )


def _rates(group: dict[str, Any]) -> native.Rates:
    def number(key: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UsageError(f"optimizer.param_groups: wrong {key} (got {value!r}, expected a number); assign a number") from None

    betas = group.get("betas") or (-1.0, -1.0)
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise UsageError(f"optimizer.param_groups: wrong betas (got {betas!r}, expected two numbers); assign a pair of numbers")
    first, second = (number("betas", beta) for beta in betas)
    return native.Rates(number("lr", group["lr"]), first, second, number("weight_decay", group.get("weight_decay", 0.0)))


_INSTEAD = "call engine.step(), and leave out GradScaler (section fp16 scales the loss)"


def _only_the_engine_steps(optimizer: torch.optim.Optimizer, closure: Any = None) -> None:
    raise StepOrderError(f"{type(optimizer).__name__}.step(): only the engine can update its parameters; {_INSTEAD}")


_only_the_engine_steps._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # torch's schedules need not wrap it


def first_rates(group: dict[str, Any]) -> native.Rates:
    """Returns the rates of a group without the factor of a torch schedule."""
    return _rates({**group, "lr": group.get("initial_lr", group["lr"])})


class EngineOptimizer(torch.optim.Optimizer):
    """The optimizer that `initialize` returns: its groups can be read and changed, and `engine.step` updates.

    It is an instance of the class of the script's optimizer, or of the ds_config's, and equal to the script's.
    """

    offload_states: Callable[..., None]  # set by the engine
    reload_states: Callable[..., None]
    parameter_offload: Any  # hooks of the module (residency.ParameterOffload); only at ZeRO stage 3

    def __init__(self, inner: torch.optim.Optimizer, outside: OutsideOptimizer | None, began: list[native.Rates]) -> None:
        """began: rates of the groups; groups with equal ones share them."""
        self.optimizer = inner  # the script's, or one of the class of the ds_config; shares its groups
        self.outside = outside  # updates in torch if the engine has no kernel
        self.overflow = False
        self.scale_now: Callable[[], float] = lambda: 1.0
        torch.optim.Optimizer.__init__(self, inner.param_groups, dict(inner.defaults))
        self.param_groups = inner.param_groups  # same list: changes are visible in both
        inner.step = types.MethodType(_only_the_engine_steps, inner)  # type: ignore[method-assign]
        self._began = began
        self._apart = False  # groups that began with equal rates have different ones now
        self._number_groups()

    def _number_groups(self) -> None:
        merged = native.rate_groups(self._began, self._began)[0]
        self.numbers = list(range(len(merged))) if self._apart else merged  # number of the rates of each group

    def trained(self) -> dict[torch.nn.Parameter, tuple[int, bool]]:
        """Returns the number of the rates of each parameter that requires a gradient, and whether it decays."""
        return {
            p: (number, bool(group.get("weight_decay", 0.0)))
            for number, group in zip(self.numbers, self.param_groups, strict=True)
            for p in group["params"]
            if p.requires_grad
        }

    def trains_more_than(self, known: Container[int]) -> bool:
        """Returns True if a parameter of a group requires a gradient and its id is not among the known ones."""
        return any(p.requires_grad and id(p) not in known for group in self.param_groups for p in group["params"])

    def regrouped(self) -> bool:
        """Numbers the groups again if one was added, begins to decay, or departed from another with the same first rates."""
        now = [_rates(group) for group in self.param_groups]
        begins_to_decay = any(began.weight_decay <= 0 < rates.weight_decay for began, rates in zip(self._began, now, strict=False))
        rates = {(number, r.lr, r.momentum, r.beta2) for number, r in zip(self.numbers, now, strict=False)}
        departs = not self._apart and len(rates) > len(set(self.numbers))
        self._apart = self._apart or departs
        if changed := departs or begins_to_decay or len(self._began) != len(now):
            for began, r in zip(self._began, now, strict=False):
                began.weight_decay = max(began.weight_decay, r.weight_decay)
            self._began += map(first_rates, self.param_groups[len(self._began) :])
            self._number_groups()
        return changed

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, which trains from the next step on."""
        if "numbers" in vars(self):
            self.optimizer.add_param_group(param_group)
        else:
            torch.optim.Optimizer.add_param_group(self, param_group)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.optimizer

    def __hash__(self) -> int:
        return hash(self.optimizer)

    @property
    def loss_scale(self) -> float:
        """Loss scale of the next step."""
        return self.scale_now()

    cur_scale = loss_scale

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise StepOrderError(f"optimizer.step(): only the engine can step; {_INSTEAD}")

    def state_dict(self) -> dict[str, Any]:
        """Returns the values of the groups. `engine.save_checkpoint` saves the state."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        own = {"name": self.outside.name, "rest": self.outside.rest} if self.outside else None
        return {"param_groups": groups} | ({"outside": own} if own else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({k: v for k, v in loaded.items() if k != "params"})

    def updated(self, overflow: bool) -> None:
        """Records the result of a step; torch's schedules ask if there was one."""
        self.overflow = overflow
        for optimizer in (self, self.optimizer):
            optimizer._opt_called = True  # type: ignore[attr-defined]
        if self.outside and not overflow:
            self.outside.updated()

    def rates(self) -> list[native.Rates]:
        """Returns the current rates of the groups."""
        if self.outside:
            return [native.Rates(_rates(self.param_groups[0]).lr)] * len(set(self.numbers))
        check_groups(self.param_groups)
        now = [_rates(group) for group in self.param_groups]
        return now if self._apart else native.rate_groups(self._began, now)[1]


def engine_optimizer(inner: torch.optim.Optimizer, outside: OutsideOptimizer | None, began: list[native.Rates]) -> EngineOptimizer:
    """Returns an EngineOptimizer that is an instance of the class of `inner` also."""
    kind: Any = type(EngineOptimizer.__name__, (EngineOptimizer, type(inner)), {})
    return kind(inner, outside, began)  # type: ignore[no-any-return]
