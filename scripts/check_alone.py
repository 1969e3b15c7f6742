#!/usr/bin/env python3
"""Checks that each C++ file includes the headers it uses, by compiling files alone without generating code. Builds in units of several
such as the test build, do not notice a header that another file of the unit includes.

usage: check_alone.py FOLDER [PART OF]
FOLDER: configured without units and with CMAKE_EXPORT_COMPILE_COMMANDS=ON; nothing needs to be built. PART OF: check only part PART, from
0, of OF parts of the files.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

# Options of a compile command that name its output, and options without effect on errors.
WITH_VALUE = ("-o", "-MF", "-MT")
ALONE = ("-c", "-MD", "-Werror")


def compiles(entry: dict[str, str]) -> str:
    """Returns the compiler's errors for an entry of compile_commands.json."""
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
