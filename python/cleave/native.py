"""The native library by ctypes: each call of cleave_c.h as a method, whose errors are exceptions.

Nothing here knows torch; memory is addresses. The contracts are those of cleave_c.h.
"""

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

from .errors import CleaveError, error_of

_C_VERSION = 5


class DType(NamedTuple):
    """A float type as the library numbers it."""

    code: int
    name: str


FP32, FP16, BF16 = DType(0, "fp32"), DType(1, "fp16"), DType(2, "bf16")
DTYPES = {dtype.name: dtype for dtype in (FP32, FP16, BF16)}


class Part(ctypes.Structure):
    """A part of a parameter that an update brings forward (cleave_update in cleave_c.h)."""

    _fields_ = [
        *((name, c_int32) for name in ("unit", "parameter")),
        *((name, c_int64) for name in ("begin", "end", "step")),
        *((name, c_int32) for name in ("on_host", "gradient_dtype")),
        *(("gradient_scale", c_double), ("value", c_void_p), ("gradient", c_void_p), ("states", c_void_p * 3)),
    ]


_UPDATE = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(Part))


class _Options(ctypes.Structure):
    _fields_ = [
        ("seed", c_uint64),
        ("gives", c_int32),
        ("rates_given", c_int32),
        ("inference", c_int32),
        ("has_stream", c_int32),
        ("stream", c_void_p),
        ("device_bytes", c_int64),
        ("host_bytes", c_int64),
        ("update", _UPDATE),
        ("update_context", c_void_p),
        ("states", POINTER(c_char_p)),
        ("state_count", c_int32),
    ]


class _Rates(ctypes.Structure):
    _fields_ = [("lr", c_double), ("momentum", c_double), ("beta2", c_double), ("weight_decay", c_double)]


class _Result(ctypes.Structure):
    _numbers = ("loss", "grad_norm", "lr", "loss_scale")
    _fields_ = [("step", c_int64), ("skipped_total", c_int64), *((name, c_double) for name in _numbers), ("skipped", c_int32)]


class Rates(NamedTuple):
    """What the optimizer is given for a step; a negative value leaves the optimizer its own."""

    lr: float
    momentum: float = -1.0
    beta2: float = -1.0
    weight_decay: float = -1.0


class StepResult(NamedTuple):
    """What a step came to, the same on every rank (runtime/step/step_result.h)."""

    step: int
    skipped_total: int
    loss: float
    grad_norm: float
    lr: float
    loss_scale: float
    skipped: bool


def _candidates() -> list[Path]:
    here = Path(__file__).resolve().parent
    found = [Path(os.environ["CLEAVE_LIBRARY"])] if os.environ.get("CLEAVE_LIBRARY") else []
    return [*found, here / "lib" / "libcleave_c.so", here.parents[1] / "build" / "release" / "lib" / "libcleave_c.so"]


def _load() -> ctypes.CDLL:
    tried = _candidates()
    for path in tried:
        if path.exists():
            library = ctypes.CDLL(str(path))
            library.cleave_error.restype = c_char_p
            library.cleave_version.restype = c_char_p
            version = library.cleave_c_version()
            if version != _C_VERSION:
                raise CleaveError(f"{path} has version {version} of the C interface, wanted {_C_VERSION}: install the package again")
            return library
    raise CleaveError(f"libcleave_c.so is in none of {', '.join(map(str, tried))}: install the package again, or name it in CLEAVE_LIBRARY")


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The library, loaded when it is first asked for."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def _check(code: int) -> None:
    if code:
        raise error_of(code, library().cleave_error().decode(errors="replace"))


def _text(call: Callable[[Any], int]) -> str:
    """The text that a call hands over."""
    text = c_void_p()
    code = call(byref(text))
    try:
        _check(code)
        return ctypes.string_at(text.value or 0).decode(errors="replace")
    finally:
        library().cleave_free_text(text)


