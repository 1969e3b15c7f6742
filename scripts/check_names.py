#!/usr/bin/env python3
"""Checks that a folder is a namespace and that no namespace defines a type twice.

Two classes with one name in a program are undefined behavior that no compiler detects: the linker keeps one destructor for both. So each
file uses the namespace of its folder, and a type at namespace scope has one definition. Some builds compile several files of a folder as
one unit, so a constant or type that only one file can use also has one definition per folder and namespace.
usage: check_names.py [ROOT]
"""
import collections
import pathlib
import re
import sys

GROUND = {"core", "device"}  # basic vocabulary in the namespace `cleave` itself
# Folders with a shorter namespace name, and rooms with their own namespace.
NAMES = {"config_schema": "config", "data/text": "text", "plan/bench": "bench", "python/capi": "capi"}
TYPE = re.compile(r"^(?:template <.*>\s*)?(?:class|struct|union|enum(?: class| struct)?) (?:alignas\(\w+\) )?(\w+)(?: final)?(?: : [^;{]*)?\s*(?:\{|$)")
CONSTANT = re.compile(r"^(?:constexpr|const|inline constexpr) [\w:<>, *&]*?\b(k[A-Z]\w*)(?:\[\w*\])*(?: =|\{|\[|$)")
NAMESPACE = re.compile(r"^(?:inline )?namespace ?([\w:]*) \{$")
# Forward declarations of names in other folders.
FORWARD = re.compile(r"(?:(?:struct|class|enum class) \w+;.*\n|namespace \w+ \{\n|\}.*\n|\n|//.*\n)+")


def folder_of(path):
    """Returns the library folder of a file or of its test, or None."""
    parts = path.parts[1:] if path.parts[0] == "tests" else path.parts
    room = "/".join(parts[:2])
    return room if room in NAMES else parts[0] if len(parts) > 1 else None


def definitions(text):
    """Returns (namespace, name) for each type and constant at namespace scope; a part of the namespace of names that only this file can use
    is empty."""
    spaces = []
    text = re.sub(r"^namespace \w[\w:]* \{\n.*\n\}$", "", text, flags=re.M)  # namespaces in one line have no end comment
    for line in text.splitlines():
        if found := NAMESPACE.match(line):
            spaces.append(found[1])
        elif spaces and line == f"}}  // namespace {spaces[-1]}".rstrip():
            spaces.pop()
        elif found := TYPE.match(line) or CONSTANT.match(line):
            yield tuple(spaces), found[1]


def misplaced(name, text, folder):
    """Returns the wrong namespaces of definitions in a file of the folder."""
    wanted = "cleave" if folder in GROUND else f"cleave::{NAMES.get(folder, folder)}"
    for space, body in re.findall(r"^namespace (cleave\b[\w:]*) \{\n(.*?)^\}", text, re.M | re.S):
        inside = space == wanted or space.startswith(f"{wanted}::")
        of_tests = name.parts[0] == "tests" and space in ("cleave", "cleave::testing")
        if not inside and not of_tests and not FORWARD.fullmatch(body):
            yield f"{name}: is in namespace {space}; {wanted} is wanted"


def problems(root):
    folders = {path.parent.name for path in root.glob("*/CMakeLists.txt")} - {"tests", "benchmarks", "examples"} | set(NAMES)
    where = collections.defaultdict(set)
    for path in sorted(path for suffix in ("h", "cpp", "cu", "cuh") for path in root.rglob(f"*.{suffix}")):
        name = path.relative_to(root)
        if name.parts[0] == "build":
            continue
        text, folder = path.read_text(), folder_of(name)
        if folder in folders:
            yield from misplaced(name, text, folder)
        for spaces, defined in definitions(text):
            inside_file = f" of {folder}, in a namespace without a name," if "" in spaces else ""
            in_units = name.suffix == ".cpp" and folder in folders and name.parts[0] != "tests" and name.parent.name != "isa"
            if not inside_file or in_units:
                where["::".join([*filter(None, spaces), defined]) + inside_file].add(str(name))
    for type_name, files in sorted(where.items()):
        of_product = [f for f in files if not f.startswith(("tests/", "examples/"))]
        if type_name.startswith("cleave") and of_product and len(files) > 1:
            yield f"{type_name} is defined {len(files)} times: {', '.join(sorted(files))}"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = list(problems(root))
    print("\n".join(found) or "every type is defined once, in the namespace of its folder")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
