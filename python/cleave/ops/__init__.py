"""Optimizers with the module names of DeepSpeed."""

from . import adagrad, adam, lion  # noqa: F401
