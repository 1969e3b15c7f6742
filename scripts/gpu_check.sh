#!/usr/bin/env bash
# The proof on a machine with a GPU: tests, two ranks over each way between GPUs, kernels against the ceilings measured there,
# training rows next to their goals and to PyTorch in the same call, and compute-sanitizer. Needs the bundle of scripts/gpu_bundle.sh
# (or a CUDA build), cuBLAS of CUDA 13 in the toolkit or in Python's nvidia packages, and python3; no network and no compiler. Takes
# less than 9 minutes and prints one table last; logs and results.json go to $OUT where that is set.
#   scripts/gpu_check.sh [--quick] [--only PART]... [--programs DIR] [--list]
# Exit codes: 0 nothing failed, 1 something failed, 2 wrongly called or nothing to run, 77 there is no usable GPU here.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

parts="tests ranks train kernels peers sanitizer"
quick=false only="" programs=""
total=${GPU_CHECK_SECONDS:-520}

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }
die() { echo "gpu_check: $1" >&2; exit "${2:-2}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=true ;;
    --only)
      case " $parts " in *" ${2:-} "*) only="$only $2" ;; *) die "--only ${2:-}: the parts are $parts" ;; esac
      shift
      ;;
    --programs) programs=${2:-}; shift ;;
    --list) echo "$parts"; exit 0 ;;
    -h | --help) usage; exit 0 ;;
    *) die "$1 is unknown; see --help" ;;
  esac
  shift
done
wanted() { [ -z "$only" ] || case " $only " in *" $1 "*) true ;; *) false ;; esac }

work=$(mktemp -d)
logs=$work/logs
mkdir -p "$logs"
# Few files come back from $OUT, so the logs travel as one, also when this script is stopped.
finish() {
  if [ -n "${OUT:-}" ]; then
    mkdir -p "$OUT" && tar -C "$work" -czf "$OUT/gpu_check_logs.tar.gz" logs
    [ -f "$logs/results.json" ] && cp "$logs/results.json" "$OUT/"
  fi
  rm -rf "$work"
}
trap finish EXIT

# The programs: as given, next to this script in an unpacked bundle, from the bundle, from a build.
if [ -z "$programs" ]; then
  bundle=$here/gpu_bundle/cleave-gpu.tar.xz
  if [ -x "$here/bin/cleave" ]; then
    programs=$here/bin
  elif [ -f "$bundle" ]; then
    tar -xJf "$bundle" -C "$work" 2>/dev/null || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
      "$bundle" "$work" || die "$bundle cannot be unpacked"
    programs=$work/cleave-gpu/bin
  else
    programs=$here/build/cuda/bin
  fi
fi
[ -x "$programs/cleave" ] || die "no programs in $programs: run scripts/gpu_bundle.sh where nvcc is and bring gpu_bundle/ along"
[ -f "$programs/../manifest.txt" ] && cat "$programs/../manifest.txt"

# CUDA's libraries, from the toolkit or from Python's packages.
cuda_folders() {
  python3 - <<'P' 2>/dev/null
import glob, os, site, sys, sysconfig
roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages(), *sys.path}
found = []
for root in sorted(r for r in roots if r):
    for folder in glob.glob(os.path.join(root, "nvidia", "*", "lib")):
        if glob.glob(os.path.join(folder, "lib*.so*")):
            found.append(folder)
print(":".join(dict.fromkeys(found)))
P
}
toolkit=""
for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/lib /usr/local/cuda*/targets/x86_64-linux/lib /usr/local/nvidia/lib64; do
  [ -d "$folder" ] && toolkit=$toolkit:$folder
done
base_path=${LD_LIBRARY_PATH:-}
cuda_path=$(cuda_folders)$toolkit
export LD_LIBRARY_PATH="$programs/../lib:$cuda_path:$base_path"
missing=$(ldd "$programs/cleave" "$programs/kernels_bench" 2>/dev/null | awk '/not found/ {print $1}' | sort -u | paste -sd' ')
[ -z "$missing" ] || die "libraries not found: $missing (cuBLAS of CUDA 13 comes with the toolkit or with pip's nvidia-cublas)"

