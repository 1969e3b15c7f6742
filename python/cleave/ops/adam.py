"""Optimizers under the names that scripts import them by."""

from ..optimizers import DeepSpeedCPUAdam, FusedAdam  # noqa: F401
