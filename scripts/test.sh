#!/usr/bin/env bash
# Installs the packages for the tests, builds, and runs all tests that this machine supports. Prints the skipped tests
# with their reasons and the time of each section. Exits non-zero after a failure.
#   scripts/test.sh [--quick | --all]     --quick: the release build and its tests only
#                                         --all: all tests with both sanitizers; otherwise a third of them with one
set -uo pipefail
cd "$(dirname "$0")/.."

quick=false all=false
case "${1:-}" in
  "") ;;
  --quick) quick=true ;;
  --all) all=true ;;
  *) echo "usage: scripts/test.sh [--quick | --all]" >&2; exit 2 ;;
esac
passed=0 failed=0 skipped=0
failures=() reasons=() times=()

name= begin=0
end_section() { [ -z "$name" ] || times+=("$(printf '%5d s  %s' $((SECONDS - begin)) "$name")"); }
section() {
  end_section
  name=$1 begin=$SECONDS
  printf '\n== %s\n' "$1"
}
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); failures+=("$1"); }
skip() { skipped=$((skipped + 1)); reasons+=("$1"); echo "skipped: $1"; }

section "packages"
./scripts/install_packages.sh build test python example docs || exit 1
# torch is large and installs during the build. CLEAVE_TORCH_PYTHON names a Python that has it.
if [ -z "${CLEAVE_TORCH_PYTHON:-}" ]; then
  mkdir -p build
  timeout 1200 ./scripts/install_torch.sh >build/torch.log 2>&1 &
  torch=$!
fi

# compile PRESET [target...]: configures and builds. Callers write its output to build/PRESET.log, which built() reads.
compile() {
  local preset=$1
  shift
  cmake --preset "$preset" && cmake --build --preset "$preset" ${1:+--target "$@"}
}

# built PRESET STATUS: returns the status of a build, and shows the end of the log of a failed one.
built() {
  if [ "$2" = 0 ]; then
    grep -E '^-- (Gloo|liburing|oneDNN|CUDA|cuBLASLt|cuDNN|NCCL)' "build/$1.log" || true
    return 0
  fi
  tail -40 "build/$1.log"
  bad "build $1"
  return 1
}

# run_ctest PRESET [ctest arguments]: adds the counts of ctest to the totals.
run_ctest() {
  local preset=$1 junit=$PWD/build/$1.junit.xml log=build/$1.ctest.log lines line
  shift
  rm -f "$junit"
  ctest --preset "$preset" -j3 --output-junit "$junit" "$@" >"$log" 2>&1
  local status=$?
  mapfile -t lines < <(python3 scripts/ctest_report.py "$junit")
  if [ ${#lines[@]} -eq 0 ] || [ "${lines[0]}" = "0 0 0" ]; then
    tail -40 "$log"
    bad "ctest $preset found no tests"
    return
  fi
  printf '%s\n' "${lines[@]:1}"
  # shellcheck disable=SC2086
  set -- ${lines[0]}
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
  echo "$preset: $1 passed, $2 failed, $3 skipped"
  for line in "${lines[@]:1}"; do
    case "$line" in
      skipped:*) reasons+=("$preset: ${line#skipped: }") ;;
      failed:*) failures+=("$preset: ${line#failed: }") ;;
      --*) break ;;  # output of tests follows
    esac
  done
  if [ "$status" -ne 0 ] && [ "$2" -eq 0 ]; then
    tail -40 "$log"
    bad "ctest $preset ended with $status"
  fi
}

# New build folders use units of sixteen files, which halves the time; existing ones stay as they are.
# ccache compiles files once that two builds share: most C++ of the CUDA builds equals that of the release.
export CCACHE_BASEDIR=$PWD
in_units() { [ -d build/"$1" ] || cmake --preset "$1" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16 >/dev/null; }
in_units release
# Derived from the commit, so that runs cover many orders and inputs over time, and a failure can be repeated.
seed=$((16#$(git rev-parse HEAD 2>/dev/null | cut -c1-6 | grep . || echo 1)))

has_nvcc=true
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || has_nvcc=false
# A third of the tests with one sanitizer; six commits in a row have all of them with both. One of two checks of the whole
# program; twelve commits in a row have each with each third.
count=$(git rev-list --count HEAD 2>/dev/null || echo 0)
sanitizers=(asan tsan) others=(odr fuzz)
$all || { sanitizers=("${sanitizers[$((count % 2))]}"); others=("${others[$((count / 6 % 2))]}"); }

# The builds of later sections run during the tests, which leave a third of the CPU time unused, with low priority.
build_later() {
  local preset begin
  for preset in "$@"; do
    begin=$SECONDS
    case "$preset" in
      cuda) in_units cuda; compile cuda gpu_programs kernels_bench ;;
      interpreter) in_units interpreter; ./tests/cuda_interpreter/run.sh --build ;;
      *) compile "$preset" ;;
    esac >"build/$preset.log" 2>&1
    echo "$? $((SECONDS - begin))" >"build/$preset.status.new"
    mv "build/$preset.status.new" "build/$preset.status"
  done
}

