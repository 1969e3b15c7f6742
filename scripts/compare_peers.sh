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
  "$peers/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 transformers==5.24.0 deepspeed==0.19.8 safetensors numpy ninja setuptools
fi
[ -x build/release/bin/cleave ] || { cmake --preset release && cmake --build --preset release --target cleave-bin cleave_c; }
exec "$peers/bin/python" benchmarks/compare_peers.py --peers "$peers/bin/python" "$@"
