"""Adagrad with the module name of DeepSpeed."""

from ..optimizers import DeepSpeedCPUAdagrad  # noqa: F401
