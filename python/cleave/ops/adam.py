"""Adam optimizers with the module names of DeepSpeed."""

from ..optimizers import DeepSpeedCPUAdam, FusedAdam  # noqa: F401
