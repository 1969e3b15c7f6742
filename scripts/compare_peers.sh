#!/usr/bin/env bash
# Compares Cleave with PyTorch and DeepSpeed on this machine: installs them in PEERS (default: build/peers; several
# gigabytes, once), then runs every engine five times in turn, and prints a table of medians, ratios and their spread.
#   scripts/compare_peers.sh [OPTIONS]          options of benchmarks/compare_peers.py, such as --layouts 2@3 --engines train native deepspeed
#   scripts/compare_peers.sh --repeats 2        fewer runs, with a less reliable spread
#   PEERS=FOLDER                                virtual environment to use or create
set -euo pipefail
cd "$(dirname "$0")/.."
peers=${PEERS:-build/peers}
if ! "$peers/bin/python" -c 'import deepspeed, torch, transformers' >/dev/null 2>&1; then
  [ -x "$peers/bin/python" ] || python3 -m venv "$peers"
  # DeepSpeed is a source package, built with the other packages of the file.
  grep -v '^#' scripts/requirements/peers.txt | awk '/^[^ ]/ { source = /^deepspeed==/ } !source' >"$peers/others.txt"
  grep -A1 '^deepspeed==' scripts/requirements/peers.txt >"$peers/deepspeed.txt"
  "$peers/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$peers/others.txt"
  "$peers/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation -r "$peers/deepspeed.txt"
fi
[ -x build/release/bin/cleave ] || { cmake --preset release && cmake --build --preset release --target cleave-bin cleave_c; }
exec "$peers/bin/python" benchmarks/compare_peers.py --peers "$peers/bin/python" "$@"
