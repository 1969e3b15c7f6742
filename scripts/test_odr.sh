#!/usr/bin/env bash
# Trains with the program of preset odr, which inlines nothing, so that every destructor that the linker chose runs.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/ds_config.json" <<JSON
{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
 "csv_monitor": {"enabled": true, "output_path": "$folder/csv", "job_name": "odr"},
 "tensorboard": {"enabled": true, "output_path": "$folder/board", "job_name": "odr"}}
JSON
head -c 8000 README.md >"$folder/text.txt"
build/odr/bin/cleave launch -n 2 -- train --deepspeed_config "$folder/ds_config.json" --model tiny --data "$folder/text.txt" --seq_len 16 \
  --steps 2 --metrics "$folder/metrics.jsonl" --output "$folder/run" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
[ "$(grep -c '"loss"' "$folder/metrics.jsonl")" = 2 ] && [ -d "$folder/run" ] && ls "$folder"/csv/*/*.csv >/dev/null
