#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test that this machine can run. Says what was skipped and why; ends
# non-zero when anything failed.
#   scripts/test.sh [--quick]     --quick: the release build's unit tests only
set -uo pipefail
cd "$(dirname "$0")/.."

quick=false
[ "${1:-}" = --quick ] && quick=true
passed=0 failed=0 skipped=0
failures=()

section() { printf '\n== %s\n' "$1"; }
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); failures+=("$1"); }
skip() { skipped=$((skipped + 1)); echo "skipped: $1"; }

section "packages"
./scripts/install_packages.sh build test example || exit 1

# build PRESET: configures and builds; the log is shown when it fails.
build() {
  local log=build/$1.log
  mkdir -p build
  if cmake --preset "$1" >"$log" 2>&1 && cmake --build --preset "$1" >>"$log" 2>&1; then
    grep -E '^-- (Gloo|liburing|oneDNN|CUDA|cuBLASLt|cuDNN|NCCL)' "$log" || true
    return 0
  fi
  tail -40 "$log"
  bad "build $1"
  return 1
}

# run_ctest PRESET [ctest arguments]: adds ctest's own counts to ours.
run_ctest() {
  local preset=$1 out
  shift
  out=$(ctest --preset "$preset" -j2 "$@" 2>&1)
  local status=$?
  echo "$out" | tail -8
  local total lost
  total=$(echo "$out" | sed -nE 's/.*tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\2/p')
  lost=$(echo "$out" | sed -nE 's/.*tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\1/p')
  if [ -z "$total" ]; then
    echo "$out" | tail -40
    bad "ctest $preset found no tests"
    return
  fi
  passed=$((passed + total - lost))
  if [ "$status" -ne 0 ]; then
    echo "$out" | grep -A30 -E '\[  FAILED|Failure|error:' | head -80
    failed=$((failed + lost))
    failures+=("$lost of the $preset tests")
  fi
}

section "release build"
if build release; then
  section "release tests"
  run_ctest release
fi

section "CUDA build"
if $quick; then
  skip "the CUDA build: --quick"
elif ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  skip "the CUDA build: no nvcc on this machine"
elif build cuda; then
  ok
  build/cuda/bin/cleave report || bad "cleave report of the CUDA build"
  if [ -e /dev/nvidiactl ]; then
    section "tests on the GPU"
    run_ctest cuda -L gpu
  else
    skip "the tests on a GPU: there is none here; the CUDA build was compiled and linked only"
  fi
fi

if ! $quick; then
  for preset in asan tsan; do
    section "$preset build"
    if build $preset; then
      section "$preset tests"
      run_ctest $preset
    fi
  done
  section "an installed copy, used by another project"
  if ./scripts/test_install.sh; then ok; else bad "installed copy"; fi
  section "the examples"
  if ./scripts/test_examples.sh; then ok; else bad "examples"; fi
fi

section "summary"
for f in "${failures[@]}"; do echo "failed: $f"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
