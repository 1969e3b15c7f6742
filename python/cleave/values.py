"""Values of a script in a checkpoint, as JSON. Reading them neither imports nor calls names from the file.

Numbers, strings, lists, dicts and the types in _KINDS are restored with their type. A dataclass is restored as argparse.Namespace and an
enum member as its value, unless `torch.serialization.add_safe_globals([...])` allows the class.
"""

import argparse
import base64
import collections
import ctypes
import dataclasses
import datetime
import enum
import json
import pathlib
import pickle
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .errors import UsageError

_MARK = "!"  # key with the kind of a value that JSON does not support
_PLAIN = (type(None), bool, int, float, str)
_FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set)}  # of a defaultdict
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def printable(what: object) -> str:
    """Returns the text without characters that control a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(what))


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _tensor_parts(tensor: torch.Tensor) -> list[Any]:
    whole = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    return [str(whole.dtype), list(whole.shape), _base64(ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()))]


def _tensor(parts: list[Any]) -> torch.Tensor:
    name, shape, data = parts
    raw, dtype = bytearray(base64.b64decode(data)), _DTYPES[name]
    if name.startswith(("torch.q", "torch.bits")):
        raise ValueError(f"tensor: {name} is not supported")
    return (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).reshape(shape)


def _array(parts: list[Any]) -> Any:
    import numpy

    name, shape, data = parts
    dtype = numpy.dtype(name)
    if dtype.kind not in "biufcSUmM":
        raise ValueError(f"array: {dtype} is not supported")
    return numpy.ndarray(tuple(shape), dtype, bytearray(base64.b64decode(data)))


# By kind: the exact type, a function to the parts (values again), and a function from the parts.
_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "complex": (complex, lambda c: [c.real, c.imag], lambda parts: complex(*parts)),
    "bytes": (bytes, _base64, base64.b64decode),
    "bytearray": (bytearray, _base64, lambda text: bytearray(base64.b64decode(text))),
    "range": (range, lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
    "Namespace": (argparse.Namespace, vars, lambda parts: argparse.Namespace(**parts)),
    "SimpleNamespace": (types.SimpleNamespace, vars, lambda parts: types.SimpleNamespace(**parts)),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (datetime.timedelta, lambda d: [d.days, d.seconds, d.microseconds], lambda parts: datetime.timedelta(*parts)),
    "path": (type(pathlib.Path()), str, pathlib.Path),
    "pure_path": (type(pathlib.PurePath()), str, pathlib.PurePath),
    "dtype": (torch.dtype, str, lambda name: _DTYPES[name]),
    "size": (torch.Size, list, torch.Size),
    "device": (torch.device, str, torch.device),
    "tensor": (torch.Tensor, _tensor_parts, _tensor),
    "parameter": (torch.nn.Parameter, _tensor_parts, lambda parts: torch.nn.Parameter(_tensor(parts), requires_grad=False)),
}
_KIND_OF = {kind: name for name, (kind, _, _) in _KINDS.items()}
_MAPPINGS: dict[str, Callable[..., Any]] = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _packed(value: Any, path: str) -> Any:
    """Converts a value to JSON types.

    Raises:
        UsageError: names the path of a value that cannot be saved.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_packed(part, f"{path}[{i}]") for i, part in enumerate(value)]
    if kind is dict and all(type(key) is str and key != _MARK for key in value):
        return {key: _packed(part, f"{path}[{key!r}]") for key, part in value.items()}
    if kind in (*_MAPPINGS.values(), collections.defaultdict):
        pairs = [[_packed(key, f"{path}: key {key!r}"), _packed(part, f"{path}[{key!r}]")] for key, part in value.items()]
        factory = getattr(value, "default_factory", None)
        if factory is not None and factory not in _FACTORIES.values():
            raise UsageError(f"{path}: a defaultdict with the factory {factory!r} cannot be saved; save dict(...) of it")
        return {_MARK: kind.__name__, "value": pairs, **({"factory": factory.__name__} if factory else {})}
    if kind in _KIND_OF and not _is_unusual(value):
        return {_MARK: _KIND_OF[kind], "value": _packed(_KINDS[_KIND_OF[kind]][1](value), path)}
    if isinstance(value, enum.Enum):
        return {_MARK: "enum", "class": _name_of(kind), "value": _packed(value.value, path)}
    if dataclasses.is_dataclass(kind):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}
        return {_MARK: "dataclass", "class": _name_of(kind), "value": _packed(fields, path)}
    numpy = sys.modules.get("numpy")
    if numpy and (kind is numpy.ndarray or isinstance(value, numpy.generic)) and value.dtype.kind in "biufcSUmM":
        parts = [value.dtype.str, list(value.shape), _base64(value.tobytes())]
        return {_MARK: "array" if kind is numpy.ndarray else "scalar", "value": parts}
    what = "a function" if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType) else f"a {_name_of(kind)}"
    raise UsageError(f"{path}: {what} cannot be saved; save its state as numbers, strings, lists, dicts and tensors, or leave it out")


