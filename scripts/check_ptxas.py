#!/usr/bin/env python3
"""Runs a CUDA compiler and fails if its assembler reports spilled registers, local memory or serialized warpgroup products. The CUDA build
compiles every file through this script.

usage: check_ptxas.py COMPILER ARGUMENT...    (with -Xptxas=-warn-spills,-warn-lmem-usage among the arguments)
"""
import os
import re
import shutil
import subprocess
import sys

# Messages of ptxas and their meaning. ptxas reports serialized products only as "info", and no option makes that an error.
FAULTS = [(r"Registers are spilled", "spills registers"),
          (r"Local memory used", "uses local memory"),
          (r"\(C75\d\d\)", "has its warpgroup products changed")]
# Accepted faults: (part of the demangled kernel name, fault). None so far.
ALLOWED = []

FUNCTION = re.compile(r"function '([^']+)'")


def demangled(name):
    tool = shutil.which("c++filt")
    return subprocess.run([tool, name], capture_output=True, text=True).stdout.strip() if tool else name


def faults(text):
    for line in text.splitlines():
        for pattern, what in FAULTS:
            if line.startswith("ptxas") and re.search(pattern, line):
                found = FUNCTION.search(line)
                kernel = demangled(found[1]) if found else "a kernel"
                if not any(part in kernel and fault == what for part, fault in ALLOWED):
                    yield kernel, what, line


def main():
    if len(sys.argv) < 2:
        sys.exit("check_ptxas.py: no compiler given")
    compiled = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    sys.stderr.write(compiled.stdout)
    found = list(faults(compiled.stdout))
    for kernel, what, line in found:
        print(f"check_ptxas: error: {kernel} {what}: {line.split(':', 1)[1].strip()}", file=sys.stderr)
    if found and "-o" in sys.argv:  # so that the next build compiles the file again
        output = sys.argv[sys.argv.index("-o") + 1]
        if os.path.exists(output):
            os.remove(output)
    sys.exit(compiled.returncode or (1 if found else 0))


if __name__ == "__main__":
    main()
