"""The native library through ctypes: each function of cleave_c.h is a method, and its errors are exceptions.

This module does not use torch: memory is addresses. cleave_c.h has the contracts.
"""

import ctypes
import functools
import json
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any

from .c_types import UPDATE, Options
from .c_types import Part as Part
from .c_types import Rates as Rates
from .c_types import Samples as Samples
from .c_types import StepResult as StepResult
from .errors import CleaveError, UsageError, error_of
from .programs import installed, name_cuda_libraries

_C_VERSION = 16
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "uint8": 7}  # numbers of types in the C interface


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the library, and loads it at the first call."""
    path = installed("lib/libcleave_c.so", "CLEAVE_LIBRARY")
    name_cuda_libraries()
    try:
        library = ctypes.CDLL(str(path))
        library.cleave_error.restype = library.cleave_version.restype = c_char_p
        version = library.cleave_c_version()
    except (OSError, AttributeError) as error:  # not a library, or another one
        said = f"{path}: not Cleave's library ({error}, expected libcleave_c.so)"
        raise UsageError(f"{said}; leave out CLEAVE_LIBRARY, or install the package again") from None
    # Many calls per step: by declared types, ctypes converts plain numbers.
    library.cleave_acquire.argtypes = [c_void_p, c_int32, c_void_p]
    library.cleave_release.argtypes = [c_void_p, c_int32]
    library.cleave_give.argtypes = [c_void_p, c_int32, c_void_p, c_void_p]
    if version != _C_VERSION:
        raise CleaveError(f"{path}: wrong version of the C interface (got {version}, expected {_C_VERSION}); install the package again")
    return library


def _check(code: int) -> None:
    if code:
        raise error_of(code, library().cleave_error().decode(errors="replace"))


def _filled(to: Any, call: Callable[[Any], int]) -> Any:
    """Passes an output to a call and returns it filled."""
    _check(call(byref(to)))
    return to


def _text(call: Callable[[Any], int]) -> str:
    """Returns the string output of a call, and frees the C string."""
    text = _filled(c_void_p(), call)
    try:
        return ctypes.string_at(text.value or 0).decode(errors="replace")
    finally:
        library().cleave_free_text(text)


def _in_c(value: Any) -> Any:
    if isinstance(value, int):
        return c_int64(value)
    if isinstance(value, str):
        return os.fsencode(value)
    return c_double(value) if isinstance(value, float) else byref(value) if isinstance(value, ctypes.Structure) else value


class _Handle:
    """Base class of handles; methods have the names of the C functions without the prefix."""

    _prefix, _facts = "cleave_", "facts"
    _gone = ""  # error message of calls after the end

    def __init__(self) -> None:
        self._handle = c_void_p()
        _handles.add(self)

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise CleaveError(self._gone)
        return self._handle

    @property
    def freed(self) -> bool:
        return not self._handle

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Returns a method for any C function without outputs, with addresses, numbers and strings as arguments."""
        function = getattr(library(), self._prefix + name)
        self.__dict__[name] = call = lambda *values: _check(function(self.handle, *map(_in_c, values)))
        return call

    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self.asked(self._facts)))

    def asked(self, name: str, *values: Any) -> str:
        """Returns the string output of a C function."""
        return _text(lambda text: getattr(library(), self._prefix + name)(self.handle, *map(_in_c, values), text))


_handles: weakref.WeakSet[_Handle] = weakref.WeakSet()


def _leave_behind() -> None:
    """In a forked child: what the parent uses stays, and calls are errors. Both would answer the other ranks."""
    for handle in list(_handles):
        handle._handle = c_void_p()
        handle._gone = (
            "engine: not usable in a process that was forked from a rank, such as a DataLoader worker; call it in the rank itself"
        )


os.register_at_fork(after_in_child=_leave_behind)


