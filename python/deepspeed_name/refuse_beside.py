"""setuptools build backend that fails if another package named deepspeed is installed."""

import pathlib
import sysconfig
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

_OURS = "\nimport cleave\n"


def _refuse_beside() -> None:
    """Raises an error if DeepSpeed is installed: pip would silently replace it, because the names are equal."""
    there = pathlib.Path(sysconfig.get_path("purelib"), "deepspeed", "__init__.py")
    if there.exists() and _OURS not in there.read_text(encoding="utf-8"):
        raise SystemExit(f"error: {there.parent} is another package of this name; uninstall it first: pip uninstall deepspeed")


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Builds the wheel, or fails if the name is taken."""
    _refuse_beside()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Builds for `pip install -e`, or fails if the name is taken."""
    _refuse_beside()
    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
