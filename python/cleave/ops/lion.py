"""Lion optimizers with the module names of DeepSpeed."""

from ..optimizers import DeepSpeedCPULion, FusedLion  # noqa: F401
