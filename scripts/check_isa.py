#!/usr/bin/env python3
"""Checks that objects compiled for one instruction set define symbols only in their own namespace.

A shared inline function compiled with AVX-512 is a weak symbol that the linker may use in the whole program, which then crashes on machines
without AVX-512.

usage: check_isa.py NAMESPACE OBJECT...    (for example: check_isa.py cleave::kernels::cpu::v4 a.o b.o)
"""
import subprocess
import sys


def strays(namespace, path):
    mangled = "_ZN" + "".join(f"{len(part)}{part}" for part in namespace.split("::"))
    listing = subprocess.run(["nm", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        if kind in "TWVuiBDRC" and not name.startswith(mangled):
            yield kind, name


def main():
    namespace, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        sys.exit("check_isa.py: no objects given")
    found = [(path, kind, name) for path in objects for kind, name in strays(namespace, path)]
    for path, kind, name in found:
        print(f"{path}: symbol {name} ({kind}) lies outside {namespace}; give it internal linkage")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
