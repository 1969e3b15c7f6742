#!/usr/bin/env bash
# Measures the cost of optimizer state in host memory or on disk: steps of GPT-2 124M in bf16 on 2 ranks, ZeRO-2, 4
# accumulated micro-batches, with and without offload, in turns. Prints medians of seconds per step and their ratio to
# the first row.
#   benchmarks/offload.sh        CLEAVE=build/release/bin/cleave SEQ_LEN=1024 STEPS=3 ROUNDS=3 HOMES="none cpu nvme"
#       NORM=first|none DISK=/tmp
set -euo pipefail
cd "$(dirname "$0")/.."
seq=${SEQ_LEN:-1024} steps=${STEPS:-3} rounds=${ROUNDS:-3} homes=${HOMES:-none cpu} norm=${NORM:-first} disk=${DISK:-/tmp}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /cpu: /'
echo "commit: $(git rev-parse --short HEAD), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg); T = $seq, norm $norm"

python3 benchmarks/random_tokens.py "$work/tokens.bin"
# Without clipping and overflow checks, the update does not need the norm and runs during the backward.
check=$([ "$norm" = first ] && echo true || echo false) clip=$([ "$norm" = first ] && echo 1 || echo 0)
for home in $homes; do
  printf '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": %s,
 "bf16": {"enabled": true, "check_grad_overflow": %s}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
 "zero_optimization": {"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "%s", "nvme_path": "%s"}}}' \
    "$clip" "$check" "$home" "$disk" >"$work/$home.json"
done
for ((round = 0; round < rounds; round++)); do
  for home in $homes; do
    rm -f "$work/m.jsonl"
    "${CLEAVE:-build/release/bin/cleave}" launch -n 2 -- train --deepspeed_config "$work/$home.json" --model gpt2 --data "$work/tokens.bin" \
      --seq_len "$seq" --steps $((steps + 1)) --metrics "$work/m.jsonl" >/dev/null 2>"$work/errors" || { cat "$work/errors" >&2; exit 1; }
    grep '"tokens_per_s"' "$work/m.jsonl" | tail -n "$steps" | sed -nE 's/.*"tokens_per_s":([0-9.]+).*/\1/p' >>"$work/$home"
  done
done
python3 - "$work" "$seq" $homes <<'P'
import os, statistics, sys
work, seq, homes = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def median(home):
    return statistics.median(8 * seq / float(x) for x in open(os.path.join(work, home)))
plain = median(homes[0])
for home in homes:
    print(f"{home:<6} {median(home):7.2f} s a step   {median(home) / plain:.3f} x {homes[0]}")
P