def _in_c(value: Any) -> Any:
    return c_int64(value) if isinstance(value, int) else os.fsencode(value) if isinstance(value, str) else value


class Job:
    """This process as a rank of its job."""

    def __init__(self, **options: Any) -> None:
        self._handle = c_void_p()
        _check(library().cleave_job_open(json.dumps(options).encode(), byref(self._handle)))
        self.connected = False

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise CleaveError("the job has ended: nothing can be asked of its ranks any more")
        return self._handle

    def facts(self) -> dict[str, Any]:
        return dict(json.loads(_text(lambda text: library().cleave_job_facts(self.handle, text))))

    def connect(self, timeout_s: float) -> None:
        _check(library().cleave_job_connect(self.handle, c_double(timeout_s)))
        self.connected = True

    def close(self, reason: str | None) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            _check(library().cleave_job_close(handle, reason.encode() if reason else None))

    def broadcast(self, address: int, size: int, root: int = 0) -> None:
        """Overwrites `size` bytes of host memory by those of the root. Collective."""
        _check(library().cleave_job_broadcast(self.handle, c_void_p(address), c_int64(size), root))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Of each over all ranks. Collective."""
        array = (c_double * len(values))(*values)
        _check(library().cleave_job_sum(self.handle, array, c_int64(len(values))))
        return list(array)

    def barrier(self) -> None:
        _check(library().cleave_job_barrier(self.handle))

    def read_config(self, text: str, name: str) -> tuple[dict[str, Any], str]:
        """The effective value of every key by its path, and warnings, a line each."""
        values, problems = c_void_p(), c_void_p()
        try:
            _check(library().cleave_read_config(self.handle, text.encode(), name.encode(), byref(values), byref(problems)))
            return json.loads(ctypes.string_at(values.value or 0)), ctypes.string_at(problems.value or 0).decode(errors="replace")
        finally:
            library().cleave_free_text(values)
            library().cleave_free_text(problems)


def schedule_rates(section: str, lr: float, updates: int) -> Rates:
    """What a section `scheduler` has for the update behind so many others, with the optimizer's own rate."""
    rates = _Rates()
    _check(library().cleave_schedule_rates(section.encode(), c_double(lr), c_int64(updates), byref(rates)))
    return Rates(rates.lr, rates.momentum, rates.beta2, rates.weight_decay)


def partition(names: Sequence[str], parameters: Sequence[int], pieces: int, method: str) -> list[int]:
    """Where each piece of a pipeline's layers begins, and where the last one ends."""
    first, count = (c_int32 * (pieces + 1))(), len(names)
    texts, sizes = (c_char_p * count)(*(name.encode() for name in names)), (c_int64 * count)(*parameters)
    _check(library().cleave_partition(texts, sizes, count, pieces, method.encode(), first))
    return list(first)


class Checkpoint:
    """A training that was saved, open to be read without an engine."""

    def __init__(self, folder: str, tag: str) -> None:
        self._handle = c_void_p()
        _check(library().cleave_checkpoint_open(os.fsencode(folder), tag.encode(), byref(self._handle)))
        self.facts: dict[str, Any] = json.loads(_text(lambda text: library().cleave_checkpoint_facts(self._handle, text)))

    def read(self, kind: str, tensor: str, count: int, address: int) -> None:
        """A whole tensor in fp32, to host memory for `count` elements."""
        _check(library().cleave_checkpoint_read(self._handle, kind.encode(), tensor.encode(), c_int64(count), c_void_p(address)))

    def __del__(self) -> None:
        if self._handle:
            library().cleave_checkpoint_close(self._handle)


