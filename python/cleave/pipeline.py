"""The engine of a PipelineModule. It executes the instruction list of the native engine for this rank (pipeline/schedule.h)."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from .configuration import Configuration
from .engine import DeepSpeedEngine
from .errors import NotBuilt, StepOrderError, UsageError
from .layers import PipelineModule
from .utils import groups
from .utils.loading import RepeatingLoader, move_to_device


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _trained(value: Any) -> list[torch.Tensor]:
    """Returns the tensors that receive a gradient from the other stage."""
    return [t for t in _as_tuple(value) if t.requires_grad and t.is_floating_point()]


def _changeable(value: Any) -> Any:
    """Returns received activations as tensors that the first layer may change in place."""
    several = tuple(t.clone() if t.requires_grad else t for t in _as_tuple(value))
    return several if isinstance(value, tuple) else several[0]


class _Walk:
    """One step or evaluation: each instruction calls the method of its name with (micro-batch, chunk)."""

    def __init__(self, engine: "PipelineEngine", micros: int, data: Any, loss_fn: Any, trains: bool) -> None:
        self.engine, self.native, self.data, self.loss_fn, self.trains = engine, engine._native, data, loss_fn, trains
        self.inputs, self.outputs, self.gradients = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()  # by micro-batch and chunk
        self.values, self.logits = list[Any](), None  # results of an evaluation, on the last stage
        engine.module.train(trains)
        steps = json.loads(self.native.asked("begin_walk", trains, micros, engine.module.dynamic_shape))
        last = max(n for n, (op, *_) in enumerate(steps) if op == ("backward" if trains else "forward"))
        for n, (op, micro, chunk) in enumerate(steps):
            engine._boundary, engine._residency.part = n == last, chunk
            getattr(self, op)((micro, chunk))
        engine._boundary = None

    def forward(self, at: tuple[int, int]) -> None:
        engine, chunk = self.engine, at[1]
        first = engine.is_first_stage() and chunk == 0
        last = engine.is_last_stage() and chunk == engine.module.virtual_stages - 1
        given, labels = engine.next_batch(self.data) if first or last else (None, None)
        with torch.set_grad_enabled(self.trains):
            output = DeepSpeedEngine.forward(engine, given if first else _changeable(self.inputs[at]), chunk)
            self.outputs[at] = self.loss_fn(output, labels) if last and self.loss_fn else output
        if not self.trains:
            self.inputs.pop(at, None)
        if last and not self.trains:
            self.values.append(self.outputs.pop(at))
            self.logits = output

    def backward(self, at: tuple[int, int]) -> None:
        outputs, seeds = self.outputs.pop(at), self.gradients.pop(at, None)
        if seeds is None:
            DeepSpeedEngine.backward(self.engine, outputs)
            return
        run = (lambda: torch.autograd.backward(_trained(outputs), seeds)) if seeds else lambda: None
        self.engine._run_backward(run, bool(self.engine._boundary))

    def send_activation(self, at: tuple[int, int]) -> None:
        outputs = self.outputs[at] if self.trains else self.outputs.pop(at)
        if not all(isinstance(t, torch.Tensor) for t in _as_tuple(outputs)):
            raise UsageError(
                f"stage {self.engine.stage_id}: wrong output (got {type(outputs).__name__}, expected a tensor or a tuple of tensors)"
            )
        shapes = [(str(t.dtype).partition(".")[2], list(t.shape), t.requires_grad) for t in _as_tuple(outputs)]
        self.native.send_shape(at[1], json.dumps([isinstance(outputs, tuple), shapes]))
        self._send(0, _as_tuple(outputs))

    def recv_activation(self, at: tuple[int, int]) -> None:
        several, shapes = json.loads(self.native.asked("receive_shape", at[1]))
        tensors = self._received(0, [(getattr(torch, dtype), shape) for dtype, shape, _ in shapes])
        for tensor, (_, _, trains) in zip(tensors, shapes, strict=True):
            tensor.requires_grad_(trains and self.trains)
        self.inputs[at] = tuple(tensors) if several else tensors[0]

    def send_gradient(self, at: tuple[int, int]) -> None:
        if inputs := _trained(self.inputs.pop(at)):
            self._send(1, [torch.zeros_like(t) if t.grad is None else t.grad for t in inputs])

    def recv_gradient(self, at: tuple[int, int]) -> None:
        wanted = [(t.dtype, t.shape) for t in _trained(self.outputs[at])]
        self.gradients[at] = self._received(1, wanted) if wanted else []

    def _send(self, link: int, tensors: Any) -> None:
        """Sends all tensors in one message; each starts at a multiple of 16 bytes."""
        flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors]
        whole = torch.cat([F.pad(f, (0, -f.numel() % 16)) for f in flat])
        self.native.send(link, whole.data_ptr(), whole.numel())

    def _received(self, link: int, wanted: list[tuple[torch.dtype, Any]]) -> list[torch.Tensor]:
        sizes = [torch.Size(shape).numel() * dtype.itemsize for dtype, shape in wanted]
        whole = torch.empty(sum(size + -size % 16 for size in sizes), dtype=torch.uint8, device=self.engine.device)
        self.native.receive(link, whole.data_ptr(), whole.numel())
        parts = zip(whole.split([size + -size % 16 for size in sizes]), sizes, wanted, strict=True)
        return [part[:size].view(dtype).view(*shape).clone() for part, size, (dtype, shape) in parts]


class PipelineEngine(DeepSpeedEngine):
    """The engine of a rank's stage of a PipelineModule.

    `train_batch` and `eval_batch` replace forward, backward and step. They read `gradient_accumulation_steps` micro-batches of
    (inputs, labels) from an iterator or from the loader of `initialize`.
    """

    module: PipelineModule
    _why_fixed = "in a pipeline"
    _recovers = False

    def _why_hidden(self) -> str:
        return "train_batch ends with the update of a pipeline"

    def __init__(self, config: Configuration, model: PipelineModule, *others: Any) -> None:
        super().__init__(model.configured(config), model, *others)
        self.num_stages, self.stage_id = model.num_stages, model.stage_id
        given = config.section("pipeline").get("activation_checkpoint_interval")
        model.activation_checkpoint_interval = given or model.activation_checkpoint_interval
        self.batch_fn = None
        self.grid = self.mpu = groups.mpu = model.grid

    micro_batches = property(DeepSpeedEngine.gradient_accumulation_steps)

    def is_first_stage(self) -> bool:
        """Returns True on the ranks of the first stage."""
        return self.stage_id == 0

    def is_last_stage(self) -> bool:
        """Returns True on the ranks of the last stage."""
        return self.stage_id == self.num_stages - 1

    def sampler_of(self, data: Any) -> Sampler[int] | None:
        """Returns a sampler in the order of the data, as in DeepSpeed's pipelines."""
        if isinstance(data, IterableDataset):
            return None
        return DistributedSampler(data, num_replicas=self.dp_world_size, rank=self._data_rank, shuffle=False)

    def set_dataloader(self, loader: Any) -> None:
        """Sets the loader that later batches come from, and starts it from the beginning."""
        self.training_dataloader, self.data_iterator = loader, None

    def set_dataiterator(self, iterator: Any) -> None:
        """Sets the iterator that later batches come from."""
        self.data_iterator = iterator

    def set_batch_fn(self, fn: Any) -> None:
        """Sets a function that converts a batch of the loader into (inputs, labels)."""
        self.batch_fn = fn  # called with each batch

    def next_batch(self, data: Any) -> Any:
        """Returns the next (inputs, labels) of an iterator or of the engine's loader, on the engine's device."""
        if data is None and self.data_iterator is None and self.training_dataloader is not None:
            self.data_iterator = iter(RepeatingLoader(self.training_dataloader))
        found = next(data or self.data_iterator or iter(()), None)
        found = self.batch_fn(found) if self.batch_fn and found is not None else found
        if not isinstance(found, tuple | list) or len(found) != 2:
            got = "no more batches" if found is None else type(found).__name__
            raise UsageError(
                f"data: wrong batch (got {got}, expected (inputs, labels), {self.micro_batches} per step); wrap it in utils.RepeatingLoader"
            )
        return move_to_device(found, self.device)

    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise StepOrderError(
            "pipeline: separate forward, backward and step are not supported; call engine.train_batch(data_iter) or eval_batch(data_iter)"
        )

    forward = backward = step = _refused

    def _walk(self, micros: int, data: Any, loss_fn: Any, trains: bool) -> Any:
        """Computes the passes of a step or an evaluation. Returns `values` and `logits` of an evaluation."""
        return _Walk(self, micros, data, loss_fn, trains)

    def train_batch(self, data_iter: Any = None) -> torch.Tensor:
        """Trains one step and returns the mean loss of its micro-batches over all ranks. Collective.

        Args:
            data_iter: iterator of (inputs, labels), one per micro-batch (default: the engine's loader).

        Raises:
            UsageError: the data ended, or are not pairs.
        """
        self._require_training("train_batch")
        self._follow_growth()
        self._residency.require_types()
        self._begin_step()
        self._walk(self.micro_batches, data_iter, self.module.loss_fn, trains=True)
        self._update({})
        self.micro_steps += self.micro_batches
        self._end_of_step()
        return torch.tensor(self.last_result.loss, device=self.device)

    def eval_batch(
        self,
        data_iter: Any = None,
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Computes the forward passes of a batch. Collective.

        Args:
            data_iter: as in `train_batch`.
            return_logits: also return the last output, on the last stage (None on the others).
            compute_loss: False returns outputs instead of the loss.
            reduce_output: "avg" averages over micro-batches, "sum" adds; None returns the list of values, on the last stage only.
            bcast_loss: return the loss on all stages, not on the last one only.
            num_micro_batches: number of micro-batches (default: `gradient_accumulation_steps`).

        Returns:
            The loss, averaged over the data-parallel ranks. Without `loss_fn`, outputs of one element are losses; other outputs are
                returned on the last stage only, tuples as a list.
        """
        loss_fn, micros = self.module.loss_fn if compute_loss else None, num_micro_batches or self.micro_batches
        walk = self._walk(micros, data_iter, loss_fn, trains=False)
        value: Any = walk.values or None
        if reduce_output is not None and value and isinstance(value[0], torch.Tensor):
            value = sum(value) / (micros if reduce_output == "avg" else 1)
        if reduce_output is not None and compute_loss:
            is_loss = isinstance(value, torch.Tensor) and value.numel() == 1
            outputs, mean = self._job.sum([float(value is not None and not is_loss), float(value) / self.dp_world_size if is_loss else 0.0])
            if not outputs:
                value = torch.tensor(mean, device=self.device) if bcast_loss or self.is_last_stage() else None
        return (value, walk.logits) if return_logits else value

    def _beside(self, client_state: Any) -> Any:
        kept = super()._beside(client_state)
        every: list[Any] = [None] * self.world_size
        dist.all_gather_object(every, kept)
        for other in every:
            for key in ("buffers", "shared", "shapes"):
                getattr(kept, key).update(getattr(other, key))
            kept.frozen = list(dict.fromkeys(kept.frozen + other.frozen))
        return kept

    def _by_name(self, *args: Any, **kwargs: Any) -> Any:
        raise NotBuilt(
            "PipelineModule: not supported, because ranks have different parameters; call engine.parameters_of(NAME) on all "
            "ranks, or save_checkpoint"
        )

    name_of = _take_over = _zero3_consolidated_16bit_state_dict = _consolidated_16bit_state_dict = _by_name
