#!/usr/bin/env bash
# Builds the documentation site for offline use, build/site/index.html, and fails on broken links.
#   scripts/build_docs.sh [FOLDER]      needs the program (build/release/bin/cleave, or CLEAVE=PROGRAM) and Doxygen for the
#                                       reference pages
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/docs_venv packages=scripts/requirements/docs
if ! cmp -s $packages.txt $venv/wanted; then
  rm -rf $venv && python3 -m venv $venv
  # The hashes are those of x86-64 and the Python versions of Debian 12 and Ubuntu 24.04.
  $venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $packages.txt 2>/dev/null ||
    $venv/bin/pip install --quiet --disable-pip-version-check -r $packages.in
  cp $packages.txt $venv/wanted
fi
python3 scripts/cpp_reference.py build/cpp_reference
# Warnings and errors only.
DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=true $venv/bin/mkdocs build --site-dir "$(realpath -m "${1:-build/site}")" 2>&1 |
  { grep -vE '^(INFO|  - |$)' >&2 || true; }
