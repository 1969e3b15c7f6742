#!/usr/bin/env bash
# Runs the CUDA backend on the CPU, in the interpreter next to this script, with these seeds for the order of streams;
# without seeds, each call draws and prints others.
#   tests/cuda_interpreter/run.sh [--sample | --quick] [SEED...]
#   tests/cuda_interpreter/run.sh --build      only builds the programs of --sample
# --quick: one rank only; --sample: the same with the cases of every fourth kernel, selected by the first seed, and three
# minutes of PyTorch scripts.
set -euo pipefail
cd "$(dirname "$0")/../.."

quick=false sample=1 minutes=20 runs=true
case "${1:-}" in
  --quick) quick=true; shift ;;
  --sample) quick=true sample=4 minutes=2.5; shift ;;
  --build) quick=true sample=4 runs=false; shift ;;
esac
seeds=("$@")
if [ ${#seeds[@]} -eq 0 ]; then
  seeds=($((RANDOM + 1)))
  $quick || seeds+=($((RANDOM + 1)))
fi
echo "seeds: ${seeds[*]}"

cmake --preset interpreter >/dev/null
programs=(interpreter_test kernels_test device_test)
$quick || programs+=(comm_test comm_process_test runtime_test)
scripts=true
$quick && [ $sample = 1 ] && scripts=false
! $scripts || programs+=(cleave-bin cleave_c)
# Builds the NCCL replacement if the NCCL header exists.
nccl=false
grep -q '^CLEAVE_NCCL_VERSION_HEADER.*NOTFOUND' build/interpreter/CMakeCache.txt || { nccl=true; programs+=(nccl_standin_test); ! $scripts || programs+=(nccl_standin_c); }
cmake --build --preset interpreter --target "${programs[@]}"
$runs || exit 0
bin=build/interpreter/bin
failed=()

# try NAME COMMAND...: reports a failure and continues.
try() {
  local name=$1 begin=$SECONDS
  shift
  if "$@" >build/interpreter/run.log 2>&1; then
    printf '%5d s  %s\n' $((SECONDS - begin)) "$name"
  else
    tail -40 build/interpreter/run.log
    failed+=("$name")
  fi
}

# Compares losses of a small training on the CPU and in the interpreter, and requires equal bits with each of $routes
# between the GPUs: layout DS_CONFIG RANKS [MODEL-AND-DATA...].
routes=(ipc)
layout() {
  local ranks=$2 folder=build/interpreter/run config=$1
  shift 2
  local data=("$@")
  [ $# -gt 0 ] || data=(--model llama-tiny --data $folder/corpus.txt)
  mkdir -p $folder
  printf '%s' "$config" >$folder/ds_config.json
  head -c 20000 docs/architecture.md >$folder/corpus.txt
  for route in auto "${routes[@]}"; do
    device=cuda
    [ "$route" != auto ] || device=cpu
    channels=1  # for all streams of a GPU; those of NCCL need their own
    [ "$route" != nccl ] || channels=0
    CUDA_INTERPRETER_CHANNELS=$channels CUDA_INTERPRETER_WAITS=1 CUDA_INTERPRETER_GPUS=$ranks $bin/cleave launch -n "$ranks" -- train --deepspeed_config $folder/ds_config.json "${data[@]}" \
      --seq_len 32 --steps 3 --device $device --gpu_transport "$route" --metrics "$folder/$route.jsonl" || return 1
  done
  python3 - $folder auto "${routes[@]}" <<'PYTHON'
import json, sys
folder, *names = sys.argv[1:]
losses = [[json.loads(x)["loss"] for x in open(f"{folder}/{name}.jsonl") if "event" not in json.loads(x)] for name in names]
print(losses)
assert len(losses[0]) == 3 == len(losses[1]) and all(abs(a - b) < 2e-2 for a, b in zip(*losses[:2])), losses
assert all(other == losses[1] for other in losses[2:]), losses
PYTHON
}

# The same with cuBLASLt rejecting products: refusing SETTING DS_CONFIG RANKS MODEL...
refusing() {
  export CUDA_INTERPRETER_"$1"
  shift
  layout "$@" --data build/interpreter/run/corpus.txt
  local status=$?
  unset CUDA_INTERPRETER_EPILOGUES CUDA_INTERPRETER_REFUSED
  return $status
}

# Requires a job without cuBLASLt to end before its first step, with the reason.
without_cublaslt() {
  local folder=build/interpreter/run status=0
  mkdir -p $folder
  printf '%s' "$1" >$folder/ds_config.json
  head -c 20000 docs/architecture.md >$folder/corpus.txt
  CLEAVE_CUBLASLT=libnone.so.13 CUDA_INTERPRETER_GPUS=2 $bin/cleave launch -n 2 -- train --deepspeed_config $folder/ds_config.json \
    --model llama-tiny --data $folder/corpus.txt --seq_len 32 --steps 3 --device cuda >$folder/without.log 2>&1 || status=$?
  cat $folder/without.log
  [ $status = 2 ] && grep -q 'cuBLASLt: cannot be loaded (libnone.so.13: cannot open .*; correct CLEAVE_CUBLASLT, or unset it' $folder/without.log &&
    ! grep -q 'step 1/3' $folder/without.log
}

# Requires two steps to make as many calls that may wait for the whole GPU as no steps, with each of $routes: waits
# DS_CONFIG RANKS.
waits() {
  local folder=build/interpreter/run
  mkdir -p $folder
  printf '%s' "$1" >$folder/ds_config.json
  head -c 20000 docs/architecture.md >$folder/corpus.txt
  for route in "${routes[@]}"; do
    for steps in 0 2; do
      rm -f $folder/calls.$steps
      CUDA_INTERPRETER_CALLS=$folder/calls.$steps CUDA_INTERPRETER_GPUS=$2 $bin/cleave launch -n "$2" -- train --deepspeed_config $folder/ds_config.json \
        --model llama-tiny --data $folder/corpus.txt --seq_len 32 --steps $steps --device cuda --gpu_transport "$route" || return 1
    done
    python3 - $folder <<'PYTHON' || return 1
import collections, sys
names = ["cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaHostRegister", "cudaHostUnregister", "cudaIpcOpenMemHandle",
         "cudaIpcCloseMemHandle", "cudaDeviceSynchronize", "ncclCommInitRankConfig", "ncclMemAlloc", "ncclMemFree", "kernel_loaded_lazily"]
def counts(steps):
    found = collections.Counter()
    for line in open(f"{sys.argv[1]}/calls.{steps}"):
        _, name, count = line.split()
        found[name] += int(count)
    return {name: found[name] for name in names}
print(counts(0))
assert counts(0)["cudaMalloc"] > 0 and counts(0) == counts(2) and not counts(2)["kernel_loaded_lazily"], counts(2)
PYTHON
  done
}

# Requires buffers registered with NCCL to have the bits of training without, in memory of NCCL's allocator that is used
# as planned, without broken rules. With a setting that makes NCCL older, or lets it reject a piece on one rank, the
# bits are equal, and a line says why nothing stays registered: registered SETTING LINE DS_CONFIG RANKS.
registered() {
  local folder=build/interpreter/run setting=$1 says=$2 status=0
  shift 2
  mkdir -p $folder
  rm -f $folder/calls.registered
  (
    export CLEAVE_NCCL_REGISTER=on CUDA_INTERPRETER_CALLS=$folder/calls.registered
    [ -z "$setting" ] || export CUDA_INTERPRETER_"$setting"
    layout "$@"
  ) >$folder/registered.log 2>&1 || status=$?
  cat $folder/registered.log
  [ $status -eq 0 ] && grep -qF "$says" $folder/registered.log || return 1
  ! grep -E '^(\[[0-9]+\] )?(nccl stand-in|cuda interpreter): ' $folder/registered.log | grep -v 'as it was told' || return 1
  python3 - $folder "$setting" <<'PYTHON'
import collections, json, sys
folder, setting = sys.argv[1:]
counts = collections.Counter()
for line in open(f"{folder}/calls.registered"):
    _, name, count = line.split()
    counts[name] += int(count)
allocated, freed, registered, deregistered = (counts["nccl" + n] for n in ("MemAlloc", "MemFree", "CommRegister", "CommDeregister"))
print(setting, allocated, freed, registered, deregistered)
older, refused = "VERSION" in setting, "FAIL" in setting
assert (allocated > 0) == (registered > 0) == (not older) and allocated == freed + refused and registered == deregistered
lines = [json.loads(line) for line in open(f"{folder}/nccl.jsonl")]
planned, peak = ([line[key] for line in lines if key in line] for key in ("memory_planned", "memory_peak"))
assert len(planned) == 1 and planned == peak, (planned, peak)
PYTHON
}

# Trains on the lines of the text as documents in an indexed data set of bytes: packed DS_CONFIG RANKS MODEL.
packed() {
  mkdir -p build/interpreter/run
  python3 - build/interpreter/run/corpus.txt <<'PYTHON' || return 1
import struct, sys
text = open("docs/architecture.md", "rb").read()[:20000]
lines = text.splitlines(keepends=True)
open(sys.argv[1] + ".bin", "wb").write(text)
with open(sys.argv[1] + ".idx", "wb") as f:
    f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, len(lines), len(lines) + 1))
    f.write(struct.pack(f"<{len(lines)}i", *map(len, lines)))
    f.write(struct.pack(f"<{len(lines)}q", *(sum(map(len, lines[:i])) for i in range(len(lines)))))
    f.write(struct.pack(f"<{len(lines) + 1}q", *range(len(lines) + 1)))
PYTHON
  layout "$1" "$2" --data build/interpreter/run/corpus.txt.bin --pack --document_mask --model "$3"
}
common='"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "gradient_clipping": 1.0'

try "the interpreter itself" $bin/interpreter_test
if $nccl; then try "what stands in for NCCL" $bin/nccl_standin_test; else echo "NCCL: nccl.h is not here"; fi
! $scripts || try "PyTorch scripts, seed ${seeds[0]}" tests/cuda_interpreter/scripts.py build/interpreter --seed $((seeds[0] % 1000000)) \
  --minutes $minutes $($nccl && echo --nccl)
$scripts && $nccl && ! $quick && try "devices of jobs" tests/cuda_interpreter/jobs.py build/interpreter
for seed in "${seeds[@]}"; do
  export CUDA_INTERPRETER_SEED=$seed
  try "streams, seed $seed" $bin/device_test --gtest_filter='*cuda*'
  try "kernels, seed $seed" env GTEST_TOTAL_SHARDS=$sample GTEST_SHARD_INDEX=$((seeds[0] % sample)) $bin/kernels_test --gtest_filter='*/cuda'
  try "norms where a block has 99 KiB of shared memory, seed $seed" env CUDA_INTERPRETER_SHARED_KIB=99 \
    $bin/kernels_test --gtest_filter='*Norm*/cuda'
  try "losses whose rows are not kept, seed $seed" env CUDA_INTERPRETER_SHARED_KIB=20 $bin/kernels_test --gtest_filter='*CrossEntropy*/cuda'
  $quick && continue
  try "ranks as threads, seed $seed" $bin/comm_test --gtest_filter='*Cuda*/*cuda'
  try "ranks as processes, seed $seed" env CUDA_INTERPRETER_WAITS=1 CUDA_INTERPRETER_GPUS=3 $bin/comm_process_test --gtest_filter='*Cuda*'
  try "the engine, seed $seed" env CUDA_INTERPRETER_WAITS=1 $bin/runtime_test --gtest_filter='*CudaEngine*'
  try "a job without cuBLASLt, seed $seed" without_cublaslt "{$common}"
  try "products where cuBLASLt refuses a tenth, seed $seed" env CUDA_INTERPRETER_REFUSED=10 $bin/kernels_test --gtest_filter='*Dense*/cuda:*Matmul*/cuda'
  try "products where cuBLASLt refuses every epilogue, seed $seed" env CUDA_INTERPRETER_EPILOGUES=0 \
    $bin/kernels_test --gtest_filter='*Dense*/cuda:*Matmul*/cuda'
  for stage in 0 1 2 3; do
    try "training at stage $stage, seed $seed" layout "{$common, \"zero_optimization\": {\"stage\": $stage}}" 2
  done
  for scaling in delayed row; do
    try "training in FP8, scaled $scaling, seed $seed" layout \
      "{$common, \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3}, \"cleave\": {\"fp8\": {\"scaling\": \"$scaling\"}}}" 2
  done
  try "training in bf16 with offload, seed $seed" layout \
    "{$common, \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}}" 2
  for refusal in EPILOGUES=0 REFUSED=10; do
    try "training GPT-2 in bf16, $refusal, seed $seed" refusing $refusal "{$common, \"bf16\": {\"enabled\": true}}" 2 --model tiny
  done
  try "training over two stages, seed $seed" layout "{$common, \"pipeline\": {\"stages\": 2, \"schedule\": \"1f1b\"}}" 2
  for model in tiny llama-tiny; do
    try "training $model on packed documents over two sequence ranks, seed $seed" packed "{$common, \"sequence_parallel_size\": 2}" 2 $model
  done
  try "training with cut layers, seed $seed" layout "{$common, \"tensor_parallel\": {\"autotp_size\": 2}}" 2
  $nccl && routes=(ipc nccl)
  for layout in '"zero_optimization": {"stage": 1}' '"zero_optimization": {"stage": 3}' '"tensor_parallel": {"autotp_size": 2}' \
    '"sequence_parallel_size": 2' '"pipeline": {"stages": 2, "schedule": "1f1b"}'; do
    try "steps that wait for no whole GPU, $layout, seed $seed" waits "{$common, $layout}" 2
  done
  routes=(ipc)
  try "how often a step waits for a device, seed $seed" tests/cuda_interpreter/waits.py $bin/cleave $($nccl && echo --nccl)
  $nccl || continue
  try "layouts that are drawn, seed $seed" tests/cuda_interpreter/layouts.py $bin/cleave --nccl --seed $((1000 * seed))
  try "calls that fail, seed $seed" python3 tests/cuda_interpreter/failures.py $bin/cleave --sample 20 --seed "$seed"
  routes=(host nccl)
  for stage in 2 3; do
    try "stage $stage over the stand-in for NCCL, seed $seed" layout "{$common, \"zero_optimization\": {\"stage\": $stage}}" 2
  done
  for stage in 1 3; do
    try "registered buffers at stage $stage, seed $seed" registered "" ", buffers registered;" "{$common, \"zero_optimization\": {\"stage\": $stage}}" 2
  done
  try "buffers of which NCCL refuses one, seed $seed" registered FAIL=ncclMemAlloc:3:1:1 "warning: cuda:1: NCCL gives no memory" \
    "{$common, \"zero_optimization\": {\"stage\": 3}}" 2
  try "two stages over the stand-in for NCCL, seed $seed" layout "{$common, \"pipeline\": {\"stages\": 2, \"schedule\": \"1f1b\"}}" 2
  try "cut layers over the stand-in for NCCL, seed $seed" layout "{$common, \"tensor_parallel\": {\"autotp_size\": 2}}" 2
  try "cut layers in pieces of rows over the stand-in for NCCL, seed $seed" layout \
    "{${common/: 4/: 8}, \"tensor_parallel\": {\"autotp_size\": 2, \"overlap_rows\": 64}}" 2
  routes=(ipc)
done

[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
echo "all passed, in the interpreter; nothing of this ran on a GPU"
