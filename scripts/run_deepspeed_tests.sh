#!/usr/bin/env bash
# Runs DeepSpeed's unit tests of its public interface on the engine and prints the table of docs/deepspeed_tests.md.
#
# usage: scripts/run_deepspeed_tests.sh FOLDER [FILE...]     FOLDER: a checkout of DeepSpeed; FILE: below tests/, as
# unit/runtime/test_data.py
#
# Needs build/release with cleave_c, and a Python with torch, hjson and pytest before 8.4, for their fixtures
# (CLEAVE_TORCH_PYTHON, default .venv). CLEAVE_TESTS_EACH: number of parameter sets per test function (3);
# CLEAVE_TEST_LIMIT_S: seconds per test (60); JOBS: parallel streams (2). deepspeed_tests.jsonl has the output of each
# test.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ -d "${1:-}/tests/unit" ] || { echo "usage: $0 FOLDER [FILE...]; wanted a checkout of DeepSpeed, which has tests/unit"; exit 2; }
folder=$(cd "$1/tests" && pwd)
shift
python=${CLEAVE_TORCH_PYTHON:-$root/.venv/bin/python}
answers=$PWD/deepspeed_tests.jsonl
export PYTHONPATH=$root/python:$root/python/deepspeed_name:$root/tests/python:$folder OMP_NUM_THREADS=1
export CLEAVE_LIBRARY=${CLEAVE_LIBRARY:-$root/build/release/lib/libcleave_c.so}
rm -f "$answers" "$answers".*
touch "$answers".elsewhere
cd "$folder"
if [ $# -gt 0 ]; then files=("$@"); else
  mapfile -t files < <(find unit/runtime unit/v1 unit/checkpoint unit/pipe unit/utils -name 'test_*.py' | sort)
fi
mapfile -t files < <(CLEAVE_TEST_ANSWERS=$answers.elsewhere "$python" "$root/tests/python/deepspeed_tests.py" files "${files[@]}")
jobs=${JOBS:-2}
for ((job = 0; job < jobs; ++job)); do
  for ((k = job; k < ${#files[@]}; k += jobs)); do
    CLEAVE_TEST_ANSWERS=$answers.$job PYTEST_XDIST_WORKER=gw$job timeout 1800 "$python" -m pytest -p deepspeed_tests -p no:cacheprovider \
      -o addopts="-m 'not nightly and not inference'" -q "${files[k]}" >"$answers.log.$job" 2>&1 || true
  done &
done
wait
cat "$answers".elsewhere "$answers".[0-9]* >"$answers"
rm -f "$answers".*
"$python" "$root/tests/python/deepspeed_tests.py" table "$answers"
