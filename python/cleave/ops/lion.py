"""Optimizers under the names that scripts import them by."""

from ..optimizers import DeepSpeedCPULion, FusedLion

__all__ = ["DeepSpeedCPULion", "FusedLion"]
