"""A module's training as a script declares it: trained parameters, optimizer, and the ds_config with both."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from . import native
from .configuration import Configuration
from .errors import NotBuilt, UsageError
from .layers import PipelineModule
from .optimizers import (
    TORCHS_OWN,
    DeepSpeedCPUAdagrad,
    EngineOptimizer,
    FusedAdam,
    FusedLion,
    check_groups,
    engine_optimizer,
    first_rates,
    section_and_outside,
)
from .outside import OutsideOptimizer
from .partition import Partition
from .schedules import differs, kind_of
from .tensor_specs import KEY
from .units import ModuleUnits, has_bits

_GIVES = 4  # most gradients of a unit per micro-batch with exact sums: a script may call several backwards


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
        config = _in_types_of(module, config, job)
        self.autocast = config.autocast()
        self.outside: OutsideOptimizer | None = None
        parameters = list(parameters) if parameters is not None else [p for p in module.parameters() if p.requires_grad]
        given = _given(config, optimizer, parameters)
        if given is not None:
            section, self.outside = section_and_outside(given, config)
            config = config.with_sections(optimizer=section)
        scheduler = config.section("scheduler") if rates is None and not config.native() else {}
        groups = parameters if given is None else given.param_groups
        scheduler = scheduler if differs(scheduler, groups, given is not None) else {}
        ours = ["torch_autocast"] + ["scheduler"] * (rates is not None or bool(scheduler))
        if not config.native() and not isinstance(module, PipelineModule):
            ours.append("managed_gradient_accumulation")
        self.config: Configuration = config.with_sections(**dict.fromkeys(ours))
        if job is not None:
            self.config.read(job)
        self.partition = self._partition(0 if job is None else int(job.facts()["rank"]))
        if given is None and config.given.get("optimizer") is not None:
            given = _of_config(self.config, parameters)
            check_groups(given.param_groups)
        self.optimizer: EngineOptimizer | None = None
        self.schedule = None
        if given is not None:
            began = [first_rates(group) for group in given.param_groups]
            self.schedule = self._schedule(given, rates, scheduler)
            if of_groups := getattr(self.schedule, "of_groups", None):
                for first, its in zip(began, of_groups, strict=True):
                    first.lr = of_groups.index(its)
            self.optimizer = engine_optimizer(given, self.outside, began)
        self._first_groups = len(self.optimizer.param_groups) if self.optimizer else 0
        self.declare()

    def declare(self, also: Iterable[torch.nn.Parameter] = ()) -> None:
        """Builds the units of the parameters that the optimizer trains now. also: those of its groups that are frozen at the moment."""
        numbers = dict(self.optimizer.trained()) if self.optimizer else {}
        for p in also:
            numbers.setdefault(p, next((n, bool(g.get("weight_decay"))) for n, g in self._groups() if any(p is q for q in g["params"])))
        decays = {id(p) for p, (_, decay) in numbers.items() if decay}
        trains = {id(p): number for p, (number, _) in numbers.items()}
        self.units = ModuleUnits(self.module, trains, decays, numbers, self.partition.cuts if self.partition else None)
        if self.units.outside and isinstance(self.module, PipelineModule):
            raise UsageError("optimizer: a parameter belongs to no layer of the PipelineModule; make it a parameter of a layer")
        if (bits := self.units.with_bits()) and self.config.native():
            name = next(iter(bits))
            raise NotBuilt(f"{name}: not a floating-point parameter, which cleave.native does not support; remove cleave.native")
        # True if a step takes its rates from the groups in addition to the engine's schedule.
        grown = self.optimizer is not None and len(self.optimizer.param_groups) > self._first_groups
        own = self.outside is not None or self.config.given.get("scheduler") is None or grown
        self.brings_rates = self.optimizer is not None and (own or len(set(self.optimizer.numbers)) > 1)

    def _partition(self, rank: int) -> Partition | None:
        """Returns the layers that tensor-parallel ranks share, None without tensor parallelism in torch."""
        if (ranks := self.config.tensor_ranks()) == 1 or self.config.native():
            return None
        if isinstance(self.module, PipelineModule):
            raise NotBuilt(f"{KEY}: not supported for a PipelineModule (got {ranks}, expected 1); remove it")
        if self.outside is not None and not self.outside.by_element:
            raise NotBuilt(
                f"{self.outside.name}: updates whole parameters, but a tensor-parallel rank has parts of them; use another optimizer"
            )
        return Partition(self.module, self.config.section("tensor_parallel"), ranks, rank % ranks)

    def _groups(self) -> Iterable[tuple[int, dict[str, Any]]]:
        return zip(self.optimizer.numbers, self.optimizer.param_groups, strict=True) if self.optimizer else ()

    def _schedule(self, optimizer: torch.optim.Optimizer, given: Any, section: Mapping[str, Any]) -> Any:
        """Returns the script's schedule, or that of a ds_config with a rate per group. None: the engine has it, or there is none."""
        if section:
            return kind_of(section)(optimizer, **(section.get("params") or {}))
        return given(optimizer) if callable(given) and not hasattr(given, "step") else given

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


