#!/usr/bin/env bash
# Builds the documentation as a web site that needs no network: build/site/index.html. A broken link ends it with 1.
#   scripts/build_docs.sh [FOLDER]      needs the program (build/release/bin/cleave, or CLEAVE=PROGRAM) for the reference pages
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/docs_venv
[ -x $venv/bin/mkdocs ] || { python3 -m venv $venv && $venv/bin/pip install -q mkdocs==1.6.1 mkdocs-material==9.7.6; }
DISABLE_MKDOCS_2_WARNING=true $venv/bin/mkdocs build -q --site-dir "$(realpath -m "${1:-build/site}")"
