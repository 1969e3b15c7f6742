"""Optimizers under the names that scripts import them by."""

from . import adagrad, adam, lion  # noqa: F401
