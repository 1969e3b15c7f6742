"""Optimizers under the names that scripts import them by."""

from . import adagrad, adam, lion

__all__ = ["adagrad", "adam", "lion"]
