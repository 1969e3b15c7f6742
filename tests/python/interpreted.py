"""The CUDA engine of a script on a machine without a GPU: its device code runs in tests/cuda_interpreter, and torch computes on the CPU.

The interpreter's GPU memory is host memory, so torch reads it in place. torch itself computes at once, but here its work belongs to
streams: gradients reach the engine through memory that a stream writes late and overwrites soon afterwards; memory of the engine is
compared when the stream reaches the end of its use; and torch waits for its own current stream only, which changes at random. A missing
order between the streams of torch and of the engine therefore changes numbers. CLEAVE_INTERPRETED is the seed of these choices;
CLEAVE_INTERPRETED_HOMES is a section zero_optimization with homes for configurations that leave everything on the GPU.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cleave import configuration, handles, native, streams

SEED, HOMES = "CLEAVE_INTERPRETED", "CLEAVE_INTERPRETED_HOMES"
_BYTES = {0: 4, 1: 2, 2: 2, 3: 8, 7: 1}  # by type in the C interface


class _Streams:
    """Streams of torch on the interpreter's GPU."""

    def __init__(self, seed: int, gpu: int, count: int = 3) -> None:
        self._library = library = handles.library()
        for name in ("stream", "memory"):
            getattr(library, f"cleave_test_{name}").restype = ctypes.c_void_p
        library.cleave_test_changed.restype = ctypes.c_int64
        self._random = random.Random(seed)
        self._all = [library.cleave_test_stream(gpu) for _ in range(count)]
        self.now: int = self._all[0]
        self._free: dict[tuple[int, int], list[int]] = collections.defaultdict(list)  # memory by stream and size, as torch keeps it
        self._taken: dict[int, tuple[int, int]] = {}

    def move(self) -> None:
        """Makes another stream the current one, after the earlier one's work, as scripts have to."""
        other = self._random.choice(self._all)
        if other != self.now and self._random.random() < 0.3:
            self._library.cleave_test_join(ctypes.c_void_p(other), ctypes.c_void_p(self.now))
            self.now = other

    def wait(self) -> None:
        """Waits for the work that torch's next call depends on."""
        code = self._library.cleave_test_wait(ctypes.c_void_p(self.now))
        assert code == 0, f"CUDA error {code}"

    def write(self, address: int, size: int) -> int:
        """Returns GPU memory that gets the values at the address when the stream gets there."""
        key = (self.now, size)
        there = self._free[key].pop() if self._free[key] else self._library.cleave_test_memory(ctypes.c_int64(size))
        self._taken[there] = key
        self._library.cleave_test_write(*map(ctypes.c_void_p, (self.now, there, address)), ctypes.c_int64(size))
        return int(there)

    def free(self, there: int) -> None:
        """Gives memory back, which later work of the stream that took it uses for something else."""
        key = self._taken.pop(there)
        self._library.cleave_test_reuse(ctypes.c_void_p(key[0]), ctypes.c_void_p(there), ctypes.c_int64(key[1]))
        self._free[key].append(there)

    def rewrite(self, address: int, size: int) -> None:
        """Makes values that torch wrote arrive when the stream gets there."""
        values = ctypes.string_at(address, size)
        ctypes.memset(address, 0xFF, size)
        self._library.cleave_test_write(ctypes.c_void_p(self.now), ctypes.c_void_p(address), values, ctypes.c_int64(size))

    def read(self, address: int, size: int) -> None:
        """Checks that the values stay until the stream gets there."""
        self._library.cleave_test_read(ctypes.c_void_p(self.now), ctypes.c_void_p(address), ctypes.c_int64(size))

    def changed(self) -> int:
        for stream in self._all:
            self._library.cleave_test_wait(ctypes.c_void_p(stream))
        return int(self._library.cleave_test_changed())


