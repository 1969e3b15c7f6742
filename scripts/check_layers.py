#!/usr/bin/env python3
"""Checks that folders include only downwards, and that CMake links say the same: the include graph is the link graph."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Folder: what it may include directly. Everything may include core and itself.
ALLOWED = {
    "core": [],
    "device": [],
    "kernels": ["device"],
    "comm": ["device"],
    "data": ["device"],
    "config_schema": [],
    "optim": ["kernels", "device", "config_schema"],
    "offload": ["device"],
    "zero": ["comm", "kernels", "offload", "optim", "device"],
    "tensor_parallel": ["comm", "device"],
    "sequence_parallel": ["comm", "kernels", "device"],
    "model": ["kernels", "device", "tensor_parallel", "sequence_parallel"],
    "checkpoint": ["comm", "device"],
    "monitor": ["device"],
    "pipeline": [],
    "runtime": ["checkpoint", "pipeline", "model", "tensor_parallel", "sequence_parallel", "zero", "config_schema", "comm", "optim", "offload", "kernels", "device"],
    "launcher": ["comm"],
    "app": ["runtime", "launcher", "monitor", "checkpoint", "model", "tensor_parallel", "sequence_parallel", "zero", "data", "config_schema", "comm", "optim",
            "offload", "kernels", "device"],
}
FOREIGN = {  # a library's header: the folders that may use it
    r"cuda|nccl|cublas|cudnn": ["device", "kernels", "comm"],
    r"gloo/": ["comm"],
    r"liburing": ["offload"],
    r"(oneapi/)?dnnl": ["kernels"],
    r"nlohmann/": ["config_schema", "model", "checkpoint", "pipeline", "runtime", "launcher", "monitor", "app"],
    r"CLI/": ["app"],
}


def problems():
    for folder, allowed in ALLOWED.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                where = f"{path.relative_to(ROOT)}:{number}"
                found = re.match(r'#include "(\w+)/', line)
                if found and found[1] in ALLOWED and found[1] not in {folder, "core", *allowed}:
                    yield f"{where}: {folder}/ may not include {found[1]}/"
                system = re.match(r"#include <([^>]+)>", line)
                for pattern, folders in FOREIGN.items():
                    if system and re.match(pattern, system[1]) and folder not in folders:
                        yield f"{where}: <{system[1]}> belongs in {', '.join(folders)}"
        cmake = (ROOT / folder / "CMakeLists.txt").read_text()
        for call in re.findall(r"target_link_libraries\(\s*" + folder + r"\s([^)]*)\)", cmake):
            for word in call.split():
                if word in ALLOWED and word not in {"core", *allowed}:
                    yield f"{folder}/CMakeLists.txt: {folder} may not link {word}"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) if found else f"layers: {len(ALLOWED)} folders include only downwards")
    sys.exit(bool(found))