def _is_unusual(value: Any) -> bool:
    """Returns True for tensors that are not a dense block of elements."""
    return isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_meta or value.is_quantized)


def _allowed(name: str) -> Any:
    """Returns the class of a name if the script allowed it."""
    for entry in torch.serialization.get_safe_globals():
        kind = entry[0] if isinstance(entry, tuple) else entry
        if isinstance(kind, type) and _name_of(kind) == name:
            return kind
    return None


def _of_class(name: str, parts: Any) -> Any:
    kind = _allowed(name)
    if kind is None:
        short, becomes = name.rpartition(".")[2], "an argparse.Namespace" if isinstance(parts, argparse.Namespace) else "its plain value"
        how = f"call torch.serialization.add_safe_globals([{short}]) before loading to get the class"
        warnings.warn(printable(f"a {name} in the checkpoint returns as {becomes}; {how}"), stacklevel=2)
        return parts
    if issubclass(kind, enum.Enum):
        return kind(parts)
    if not hasattr(kind, "__dataclass_fields__"):
        raise ValueError(f"{name} is not a dataclass or an enum")
    value, known = object.__new__(kind), {field.name for field in dataclasses.fields(kind)}
    for field, part in vars(parts).items():
        if field in known:
            object.__setattr__(value, field, part)
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(part) for part in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: _unpacked(part) for key, part in value.items()}
    kind, parts = value[_MARK], _unpacked(value["value"])
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](dict(map(tuple, parts)))
    if kind == "defaultdict":
        return collections.defaultdict(_FACTORIES[value["factory"]] if "factory" in value else None, map(tuple, parts))
    if kind in ("enum", "dataclass"):
        return _of_class(value["class"], argparse.Namespace(**parts) if kind == "dataclass" else parts)
    if kind in ("array", "scalar"):
        return _array(parts) if kind == "array" else _array(parts)[()]
    return _KINDS[kind][2](parts)


def to_text(values: dict[str, Any]) -> str:
    """Returns the values as JSON.

    Raises:
        UsageError: names the path of a value that cannot be saved.
    """
    try:
        return json.dumps({key: _packed(value, key) for key, value in values.items()})
    except RecursionError as error:
        raise UsageError("client_state: contains itself, or is nested too deeply to be saved") from error


def from_text(text: str) -> dict[str, Any]:
    """Returns the values of a text that `to_text` wrote. Invalid texts raise any exception."""
    return {key: _unpacked(value) for key, value in json.loads(text).items()}


def loaded_by_torch(file: Any, **options: Any) -> Any:
    """Loads a `torch.save` file that contains only tensors, plain values and classes that the script allowed.

    Raises:
        RuntimeError: torch is older than 2.10.
        ValueError: the file is damaged or refers to other classes.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):  # weights_only has flaws there (CVE-2025-32434, CVE-2026-24747)
        raise RuntimeError(f"torch {torch.__version__} does not read untrusted files of torch.save() safely; install torch 2.10 or newer")
    allowed: list[Any] = [argparse.Namespace, types.SimpleNamespace, collections.defaultdict, frozenset, range]
    allowed += [
        type(pathlib.Path()),
        type(pathlib.PurePath()),
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        datetime.timezone,
    ]
    if numpy := sys.modules.get("numpy"):
        codes = "?bBhHiIlLqQefdgFDGSUmM"
        allowed += [numpy.ndarray, numpy.dtype, *{type(numpy.dtype(code)) for code in codes}]
        core = getattr(numpy, "_core", None) or numpy.core
        for package in ("core", "_core"):
            allowed += [(getattr(core.multiarray, name), f"numpy.{package}.multiarray.{name}") for name in ("_reconstruct", "scalar")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(file, map_location="cpu", weights_only=True, **options)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)|WeightsUnpickler error: (.*)", str(error)) or [None, None, "it is damaged"]
        raise ValueError(f"it refers to {found[1]}, which is not allowed" if found[1] else found[2]) from None
