#!/usr/bin/env python3
"""Checks that folders include only downwards, and that the CMake links agree: the include graph is the link graph."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Folders that each folder may include directly, in addition to core and itself.
ALLOWED = {
    "core": [],
    "device": [],
    "kernels": ["device"],
    "comm": ["device"],
    "data": ["device"],
    "pipeline": [],
    "config_schema": ["pipeline"],
    "optim": ["kernels", "device", "config_schema"],
    "offload": ["device"],
    "zero": ["comm", "kernels", "offload", "optim", "device", "config_schema"],
    "tensor_parallel": ["comm", "kernels", "device"],
    "model": ["kernels", "device", "tensor_parallel", "config_schema"],
    "checkpoint": ["comm", "device"],
    "monitor": ["comm", "config_schema", "device", "pipeline"],
    "runtime": ["checkpoint", "pipeline", "model", "tensor_parallel", "zero", "config_schema", "comm", "optim", "offload", "kernels", "device"],
    "plan": ["runtime", "pipeline", "model", "zero", "config_schema", "comm", "optim", "offload", "kernels", "device"],
    "launcher": ["config_schema", "comm", "device"],
    "app": ["plan", "runtime", "pipeline", "launcher", "monitor", "checkpoint", "model", "tensor_parallel", "zero", "data", "config_schema", "comm", "optim",
            "offload", "kernels", "device"],
    "python": ["plan", "runtime", "launcher", "monitor", "checkpoint", "zero", "pipeline", "config_schema", "comm", "optim", "kernels", "device"],
}
# Rooms of folders, and the rooms of the same folder that each may include; ALLOWED also applies. The name of the folder means its files
# outside of rooms. In data/, plan/ and runtime/ these files may include the rooms; in app/ the rooms may include them.
ROOMS = {
    "app": [],
    "app/start": ["app"],
    "app/run": ["app"],
    "app/compare": ["app/start", "app/run", "app"],
    "app/commands": ["app/compare", "app/start", "app/run", "app"],
    "runtime/replay": [],
    "runtime/step": [],
    "runtime/stage": [],
    "runtime/generation": ["runtime/stage"],
    "data/text": [],
    "data": [],
    "plan/bench": [],
    "plan": ["plan/bench"],
    "runtime": ["runtime/replay", "runtime/step", "runtime/stage", "runtime/generation"],
}
ABOVE_ROOMS = "app/main.cpp"
# Files of app/run serve several front ends, so neither they nor their headers may include the command line.
WITHOUT_COMMAND_LINE = ("app/run", r"CLI/")
FOREIGN = {  # library header: folders that may use it
    r"cuda|nccl|cublas|cudnn": ["device", "kernels", "comm"],
    r"gloo/": ["comm"],
    r"sodium": ["comm", "monitor"],
    r"boost/": ["monitor"],
    r"liburing": ["offload"],
    r"(oneapi/)?dnnl": ["kernels"],
    r"nlohmann/": ["core", "config_schema", "model", "checkpoint", "pipeline", "runtime", "plan", "launcher", "monitor", "data", "app", "python"],
    r"pcre2|unicode/|sentencepiece": ["data"],
    r"CLI/": ["app"],
}


def folders_on_disk():
    """Returns the folders of the program on disk; every list below must contain each of them."""
    other = {"tests", "benchmarks", "examples", "build"}
    return {path.parent.name for path in ROOT.glob("*/CMakeLists.txt")} - other | {"python"}


def lists_of_folders():
    """Yields (place, folders) of each list. app and python are built and tested, but not installed."""
    cmake = re.search(r"set\(CLEAVE_FOLDERS ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())[1].split()
    tidy = re.search(r"HeaderFilterRegex: '\(([^)]*)\)", (ROOT / ".clang-tidy").read_text())[1].split("|")
    yield "CMakeLists.txt: CLEAVE_FOLDERS", set(cmake) | {"app", "python"}
    yield ".clang-tidy: HeaderFilterRegex", set(tidy)
    yield "scripts/check_layers.py: ALLOWED", set(ALLOWED)


def room_of(name):
    return name.rsplit("/", 1)[0]


def problems_of_rooms():
    houses = sorted({room.split("/")[0] for room in ROOMS})
    sources = sorted(path for house in houses for path in (ROOT / house).rglob("*") if path.suffix in {".h", ".cpp"})
    on_disk = {room_of(str(path.relative_to(ROOT))) for path in sources}
    for room in sorted(on_disk ^ set(ROOMS)):
        yield f"scripts/check_layers.py: ROOMS: {room} {'is missing' if room in on_disk else 'does not exist'}"
    for path in sources:
        name = str(path.relative_to(ROOT))
        room = room_of(name)
        if name == ABOVE_ROOMS or room not in ROOMS:
            continue
        for included in re.findall(r'#include "(' + name.split("/")[0] + r'/[\w/]+)\.h"', path.read_text()):
            if room_of(included) not in {room, *ROOMS[room]}:
                yield f"{name}: {room}/ may not include {included}.h"
        if room == WITHOUT_COMMAND_LINE[0]:
            for header in sorted(headers_reached(path)):
                if re.search(f"#include <{WITHOUT_COMMAND_LINE[1]}", (ROOT / header).read_text()):
                    yield f"{name}: {room}/ may not include the command line, but its includes reach {header}"


def headers_reached(path):
    """Returns a file and all program headers that it includes, directly or indirectly."""
    found, left = set(), [str(path.relative_to(ROOT))]
    while left:
        name = left.pop()
        if name in found or not (ROOT / name).is_file():
            continue
        found.add(name)
        left += re.findall(r'#include "([\w/]+\.\w+)"', (ROOT / name).read_text())
    return found


def problems():
    yield from problems_of_rooms()
    for where, named in lists_of_folders():
        for folder in sorted(folders_on_disk() ^ named):
            yield f"{where}: {folder} {'is missing' if folder in folders_on_disk() else 'does not exist'}"
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
        cmake = "".join(path.read_text() for path in (ROOT / folder).rglob("CMakeLists.txt"))
        for call in re.findall(r"target_link_libraries\(\s*" + folder + r"\s([^)]*)\)", cmake):
            for word in call.split():
                if word in ALLOWED and word not in {"core", *allowed}:
                    yield f"{folder}/CMakeLists.txt: {folder} may not link {word}"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) if found else f"layers: {len(ALLOWED)} folders and {sum(1 for room in ROOMS if '/' in room)} rooms include only downwards")
    sys.exit(bool(found))