"$programs/cleave" report --json >"$logs/report.json" || die "cleave report failed" 1
ask() { python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); print(eval(sys.argv[2], {"r": r}))' "$logs/report.json" "$1"; }
gpus=$(ask 'len(r["cuda"]["gpus"])')
if [ "$gpus" = 0 ]; then
  echo "gpu_check: no GPU: $(ask 'next((m["what"] for m in r["missing"] if m["for"] == "training on a GPU"), "none is visible")')"
  echo "gpu_check: nothing was tested or measured"
  exit 77
fi
"$programs/cleave" report
# What ends the process costs its speed, not everything below. A trial that only fails is answered by the programs themselves.
try_libraries() {
  timeout --kill-after=5 90 "$programs/kernels_test" --gtest_filter='*Trial*/cuda' >"$logs/trials.log" 2>&1
  trials=$?
}
try_libraries
if [ $trials -ne 0 ]; then  # an error that stays with the GPU's context may come from the own kernels for Hopper
  first=$trials
  cp "$logs/trials.log" "$logs/trials_first.log"
  export CLEAVE_WGMMA=off
  try_libraries
  if [ $trials -eq 0 ] || { [ $first -ge 124 ] && [ $trials -lt 124 ]; }; then
    echo "gpu_check: without the own kernels for Hopper the trials end with $trials, with them with $first (trials_first.log): they are off from here on"
  else
    unset CLEAVE_WGMMA
  fi
fi
if [ $trials -ge 124 ]; then
  export CLEAVE_CUDNN=off CLEAVE_GPU_EPILOGUES=off CLEAVE_WGMMA=off
  echo "gpu_check: the trials of cuDNN and cuBLASLt's epilogues ended with $trials (trials.log): plain own kernels from here on"
elif [ $trials -ne 0 ]; then
  echo "gpu_check: not every library is used: $(grep -m1 -E 'warning: |Failure' "$logs/trials.log" || tail -1 "$logs/trials.log")"
fi
free=$(ask 'min(g["memory_free_bytes"] for g in r["cuda"]["gpus"]) >> 20')

# run PART LIMIT LOG command...: within this limit, the part's and the whole's; 124 when it ran out, 125 when there was no time left.
run() {
  local part=$1 limit=$2 log=$3 left=$((part_end - SECONDS)) status
  shift 3
  [ "$left" -gt $((total - SECONDS)) ] && left=$((total - SECONDS))
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    echo "out of time" >"$log"
    return 125
  fi
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1
  status=$?
  echo "$part: $(basename "$log" .log) ended with $status after $SECONDS s in all"
  return $status
}

part_tests() {
  local filter='*/*cuda' limit=120 t
  $quick && limit=40
  for t in device_test kernels_test comm_test comm_process_test runtime_test; do
    run tests $limit "$logs/$t.log" "$programs/$t" --gtest_filter="$filter" --gtest_output="json:$logs/$t.json"
    echo "$?" >"$logs/$t.status"
  done
}

random_tokens() {  # file vocabulary: random ids as an llm.c file, of 16-bit tokens where they suffice
  python3 - "$1" "$2" <<'P'
import array, random, struct, sys
count, vocabulary, rng = 2_000_000, int(sys.argv[2]), random.Random(1)
magic, version, code = (20240520, 1, "H") if vocabulary <= 65536 else (20240801, 7, "I")
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<3i", magic, version, count) + b"\0" * (1024 - 12))
    f.write(array.array(code, rng.choices(range(vocabulary), k=count)).tobytes())
P
}

