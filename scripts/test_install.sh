#!/usr/bin/env bash
# Installs the release build into a scratch folder, and builds and runs a separate project against it with find_package.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install build/release --prefix "$work/installed copy" >/dev/null
cp -r examples/installed "$work/project"
cmake -S "$work/project" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/installed copy" -DTRAIN_MLP="$root/examples/train_mlp/main.cpp" >"$work/log" 2>&1 &&
  cmake --build "$work/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/build/train_mlp"
"$work/installed copy/bin/cleave" --version