class Interpreted(native.NativeEngine):
    """An engine on the interpreter's GPU whose memory torch takes for its own."""

    streams: _Streams

    def __init__(self, *values: Any, update: Any = None, **options: Any) -> None:
        self._numel: dict[tuple[int, int], int] = {}  # by unit and parameter
        self._size: dict[tuple[int, int], int] = {}  # in bytes
        self._of: dict[int, tuple[int, int]] = {}  # unit and parameter of an address, of the unit that was acquired last
        self._staying: dict[int, list[int]] = {}  # addresses by unit
        self._shown: dict[int, int] = {}  # bytes of gradients by address
        self._shows = False
        if update is not None:
            kept = update

            def update(part: Any) -> None:
                self.streams.wait()
                kept(part)
                if not part.on_host:
                    for address in (part.value, *part.states):
                        if address:
                            self.streams.rewrite(address, 4 * (part.end - part.begin))

        super().__init__(*values, update=update, **options)

    def __getattr__(self, name: str) -> Callable[..., None]:
        call = super().__getattr__(name)

        def waited(*given: Any) -> None:
            self.streams.move()
            call(*given)
            self.streams.wait()

        self.__dict__[name] = waited
        return waited

    def dlpack(self, address: int, dtype: int, shape: Sequence[int], on_host: bool = False) -> Any:
        if address in self._shown:
            self._shown[address] = math.prod(shape) * _BYTES[dtype]
        elif address in self._of:
            of = self._of[address]
            self._numel[of] = math.prod(shape)
            self._size[of] = self._numel[of] * _BYTES[dtype]
        return super().dlpack(address, dtype, shape, True)

    def acquire(self, unit: int) -> Sequence[int]:
        self.streams.move()
        pointers = super().acquire(unit)
        self.streams.wait()
        self._of = {address: (unit, index) for index, address in enumerate(pointers)}
        return pointers

    def _read(self, unit: int, addresses: Sequence[int]) -> None:
        for index, address in enumerate(addresses):
            if size := self._size.get((unit, index)):
                self.streams.read(address, size)

    def release(self, unit: int) -> None:
        self.streams.move()
        self._read(unit, self._pointers[unit])
        handles.check(self._lib.cleave_release(self.handle, unit))
        if not self.gathers(unit):
            self._staying[unit] = list(self._pointers[unit])

    def give(self, unit: int, gradients: Iterable[tuple[int, int, int]]) -> None:
        self.streams.move()
        written = []
        for parameter, address, dtype in gradients:
            there = self.streams.write(address, self._numel[unit, parameter] * _BYTES[dtype])
            written.append((parameter, there, dtype))
        self._read(unit, self._staying.get(unit, []))
        super().give(unit, written)
        for _, there, _ in written:
            self.streams.free(there)

    def shown_gradients(self, unit: int) -> tuple[Sequence[int], int]:
        pointers, dtype = super().shown_gradients(unit)
        self._shown |= {address: 0 for address in pointers if address}
        return pointers, dtype

    def finish_step(self, *given: Any) -> native.StepResult:
        self.streams.move()
        self._of = {}  # an update may begin at the address of a parameter
        for unit, addresses in self._staying.items():
            self._read(unit, addresses)
        shows, self._shows = self._shows, False
        for address, size in self._shown.items() if shows else ():
            self.streams.rewrite(address, size)
        result = super().finish_step(*given)
        self.streams.wait()
        return result

    def show_gradients(self) -> None:
        self._shows = True
        handles.check(self._lib.cleave_show_gradients(self.handle))
        self.streams.wait()

    def send(self, link: int, address: int, size: int) -> None:
        self.streams.move()
        there = self.streams.write(address, size)
        handles.check(self._lib.cleave_send(self.handle, link, ctypes.c_void_p(there), ctypes.c_int64(size)))
        self.streams.free(there)

    def receive(self, link: int, address: int, size: int) -> None:
        self.streams.move()
        there = self.streams.write(address, size)
        handles.check(self._lib.cleave_receive(self.handle, link, ctypes.c_void_p(there), ctypes.c_int64(size)))
        self.streams.wait()
        ctypes.memmove(address, there, size)
        self.streams.free(there)


def _with_homes(made: Any, homes: dict[str, Any]) -> Any:
    """Returns a configuration with the homes that its stage allows."""
    zero = made.section("zero_optimization")
    least = {"offload_optimizer": 1, "offload_param": 3, "stage3_max_live_parameters": 3}
    if made.native() or any(key.startswith("offload") for key in zero) or made.section("pipeline"):
        return made
    more = {key: home for key, home in homes.items() if int(zero.get("stage", 0)) >= least[key]}
    return made.with_sections(zero_optimization={**zero, **more}) if more else made


def _on_host(facts: Callable[[native.Job], dict[str, Any]]) -> Callable[[native.Job], dict[str, Any]]:
    return lambda job: {key: "cpu" if key == "device" else value for key, value in facts(job).items()}


def _require_unchanged() -> None:
    """Ends the process with an error if torch would have read other values than it did."""
    if changed := Interpreted.streams.changed():
        print(f"error: memory that torch was still reading changed {changed} times", file=sys.stderr, flush=True)
        os._exit(9)


def install() -> None:
    """Makes the engines of this process interpreted ones. Call before the first engine."""
    seed, rank = int(os.environ[SEED]), int(os.environ.get("RANK", "0"))

    def current(device: Any) -> Callable[[], int]:
        if not hasattr(Interpreted, "streams"):
            Interpreted.streams = _Streams(1000 * seed + rank, int(os.environ.get("LOCAL_RANK", "0")))
            atexit.register(_require_unchanged)
        return lambda: Interpreted.streams.now

    homes, chosen = json.loads(os.environ.get(HOMES, "{}")), configuration.configuration_of
    configuration.configuration_of = lambda config: _with_homes(chosen(config), homes)
    native.NativeEngine = Interpreted  # type: ignore[misc]
    native.Job.facts = _on_host(native.Job.facts)  # type: ignore[method-assign]
    streams.current = current  # type: ignore[assignment]
