#!/usr/bin/env bash
# Tokens per second of whole training steps: GPT-2 124M, T = 1024, bf16, one sequence a rank, AdamW. Runs ours and, when their scripts
# and a Python that has them are given, PyTorch and DeepSpeed alternately, and prints medians and ratios.
#   benchmarks/step.sh [PEERS_DIR PYTHON]     PEERS_DIR holds torch_gpt2.py and deepspeed_gpt2.py
#   STEPS=6 ROUNDS=3 DTYPE=bf16|fp32
set -euo pipefail
cd "$(dirname "$0")/.."
peers=${1:-} python=${2:-}
steps=${STEPS:-6} rounds=${ROUNDS:-3} dtype=${DTYPE:-bf16}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /cpu: /'
echo "commit: $(git rev-parse --short HEAD), $(nproc) cores"

# Random tokens as an llm.c file: 256 int32 of header, then uint16.
python3 benchmarks/random_tokens.py "$work/tokens.bin"
config() {
  printf '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": %s},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": %s%s}}' \
    "$([ "$dtype" = bf16 ] && echo true || echo false)" "$1" "$2" >"$work/ds_$3.json"
}
config 0 '' one
config 2 '' z2
config 3 '' z3
config 2 ', "offload_optimizer": {"device": "cpu"}' z2o

median() { sort -g | awk '{v[NR]=$1} END {print (NR % 2) ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }
ours() {  # ranks config
  local launch=()
  [ "$1" -gt 1 ] && launch=(launch -n "$1" --)
  rm -f "$work/m.jsonl"
  build/release/bin/cleave "${launch[@]}" train --deepspeed_config "$work/ds_$2.json" --model gpt2 --data "$work/tokens.bin" \
    --seq_len 1024 --steps $((steps + 2)) --metrics "$work/m.jsonl" >/dev/null
  sed -n '4,$p' "$work/m.jsonl" | sed -nE 's/.*"tokens_per_s":([0-9.]+).*/\1/p' | median
}
theirs() { sed -nE 's/.*"tokens_per_s": ([0-9.]+).*/\1/p' | tail -1; }

for round in $(seq "$rounds"); do
  for name in one z2 z3 z2o; do
    ours "$([ $name = one ] && echo 1 || echo 2)" $name >>"$work/ours_$name"
  done
  if [ -n "$peers" ]; then
    "$python" "$peers/torch_gpt2.py" --dtype "$dtype" --compile --steps "$steps" 2>/dev/null | theirs >>"$work/torch"
    PATH="$(dirname "$python"):$PATH" DS_ACCELERATOR=cpu deepspeed --num_gpus 2 --bind_cores_to_rank "$peers/deepspeed_gpt2.py" \
      --stage 2 --dtype "$dtype" --steps "$steps" 2>/dev/null | theirs >>"$work/deepspeed"
  fi
done
row() { printf '%-44s %8.1f tokens/s   %s\n' "$1" "$2" "${3:-}"; }
ratio() { [ -s "$2" ] && awk -v a="$1" -v b="$(median <"$2")" 'BEGIN {printf "%.2f x peer", a / b}' || true; }
one=$(median <"$work/ours_one") z2=$(median <"$work/ours_z2")
row "cleave, 1 process, $dtype" "$one" "$(ratio "$one" "$work/torch")"
[ -s "$work/torch" ] && row "  PyTorch compile" "$(median <"$work/torch")"
row "cleave, 2 ranks, ZeRO-2" "$z2" "$(ratio "$z2" "$work/deepspeed")"
[ -s "$work/deepspeed" ] && row "  DeepSpeed, 2 ranks, ZeRO-2" "$(median <"$work/deepspeed")"
row "cleave, 2 ranks, ZeRO-3" "$(median <"$work/ours_z3")"
row "cleave, 2 ranks, ZeRO-2, offload" "$(median <"$work/ours_z2o")"
