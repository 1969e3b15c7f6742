#!/usr/bin/env python3
"""Runs a command as on an older CPU: kernels and oneDNN are limited to one instruction-set level.

usage: at_cpu_level.py avx2|avx512|avx512_bf16|amx COMMAND...    (for example: at_cpu_level.py avx2 build/release/bin/cleave report)

Exits with 77, which ctest counts as skipped, if this CPU does not support the level.
"""
import os
import sys

# Level: required flags of /proc/cpuinfo, CLEAVE_ISA, ONEDNN_MAX_CPU_ISA.
AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = {
    "avx2": ({"avx2", "fma", "f16c"}, "v3", "AVX2"),
    "avx512": (AVX512, "v4", "AVX512_CORE"),
    "avx512_bf16": (AVX512 | {"avx512_bf16"}, "v4", "AVX512_CORE_BF16"),
    "amx": (AVX512 | {"amx_bf16", "amx_tile"}, "v4", "AVX512_CORE_AMX"),
}


def flags_of_cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    return set()


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in LEVELS:
        sys.exit(__doc__)
    level, command = sys.argv[1], sys.argv[2:]
    needed, isa, onednn = LEVELS[level]
    if missing := needed - flags_of_cpu():
        print(f"skipped: level {level} needs {', '.join(sorted(missing))}, which this CPU lacks")
        sys.exit(77)
    os.execvpe(command[0], command, {**os.environ, "CLEAVE_ISA": isa, "ONEDNN_MAX_CPU_ISA": onednn})


main()
