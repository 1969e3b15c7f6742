"""Optimizers and schedules: the engine runs them, and these are what scripts hold in their hands.

An optimizer of torch's that a script passes says which one is meant and with what values; its update runs in the engine's kernels.
`param_groups` stay the ones that the script and its schedulers read and change.
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
    """An optimizer whose update runs in the engine: it holds groups and no state."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise StepOrderError(
            f"{type(self).__name__}.step(): only the engine can step; pass the optimizer to initialize(), and call engine.step()"
        )


class FusedAdam(_HyperparametersOnly):
    """Adam with decoupled weight decay (adam_w_mode) or with decay in the gradient."""

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
    """The same: where the state lives is a matter of the ds_config."""

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
    """Adagrad (torch.optim.Adagrad's values)."""

    def __init__(self, model_params: Any, lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0.0, amsgrad: bool = False) -> None:
        super().__init__(model_params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})


class DeepSpeedCPULion(_HyperparametersOnly):
    """Lion."""

    def __init__(self, model_params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0) -> None:
        super().__init__(model_params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


FusedLion = DeepSpeedCPULion


def _adam(o: Any, g: dict[str, Any], decoupled: bool) -> dict[str, Any]:
    params = {"lr": float(g["lr"]), "betas": list(g["betas"]), "eps": g["eps"], "weight_decay": g["weight_decay"]}
    if not g.get("bias_correction", True):
        params["bias_correction"] = False
    return {"type": "AdamW", "params": params} if decoupled else {"type": "Adam", "params": {**params, "adam_w_mode": False}}


def _as(kind: str, *keys: str) -> Callable[[Any, dict[str, Any]], dict[str, Any]]:
    return lambda o, g: {"type": kind, "params": {key: g[key] for key in keys if key in g}}


_adagrad = _as("Adagrad", "lr", "lr_decay", "eps", "weight_decay")
# By class, the nearest first: how a group of it is written in a ds_config.
_SECTIONS: list[tuple[type, Callable[[Any, dict[str, Any]], dict[str, Any]]]] = [
    (FusedAdam, lambda o, g: _adam(o, g, o.adam_w_mode)),
    (DeepSpeedCPUAdagrad, _adagrad),
    (DeepSpeedCPULion, _as("Lion", "lr", "betas", "weight_decay")),
    (torch.optim.AdamW, lambda o, g: _adam(o, g, True)),
    (torch.optim.Adam, lambda o, g: _adam(o, g, bool(g.get("decoupled_weight_decay", False)))),
    (torch.optim.SGD, _as("SGD", "lr", "momentum", "dampening", "weight_decay", "nesterov")),
    (torch.optim.Adagrad, _adagrad),
]
# What a ds_config may name of torch.optim's, beside those that the engine knows by name.
TORCHS_OWN = ["Adadelta", "Adafactor", "Adamax", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop"]
_OFF = {"amsgrad": False, "maximize": False, "initial_accumulator_value": 0, "differentiable": False}


def section_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The section `optimizer` of a ds_config that says the same. NotBuilt names what the engine has no kernel for."""
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
    """The section `optimizer` for the engine, and what updates instead of its kernels where it has none for this one."""
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
        kind = "AdamW" if "betas" in first else "SGD"  # for the engine's schedules, which move these
        return {"type": kind, "params": {"lr": float(first["lr"])}}, OutsideOptimizer(optimizer, stage)


_OF_A_GROUP = ("lr", "betas", "weight_decay")  # what a step may have other values of for each group


def check_groups(groups: list[dict[str, Any]]) -> None:
    """NotBuilt names what groups differ in, other than their rate, betas and weight decay."""
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
    """What initialize() returns as the optimizer: groups to read and change, an update that engine.step() makes."""

    def __init__(self, inner: torch.optim.Optimizer, outside: OutsideOptimizer | None) -> None:
        self.optimizer = inner  # the script's own, or of the class that the ds_config means, whose groups these are
        self.outside = outside  # that updates, where the engine does not
        self.overflow = False
        self.scale_now: Callable[[], float] = lambda: 1.0
        super().__init__(inner.param_groups, dict(inner.defaults))  # the same dictionaries, so what one changes the other reads
        self._began = [_rates(group) for group in self.param_groups]
        self.numbers = native.rate_groups(self._began, self._began)[0]  # by group: whose rates it shares

    @property
    def loss_scale(self) -> float:
        """What the next loss is multiplied with."""
        return self.scale_now()

    cur_scale = loss_scale

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise StepOrderError("optimizer.step(): only the engine can step; call engine.step()")

    def state_dict(self) -> dict[str, Any]:
        """The groups' values: the state is in the engine's checkpoints (engine.save_checkpoint)."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        own = {"name": self.outside.name, "rest": self.outside.rest} if self.outside else None
        return {"param_groups": groups} | ({"outside": own} if own else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({k: v for k, v in loaded.items() if k != "params"})

    def updated(self, overflow: bool) -> None:
        """After a step of the engine's; schedulers of torch's ask whether there was one."""
        self.overflow = overflow
        for optimizer in (self, self.optimizer):
            optimizer._opt_called = True  # type: ignore[attr-defined]
        if self.outside and not overflow:
            self.outside.updated()

    def rates(self) -> list[native.Rates]:
        """What the groups say now."""
        if self.outside:
            return [native.Rates(float(self.param_groups[0]["lr"]))] * len(set(self.numbers))
        check_groups(self.param_groups)
        return native.rate_groups(self._began, [_rates(group) for group in self.param_groups])[1]


class Declared:
    """What of a module is trained, how, and as which units: a script's own optimizer and schedule go before those of the ds_config."""

    def __init__(
        self, config: Configuration, module: Any, job: native.Job | None, optimizer: Any = None, parameters: Any = None, rates: Any = None
    ) -> None:
        """job: what reads the configuration, where there is one; rates: a schedule of the script."""
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
        # Whether a step takes its rates from the groups, not from the engine's schedule alone.
        own = self.outside is not None or "scheduler" not in self.config.given
        self.brings_rates = self.optimizer is not None and (own or len(set(self.optimizer.numbers)) > 1)

    def of_engine(self) -> tuple[str, str, str, list[dict[str, Any]]]:
        """What an engine is made of, and its plan (cleave_engine_make)."""
        return self.config.text, self.config.name, type(self.module).__name__, self.units.declared()

    def options(self) -> dict[str, Any]:
        """Of an engine and of its plan, beside what is of this rank."""
        given = {"rates_given": self.brings_rates, "scales_loss": self.autocast == "fp16", "inference": self.optimizer is None}
        return {"seed": 42, "model_config": self.config.computed(self.module), **given}


def _of_config(config: Configuration, parameters: list[Any]) -> torch.optim.Optimizer:
    """An optimizer of the class that DeepSpeed makes for the section, with the values that the engine reads there."""
    section = config.given["optimizer"]
    name, given = str(section.get("type")).lower(), dict(section.get("params") or {})
    if given.get("torch_adam") and (name == "adamw" or given.get("adam_w_mode", True)):
        given.setdefault("weight_decay", 0.01)  # as torch's AdamW has it
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
