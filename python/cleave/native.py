"""The native library: each function of cleave_c.h is a method, and its errors are exceptions.

This module does not use torch: memory is addresses. cleave_c.h has the contracts.
"""

import ctypes
import json
import os
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any

from .c_types import UPDATE, Options
from .c_types import Part as Part
from .c_types import Rates as Rates
from .c_types import Samples as Samples
from .c_types import StepResult as StepResult
from .handles import Handle, check, filled, library, text_of
from .handles import warn as warn

DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "uint8": 7}  # numbers of types in the C interface


class Job(Handle):
    """This process as a rank of its job."""

    _prefix, _gone = "cleave_job_", "job: has ended; start the script again"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        check(library().cleave_job_open(json.dumps(options).encode(), byref(self._handle)))

    def close(self, reason: str | None, exit_code: int = 0) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            check(library().cleave_job_close(handle, reason.encode() if reason else None, exit_code))

    def stop_requested(self) -> bool:
        """Returns True if any rank was asked to stop. Collective."""
        requested = c_int32()
        check(library().cleave_job_stop_requested(self.handle, byref(requested)))
        return bool(requested.value)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns each value summed over all ranks. Collective."""
        array = (c_double * len(values))(*values)
        check(library().cleave_job_sum(self.handle, array, c_int64(len(values))))
        return list(array)


def rate_groups(began: Sequence[Rates], now: Sequence[Rates]) -> tuple[list[int], list[Rates]]:
    """Returns, per parameter group, the number of its rates, and the current rates by that number. Groups that begin with equal rates
    share a number."""
    count = len(began)
    numbers, merged = (c_int32 * count)(), (Rates * count)()
    check(library().cleave_rate_groups((Rates * count)(*began), (Rates * count)(*now), count, numbers, merged))
    return list(numbers), merged[: len(set(numbers))]


def schedule_rates(section: str, lr: float, updates: int) -> Rates:
    """Returns the rates of a section `scheduler` after a number of updates; lr is the optimizer's own rate."""
    call = library().cleave_schedule_rates
    return filled(Rates(), lambda rates: call(section.encode(), c_double(lr), c_int64(updates), rates))  # type: ignore[no-any-return]


def partition(names: Sequence[str], parameters: Sequence[int], pieces: int, method: str) -> list[int]:
    """Returns the first layer of each pipeline piece, and the end of the last one."""
    first, count = (c_int32 * (pieces + 1))(), len(names)
    texts, sizes = (c_char_p * count)(*(name.encode() for name in names)), (c_int64 * count)(*parameters)
    check(library().cleave_partition(texts, sizes, count, pieces, method.encode(), first))
    return list(first)


def config_json(text: str, name: str) -> str:
    """Returns a ds_config as strict JSON, or an empty string if it cannot be parsed."""
    return text_of(lambda json: library().cleave_config_json(text.encode(), name.encode(), json))


def file_of_each(sizes: Sequence[int], most: str) -> list[int]:
    """Returns the file number of each tensor, given sizes in bytes and the largest size of a file, such as "5GB"."""
    files = (c_int32 * len(sizes))()
    check(library().cleave_file_of_each((c_int64 * len(sizes))(*sizes), len(sizes), most.encode(), files))
    return list(files)


class Checkpoint(Handle):
    """A checkpoint that is open for reading, without an engine."""

    _prefix = "cleave_checkpoint_"

    def __init__(self, folder: str, tag: str) -> None:
        super().__init__()
        check(library().cleave_checkpoint_open(os.fsencode(folder), tag.encode(), byref(self._handle)))

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
    return json.loads(text_of(lambda text: library().cleave_plan(*given, text)))


class NativeEngine(Handle):
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
        check(self._lib.cleave_engine_make(job.handle, *texts, byref(given), byref(self._handle)))

    @property
    def handle(self) -> c_void_p:
        """The engine, told about the current stream."""
        if self._stream is not None and (now := self._stream()) != self._on:
            self._on = now
            check(self._lib.cleave_use_stream(super().handle, c_void_p(now)))
        return self._handle or super().handle

    def require_stream(self) -> None:
        """Checks that the current stream can take the engine's work."""
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
        return filled(to, lambda number: getattr(self._lib, "cleave_" + name)(self.handle, *values, number)).value

    def acquire(self, unit: int) -> Sequence[int]:
        """Returns the addresses of the unit's parameters, valid until release."""
        pointers = self._pointers[unit]
        if code := self._lib.cleave_acquire(self.handle, unit, pointers):
            check(code)
        return pointers  # type: ignore[return-value]

    def release(self, unit: int) -> None:
        if code := self._lib.cleave_release(self.handle, unit):
            check(code)

    def give(self, unit: int, gradients: Iterable[tuple[int, int, int]]) -> None:
        """Adds gradients, as index of the parameter, address and type, to the unit."""
        pointers, dtypes = self._given[unit]
        for index, address, dtype in gradients:
            pointers[index], dtypes[index] = address, dtype
        code = self._lib.cleave_give(self.handle, unit, pointers, dtypes)
        for index in range(len(dtypes)):
            pointers[index] = None
        check(code)

    def shown_gradients(self, unit: int) -> tuple[Sequence[int], int]:
        """Returns the addresses of the unit's gradients and their type (cleave_shown_gradients)."""
        dtype = c_int32()
        pointers = (c_void_p * len(self._pointers[unit]))()
        check(self._lib.cleave_shown_gradients(self.handle, unit, pointers, byref(dtype)))
        return pointers, dtype.value  # type: ignore[return-value]

    def loss_by(self, call: str, samples: Samples) -> float:
        return float(self._number(c_double(), call, byref(samples)))

    def finish_step(self, losses: Sequence[float], rates: Sequence[Rates]) -> StepResult:
        result = StepResult()
        array, brought = (c_double * len(losses))(*losses), (Rates * len(rates))(*rates)
        code = self._lib.cleave_finish_step(self.handle, array, len(losses), brought, len(rates), byref(result))
        if self._failed is not None:
            raise self._failed
        check(code)
        return result

    def next_rates(self) -> Rates:
        return filled(Rates(), lambda rates: self._lib.cleave_next_rates(self.handle, rates))  # type: ignore[no-any-return]

    def finish_save(self) -> None:
        """Waits for a background save; has no effect after `free`. Collective."""
        if self._handle:
            check(self._lib.cleave_finish_save(self._handle))

    def dlpack(self, address: int, dtype: int, shape: Sequence[int], on_host: bool = False) -> Any:
        """Returns a DLPack capsule over the engine's memory, which is not freed before its tensors."""
        managed = c_void_p()
        dims = (c_int64 * max(1, len(shape)))(*shape)
        check(self._lib.cleave_dlpack(self.handle, c_void_p(address), dtype, dims, len(shape), int(on_host), byref(managed)))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
        return capsule(managed, b"dltensor", None)