class NativeEngine:
    """A rank's share of parameters, gradients and optimizer state (cleave_c.h)."""

    def __init__(
        self,
        job: Job,
        config: str,
        config_name: str,
        model: str,
        units: Sequence[dict[str, Any]],
        *,
        seed: int = 42,
        rates_given: bool = False,
        inference: bool = False,
        stream: int | None = None,
        update: Callable[[Part], None] | None = None,
        states: Sequence[str] = (),
    ) -> None:
        """update: called for each part of a parameter, in place of the configuration's optimizer; states: what it keeps of elements."""
        self._lib = library()
        self._handle = c_void_p()
        self._failed: BaseException | None = None
        self._pointers = [(c_void_p * len(unit["parameters"]))() for unit in units]
        options = _Options(seed=seed, rates_given=rates_given, inference=inference, has_stream=stream is not None, stream=stream)
        if update is not None:
            self._update = options.update = _UPDATE(self._called(update))
            options.states, options.state_count = (c_char_p * len(states))(*(s.encode() for s in states)), len(states)
        texts = map(os.fsencode, (config, config_name, model, json.dumps(units)))
        _check(self._lib.cleave_engine_make(job.handle, *texts, byref(options), byref(self._handle)))

    def _called(self, update: Callable[[Part], None]) -> Callable[[Any, Any], int]:
        def call(_: Any, part: Any) -> int:
            try:
                update(part.contents)
            except BaseException as error:
                self._failed = error
            return int(self._failed is not None)

        return call

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise CleaveError("the engine was destroyed")
        return self._handle

    def free(self) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            self._lib.cleave_engine_free(handle)

    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self.asked("engine_facts")))

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Any other call of an engine that hands nothing back, by its name there: of addresses, numbers and texts."""
        function = getattr(library(), f"cleave_{name}")
        self.__dict__[name] = call = lambda *values: _check(function(self.handle, *map(_in_c, values)))
        return call

    def asked(self, name: str, *values: Any) -> str:
        """The text that a call hands over."""
        return _text(lambda text: getattr(self._lib, f"cleave_{name}")(self.handle, *map(_in_c, values), text))

    def scale(self) -> float:
        scale = c_double()
        _check(self._lib.cleave_scale(self.handle, byref(scale)))
        return scale.value

    def gathers(self, unit: int) -> bool:
        answer = c_int32()
        _check(self._lib.cleave_gathers(self.handle, unit, byref(answer)))
        return answer.value != 0

    def acquire(self, unit: int) -> Sequence[int]:
        """The addresses of the unit's parameters until release."""
        pointers = self._pointers[unit]
        _check(self._lib.cleave_acquire(self.handle, unit, pointers))
        return pointers  # type: ignore[return-value]

    def finish_step(self, losses: Sequence[float], rates: Sequence[Rates]) -> StepResult:
        result = _Result()
        array = (c_double * len(losses))(*losses)
        brought = (_Rates * len(rates))(*(_Rates(*r) for r in rates))
        code = self._lib.cleave_finish_step(self.handle, array, len(losses), brought, len(rates), byref(result))
        if self._failed is not None:
            raise self._failed
        _check(code)
        return StepResult(*(getattr(result, name) for name in StepResult._fields))._replace(skipped=bool(result.skipped))

    def next_rates(self) -> Rates:
        rates = _Rates()
        _check(self._lib.cleave_next_rates(self.handle, byref(rates)))
        return Rates(rates.lr, rates.momentum, rates.beta2, rates.weight_decay)

    def finish_save(self) -> None:
        """Waits for a save that is written behind the training. Nothing after free(). Collective."""
        if self._handle:
            _check(self._lib.cleave_finish_save(self._handle))

    def load_checkpoint(self, folder: str, tag: str, with_optimizer: bool) -> str:
        return self.asked("load_checkpoint", folder, tag, with_optimizer)

    def dlpack(self, address: int, dtype: DType, shape: Sequence[int], on_host: bool = False) -> Any:
        """A capsule by which another library reads the engine's memory as a tensor, which must not outlive the engine."""
        managed = c_void_p()
        dims = (c_int64 * max(1, len(shape)))(*shape)
        _check(self._lib.cleave_dlpack(self.handle, c_void_p(address), dtype.code, dims, len(shape), int(on_host), byref(managed)))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
        return capsule(managed, b"dltensor", None)
