#!/usr/bin/env python3
"""Compiles C++ files alone, without making code: each includes what it uses. A build in units of many files, as the tests' own, does not
see a header that is missing in one of them and included by another.

usage: check_alone.py FOLDER [PART OF]
FOLDER was configured without units, with CMAKE_EXPORT_COMPILE_COMMANDS=ON; nothing in it has to be built. PART OF: the PART-th, from 0, of
so many parts of the files.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

# Of a compile command: what names its output, with the name, and what has no say in whether it compiles.
WITH_VALUE = ("-o", "-MF", "-MT")
ALONE = ("-c", "-MD", "-Werror")


def compiles(entry: dict[str, str]) -> str:
    """The compiler's errors for one entry of compile_commands.json."""
    words = shlex.split(entry["command"])
    while pathlib.Path(words[0]).name == "ccache":
        words.pop(0)
    command = [words[0], "-fsyntax-only", "-w"]
    rest = iter(words[1:])
    for word in rest:
        if word in WITH_VALUE:
            next(rest)
        elif word not in ALONE and not word.startswith(("-O", "-W")):
            command.append(word)
    done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True, errors="replace", check=False)
    return "" if done.returncode == 0 else done.stderr or f"{entry['file']}: the compiler ended with {done.returncode}"


def main() -> int:
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    part, parts = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) == 4 else (0, 1)
    entries = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text())
    files = sorted((e for e in entries if e["file"].endswith(".cpp")), key=lambda e: e["file"])[part::parts]
    if not files:
        sys.exit(f"check_alone.py: no C++ file in part {part} of {parts} of {sys.argv[1]}/compile_commands.json")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = [text for text in pool.map(compiles, files) if text]
    for text in errors:
        print("\n".join(text.splitlines()[:6]))
    print(f"{len(files)} files alone, {len(errors)} of them do not compile")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
