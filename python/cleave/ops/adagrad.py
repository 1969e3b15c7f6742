"""Optimizers under the names that scripts import them by."""

from ..optimizers import DeepSpeedCPUAdagrad  # noqa: F401