ds_config() {  # micro accumulation offload [use of CUDA graphs]
  local offload=""
  [ "$3" = cpu ] && offload=', "offload_optimizer": {"device": "cpu", "pin_memory": true}'
  printf '{"train_micro_batch_size_per_gpu": %s, "gradient_accumulation_steps": %s, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "zero_optimization": {"stage": %s%s}, "cleave": {%s}}' \
    "$1" "$2" "$([ "$3" = cpu ] && echo 2 || echo 0)" "$offload" "${4:+\"cuda_graphs\": \"$4\"}"
}

# model, sequences of 1024 in a step, largest micro-batch to try, optimizer's home where the GPU has 80 GB
rows="gpt2 64 64 none
gpt2-medium 64 32 none
gpt2-xl 32 16 none
qwen2.5-1.5b 32 16 none
qwen2.5-3b 16 8 none
qwen2.5-7b 16 8 cpu"

part_train() {
  local steps=25 model batch micro home name status
  $quick && steps=10
  random_tokens "$work/gpt2.bin" 50257
  random_tokens "$work/qwen.bin" 128256
  while read -r model batch micro home; do
    $quick && [ "$model" != gpt2 ] && continue
    [ "$free" -gt 130000 ] && home=none
    name=train_$model
    # A micro-batch that does not fit is refused with code 3 before anything starts; then half of it is tried.
    while :; do
      ds_config "$micro" $((batch / micro)) "$home" >"$work/ds.json"
      rm -f "$logs/$name.jsonl"
      run train 60 "$logs/$name.log" "$programs/cleave" train --device cuda --deepspeed_config "$work/ds.json" --model "$model" \
        --data "$work/$([[ $model == gpt2* ]] && echo gpt2 || echo qwen).bin" --seq_len 1024 --steps $steps \
        --device_memory "$((free - 1500))MiB" --metrics "$logs/$name.jsonl"
      status=$?
      if [ $status -ne 3 ] || [ "$micro" -eq 1 ]; then break; fi
      micro=$((micro / 2))
    done
    printf '{"model": "%s", "micro": %s, "accumulation": %s, "optimizer_home": "%s", "status": %s}\n' \
      "$model" "$micro" $((batch / micro)) "$home" $status >"$logs/$name.json"
  done <<<"$rows"
  compare_graphs
}

# Passes launched as CUDA graphs and kernel by kernel, of a model whose kernels are long and of one whose are short.
compare_graphs() {
  local use micro
  micro=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["micro"])' "$logs/train_gpt2.json")
  small_model
  for use in off on; do
    ds_config "$micro" 1 none $use >"$work/ds.json"
    run train 30 "$logs/graphs_gpt2_$use.log" "$programs/cleave" train --device cuda --deepspeed_config "$work/ds.json" --model gpt2 \
      --data "$work/gpt2.bin" --seq_len 1024 --steps 20 --metrics "$logs/graphs_gpt2_$use.jsonl"
    ds_config 1 4 none $use >"$work/ds.json"
    run train 30 "$logs/graphs_small_$use.log" "$programs/cleave" train --device cuda --deepspeed_config "$work/ds.json" \
      --model "$work/small.json" --data "$work/gpt2.bin" --seq_len 64 --steps 100 --metrics "$logs/graphs_small_$use.jsonl"
  done
}

part_kernels() {
  local group name limit=45
  # Groups, so that a limit that strikes costs one of them.
  while read -r name group; do
    $quick && [ "$name" != products ] && continue
    local own=()
    [[ $name == *_own ]] && own=(env CLEAVE_CUDNN=off CLEAVE_GPU_EPILOGUES=off)
    [[ $name == *_mma ]] && own=(env CLEAVE_CUDNN=off CLEAVE_WGMMA=off)
    name=kernels_$name
    run kernels $limit "$logs/$name.log" "${own[@]}" "$programs/kernels_bench" --benchmark_filter="^cuda/$group" --benchmark_min_time=0.05 \
      --benchmark_out="$logs/$name.json" --benchmark_out_format=json
  done <<'G'
products (matmul|dense).*bf16
attention attention.*bf16
rows (layer_norm|rms_norm|rotary|bias|embedding|cross|gelu|swiglu|add/|dropout|cast|sum).*bf16
updates (adamw|sgd|random)
attention_own attention.*bf16
attention_mma attention.*bf16
dense_own dense.*bf16
G
}

