#!/usr/bin/env python3
"""Reaction of the CUDA build to assembler warnings about a kernel. usage: ptxas_test.py FLAG LAUNCHER... NVCC"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

FLAG, *COMPILER = sys.argv[1:]
del sys.argv[1:]

GOOD = "__global__ void fine(float* p) { p[threadIdx.x] *= 2; }"
# 64 values of a thread that has 32 registers.
SPILLS = """
__global__ void __launch_bounds__(1024, 2) spills(float* p) {
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = p[threadIdx.x + i * 1024];
  for (int k = 0; k < 64; ++k)
    for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + k) % 64] + 1;
  for (int i = 0; i < 64; ++i) p[threadIdx.x + i * 1024] = a[i];
}"""
# An array that is indexed by what only the run knows.
LOCAL = """
__global__ void local(float* p, int n) {
  float a[32];
  for (int i = 0; i < 32; ++i) a[i] = p[i];
  for (int i = 0; i < n; ++i) a[int(p[i]) % 32] += 1;
  p[threadIdx.x] = a[n];
}"""
# An accumulator that is changed between two products of one group.
SERIAL = """
#define PRODUCT asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;" \\
                             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(a), "l"(b))
__global__ void __launch_bounds__(128) serial(float* p, unsigned long long a, unsigned long long b) {
  float c[4] = {p[0], p[1], p[2], p[3]};
  for (int k = 0; k < 4; ++k) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    PRODUCT;
    c[0] += 1;
    PRODUCT;
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int i = 0; i < 4; ++i) p[threadIdx.x * 4 + i] = c[i];
}"""


class Ptxas(unittest.TestCase):
    def compile(self, source):
        with tempfile.TemporaryDirectory() as folder:
            file, out = pathlib.Path(folder) / "kernel.cu", pathlib.Path(folder) / "kernel.o"
            file.write_text(source)
            r = subprocess.run([*COMPILER, FLAG, "--generate-code=arch=compute_90a,code=[sm_90a]", "-c", file, "-o", out], capture_output=True,
                               text=True)
            return r, out.exists()

    def test_a_kernel_of_which_nothing_is_said_is_compiled(self):
        r, made = self.compile(GOOD)
        self.assertEqual((r.returncode, made), (0, True), r.stderr)

    def test_a_kernel_that_spills_or_keeps_its_products_apart_is_an_error_by_name(self):
        for source, kernel, fault in [(SPILLS, "spills(float*)", "spills registers"), (LOCAL, "local(float*, int)", "uses local memory"),
                                      (SERIAL, "serial(float*", "has its warpgroup products changed")]:
            with self.subTest(kernel=kernel):
                r, made = self.compile(source)
                self.assertNotEqual(r.returncode, 0, r.stderr)
                self.assertFalse(made)
                self.assertRegex(r.stderr, rf"check_ptxas: error: {kernel.replace('(', '[(]').replace('*', '[*]').rstrip(')')}.* {fault}: ")


if __name__ == "__main__":
    unittest.main()
