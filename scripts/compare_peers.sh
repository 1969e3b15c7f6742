#!/usr/bin/env bash
# Measures Cleave beside PyTorch and DeepSpeed on this machine: installs them in PEERS (build/peers unless given; several gigabytes, once),
# then runs every engine in turn, five times, and prints a table of medians, ratios and the spread of both.
#   scripts/compare_peers.sh [OPTIONS]          options of benchmarks/compare_peers.py, as --layouts 2@3 --engines train native deepspeed
#   scripts/compare_peers.sh --repeats 2        fewer runs, and a spread that says less
#   PEERS=FOLDER                                an environment to use or to make
set -euo pipefail
cd "$(dirname "$0")/.."
peers=${PEERS:-build/peers}
if ! "$peers/bin/python" -c 'import deepspeed, torch, transformers' >/dev/null 2>&1; then
  [ -x "$peers/bin/python" ] || python3 -m venv "$peers"
  # DeepSpeed comes as source, which is built with the packages of the same file.
  grep -v '^#' scripts/requirements/peers.txt | awk '/^[^ ]/ { source = /^deepspeed==/ } !source' >"$peers/others.txt"
  grep -A1 '^deepspeed==' scripts/requirements/peers.txt >"$peers/deepspeed.txt"
  "$peers/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$peers/others.txt"
  "$peers/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation -r "$peers/deepspeed.txt"
fi
[ -x build/release/bin/cleave ] || { cmake --preset release && cmake --build --preset release --target cleave-bin cleave_c; }
exec "$peers/bin/python" benchmarks/compare_peers.py --peers "$peers/bin/python" "$@"
