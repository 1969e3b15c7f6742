"""The native library, loaded once through ctypes, and the handles of what it makes."""

import ctypes
import functools
import json
import os
import weakref
from collections.abc import Callable
from ctypes import byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any, TextIO

from .errors import CleaveError, UsageError, error_of
from .programs import installed, name_cuda_libraries

_C_VERSION = 17


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


def check(code: int) -> None:
    """Raises the error of a call that failed."""
    if code:
        raise error_of(code, library().cleave_error().decode(errors="replace"))


def warn(text: str, file: TextIO | None = None) -> None:
    """Prints a text that begins with "warning: ", and passes it to the monitors of the engines of this process.

    Args:
        text: one or several lines.
        file: instead of standard output.
    """
    print(text, file=file, flush=True)
    check(library().cleave_note_warning(text.removeprefix("warning: ").encode(errors="replace")))


def filled(to: Any, call: Callable[[Any], int]) -> Any:
    """Passes an output to a call and returns it filled."""
    check(call(byref(to)))
    return to


def text_of(call: Callable[[Any], int]) -> str:
    """Returns the string output of a call, and frees the C string."""
    text = filled(c_void_p(), call)
    try:
        return ctypes.string_at(text.value or 0).decode(errors="replace")
    finally:
        library().cleave_free_text(text)


def in_c(value: Any) -> Any:
    """Returns a value as an argument of a C function."""
    if isinstance(value, int):
        return c_int64(value)
    if isinstance(value, str):
        return os.fsencode(value)
    return c_double(value) if isinstance(value, float) else byref(value) if isinstance(value, ctypes.Structure) else value


_IN_A_CHILD = "engine: not usable in a process that was forked from a rank, such as a DataLoader worker; call it in the rank itself"


class Handle:
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

    def require_rank(self) -> None:
        """Checks that this process is the rank, also for work that needs no call of the library."""
        if self._gone == _IN_A_CHILD:
            raise CleaveError(self._gone)

    @property
    def freed(self) -> bool:
        return not self._handle

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Returns a method for any C function without outputs, with addresses, numbers and strings as arguments."""
        function = getattr(library(), self._prefix + name)
        self.__dict__[name] = call = lambda *values: check(function(self.handle, *map(in_c, values)))
        return call

    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self.asked(self._facts)))

    def asked(self, name: str, *values: Any) -> str:
        """Returns the string output of a C function."""
        return text_of(lambda text: getattr(library(), self._prefix + name)(self.handle, *map(in_c, values), text))


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _leave_behind() -> None:
    """In a forked child: what the parent uses stays, and calls are errors. Both would answer the other ranks."""
    for handle in list(_handles):
        handle._handle = c_void_p()
        handle._gone = _IN_A_CHILD


os.register_at_fork(after_in_child=_leave_behind)
