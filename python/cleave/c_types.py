"""Structures of the C interface, with the names of cleave_c.h."""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p


class Part(ctypes.Structure):
    """Part of a parameter to update (cleave_update in cleave_c.h)."""

    _fields_ = [
        *((name, c_int32) for name in ("unit", "parameter")),
        *((name, c_int64) for name in ("begin", "end", "step")),
        *((name, c_int32) for name in ("on_host", "gradient_dtype")),
        *(("gradient_scale", c_double), ("value", c_void_p), ("gradient", c_void_p), ("states", c_void_p * 3)),
    ]


UPDATE = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(Part))


class Options(ctypes.Structure):
    """Options of an engine (cleave_engine_options in cleave_c.h)."""

    __slots__ = ()  # no other fields
    _fields_ = [
        ("seed", c_uint64),
        *((name, c_int32) for name in ("gives", "rates_given", "inference", "scales_loss", "has_stream")),
        *(("stream", c_void_p), ("device_bytes", c_int64), ("host_bytes", c_int64)),
        *(("update", UPDATE), ("update_context", c_void_p), ("states", POINTER(c_char_p)), ("state_count", c_int32)),
        ("model_config", c_char_p),
    ]


class Samples(ctypes.Structure):
    """Samples of a model that the engine computes (cleave_samples in cleave_c.h)."""

    _fields_ = [*((n, c_void_p) for n in ("tokens", "labels", "mask")), ("samples", c_int64), ("length", c_int64), ("items", c_double)]


class Rates(ctypes.Structure):
    """Rates of the optimizer for a step; a negative value keeps the optimizer's own."""

    _fields_ = [(name, c_double) for name in ("lr", "momentum", "beta2", "weight_decay")]

    def __init__(self, lr: float = 0.0, momentum: float = -1.0, beta2: float = -1.0, weight_decay: float = -1.0) -> None:
        super().__init__(lr, momentum, beta2, weight_decay)


class StepResult(ctypes.Structure):
    """Result of a step, equal on all ranks (runtime/step/step_result.h)."""

    _numbers = ("loss", "grad_norm", "lr", "loss_scale")
    _fields_ = [("step", c_int64), ("skipped_total", c_int64), *((name, c_double) for name in _numbers), ("skipped", c_int32)]