# later_build PRESET: waits for a build of build_later.
later_build() {
  local status seconds
  while [ ! -e "build/$1.status" ]; do sleep 1; done
  read -r status seconds <"build/$1.status"
  echo "$1: built in $seconds s, during other sections"
  built "$1" "$status"
}

section "release build"
mkdir -p build
compile release >build/release.log 2>&1
release=$?
if ! $quick; then
  later=()
  ! $has_nvcc || later+=(cuda interpreter)
  later+=("${sanitizers[@]}")
  for preset in "${others[@]}"; do [ "$preset" = fuzz ] && ! command -v clang++ >/dev/null || later+=("$preset"); done
  for preset in "${later[@]}"; do rm -f "build/$preset.status"; done
  set -m  # a process group, which the trap ends
  (renice -n 10 "$BASHPID" >/dev/null; build_later "${later[@]}") &
  builds=$!
  set +m
  trap 'kill -- -$builds 2>/dev/null' EXIT
fi
if built release $release; then
  [ -z "${torch:-}" ] || wait "$torch" || { tail -5 build/torch.log; echo "no torch: the tests of the Python package are skipped"; }
  section "release tests"
  run_ctest release
fi

if $quick; then
  skip "the CUDA build, the sanitizers, the fuzzers, the installed copy and the examples: --quick"
else
  section "an installed copy, used by another project"
  if ./scripts/test_install.sh; then ok; else bad "installed copy"; fi
  section "the wheel, in an empty virtual environment"
  if ! "${CLEAVE_TORCH_PYTHON:-.venv/bin/python}" -c "import auditwheel, scikit_build_core, torch" 2>/dev/null; then
    skip "the wheel: no Python here has torch, scikit-build-core and auditwheel"
  elif ./scripts/test_wheel.sh; then ok; else bad "the wheel"; fi
  section "the documentation site and its links"
  if ./scripts/build_docs.sh; then ok; else bad "scripts/build_docs.sh"; fi
  section "the examples"
  if ./scripts/test_examples.sh; then ok; else bad "examples"; fi
  section "the CUDA build"
  if ! $has_nvcc; then
    skip "the CUDA build, and its code in the interpreter: no nvcc on this machine"
  elif later_build cuda; then
    ok
    build/cuda/bin/cleave report || bad "cleave report of the CUDA build"
    section "what the CUDA compiler makes of the kernels"
    run_ctest cuda -L compiler
    section "what cuDNN makes of its graphs, told about an H100"
    run_ctest cuda -R 'CudnnG|AboutHopper'
    if [ -e /dev/nvidiactl ]; then
      section "tests on the GPU"
      run_ctest cuda -L gpu
    else
      skip "the tests on a GPU: there is none here; the CUDA build was compiled and linked only"
    fi
  fi
  section "an eighth of the C++ files, each compiled alone, with seed $seed"
  # Units hide a missing header, and a build without them may then fail.
  preset=release
  [ -d build/cuda ] && preset=cuda
  if cmake --preset $preset -B build/alone -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >build/alone.log 2>&1 &&
    python3 scripts/check_alone.py build/alone $((seed % 8)) 8; then
    ok
  else
    bad "files that do not compile alone"
  fi
  if $has_nvcc; then
    section "a sample of the GPU's code on the CPU, in the interpreter, with seed $seed"
    if later_build interpreter; then
      if ./tests/cuda_interpreter/run.sh --sample "$seed"; then ok; else bad "tests/cuda_interpreter/run.sh --sample $seed"; fi
    fi
  fi
  for preset in "${sanitizers[@]}"; do
    section "$preset tests"
    if later_build "$preset"; then
      if $all; then
        run_ctest "$preset"
      else
        run_ctest "$preset" -I $((1 + count / 2 % 3)),,3
        skip "two thirds of the tests with $preset, and all with the other sanitizer: scripts/test.sh --all runs them"
      fi
    fi
  done
  for preset in "${others[@]}"; do
    if [ "$preset" = odr ]; then
      section "one definition of each name, by the linker; a program without inlining"
      if later_build odr; then
        if ./scripts/test_odr.sh; then ok; else bad "the program without inlining"; fi
      fi
    else
      section "fuzzers, with seed $seed"
      if ! command -v clang++ >/dev/null; then
        skip "libFuzzer: no clang++ on this machine; broken files of the tests' own making were read by the other builds"
      elif later_build fuzz; then
        if FUZZ_SEED=$seed ./scripts/fuzz.sh --seconds 5; then ok; else bad "fuzzers"; fi
      fi
    fi
  done
  $all || case "${others[0]}" in
    odr) skip "the fuzzers: every second group of six commits runs them, and scripts/test.sh --all" ;;
    fuzz) skip "one definition of each name: every second group of six commits checks it, and scripts/test.sh --all" ;;
  esac
fi

section "what the newest DeepSpeed and transformers have and this program does not know"
python3 scripts/check_new_keys.py build/release/bin/cleave || bad "scripts/check_new_keys.py"

section "summary"
name=
printf '%s\n' "${times[@]}" "$(printf '%5d s  in all' "$SECONDS")"
[ ${#reasons[@]} -eq 0 ] || printf 'skipped: %s\n' "${reasons[@]}"
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
