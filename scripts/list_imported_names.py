#!/usr/bin/env python3
"""Prints the names of the package deepspeed that Python files and notebooks use, one `MODULE NAME` per line.

The files are parsed, not imported. tests/fixtures/deepspeed_names.txt is the output for the sources that its first line names.
Usage: list_imported_names.py FOLDER...
"""

import ast
import json
import pathlib
import sys

PACKAGE = "deepspeed"


def source_of(path):
    """Returns the Python of a file; of a notebook, its cells without shell commands."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        return text
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n".join(line for line in "\n".join(cells).splitlines() if not line.lstrip().startswith(("%", "!")))


def chain_of(node):
    """Returns the name and the attributes of an expression such as a.b.c."""
    attributes = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    return (node.id, attributes) if isinstance(node, ast.Name) else ("", [])


def names_of(tree):
    found, local = set(), {}  # local: the full name of each name in the file
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                found.add((node.module, alias.name))
                local[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in (a for a in node.names if a.name.split(".")[0] == PACKAGE):
                found.add((alias.name, ""))
                local[alias.asname or PACKAGE] = alias.name if alias.asname else PACKAGE
    for node in ast.walk(tree):
        name, attributes = chain_of(node)
        if attributes and name in local:
            *above, last = [*local[name].split("."), *attributes]
            found.add((".".join(above), last))
    return found


def main():
    found = set()
    for folder in sys.argv[1:]:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.suffix not in (".py", ".ipynb") or not path.is_file():
                continue
            try:
                found |= names_of(ast.parse(source_of(path)))
            except (SyntaxError, ValueError, KeyError) as error:
                print(f"{path}: not parsed: {error}", file=sys.stderr)
    if len(sys.argv) < 2:
        sys.exit("usage: list_imported_names.py FOLDER...")
    for module, name in sorted(found):
        print(f"{module} {name}".rstrip())


if __name__ == "__main__":
    main()
