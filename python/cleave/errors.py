"""What the engine refuses, and why: one class for each exit code of the command line."""


class CleaveError(RuntimeError):
    """What the engine cannot do; the message says what was wanted, what was got, and what to do.

    `exit_code` is the one that the command line would end with."""

    exit_code = 1


class UsageError(CleaveError, ValueError, AssertionError):
    """A configuration or an argument that cannot be honoured; nothing was started. DeepSpeed has one or the other of its kinds."""


class OutOfMemory(CleaveError, MemoryError):
    """The plan does not fit; the message has the table."""


class CheckpointError(CleaveError):
    """A checkpoint is missing, damaged or of another model."""


class TrainingError(CleaveError):
    """The training cannot go on: gradients are not finite, or the loss scale is at its minimum."""


class RankLost(CleaveError):
    """Another rank ended, or did not come before the deadline."""


class NotBuilt(CleaveError, NotImplementedError):
    """A name or an option of DeepSpeed that does not exist here; the message says what to use."""


class StepOrderError(CleaveError, AssertionError):
    """forward, backward and step were called in an order in which they have no meaning."""


_BY_CODE: dict[int, type[CleaveError]] = {2: UsageError, 3: OutOfMemory, 4: CheckpointError, 5: TrainingError, 6: RankLost}
for _code, _kind in _BY_CODE.items():
    _kind.exit_code = _code
NotBuilt.exit_code = UsageError.exit_code
STOPPED = 75  # exit code after a stop on request: start the same command again


def error_of(code: int, message: str) -> CleaveError:
    """The exception for an exit code of the native library."""
    return _BY_CODE.get(code, CleaveError)(message)
