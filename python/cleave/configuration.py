"""The ds_config that a script passes, and the few values that Python reads; the engine reads all others.

The text of a file is kept, so that messages name its lines. A dictionary is written as text first.
"""

import base64
import json
import math
import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import native
from .errors import NotBuilt, UsageError

_NEVER = 2**31 - 1
_DEEPEST = 64  # levels of nested values (config_schema/json_text.cpp)
_BASE64 = re.compile("[A-Za-z0-9+/_-]{60,}=*")  # at least as long as a small configuration; paths have a dot
_ALIASES = {"bfloat16": "bf16"}  # other names of sections (config_schema/collect_keys.cpp)


@dataclass
class Configuration:
    """A ds_config: its text and name for the engine, the parsed values, and the effective values that Python reads.

    `own` is the text that the user sees, and `sections` those of `text` that differ from it.
    """

    text: str
    name: str
    given: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    own: str = ""
    sections: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {alias: name for alias, name in _ALIASES.items() if name not in self.given}  # the engine reports both
        self.given = {names.get(key, key): value for key, value in self.given.items()}

    def read(self, job: native.Job) -> None:
        """Validates the ds_config and reads the effective values; the first rank prints warnings."""
        read = json.loads(job.asked("read_config", self.own or self.text, self.name, json.dumps(self.sections)))
        self.values = read["values"]
        print(read["warnings"] if job.facts()["rank"] == 0 else "", end="")

    def with_sections(self, **sections: dict[str, Any] | None) -> "Configuration":
        """Returns a copy with other sections; None removes a section."""
        given = {key: value for key, value in {**self.given, **sections}.items() if key not in sections or value is not None}
        if given == self.given:
            return self
        replaced = self.sections | {alias: None for alias, name in _ALIASES.items() if name in sections} | sections
        return Configuration(json.dumps(given, indent=2), self.name, given, own=self.own or self.text, sections=replaced)

    def section(self, name: str) -> Mapping[str, Any]:
        return given if isinstance(given := self.given.get(name), Mapping) else {}  # the engine reports wrong types

    def tensor_ranks(self) -> int:
        """Returns the tensor-parallel size."""
        section = self.section("tensor_parallel")
        alias = section.get("tp", section.get("tensor_parallel"))
        sizes = [section.get("autotp_size", 1), alias.get("tp_size", 1) if isinstance(alias, Mapping) else 1]
        return max(1, *(int(size) for size in sizes if str(size).isdecimal()))

    def native(self) -> bool:
        return bool(self.section("cleave").get("native"))

    def computed(self, module: Any) -> bytes | None:
        """Returns config.json of a transformers module that the engine computes ("{}" without one), or None if torch computes the
        module."""
        config = getattr(module, "config", None) if type(module).__module__.startswith("transformers.models.") else None
        return (b"{}" if config is None else str(config.to_json_string(use_diff=False)).encode()) if self.native() else None

    def autocast(self) -> str:
        """Returns the type in section torch_autocast, or an empty string if it is not enabled."""
        if not (section := self.section("torch_autocast")).get("enabled"):
            return ""
        dtype = str(section.get("dtype", "bfloat16")).removeprefix("torch.")
        found = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16"}.get(dtype)
        if found is None:
            raise UsageError(f"torch_autocast.dtype: wrong type (got {dtype}, expected bfloat16 or float16)")
        if section.get("lower_precision_safe_modules"):
            raise NotBuilt(
                "torch_autocast.lower_precision_safe_modules: not supported, PyTorch selects the operations in 16 bits; remove the key"
            )
        if self.native():
            raise UsageError("torch_autocast: has no effect with cleave.native, where the engine computes the model; use bf16 or fp16")
        if (other := self.precision()) != "fp32" and [other, found] != ["bf16", "bf16"]:
            raise NotBuilt(f"torch_autocast: {found} cannot be combined with {other} parameters; remove one of the two")
        return found

    def precision(self) -> str:
        return next((name for name in ("fp16", "bf16") if self.section(name).get("enabled")), "fp32")


def _plain(value: Any, key: str = "", depth: int = 0) -> Any:
    """Returns a value in types of JSON. Replaces infinity, which callers use for "never" and JSON does not have.

    Raises:
        UsageError: JSON does not have the value, or it is nested too deep; the message names its key.
    """
    if depth > _DEEPEST:
        raise UsageError(f"the configuration: nested deeper than {_DEEPEST} levels (at {key[:60]}...); remove levels")
    if isinstance(value, float) and math.isinf(value) and value > 0:
        return _NEVER
    if isinstance(value, Mapping):
        return {str(name): _plain(item, f"{key}.{name}" if key else str(name), depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{key}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{key}: not a finite number (got {value}, expected a number); correct the value in the ds_config")
    if value is None or isinstance(value, str | int | float):
        return value
    expected = "a number, a string, a bool, None, a list or a dictionary"
    raise UsageError(f"{key}: not a value of JSON (got a {type(value).__name__}, expected {expected}); convert it")


def _in_sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """Moves `section.key` entries into their sections and truncates floats to integers, as trl writes them (0.9 * width**2 elements)."""
    made = {key: dict(value) if isinstance(value, Mapping) else value for key, value in given.items() if "." not in key}
    for key, value in given.items():
        section, dot, below = key.partition(".")
        if dot:
            if not isinstance(within := made.setdefault(section, {}), dict):
                raise UsageError(f"{key}: conflicts with {section} (got {within!r}, expected a dictionary); leave one out")
            within[below] = int(value) if isinstance(value, float) and value >= 1 else value
    return made


def _text_of(path: str) -> tuple[str, str]:
    """Returns the text and its name, of a file or of base64."""
    give = "give the path of a ds_config.json"
    if not os.path.exists(path):
        try:
            return base64.urlsafe_b64decode(path).decode(), "the configuration in base64"
        except ValueError:
            if _BASE64.fullmatch(path):
                raise UsageError(f"config: neither an existing file nor a configuration in base64 (got {path[:40]}...); {give}") from None
            raise UsageError(f"{path}: does not exist in {os.getcwd()}; {give}, or a dictionary") from None
    try:
        return pathlib.Path(path).read_text(encoding="utf-8"), path
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file (expected JSON in UTF-8); {give}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {give}") from None


def _of_file(path: str) -> Configuration:
    text, name = _text_of(path)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # comments or Hjson; the engine reports all other errors with their places
        given = json.loads(native.config_json(text, name) or "{}")
    return Configuration(text, name, given if isinstance(given, dict) else {})


def configuration_of(config: Any) -> Configuration:
    """Returns the configuration of a path, a text in base64, or a dictionary."""
    if isinstance(config, Mapping):
        given = _in_sections(_plain(config))
        return Configuration(json.dumps(given, indent=2, allow_nan=False), "the configuration", given)
    if isinstance(config, str | os.PathLike):
        return _of_file(os.fspath(config))
    raise UsageError(f"config: wrong type (got {type(config).__name__}, expected a dictionary or the path of a ds_config.json)")


def chosen(args: Any, config: Any, config_params: Any) -> Configuration:
    """Returns the configuration of the arguments of initialize."""
    named = config if config is not None else config_params
    from_args = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    if named is not None and from_args is not None:
        raise UsageError("config: conflicts with args.deepspeed_config; leave one out")
    if named is None and from_args is None:
        raise UsageError("config: missing; give initialize() config, or args with deepspeed_config")
    return configuration_of(from_args if named is None else named)
