"""Optimizers under the names that scripts import them by."""

from ..optimizers import DeepSpeedCPULion, FusedLion  # noqa: F401