class Job(_Handle):
    """This process as a rank of its job."""

    _prefix, _gone = "cleave_job_", "job: has ended; start the script again"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        _check(library().cleave_job_open(json.dumps(options).encode(), byref(self._handle)))

    def close(self, reason: str | None, exit_code: int = 0) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            _check(library().cleave_job_close(handle, reason.encode() if reason else None, exit_code))

    def stop_requested(self) -> bool:
        """Returns True if any rank was asked to stop. Collective."""
        requested = c_int32()
        _check(library().cleave_job_stop_requested(self.handle, byref(requested)))
        return bool(requested.value)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns each value summed over all ranks. Collective."""
        array = (c_double * len(values))(*values)
        _check(library().cleave_job_sum(self.handle, array, c_int64(len(values))))
        return list(array)


def rate_groups(began: Sequence[Rates], now: Sequence[Rates]) -> tuple[list[int], list[Rates]]:
    """Returns, per parameter group, the number of its rates, and the current rates by that number. Groups that begin with equal rates
    share a number."""
    count = len(began)
    numbers, merged = (c_int32 * count)(), (Rates * count)()
    _check(library().cleave_rate_groups((Rates * count)(*began), (Rates * count)(*now), count, numbers, merged))
    return list(numbers), merged[: len(set(numbers))]


def schedule_rates(section: str, lr: float, updates: int) -> Rates:
    """Returns the rates of a section `scheduler` after a number of updates; lr is the optimizer's own rate."""
    call = library().cleave_schedule_rates
    return _filled(Rates(), lambda rates: call(section.encode(), c_double(lr), c_int64(updates), rates))  # type: ignore[no-any-return]


def partition(names: Sequence[str], parameters: Sequence[int], pieces: int, method: str) -> list[int]:
    """Returns the first layer of each pipeline piece, and the end of the last one."""
    first, count = (c_int32 * (pieces + 1))(), len(names)
    texts, sizes = (c_char_p * count)(*(name.encode() for name in names)), (c_int64 * count)(*parameters)
    _check(library().cleave_partition(texts, sizes, count, pieces, method.encode(), first))
    return list(first)


def config_json(text: str, name: str) -> str:
    """Returns a ds_config as strict JSON, or an empty string if it cannot be parsed."""
    return _text(lambda json: library().cleave_config_json(text.encode(), name.encode(), json))


def file_of_each(sizes: Sequence[int], most: str) -> list[int]:
    """Returns the file number of each tensor, given sizes in bytes and the largest size of a file, such as "5GB"."""
    files = (c_int32 * len(sizes))()
    _check(library().cleave_file_of_each((c_int64 * len(sizes))(*sizes), len(sizes), most.encode(), files))
    return list(files)


class Checkpoint(_Handle):
    """A checkpoint that is open for reading, without an engine."""

    _prefix = "cleave_checkpoint_"

    def __init__(self, folder: str, tag: str) -> None:
        super().__init__()
        _check(library().cleave_checkpoint_open(os.fsencode(folder), tag.encode(), byref(self._handle)))

    def __del__(self) -> None:
        if self._handle:
            library().cleave_checkpoint_close(self._handle)


def _options(states: Sequence[str], **values: Any) -> Any:
    options = Options(**values)
    options.states, options.state_count = (c_char_p * len(states))(*(s.encode() for s in states)), len(states)
    return options


def plan(config: str, name: str, model: str, units: Any, states: Sequence[str] | None, values: Any, *numbers: int) -> Any:
    """Calls cleave_plan. states: names of the state that an update in torch keeps per element, None without such an update."""
    options = _options(states or (), **values, **({} if states is None else {"update": UPDATE(lambda _, part: 1)}))
    of, (world, per_host, traced) = map(os.fsencode, (config, name, model, json.dumps(units))), numbers
    given = (*of, byref(options), world, per_host, c_int64(traced))
    return json.loads(_text(lambda text: library().cleave_plan(*given, text)))


