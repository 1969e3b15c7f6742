"""Sizes of batches: how many micro-batches a step has, and which one is its last."""

from .errors import StepOrderError, UsageError
from .trained import TrainedModule


class BatchedModule(TrainedModule):
    """An engine with batch sizes."""

    micro_steps: int
    _micro_batch: int
    _micro_batches: int
    _boundary: bool | None
    _managed: bool
    _in_step: bool

    def _require_no_step(self, what: str) -> None:
        if self._in_step:
            raise StepOrderError(f"{what}: called inside a step; call it after the engine.step() that updates")

    def train_batch_size(self) -> int:
        """Returns the global batch size: samples per step over all ranks."""
        return self._micro_batch * self._micro_batches * self.dp_world_size

    def train_micro_batch_size_per_gpu(self) -> int:
        """Returns the micro-batch size: samples per rank in one forward."""
        return self._micro_batch

    def gradient_accumulation_steps(self) -> int:
        """Returns the number of micro-batches per step."""
        return self._micro_batches

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the global batch size from the next step on, by the number of micro-batches.

        Raises:
            UsageError: not a multiple of the micro-batch size times the data-parallel size.
            StepOrderError: called inside a step.
        """
        each = self._micro_batch * self.dp_world_size
        if train_batch_size < 1 or train_batch_size % each:
            raise UsageError(
                f"set_train_batch_size: not divisible (got {train_batch_size}, expected a multiple of {each}, the "
                "micro-batches of all ranks)"
            )
        self._require_no_step("set_train_batch_size")
        self._micro_batches = train_batch_size // each
        self.micro_steps = 0

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Changes the micro-batch size from the next step on. The number of micro-batches stays, so the global batch size changes also.

        Raises:
            StepOrderError: called inside a step.
        """
        if micro_batch_size < 1:
            raise UsageError(f"set_train_micro_batch_size: too small (got {micro_batch_size}, expected at least 1)")
        self._require_no_step("set_train_micro_batch_size")
        self._micro_batch = micro_batch_size

    def is_gradient_accumulation_boundary(self) -> bool:
        """Returns True if the next `step` updates, and the current backward is the last of its step."""
        counted = self._managed and (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0
        return counted if self._boundary is None else self._boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Makes the current micro-batch the last of its step, or not, instead of counting to `gradient_accumulation_steps`.

        Raises:
            UsageError: the ds_config sets `managed_gradient_accumulation: false`.
        """
        if not self._managed:
            raise UsageError(
                "set_gradient_accumulation_boundary: conflicts with managed_gradient_accumulation: false, where each step() is a boundary"
            )
        self._boundary = is_boundary

    def managed_gradient_accumulation(self) -> bool:
        """Returns False if the ds_config sets `managed_gradient_accumulation: false`, so that each `step` updates."""
        return self._managed