def _in_types_of(module: torch.nn.Module, config: Configuration, job: native.Job | None) -> Configuration:
    """Returns a configuration that trains a module with 16-bit parameters in their type if no section selects one.

    Raises:
        NotBuilt: a parameter is fp64.
    """
    types = {p.dtype: name for name, p in module.named_parameters() if not has_bits(p)}
    if torch.float64 in types:
        raise NotBuilt(f"{types[torch.float64]}: float64 is not supported; call model.float() before initialize()")
    half = [(name, dtype) for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)) if dtype in types]
    if not half or config.precision() != "fp32" or config.autocast():
        return config
    if len(types) == 1:
        said = f'note: {half[0][0]}: all parameters have this type, so the model is trained in it with fp32 masters; set "{half[0][0]}": '
        said, config = said + '{"enabled": true}', config.with_sections(**{half[0][0]: {**config.section(half[0][0]), "enabled": True}})
    else:
        said = (
            f"warning: {types[half[0][1]]}: is {half[0][0]}, others are not, so all are trained as fp32; set bf16 or fp16 to choose a type"
        )
    if job is not None and job.facts()["rank"] == 0:
        native.warn(said) if said.startswith("warning: ") else print(said, flush=True)
    return config


def _of_config(config: Configuration, parameters: list[Any]) -> torch.optim.Optimizer:
    """Returns an optimizer of the class that DeepSpeed creates for the section, with the engine's effective values."""
    section = config.section("optimizer")
    name, params = str(section.get("type")).lower(), section.get("params")
    given = dict(params) if isinstance(params, Mapping) else {}  # the engine reports wrong types
    if given.get("torch_adam") and (name == "adamw" or given.get("adam_w_mode", True)):
        given.setdefault("weight_decay", 0.01)  # default of torch.optim.AdamW
    kind: Any = {"sgd": torch.optim.SGD, "adagrad": DeepSpeedCPUAdagrad, "lion": FusedLion}.get(name, FusedAdam)
    values = {key: config.values.get(f"optimizer.params.{key}", given.get(key, "auto")) for key in inspect.signature(kind).parameters}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if value not in (None, "auto")}
    try:
        return kind(parameters, **values)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer.params: not accepted by {kind.__name__}: {error}; correct the values") from None


def _given(config: Configuration, optimizer: Any, parameters: list[Any]) -> torch.optim.Optimizer | None:
    section = config.section("optimizer")
    if optimizer is None and section.get("type") in TORCHS_OWN:
        try:
            return getattr(torch.optim, section["type"])(parameters, **(section.get("params") or {}))  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            raise NotBuilt(f"optimizer.params: not accepted by torch.optim.{section['type']}: {error}") from None
    if isinstance(optimizer, EngineOptimizer):  # of an earlier engine of these parameters
        return optimizer.optimizer
    made = optimizer(parameters) if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer) else optimizer
    if made is None or isinstance(made, torch.optim.Optimizer):
        return made
    raise UsageError(
        f"optimizer: wrong type (got {type(optimizer).__name__}, expected a torch.optim.Optimizer or a callable that returns one)"
    )
