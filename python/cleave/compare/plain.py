"""The reference engine: a whole replica of the module on each rank in plain torch, without the native library.

Gradients are summed over micro-batches and ranks in double precision, by torch.distributed. The follower evaluates the update and sets the
weights of the next step, so this engine only counts, sums and advances the schedule.
"""

import contextlib
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import api
from .. import job as jobs
from ..configuration import Configuration, chosen
from ..declared import _in_types_of
from ..errors import NotBuilt
from ..outputs import tensors_in
from ..units import OUTSIDE
from ..views import TORCH_TYPES
from .optimizers import optimizer_of
from .plain_gradients import PlainGradients
from .schedules import PlainSchedule

SIGNATURE = inspect.signature(api.initialize)


def _number(config: Configuration, key: str) -> int | None:
    value = config.given.get(key)
    return int(value) if isinstance(value, int | float) else None


def _micro_batches(config: Configuration, world: int) -> tuple[int, int]:
    """Returns the size and the number of the micro-batches of a step."""
    total, micro, count = (
        _number(config, key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if micro is None:
        micro = max(1, (total or world) // (count or 1) // world)
    return micro, count or (max(1, total // (micro * world)) if total else 1)


class _Given(dict[str, Any]):
    """Effective values of a ds_config: those it has, else defaults."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        defaults = {"zero_optimization.stage": 0, "gradient_clipping": 1.0, "fp16.enabled": False, "bf16.enabled": False}
        super().__init__(defaults)
        for key, value in given.items():
            self.update({f"{key}.{below}": v for below, v in value.items()} if isinstance(value, Mapping) else {key: value})

    def __missing__(self, key: str) -> Any:
        return None


class PlainEngine(PlainGradients):
    """The engine of the reference run."""

    def __init__(self, config: Configuration, model: torch.nn.Module, optimizer: Any, model_parameters: Any, lr_scheduler: Any) -> None:
        torch.nn.Module.__init__(self)
        self._job, facts = jobs.current(), jobs.current().facts()
        self.global_rank, self.local_rank = facts["rank"], facts["local_rank"]
        self.world_size, self.mp_world_size, self.device = facts["world"], 1, torch.device(facts["device"])
        self.dp_world_size, self._data_rank = self._replicas(model)
        self.module, self._configuration = model, _in_types_of(model, config, None)
        self._configuration.values = _Given(self._configuration.given)
        self._precision, self._dtype = self._configuration.precision(), TORCH_TYPES[self._configuration.precision()]
        self._micro_batch, self._micro_batches = _micro_batches(config, self.dp_world_size)
        self._managed = config.given.get("managed_gradient_accumulation") is not False
        self.global_steps = self.global_samples = self.skipped_steps = self.micro_steps = 0
        self._boundary, self._unsynced, self._in_step, self._applied, self._norm = None, False, False, False, None
        listed = [p for p in model.parameters() if p.requires_grad] if model_parameters is None else list(model_parameters)
        self.optimizer: Any = optimizer_of(self._configuration.section("optimizer"), optimizer, listed)
        self._take_values()
        self._loaders, self._positions = {}, {}
        self.client_optimizer, self.client_lr_scheduler = optimizer, lr_scheduler
        self.monitor = types.SimpleNamespace(enabled=False, write_events=lambda *_, **__: None)  # type: ignore[assignment]
        section = self._configuration.section("scheduler")
        if lr_scheduler is None and section.get("type") and self.optimizer is not None:
            self.lr_scheduler: Any = PlainSchedule(self.optimizer, section["type"], section.get("params") or {})
        else:
            self.lr_scheduler = (
                lr_scheduler(self.optimizer) if callable(lr_scheduler) and not hasattr(lr_scheduler, "step") else lr_scheduler
            )
        dtype = self._configuration.autocast()
        self._autocast = torch.autocast(self.device.type, TORCH_TYPES[dtype]) if dtype else contextlib.nullcontext()
        self.scale_now = 1.0  # loss scale of the step
        self.outcome: tuple[float, bool] = (0.0, False)  # norm of the step, and whether it is skipped
        self._factor = 1.0
        self._before, self._after = self._averaging()
        self._begin_sums()
        self._watch_trained()

    def _take_values(self) -> None:
        """Gives parameters and buffers the values of the first rank and the types of training."""
        dtype = TORCH_TYPES.get(str((self.config.get("data_types") or {}).get("buffer_dtype")))
        outside = [p for group in (self.optimizer.param_groups if self.optimizer else ()) for p in group["params"]]
        self.names: dict[str, torch.nn.Parameter] = {n: p for n, p in self.module.named_parameters() if p.numel()}
        known = {id(p) for p in self.names.values()}
        others = [p for p in outside if id(p) not in known and p.numel()]
        self.names.update({f"{OUTSIDE}.{i}": p for i, p in enumerate(others)})
        for p in self.names.values():
            p.data = p.data.to(self.device, self._dtype if p.is_floating_point() else None)
        for name, p in self.names.items():
            self._from_first(p.data, self._root_of(name))
            p.ds_engine = self  # type: ignore[attr-defined]
        for path, submodule in self.module.named_modules():
            for name, buffer in submodule.named_buffers(recurse=False):
                submodule._buffers[name] = buffer.to(self.device, dtype if buffer.is_floating_point() else None)
                self._from_first(submodule._buffers[name], self._root_of(path))
        self._name_of = {id(p): name for name, p in self.names.items()}

    def _replicas(self, module: torch.nn.Module) -> tuple[int, int]:
        """Returns the number of data-parallel ranks and the place of this one."""
        return self.world_size, self.global_rank

    def _root_of(self, name: str) -> int:
        """Returns the rank whose first value of a parameter or of a module's buffers all ranks take."""
        return 0

    def _averaging(self) -> tuple[float, float]:
        """Returns the divisor of each loss except the number of micro-batches, and the factor of the sums."""
        given = self.config
        if given.get("gradient_allreduce_op") == "sum":
            return 1.0, 1.0
        predivide = float(given.get("gradient_predivide_factor", 1.0))
        if given.get("prescale_gradients") or predivide == 1:
            return float(self.dp_world_size), 1.0
        return predivide, predivide / self.dp_world_size

    def _from_first(self, tensor: Any, root: int = 0) -> None:
        if self.world_size > 1 and tensor.numel():
            held = tensor.detach().to("cpu", copy=True).contiguous()
            jobs.broadcast(held, root)
            tensor.data.copy_(held)

    # ---- a step ----

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._watch_trained()
        self._factor = self.scale_now / (self._micro_batches * self._before)  # for backwards that the script calls
        with self._autocast:
            output = self.module(*inputs, **kwargs)
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._ends_pass)
        return output

    def _ends_pass(self, _: torch.Tensor) -> None:
        """Called when a backward reaches an output. All ranks show gradients at its end, also one without a gradient."""
        if not self._asked and not self._queued and torch.autograd._is_checkpoint_valid():  # False inside torch.autograd.grad
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        self._require_loss("backward", loss)
        times = 1 if scale_wrt_gas else self._micro_batches
        seed = torch.full_like(loss, self.scale_now * times / (self._micro_batches * self._before))
        before, self._factor, self._asked = self._factor, 1.0, True
        torch.autograd.backward(loss, seed, retain_graph=retain_graph)
        self._factor, self._asked = before, False
        self._end_of_backward()
        return loss.detach() / self._micro_batches if scale_wrt_gas else loss.detach()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        self._factor = 1.0 / (self._micro_batches * self._before)
        return loss.float() * self.scale_now

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        self._applied = False
        updates = not self._managed or self.is_gradient_accumulation_boundary()
        self.micro_steps += 1
        if not updates:
            return
        self._norm, skipped = self.outcome
        self._applied = not skipped
        self.optimizer.overflow = skipped
        self.global_steps += 1
        self.skipped_steps += skipped
        self.global_samples += self.train_batch_size()
        self._sums.clear()
        self._set.clear()
        for name in self._visible:
            self.names[name].grad = None
        self._visible.clear()
        self.optimizer._opt_called = True  # torch's schedules ask if there was an update
        if self.lr_scheduler is not None and not skipped:
            self.lr_scheduler.step(**(lr_kwargs or {}))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes gradients of parameters that the optimizer does not have."""
        for p in self.names.values():
            p.grad = None

    # ---- parameters ----

    def name_of(self, parameter: torch.nn.Parameter) -> str:
        return self._name_of[id(parameter)]

    def cut_of(self, parameter: torch.nn.Parameter) -> None:
        return None

    def whole_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((name, p.detach()) for name, p in self.module.named_parameters(remove_duplicate=False) if p.numel())

    def parameters_of(self, name: str, kind: str = "master") -> torch.Tensor:
        if kind != "master":
            raise NotBuilt(f"{kind}: not available in the reference run of a comparison; leave it out while comparing")
        return self.names[name].detach().to("cpu", torch.float32, copy=True)

    def set_parameter(self, name: str, value: torch.Tensor, kind: str = "master") -> None:
        if kind == "gradient":
            self._set[name] = value.detach().to("cpu", torch.float64, copy=True)
            return
        if kind != "master":
            raise NotBuilt(f"{kind}: not available in the reference run of a comparison; leave it out while comparing")
        with torch.no_grad():
            self.names[name].copy_(value)

    @contextlib.contextmanager
    def gathered(self, parameters: list[torch.nn.Parameter], modifier_rank: int | None) -> Iterator[None]:
        yield
        if modifier_rank is not None:
            for p in parameters:
                self._from_first(p, modifier_rank)

    def load_module_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True, *others: Any, **more: Any) -> None:
        held = checkpoint["module"] if isinstance(checkpoint.get("module"), Mapping) else checkpoint
        self.module.load_state_dict(held, strict=strict)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> Any:
        return self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters) if self.global_rank == 0 else None

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    def destroy(self) -> None:
        """Has no effect."""


def initialize(kind: type[PlainEngine], *args: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
    """Returns a reference engine for the arguments of `cleave.initialize`."""
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    config = chosen(given["args"], given["config"], given["config_params"])
    if config.native():
        raise NotBuilt("cleave.native: the reference is not supported, because the engine computes the model; remove the key to compare")
    jobs.init_torch()
    engine = kind(config, given["model"], given["optimizer"], given["model_parameters"], given["lr_scheduler"])
    if (data := given["training_data"]) is not None:
        engine.training_dataloader = engine.deepspeed_io(data, data_sampler=engine.sampler_of(data), collate_fn=given["collate_fn"])
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler
