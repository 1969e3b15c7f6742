#!/usr/bin/env python3
"""PTX of kernels that move data: no integer divisions, no IEEE divisions for 16-bit results, 16-byte stores per thread.

usage: ptx_test.py PTX..."""
import pathlib
import re
import sys
import unittest

TEXT = "\n".join(pathlib.Path(name).read_text() for name in sys.argv[1:])
del sys.argv[1:]
KERNELS = {m[1]: m[2] for m in re.finditer(r"\.entry (\w+)\((?:.|\n)*?\)\n(?:\.\w+.*\n)*\{\n((?:.|\n)*?)\n\}", TEXT)}
SIXTEEN = re.compile(r"__half|__nv_bfloat16")


def named(functor):
    """Returns the kernels of a functor; a mangled name contains the functor's name after its length."""
    return {name: body for name, body in KERNELS.items() if f"{len(functor)}{functor}I" in name}


class Ptx(unittest.TestCase):
    def none_of(self, functor, pattern, only=re.compile("")):
        found = {name: body for name, body in named(functor).items() if only.search(name)}
        self.assertGreaterEqual(len(found), 2, f"kernels of {functor}: {list(KERNELS)[:3]}")
        for name, body in found.items():
            self.assertEqual(re.findall(pattern, body), [], name)

    def test_rows_and_columns_need_no_integer_division(self):
        for functor in ("Gate", "GateGradient", "Turn"):
            self.none_of(functor, r"\b(?:div|rem)\.[su]\d\d\b")

    def test_16_bit_results_use_approximate_division(self):
        for functor in ("Gate", "GateGradient", "Turn", "Forward", "Backward"):
            self.none_of(functor, r"\b(?:div|rcp|sqrt)\.rn\.f32|\bdiv\.full", SIXTEEN)

    def test_adam_writes_16_contiguous_bytes_per_thread(self):
        kernels = named("AdamStep")
        self.assertGreaterEqual(len(kernels), 9)  # gradients and copies of three types
        for name, body in kernels.items():
            self.assertIn("each_kernelILi4E", name)  # elements of a thread
            self.assertGreaterEqual(len(re.findall(r"st\.global\.v4\.\w32", body)), 3, name)  # weight and both moments


if __name__ == "__main__":
    unittest.main()
