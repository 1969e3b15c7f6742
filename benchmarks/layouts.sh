#!/usr/bin/env bash
# Compares one step of GPT-2 124M, T = 1024, bf16, 8 sequences, on 2 ranks in every layout with plain data parallelism
# in the same run. Layouts take turns; prints medians of tokens per second, the ratio, and the memory of each layout.
#   benchmarks/layouts.sh        STEPS=2 ROUNDS=2 LAYOUTS="data pipe ..."
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${STEPS:-2} rounds=${ROUNDS:-2}
layouts=${LAYOUTS:-data zero3 pipe pipe_interleaved pipe_zb tensor sequence zero2 zero2_offload exact}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /cpu: /'
echo "commit: $(git rev-parse --short HEAD), $(nproc) cores"

python3 benchmarks/random_tokens.py "$work/tokens.bin"
config() {  # name accumulation keys
  printf '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": %s, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}%s}' "$2" "$3" >"$work/$1.json"
}
config data 4 ''
config zero2 4 ', "zero_optimization": {"stage": 2}'
config zero3 4 ', "zero_optimization": {"stage": 3}'
config zero2_offload 4 ', "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}'
config exact 4 ', "cleave": {"exact_sums": true}'
config pipe 8 ', "pipeline": {"stages": 2}'
config pipe_interleaved 8 ', "pipeline": {"stages": 2, "schedule": "interleaved", "virtual_stages": 2}'
config pipe_zb 8 ', "pipeline": {"stages": 2, "schedule": "zb-h1"}'
config tensor 8 ', "tensor_parallel": {"autotp_size": 2}'
config sequence 8 ', "sequence_parallel_size": 2'

median() { sort -g | awk '{v[NR]=$1} END {print (NR % 2) ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }
for round in $(seq "$rounds"); do
  for name in $layouts; do
    build/release/bin/cleave launch -n 2 -- train --deepspeed_config "$work/$name.json" --model gpt2 --data "$work/tokens.bin" \
      --seq_len 1024 --steps $((steps + 1)) --metrics "$work/m.jsonl" >/dev/null
    grep '"tokens_per_s"' "$work/m.jsonl" | tail -n "$steps" | sed -nE 's/.*"tokens_per_s":([0-9.]+).*/\1/p' >>"$work/rate_$name"
    rm "$work/m.jsonl"
  done
done
plain=$(median <"$work/rate_${layouts%% *}")
for name in $layouts; do
  rate=$(median <"$work/rate_$name")
  memory=$(build/release/bin/cleave plan --deepspeed_config "$work/$name.json" --model gpt2 --seq_len 1024 --world_size 2 |
    awk '/needs the most/ {on = 1} on && $1 == "total" {print $2, $3; exit}')
  idle=$(build/release/bin/cleave plan --deepspeed_config "$work/$name.json" --model gpt2 --seq_len 1024 --world_size 2 --json |
    sed -nE 's/.*"idle_share": ([0-9.e-]+).*/\1/p')
  awk -v n="$name" -v r="$rate" -v p="$plain" -v m="$memory" -v i="$idle" \
    'BEGIN {printf "%-16s %7.1f tokens/s  %.3f of %s  planned idle share %4.1f %%  device memory %s\n", n, r, r / p, "the first row", i * 100, m}'
done
