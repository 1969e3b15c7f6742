#!/usr/bin/env python3
"""The CUDA stream of a script, with a stub of torch.cuda: the calls that ask for it, and the calls that tell the engine."""

from __future__ import annotations

import ctypes
import unittest
from unittest import mock

import torch
from cleave import native, streams
from cleave.errors import StepOrderError


class Library:
    """Records calls of cleave_use_stream."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def cleave_use_stream(self, engine: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        self.told.append(stream.value or 0)
        return 0


class Streams(unittest.TestCase):
    def test_a_cpu_has_none(self) -> None:
        self.assertIsNone(streams.current(torch.device("cpu")))

    def test_that_of_the_engines_device_is_asked_for(self) -> None:
        capturing = mock.patch("torch._C._cuda_isCurrentStreamCapturing", return_value=False)
        with capturing, mock.patch("torch.cuda.init") as begins, mock.patch("torch._C._cuda_getCurrentRawStream", return_value=7) as raw:
            current = streams.current(torch.device("cuda:3"))
            begins.assert_called_once_with()
            assert current is not None
            self.assertEqual(current(), 7)
            raw.assert_called_once_with(3)

    def test_a_stream_that_captures_a_graph_is_an_error_before_the_engine_is_told(self) -> None:
        capturing = mock.patch("torch._C._cuda_isCurrentStreamCapturing", return_value=True)
        with mock.patch("torch.cuda.init"), capturing:
            current = streams.current(torch.device("cuda:0"))
            assert current is not None
            engine, library = native.NativeEngine.__new__(native.NativeEngine), Library()
            engine.__dict__ |= {"_handle": ctypes.c_void_p(1), "_lib": library, "_stream": current, "_on": 5}
            with self.assertRaisesRegex(StepOrderError, "captures a graph.*outside of torch.cuda.graph"):
                _ = engine.handle
            self.assertEqual(library.told, [])
            engine._handle = ctypes.c_void_p()

    def test_the_engine_is_told_about_each_change_and_no_more(self) -> None:
        engine, library, now = native.NativeEngine.__new__(native.NativeEngine), Library(), iter([5, 5, 9, 9, 5, 0])
        engine.__dict__ |= {"_handle": ctypes.c_void_p(1), "_lib": library, "_stream": lambda: next(now), "_on": 5}
        for _ in range(6):
            self.assertEqual(engine.handle.value, 1)
        self.assertEqual(library.told, [9, 5, 0])
        engine._handle = ctypes.c_void_p()


if __name__ == "__main__":
    unittest.main()