peer() { LD_LIBRARY_PATH=$base_path python3 "$here/benchmarks/torch_peer.py" "$@"; }
part_peers() {
  local model batch micro home name
  export -f peer
  export base_path here
  python3 -c 'import torch' 2>/dev/null || { echo "PyTorch is not installed" >"$logs/peers.skipped"; return; }
  run peers 40 "$logs/peer_attention.log" bash -c 'peer --attention'
  while read -r model batch micro home; do
    $quick && [ "$model" != gpt2 ] && continue
    name=train_$model
    [ -f "$logs/$name.json" ] && micro=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["micro"])' "$logs/$name.json")
    run peers 75 "$logs/peer_$model.log" bash -c "peer --model $model --micro $micro --accumulation $((batch / micro))"
  done <<<"$rows"
}

small_model() {  # and its tokens and ds_config
  [ -f "$work/gpt2.bin" ] || random_tokens "$work/gpt2.bin" 50257
  ds_config 1 1 none >"$work/ds_small.json"
  printf '%s' '{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 64, "n_embd": 128,
 "n_layer": 2, "n_head": 2, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05,
 "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}' >"$work/small.json"
}

# Two ranks, on one GPU where there is no second: the same losses over CUDA IPC as through host memory, bit for bit.
part_ranks() {
  local stage way name
  small_model
  for stage in 0 3; do
    sed "s/\"stage\": 0/\"stage\": $stage/" "$work/ds_small.json" >"$work/ds_ranks.json"
    for way in host ipc; do
      name=ranks_${way}_$stage
      rm -f "$logs/$name.jsonl"
      run ranks 45 "$logs/$name.log" "$programs/cleave" launch -n 2 -- train --device cuda --share_gpu --gpu_transport $way \
        --deepspeed_config "$work/ds_ranks.json" --model "$work/small.json" --data "$work/gpt2.bin" --seq_len 64 --steps 10 \
        --metrics "$logs/$name.jsonl"
      echo "$?" >"$logs/$name.status"
    done
  done
}

part_sanitizer() {
  local tool found limit=45
  found=$(command -v compute-sanitizer || find /usr/local/cuda*/bin /opt/nvidia -maxdepth 3 -name compute-sanitizer -perm -u+x 2>/dev/null | head -1)
  [ -n "$found" ] || { echo "compute-sanitizer is not installed" >"$logs/sanitizer.skipped"; return; }
  small_model
  for tool in memcheck racecheck; do
    run sanitizer $limit "$logs/sanitizer_$tool.log" "$found" --tool $tool --error-exitcode 9 "$programs/cleave" train --device cuda \
      --deepspeed_config "$work/ds_small.json" --model "$work/small.json" --data "$work/gpt2.bin" --seq_len 64 --steps 2
    echo "$?" >"$logs/sanitizer_$tool.status"
  done
}

# Seconds that a part may take of the whole; alone it may take all.
budget() {
  case $1 in tests) echo 150 ;; ranks) echo 60 ;; train) echo 160 ;; kernels) echo 95 ;; peers) echo $((total - SECONDS - 45)) ;; *) echo 90 ;; esac
}
for part in $parts; do
  wanted "$part" || continue
  part_end=$((SECONDS + $(budget "$part")))
  [ -n "$only" ] && part_end=$total
  "part_$part"
done
cp "$programs/../manifest.txt" "$logs/" 2>/dev/null
table=$here/scripts/gpu_table.py
[ -f "$table" ] || table=$programs/../scripts/gpu_table.py
python3 "$table" "$logs"
