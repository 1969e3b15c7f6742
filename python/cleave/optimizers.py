"""Optimizers as scripts hold them; their updates run in the engine.

A `torch.optim` optimizer that a script passes selects the engine's kernel and its values. Scripts and schedules read and change the same
`param_groups`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from . import native
from .configuration import Configuration
from .errors import NotBuilt, StepOrderError, UsageError
from .layers import PipelineModule
from .outside import OutsideOptimizer
from .units import ModuleUnits


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
        zero = config.given.get("zero_optimization") or {}
        stage = int(zero.get("stage", 0) if isinstance(zero, dict) else zero)
        if isinstance(optimizer, _HyperparametersOnly):
            raise
        if stage and not config.given.get("zero_allow_untested_optimizer"):
            raise NotBuilt(f'{refused}, or "zero_allow_untested_optimizer": true, with which torch updates the part of each rank') from None
        first = optimizer.param_groups[0]
        kind = "AdamW" if "betas" in first else "SGD"  # for the engine's schedules, which change betas or momentum
        return {"type": kind, "params": {"lr": float(first["lr"])}}, OutsideOptimizer(optimizer, stage)


_GIVES = 4  # most gradients of a unit per micro-batch with exact sums: a script may call several backwards
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
    betas = group.get("betas") or (-1.0, -1.0)
    return native.Rates(float(group["lr"]), float(betas[0]), float(betas[1]), float(group.get("weight_decay", 0.0)))


class EngineOptimizer(torch.optim.Optimizer):
    """The optimizer that `initialize` returns: its groups can be read and changed, and `engine.step` updates."""

    parameter_offload: Any  # hooks of the module (residency.ParameterOffload); only at ZeRO stage 3

    def __init__(self, inner: torch.optim.Optimizer, outside: OutsideOptimizer | None) -> None:
        self.optimizer = inner  # the script's, or one of the class of the ds_config; shares its groups
        self.outside = outside  # updates in torch if the engine has no kernel
        self.overflow = False
        self.scale_now: Callable[[], float] = lambda: 1.0
        super().__init__(inner.param_groups, dict(inner.defaults))  # same dictionaries: changes are visible in both
        self._began = [_rates(group) for group in self.param_groups]
        self.numbers = native.rate_groups(self._began, self._began)[0]  # number of the rates of each group

    @property
    def loss_scale(self) -> float:
        """Loss scale of the next step."""
        return self.scale_now()

    cur_scale = loss_scale

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise StepOrderError("optimizer.step(): only the engine can step; call engine.step()")

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
            return [native.Rates(float(self.param_groups[0]["lr"]))] * len(set(self.numbers))
        check_groups(self.param_groups)
        return native.rate_groups(self._began, [_rates(group) for group in self.param_groups])[1]


class Declared:
    """Training of a module as declared to the engine: units, optimizer and configuration. The script's optimizer and schedule take
    precedence."""

    def __init__(
        self, config: Configuration, module: Any, job: native.Job | None, optimizer: Any = None, parameters: Any = None, rates: Any = None
    ) -> None:
        """Reads the declaration.

        Args:
            job: validates the configuration; None skips this.
            rates: schedule of the script.
        """
        self.module: torch.nn.Module = module
        self.autocast = config.autocast()
        self.outside: OutsideOptimizer | None = None
        parameters = list(parameters) if parameters is not None else [p for p in module.parameters() if p.requires_grad]
        given = _given(config, optimizer, parameters)
        if given is not None:
            section, self.outside = section_and_outside(given, config)
            config = config.with_sections(optimizer=section)
        ours = ["torch_autocast"] + ["scheduler"] * (rates is not None)
        if not config.native() and not isinstance(module, PipelineModule):
            ours.append("managed_gradient_accumulation")
        self.config: Configuration = config.with_sections(**dict.fromkeys(ours))
        if job is not None:
            self.config.read(job)
        if given is None and "optimizer" in config.given:
            given = _of_config(self.config, parameters)
            check_groups(given.param_groups)
        self.optimizer = EngineOptimizer(given, self.outside) if given is not None else None
        groups = zip(self.optimizer.param_groups, self.optimizer.numbers, strict=True) if self.optimizer else ()
        trained = [(p, g, number) for g, number in groups for p in g["params"] if p.requires_grad]
        decays = {id(p) for p, g, _ in trained if g.get("weight_decay", 0.0)}
        self.units = ModuleUnits(module, {id(p): number for p, _, number in trained}, decays)
        # True if a step takes its rates from the groups in addition to the engine's schedule.
        own = self.outside is not None or "scheduler" not in self.config.given
        self.brings_rates = self.optimizer is not None and (own or len(set(self.optimizer.numbers)) > 1)

    def of_engine(self) -> tuple[str, str, str, list[dict[str, Any]]]:
        """Returns the arguments of cleave_engine_make and of a plan."""
        return self.config.text, self.config.name, type(self.module).__name__, self.units.declared()

    def options(self) -> dict[str, Any]:
        """Returns the options of an engine and its plan, except those of this rank."""
        given = {
            "gives": _GIVES,
            "rates_given": self.brings_rates,
            "scales_loss": self.autocast == "fp16",
            "inference": self.optimizer is None,
        }
        return {"seed": 42, "model_config": self.config.computed(self.module), **given}


def _of_config(config: Configuration, parameters: list[Any]) -> torch.optim.Optimizer:
    """Returns an optimizer of the class that DeepSpeed creates for the section, with the engine's effective values."""
    section = config.given["optimizer"]
    name, given = str(section.get("type")).lower(), dict(section.get("params") or {})
    if given.get("torch_adam") and (name == "adamw" or given.get("adam_w_mode", True)):
        given.setdefault("weight_decay", 0.01)  # default of torch.optim.AdamW
    kind: Any = {"sgd": torch.optim.SGD, "adagrad": DeepSpeedCPUAdagrad, "lion": FusedLion}.get(name, FusedAdam)
    values = {key: config.values.get(f"optimizer.params.{key}", given.get(key, "auto")) for key in inspect.signature(kind).parameters}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if value not in (None, "auto")}
    return kind(parameters, **values)  # type: ignore[no-any-return]


def _given(config: Configuration, optimizer: Any, parameters: list[Any]) -> torch.optim.Optimizer | None:
    section = config.section("optimizer")
    if optimizer is None and section.get("type") in TORCHS_OWN:
        try:
            return getattr(torch.optim, section["type"])(parameters, **section.get("params", {}))  # type: ignore[no-any-return]
        except TypeError as error:
            raise NotBuilt(f"optimizer.params: not accepted by torch.optim.{section['type']}: {error}") from None
    made = optimizer(parameters) if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer) else optimizer
    if made is None or isinstance(made, torch.optim.Optimizer):
        return made
    raise UsageError(
        f"optimizer: wrong type (got {type(optimizer).__name__}, expected a torch.optim.Optimizer or a callable that returns one)"
    )
