#!/usr/bin/env python3
"""Compares registers, shared memory and possible warps of every kernel in a CUDA build with a committed table. Exits with 1 and the
differences, or with 77 if it cannot compare: another compiler made the table, or cuobjdump is missing.

usage: kernel_resources.py [--write] BUILD [TABLE]

Each line of the table is a kernel: file, name, and for each architecture registers per thread / bytes of static shared memory per block /
warps per multiprocessor at a time, in blocks of the size in __launch_bounds__ (one warp without it). Fewer warps hide less memory latency.
Kernels of libraries are left out. A stack or local memory is an error.
"""
import difflib
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Warps, blocks and KiB of shared memory per multiprocessor, by compute capability. From the technical specifications in the "CUDA C++
# Programming Guide".
LIMITS = {80: (64, 32, 164), 86: (48, 16, 100), 89: (48, 24, 100), 90: (64, 32, 228), 100: (64, 32, 228), 120: (48, 24, 100)}
REGISTERS, PARTS, GRANULE = 16384, 4, 256  # registers per part of a multiprocessor, parts, and the step of a warp's allocation
RESERVED = 1024  # bytes of shared memory per block for the system


def capability(architecture):
    return int(re.sub(r"\D", "", architecture))


def warps(architecture, registers, shared, threads):
    most_warps, most_blocks, kib = LIMITS[capability(architecture)]
    of_block = -(-threads // 32)
    of_warp = -(-registers * 32 // GRANULE) * GRANULE
    return of_block * min(REGISTERS // of_warp * PARTS // of_block, most_warps // of_block, most_blocks, kib * 1024 // (shared + RESERVED))


def cuobjdump():
    """Returns the cuobjdump of the toolkit, or of Triton in torch's environment, or None."""
    python = pathlib.Path(os.environ.get("CLEAVE_TORCH_PYTHON", ROOT / ".venv/bin/python"))
    carried = python.parents[1].glob("lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump")
    installed = shutil.which("cuobjdump", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    return os.environ.get("CUOBJDUMP") or installed or next(carried, None)


def launch_bounds(cubin):
    """Returns the largest number of threads per block of each kernel, if the source sets it: attribute 5 in section .nv.info of the ELF
    file."""
    file = pathlib.Path(cubin).read_bytes()
    sections, = struct.unpack_from("<Q", file, 0x28)
    size, count, names = struct.unpack_from("<HHH", file, 0x3a)
    place = [struct.unpack_from("<IIQQQQ", file, sections + i * size) for i in range(count)]
    bounds = {}
    for name, _, _, _, at, length in place:
        begin = place[names][4] + name
        kernel = file[begin:file.index(b"\0", begin)].decode()
        end = at + length if kernel.startswith(".nv.info.") else at
        while at < end:
            form, attribute, value = struct.unpack_from("<BBH", file, at)
            if attribute == 5:
                x, y, z = struct.unpack_from("<III", file, at + 4)
                bounds[kernel.removeprefix(".nv.info.")] = x * y * z
            at += 4 + (value if form == 4 else 0)
    return bounds


def kernels(tool, path):
    """Returns (mangled name, architecture, registers, shared, threads) for each kernel of an object, and prints those with a stack."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tool, "-xelf", "all", path.resolve()], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        bounds = {re.search(r"sm_\w+", cubin.name)[0]: launch_bounds(cubin) for cubin in pathlib.Path(folder).iterdir()}
    text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    architecture = kernel = None
    for line in text.splitlines():
        if found := re.match(r"arch = (sm_\w+)", line):
            architecture = found[1]
        elif found := re.match(r" Function (\S+):", line):
            kernel = found[1]
        elif found := re.match(r"  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            registers, stack, shared, local = map(int, found.groups())
            if stack or local:
                sys.exit(f"{path.name}: {kernel} has {stack} bytes of stack and {local} of local memory for {architecture}")
            if capability(architecture) >= 90 and shared:  # includes the system's share there
                shared -= RESERVED
            yield kernel, architecture, registers, shared, bounds[architecture].get(kernel, 32)


def table(tool, build):
    compiler = next(build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"), None)
    if not compiler:
        sys.exit(f"kernel_resources.py: {build} is not a CUDA build")
    version = re.search(r'CMAKE_CUDA_COMPILER_VERSION "(.+)"', compiler.read_text())[1]
    rows = [(path.name.removesuffix(".o"), *kernel) for path in sorted(build.rglob("*.cu.o")) for kernel in kernels(tool, path)]
    names = subprocess.run(["c++filt", "-p"], input="\n".join(row[1] for row in rows), capture_output=True, text=True, check=True).stdout
    lines = {}
    for (file, _, architecture, registers, shared, threads), name in zip(rows, names.splitlines()):
        if "cleave::" not in name.split("<")[0]:
            continue
        short = re.sub(r"\(anonymous namespace\)::|cleave::(\w+::)*", "", name).replace(" >", ">")
        count = warps(architecture, registers, shared, threads)
        lines.setdefault(f"{file} {short}:", set()).add(f"{architecture} {registers}/{shared}/{count}")
    head = f"nvcc {version} for {' '.join(sorted({row[2] for row in rows}))}: registers / bytes of shared memory / warps"
    return [head, *(f"{name} {', '.join(sorted(lines[name]))}" for name in sorted(lines))]


def main():
    writes = sys.argv[1:2] == ["--write"]
    build, *other = map(pathlib.Path, sys.argv[1 + writes:])
    file = other[0] if other else ROOT / "tests/kernels/resources.txt"
    if not (tool := cuobjdump()):
        print("not compared: cuobjdump is missing in the toolkit and in Triton")
        sys.exit(77)
    made = table(tool, build)
    if writes:
        file.write_text("\n".join(made) + "\n")
        return
    known = file.read_text().splitlines()
    if known[0] != made[0]:
        print(f"not compared: {file.name} is of {known[0].split(':')[0]}, and the build of {made[0].split(':')[0]}")
        sys.exit(77)
    changed = [line for line in difflib.unified_diff(known, made, "committed", "built", n=0, lineterm="") if not line.startswith("@@")]
    if changed:
        print("\n".join(changed), "write the table again (kernel_resources.py --write), and give the reason", sep="\n")
        sys.exit(1)
    print(f"{len(made) - 1} kernels as committed")


if __name__ == "__main__":
    main()
