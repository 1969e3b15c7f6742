#!/usr/bin/env python3
"""Writes scripts/requirements/NAME.txt for each given NAME.in: all packages that pip would install, with their version and the hashes of
the
files for x86-64 Linux and each Python in PYTHONS. Downloads metadata only. Run it after changing a .in file.

usage: scripts/pin_requirements.py scripts/requirements/torch.in ...    (with the first Python of PYTHONS)
"""

import json
import pathlib
import subprocess
import sys
import tempfile

PYTHONS = ("3.11", "3.12")  # of Debian 12 and Ubuntu 24.04
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)] + [f"manylinux{old}_x86_64" for old in (2014, 2010, 1)]


def report(*options):
    """Returns the packages that pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        command = [sys.executable, *"-m pip install --quiet --dry-run --ignore-installed --report".split(), path, *options]
        subprocess.run([str(word) for word in command], check=True)
        return json.loads(path.read_text())["install"]


def wheels(python, pins):
    """Returns the files of another Python for the same versions."""
    with tempfile.TemporaryDirectory() as folder:
        names = pathlib.Path(folder) / "pins.txt"
        names.write_text("\n".join(pins))
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        return report("--no-deps", "--python-version", python, "--only-binary=:all:", *platforms, "--target", folder, "-r", names)


def text_of(source, reports):
    """Returns the requirements file, with packages ordered by name."""
    hashes = {}
    for package in (p for packages in reports for p in packages):
        data = package["metadata"]
        pin = f"{data['name'].lower().replace('_', '-')}=={data['version']}"
        hashes.setdefault(pin, set()).add(package["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = [f"# By scripts/pin_requirements.py from {source.name}, for x86-64 Linux and Python {' and '.join(PYTHONS)}.\n"]
    for pin, found in sorted(hashes.items()):
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(found))]) + "\n")
    return "".join(lines)


def main():
    for source in map(pathlib.Path, sys.argv[1:]):
        first = report("-r", source)
        built = [p for p in first if not p["download_info"]["url"].endswith(".whl")]  # from source: one file for every Python
        pins = [f"{p['metadata']['name']}=={p['metadata']['version']}" for p in first if p not in built]
        source.with_suffix(".txt").write_text(text_of(source, [first, *(wheels(python, pins) for python in PYTHONS[1:])]))


if __name__ == "__main__":
    main()
