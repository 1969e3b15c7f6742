"""What the engine refuses, and why: one class for each exit code of the command line."""


class CleaveError(RuntimeError):
    """What the engine cannot do; the message says what was wanted, what was got, and what to do.

    `exit_code` is the one that the command line would end with.
    """

    exit_code = 1


class UsageError(CleaveError, ValueError, AssertionError):
    """A configuration or an argument that cannot be honoured; nothing was started. DeepSpeed has one or the other of its kinds."""

    exit_code = 2


class OutOfMemory(CleaveError, MemoryError):
    """The plan does not fit; the message has the table."""

    exit_code = 3


class CheckpointError(CleaveError):
    """A checkpoint is missing, damaged or of another model."""

    exit_code = 4


class TrainingError(CleaveError):
    """The training cannot go on: gradients are not finite, or the loss scale is at its minimum."""

    exit_code = 5


class RankLost(CleaveError):
    """Another rank ended, or did not come before the deadline."""

    exit_code = 6


class NotBuilt(CleaveError, NotImplementedError):
    """A name or an option of DeepSpeed that does not exist here; the message says what to use."""

    exit_code = 2


class StepOrderError(CleaveError, AssertionError):
    """forward, backward and step were called in an order in which they have no meaning."""


def error_of(code: int, message: str) -> CleaveError:
    """The exception for an exit code of the native library."""
    kinds = (UsageError, OutOfMemory, CheckpointError, TrainingError, RankLost)
    return next((kind for kind in kinds if kind.exit_code == code), CleaveError)(message)
