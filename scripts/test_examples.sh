#!/usr/bin/env bash
# Runs the README's examples on two ranks and checks what they promise.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/build/release/bin
work=$(mktemp -d "/tmp/cleave examples XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "-- train_mlp"
"$bin/cleave" launch -n 2 -- "$bin/train_mlp" | tee "$work/mlp"
grep -q 'step 200  loss 0\.[01]' "$work/mlp" || { echo "error: train_mlp did not learn" >&2; exit 1; }

echo "-- digits"
./scripts/fetch_digits.sh "$work/digits.csv.gz"
"$bin/cleave" launch -n 2 -- "$bin/digits" "$work/digits.csv.gz" examples/digits/ds_config.json | tee "$work/digits"
accuracy=$(sed -nE 's/.*held-out digits: ([0-9.]+) %/\1/p' "$work/digits")
awk -v a="$accuracy" 'BEGIN { exit !(a >= 95) }' || { echo "error: $accuracy % is below 95 %" >&2; exit 1; }

echo "-- gpt2-large does not fit without offload and is refused before anything is allocated"
./scripts/fetch_kjv.sh "$work/kjv.txt"
sed 's/"stage": 2, "offload_optimizer": {[^}]*},/"stage": 0,/' examples/gpt2_large/ds_config.json >"$work/stage0.json"
status=0
"$bin/cleave" launch -n 2 -- train --deepspeed_config "$work/stage0.json" --model gpt2-large --data "$work/kjv.txt" \
  --seq_len 32 --steps 2 --device_memory 8GiB >"$work/log" 2>&1 || status=$?
tail -12 "$work/log"
[ "$status" -eq 3 ] || { echo "error: exit code $status, wanted 3" >&2; exit 1; }

echo "-- the quickstart, shortened"
STEPS=3 ./scripts/quickstart.sh | tail -25