class NativeEngine(_Handle):
    """A rank's share of parameters, gradients and optimizer state (cleave_c.h)."""

    _facts, _gone = "engine_facts", "engine: was destroyed; call initialize again with the module for a new engine"

    def __init__(
        self,
        job: Job,
        config: str,
        name: str,
        model: str,
        units: Any,
        update: Any = None,
        states: Sequence[str] = (),
        stream: Callable[[], int] | None = None,
        **options: Any,
    ) -> None:
        """Makes the engine.

        Args:
            update: called for each part of a parameter instead of the engine's optimizer.
            states: names of the state that `update` keeps per element.
            stream: returns the CUDA stream of the calling thread's work; each call of the engine asks for it. None on a CPU.
        """
        super().__init__()
        self._stream, self._on = stream, stream() if stream else None
        if stream:
            options |= {"has_stream": 1, "stream": self._on}
        self._lib = library()
        self._failed: BaseException | None = None
        sizes = [len(unit["parameters"]) for unit in units]
        self._pointers = [(c_void_p * count)() for count in sizes]
        self._given = [((c_void_p * count)(), (c_int32 * count)()) for count in sizes]
        given = _options(states, **options)
        if update is not None:

            def call(_: Any, part: Any) -> int:
                try:
                    update(part.contents)
                except BaseException as error:
                    self._failed = error
                return int(self._failed is not None)

            self._update = given.update = UPDATE(call)
        texts = map(os.fsencode, (config, name, model, json.dumps(units)))
        _check(self._lib.cleave_engine_make(job.handle, *texts, byref(given), byref(self._handle)))

    @property
    def handle(self) -> c_void_p:
        """The engine, told about the current stream."""
        if self._stream is not None and (now := self._stream()) != self._on:
            self._on = now
            _check(self._lib.cleave_use_stream(super().handle, c_void_p(now)))
        return self._handle or super().handle

    def require_stream(self) -> None:
        """Checks that this process has the engine, and that the current stream can take its work."""
        if not self._handle:
            raise CleaveError(self._gone)
        if self._stream is not None:
            self._stream()

    def __del__(self) -> None:
        self.free()

    def free(self) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            self._lib.cleave_engine_free(handle)

    def scale(self) -> float:
        return float(self._number(c_double(), "scale"))

    def loss_scale(self) -> float:
        return float(self._number(c_double(), "loss_scale"))

    def gathers(self, unit: int) -> bool:
        return bool(self._number(c_int32(), "gathers", unit))

    def _number(self, to: Any, name: str, *values: Any) -> Any:
        """Returns the number that a C function outputs."""
        return _filled(to, lambda number: getattr(self._lib, "cleave_" + name)(self.handle, *values, number)).value

    def acquire(self, unit: int) -> Sequence[int]:
        """Returns the addresses of the unit's parameters, valid until release."""
        pointers = self._pointers[unit]
        if code := self._lib.cleave_acquire(self.handle, unit, pointers):
            _check(code)
        return pointers  # type: ignore[return-value]

    def release(self, unit: int) -> None:
        if code := self._lib.cleave_release(self.handle, unit):
            _check(code)

    def give(self, unit: int, gradients: Iterable[tuple[int, int, int]]) -> None:
        """Adds gradients, as index of the parameter, address and type, to the unit."""
        pointers, dtypes = self._given[unit]
        for index, address, dtype in gradients:
            pointers[index], dtypes[index] = address, dtype
        code = self._lib.cleave_give(self.handle, unit, pointers, dtypes)
        for index in range(len(dtypes)):
            pointers[index] = None
        _check(code)

    def shown_gradients(self, unit: int) -> tuple[Sequence[int], int]:
        """Returns the addresses of the unit's gradients and their type (cleave_shown_gradients)."""
        dtype = c_int32()
        pointers = (c_void_p * len(self._pointers[unit]))()
        _check(self._lib.cleave_shown_gradients(self.handle, unit, pointers, byref(dtype)))
        return pointers, dtype.value  # type: ignore[return-value]

    def loss_by(self, call: str, samples: Samples) -> float:
        return float(self._number(c_double(), call, byref(samples)))

    def finish_step(self, losses: Sequence[float], rates: Sequence[Rates]) -> StepResult:
        result = StepResult()
        array, brought = (c_double * len(losses))(*losses), (Rates * len(rates))(*rates)
        code = self._lib.cleave_finish_step(self.handle, array, len(losses), brought, len(rates), byref(result))
        if self._failed is not None:
            raise self._failed
        _check(code)
        return result

    def next_rates(self) -> Rates:
        return _filled(Rates(), lambda rates: self._lib.cleave_next_rates(self.handle, rates))  # type: ignore[no-any-return]

    def finish_save(self) -> None:
        """Waits for a background save; has no effect after `free`. Collective."""
        if self._handle:
            _check(self._lib.cleave_finish_save(self._handle))

    def dlpack(self, address: int, dtype: int, shape: Sequence[int], on_host: bool = False) -> Any:
        """Returns a DLPack capsule over the engine's memory, which is not freed before its tensors."""
        managed = c_void_p()
        dims = (c_int64 * max(1, len(shape)))(*shape)
        _check(self._lib.cleave_dlpack(self.handle, c_void_p(address), dtype, dims, len(shape), int(on_host), byref(managed)))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
        return capsule(managed, b"dltensor", None)
