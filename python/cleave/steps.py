"""Training steps of a module in an engine: gradients, accumulation and updates."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import native
from .batches import BatchedModule
from .configuration import Configuration
from .errors import StepOrderError, TrainingError, UsageError, names_the_call
from .functions import is_of_level
from .outputs import tensors_in
from .partition import SameOnRanks
from .structure import Structure


class SteppedModule(BatchedModule):
    """An engine with training steps."""

    _asked = False  # inside backward() of any engine
    _scaled: float | None = None  # factor of scale() of any engine, until the backward of that loss
    _said_kept = False  # a zero_grad of any engine has printed that gradients stay
    _recovers = True  # training continues after a backward that failed
    _failure = "an exception of the script"
    _loss: torch.Tensor | None = None  # loss that scale() of this engine multiplied

    def __init__(
        self, config: Configuration, model: torch.nn.Module, optimizer: Any = None, model_parameters: Any = None, lr_scheduler: Any = None
    ) -> None:
        super().__init__(config, model, optimizer, model_parameters, lr_scheduler)
        self.global_steps = self.global_samples = self.skipped_steps = self.micro_steps = 0
        self._boundary: bool | None = None  # set by the script; None: counted
        self._recovers = self._recovers and not self._partition
        self._unsynced = False
        self._unsummed = False  # all backwards of the step ran inside no_sync
        self._losses: list[torch.Tensor] = []  # micro-batches of the current step
        self._in_step = self._has_gradients = self._applied = self._own = False
        self._norm: float | None = None
        self._micro_batch = int(self._value("train_micro_batch_size_per_gpu"))
        self._micro_batches = int(self._value("gradient_accumulation_steps"))
        self._managed = config.given.get("managed_gradient_accumulation") is not False  # False: each step() is a boundary
        self._structure = Structure(self.module)
        self._same: SameOnRanks | None = None
        if self._partition and self.optimizer is not None:
            self._same = SameOnRanks(self.mp_world_size, self.device)
            self._same.watch((slot.name, slot.parameter) for slot in self._units.slots() if slot.trains and slot.cut is None)

    def _require_loss(self, what: str, loss: Any) -> None:
        self._require_training(what)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = list(loss.shape) if isinstance(loss, torch.Tensor) else ""
            raise UsageError(
                f"{what}: wrong loss (got {type(loss).__name__}{shape}, expected one element); pass the mean of the micro-batch"
            )
        if not loss.requires_grad:
            raise UsageError(f"{what}: the loss has no gradient; compute it from trained parameters and without no_grad")

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context for backwards that do not sum gradients over ranks. The backward after the context sums all.

        Inside, `safe_get_full_grad` returns the gradient that this rank has accumulated. `zero_grad` discards the gradients of a step
        whose backwards all ran inside.

        Raises:
            UsageError: at ZeRO stages 2 and 3.
        """
        if (stage := self._value("zero_optimization.stage")) >= 2:
            raise UsageError(
                f"engine: no_sync context manager is incompatible with ZeRO stage {stage}, which sums gradients in each backward; leave "
                "it out"
            )
        before, self._unsynced = self._unsynced, True
        try:
            yield
        finally:
            self._unsynced = before

    # ---- a step ----

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module. Gradients that reach the outputs go to the engine. Collective at stage 3."""
        self._native.require_rank()
        self._leave_failed_backward()
        if torch.is_grad_enabled():
            self._follow_growth()
            self._residency.require_types()
            if self._same:
                self._same.check_batch(inputs, kwargs)
        try:
            with self._autocast, self.monitor.profiled(self), self.monitor.timed("fwd", torch.is_grad_enabled()):
                output = self._residency.forward(lambda: self.module(*inputs, **kwargs))
        except RuntimeError as error:
            if self._partition:
                self._partition.blocks.explain(error)
            raise
        if self._partition:
            self._partition.blocks.check(self)
        tensors = [t for t in tensors_in(output) if t.grad_fn is not None and not is_of_level(t)]
        loss = tensors[0].detach() if tensors and tensors[0].numel() == 1 else torch.tensor(float("nan"))
        for tensor in tensors:
            tensor.register_hook(functools.partial(self._reached, loss))
        return output

    def _reached(self, loss: torch.Tensor, _: torch.Tensor) -> None:
        """Called when a backward reaches an output. Begins a pass if the script called the backward itself."""
        if self._residency.in_backward:
            return
        factor, trains = 1.0, any(slot.trains and slot.parameter.requires_grad for slot in self._units.slots())
        if counts := trains and torch.autograd._is_checkpoint_valid():  # False only inside torch.autograd.grad
            scale = self._native.loss_scale()
            if SteppedModule._asked:
                raise StepOrderError(
                    f"engine.backward: reaches trained parameters of {type(self.module).__name__}, which belongs to another engine; call "
                    "loss.backward() for both engines, or module.requires_grad_(False) on the modules that this loss must not train"
                )
            if SteppedModule._scaled is None and scale != 1:
                raise StepOrderError(
                    f"loss: Loss scaling is required, by {scale}; call engine.backward(loss), or engine.scale(loss).backward()"
                )
            self._begin_step()
            factor = self._native.scale() / (SteppedModule._scaled or 1.0)
        elif not self._residency.any_gathers:
            return

        def end() -> None:
            SteppedModule._scaled = None
            try:
                if counts:
                    self.monitor.stop("bwd_inner")
                self._residency.end_backward()
                if counts:
                    self.monitor.stop("bwd")
            except TrainingError as error:
                if counts:
                    self._lose_step(error)
                raise
            if counts:
                self._has_gradients = self._own = True
                self._shown.gave(last)
                self._losses.append(loss if self._loss is None else self._loss)
                self._loss = None

        last = counts and self._is_last()
        if last:
            self._pause_frozen()
        if counts:
            self.monitor.start("bwd")
        self._residency.begin_backward(last, factor, counts, torch.is_grad_enabled())
        if counts:
            self.monitor.start("bwd_inner")
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def _is_last(self) -> bool:
        return self.is_gradient_accumulation_boundary() and not self._unsynced

    def _begin_step(self) -> None:
        if not self._in_step:
            self._residency.require_no_pass("a step")
            self._native.begin_step(self._micro_batches)
            self._in_step = self._unsummed = True
        self._unsummed = self._unsummed and self._unsynced

    @names_the_call
    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Computes the gradients of a loss. Collective.

        The engine averages gradients over micro-batches and ranks, and applies the loss scale.

        Args:
            loss: mean over this rank's micro-batch, one element.
            retain_graph: as in `torch.Tensor.backward`.
            scale_wrt_gas: False if the loss is already divided by `gradient_accumulation_steps`.

        Returns:
            The detached loss divided by `gradient_accumulation_steps`, or unchanged with scale_wrt_gas=False.

        Raises:
            UsageError: the loss has several elements or no gradient.
            TrainingError: the backward failed on another rank.

        If all ranks catch an exception in it, training continues without its gradients, unless an earlier backward of the same step had
        some.
        """
        self._require_loss("backward", loss)
        self._leave_failed_backward()
        self._begin_step()
        times = 1 if scale_wrt_gas else self.gradient_accumulation_steps()
        seed = torch.full_like(loss, self._native.scale() * times)
        SteppedModule._asked = True
        if last := self._is_last():
            self._pause_frozen()
        try:
            self._run_backward(lambda: torch.autograd.backward(loss, seed, retain_graph=retain_graph), last)
        except TrainingError as error:
            self._lose_step(error)
            raise
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            SteppedModule._asked = False
        self._has_gradients = True
        self._shown.gave(last)
        self._losses.append(loss.detach() * times)
        return loss.detach() / self.gradient_accumulation_steps() if scale_wrt_gas else loss.detach()

    def _run_backward(self, run: Callable[[], None], last: bool) -> None:
        def inner() -> None:
            with self.monitor.timed("bwd_inner"):
                run()

        with self.monitor.profiled(self), self.monitor.timed("bwd"):
            self._residency.backward(inner, last, self._recovers)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the loss scale, for a `backward` that the script calls itself."""
        self._require_loss("scale", loss)
        SteppedModule._scaled = scale = self._native.loss_scale()
        self._loss = loss.detach()
        return loss.float() * scale

    def gradient_of(self, name: str) -> torch.Tensor | None:
        """Returns a whole gradient of the step's loss in fp32 in host memory: averaged, unscaled and before clipping. Collective.

        None outside of a step, and for frozen parameters. Call it between the last backward of a step and `step`. Inside `no_sync`, the
        gradient that this rank has accumulated, not collective.
        """
        slot = next(s for s in self._units.slots() if s.name == name)
        if self._in_step and slot.trains and self._unsynced and not self._shown.is_complete():
            own = torch.empty(self._shapes[name], dtype=torch.float32)
            self._native.own_gradient(name, own.data_ptr())
            return own if self._losses else None
        return self.parameters_of(name, "gradient") if self._in_step and slot.trains else None

    def _leave_failed_backward(self) -> None:
        """Ends a backward that failed, and discards its gradients. Collective."""
        if self._residency.leave_failed(self._recovers):
            self._lose_step(self._failure)

    def _lose_step(self, error: Exception | str) -> None:
        """Discards the gradients of a step whose backward failed. The engine cannot continue if it was not the first one."""
        if self._losses:
            self._residency.break_use("a backward after others of its step", error)
        elif not self._residency.broken:
            self._discard()

    def _discard(self) -> None:
        """Discards the gradients of the step so far."""
        self._unsummed = True
        self._native.discard_gradients()
        self._shown.discarded()
        self._residency.arrived.clear()
        self._losses.clear()
        self._has_gradients = self._own = False

    @names_the_call
    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Updates the parameters on the last micro-batch of a step; otherwise only counts the micro-batch. Collective on updates.

        An update also advances the learning-rate schedule. A step with an fp16 overflow is skipped (`was_step_applied`).

        Args:
            lr_kwargs: arguments of the schedule's `step`.

        Raises:
            StepOrderError: no backward since the last step, or inside `no_sync`.
            TrainingError: non-finite gradients, or the loss scale is at its minimum.
        """
        self._require_training("step")
        self._leave_failed_backward()
        self._applied = False
        if self._unsynced:
            raise StepOrderError(
                "engine.step: It is illegal to call Engine.step() inside no_sync context manager, before gradients are summed; call it "
                "after the context and another backward"
            )
        if not self._has_gradients:
            raise StepOrderError("engine.step: no backward since the last step; call engine.backward(loss) first")
        updates = not self._managed or self.is_gradient_accumulation_boundary()
        if updates:
            self._update(lr_kwargs or {})
        self._has_gradients = self._own = False
        self.micro_steps += 1
        if updates:
            self._end_of_step()

    def _end_of_step(self) -> None:
        """Called after each update."""

    def _require_used(self, arrived: set[str]) -> None:
        slots = [slot for slot in self._units.slots() if slot.trains and slot.parameter.requires_grad]
        unused = [slot.name for slot in slots if slot.name not in arrived]
        if arrived and unused and self._configuration.values.get("zero_optimization.ignore_unused_parameters") is False:
            raise UsageError(f"{', '.join(unused)}: got no gradient; set zero_optimization.ignore_unused_parameters to true to allow this")
        arrived.clear()

    def _update(self, lr_kwargs: Mapping[str, Any]) -> None:
        assert self.optimizer is not None
        self._structure.require_known(self._units, self._grouped)
        self._residency.require_views()
        self._residency.require_followed()
        self._shown.end_step()
        if not self._shown.is_complete():  # no backward was the last one: the script ends the step by itself
            self._pause_frozen()
        self._require_used(self._residency.arrived)
        if self._same:
            self._same.check_gradients()
        rates = self.optimizer.rates() if self._brings_rates else []
        self._in_step = False
        losses = torch.stack([loss.float().reshape(()) for loss in self._losses]).tolist() if self._losses else []
        with self.monitor.timed("step"):
            result = self._native.finish_step(losses, rates)
        self._shown.ended()
        self._norm = float("inf") if result.skipped else result.grad_norm
        self.optimizer.updated(bool(result.skipped))
        self._applied = not result.skipped
        if self._applied and self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        self.global_steps, self.skipped_steps = result.step, result.skipped_total
        self.global_samples += self.train_batch_size() if self._managed else self._micro_batch * self.dp_world_size * len(losses)
        self._losses.clear()
        self.last_result = result
        self.monitor.step(result, self.global_samples)

    def was_step_applied(self) -> bool:
        """Returns True if the last `step` updated the parameters: a boundary, without overflow."""
        return self._applied

    def get_global_grad_norm(self) -> float | None:
        """Returns the gradient norm of the last update: averaged, unscaled and before clipping. Infinite if skipped, None before the
        first."""
        return self._norm

    def allreduce_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Has no effect: `backward` and `step` sum gradients."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes gradients that losses of other engines left, and those of parameters that the engine does not train.

        If all backwards of the step ran inside `no_sync`, also discards their gradients. Otherwise gradients of earlier backwards of the
        step stay, and the first call prints a warning.

        Raises:
            StepOrderError: after a backward that the script called itself; the engine cannot discard its gradients.
        """
        self._leave_failed_backward()
        if self._in_step and self._unsummed and self._losses:
            self._discard()
        if self._own:
            raise StepOrderError(
                "zero_grad: called between loss.backward() and engine.step(), which cannot discard gradients; call engine.step() first"
            )
        if self._in_step and self._losses and not SteppedModule._said_kept and self.global_rank == 0:
            SteppedModule._said_kept = True
            native.warn(
                "warning: zero_grad: called between a backward and the engine.step() that updates, so the gradients stay in the step; "
                "call it before the first backward of a step"
            )
        self._residency.forget_gradients()
