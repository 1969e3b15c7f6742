#!/usr/bin/env python3
"""Lists the error and warning messages of the program and the Python package, one per line: place, kind, text.

    scripts/list_messages.py [--output FILE]    writes the table to standard output or to a file
    scripts/list_messages.py --check            also ends with 1 if a message breaks a rule of CONTRIBUTING.md, "Writing"

An error names its object first: it starts with a placeholder, an option or a key, or has a colon. No message has the constructions that
check_words.py finds.
"""
from __future__ import annotations

import argparse
import ast
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from check_words import QUESTION, RULES

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("app", "checkpoint", "comm", "config_schema", "core", "data", "device", "kernels", "launcher", "model", "monitor", "offload", "optim",
           "pipeline", "plan", "python/capi", "runtime", "tensor_parallel", "zero")
ONE = r'"(?:[^"\\\n]|\\.)*"'
LITERAL = rf"{ONE}(?:\s*{ONE})*"
WARNING = re.compile(rf"\bwarn\(\s*(?P<text>{LITERAL})")  # core/warnings.h
CALL = re.compile(rf"Exit::(?P<exit>\w+),\s*(?:fmt::format\(\s*)?(?P<text>{LITERAL})")  # fail(), require(), Error()
# Readers that put their file name before each message.
PARTS = ("checkpoint/elements.cpp", "checkpoint/manifest.cpp", "checkpoint/safetensors.cpp", "checkpoint/torch_file.cpp")
OBJECT = re.compile(r"\{|--?\w|\w+\.\w|[a-z]+ \{")  # a placeholder, an option, a key, or a noun and its number
FIXED = ("download it again", "expected the config.json", "out of host memory")  # appended by readers; text of every process
PYTHON_ERRORS = re.compile(r"(?:Error|NotBuilt|RankLost|OutOfMemory)$")


class Message(NamedTuple):
    """A row of the table."""

    place: str
    kind: str  # the name of the exit code, "warning", or the Python class
    text: str


def joined(literals: str) -> str:
    """The text of adjacent literals."""
    return "".join(part[1:-1] for part in re.findall(ONE, literals)).replace('\\"', '"')


def cpp_messages(path: pathlib.Path, name: str) -> Iterator[Message]:
    """Errors and warnings of a C++ or CUDA file."""
    text = re.sub(r"^\s*//.*$", lambda m: " " * len(m[0]), path.read_text(errors="replace"), flags=re.MULTILINE)

    def place(at: int) -> str:
        return f"{name}:{text.count(chr(10), 0, at) + 1}"

    for found in CALL.finditer(text):
        if (message := joined(found["text"])) != "{}" and not message.startswith(FIXED):
            yield Message(place(found.start("text")), found["exit"], message)
    for found in WARNING.finditer(text):
        if (message := joined(found["text"])) != "{}":
            yield Message(place(found.start("text")), "warning", message)
    for found in re.finditer(LITERAL, text):
        if (message := joined(found[0])).startswith("warning: "):
            yield Message(place(found.start()), "warning", message.removesuffix("\\n"))


def python_text(node: ast.expr) -> str:
    """The text of a string or an f-string, with its values as placeholders."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def python_messages(path: pathlib.Path, name: str) -> Iterator[Message]:
    """Exceptions and warnings of a Python file."""
    tree = ast.parse(path.read_text())
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            kind = ast.unparse(node.exc.func).rsplit(".", 1)[-1]
            if PYTHON_ERRORS.search(kind) and kind != "AttributeError" and (text := python_text(node.exc.args[0])):
                yield Message(f"{name}:{node.lineno}", kind, text)
        elif isinstance(node, (ast.JoinedStr, ast.Constant)) and id(node) not in parts and (text := python_text(node)).startswith("warning: "):
            yield Message(f"{name}:{node.lineno}", "warning", text)


def messages() -> Iterator[Message]:
    """All rows, in the order of folders and files."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".cpp", ".h", ".cu", ".cuh"}:
                yield from cpp_messages(path, str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "python/cleave").rglob("*.py")):
        yield from python_messages(path, str(path.relative_to(ROOT)))


def faults(message: Message) -> Iterator[str]:
    """Yields the faults of a message. Program defects, stops on request and parts of other messages may have any form."""
    free = message.kind in {"internal", "stopped", "warning"} or message.place.startswith(PARTS)
    if not free and ": " not in message.text and not OBJECT.match(message.text):
        yield "names no object; write <object>: <problem> (got X, expected Y); <action>"
    for pattern, advice in RULES:
        if (found := pattern.search(message.text)) and not QUESTION.search(message.text[found.start():]):
            yield f"'{found[0]}': write {advice}"


def main() -> int:
    """Prints the table and the faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a message breaks a rule")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("/dev/stdout"), metavar="FILE")
    args = parser.parse_args()
    rows = list(messages())
    args.output.write_text("".join("\t".join(row) + "\n" for row in rows))
    found = [(row, fault) for row in rows for fault in faults(row)] if args.check else []
    for row, fault in found:
        print(f"{row.place}: {fault}\n    {row.text}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
