#!/usr/bin/env bash
# Runs the README's examples on two ranks and checks their results.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/build/release/bin
work=$(mktemp -d "/tmp/cleave examples XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "-- train_mlp"
"$bin/cleave" launch -n 2 -- "$bin/train_mlp" | tee "$work/mlp"
grep -q 'step 200  loss 0\.[01]' "$work/mlp" || { echo "error: train_mlp did not learn" >&2; exit 1; }

echo "-- own_layer"
"$bin/cleave" launch -n 2 -- "$bin/own_layer" | tee "$work/own"
grep -q 'loss 0\.[01].*, learned gains: ' "$work/own" || { echo "error: own_layer did not learn" >&2; exit 1; }

echo "-- digits"
./scripts/fetch_digits.sh "$work/digits.csv.gz"
"$bin/cleave" launch -n 2 -- "$bin/digits" "$work/digits.csv.gz" examples/digits/ds_config.json | tee "$work/digits"
accuracy=$(sed -nE 's/.*held-out digits: ([0-9.]+) %/\1/p' "$work/digits")
awk -v a="$accuracy" 'BEGIN { exit !(a >= 95) }' || { echo "error: $accuracy % is below 95 %" >&2; exit 1; }

echo "-- encoder"
(cd "$work" && "$bin/cleave" launch -n 2 -- "$bin/encoder" digits.csv.gz) | tee "$work/encoder.txt"
accuracy=$(sed -nE 's/.*held-out digits: ([0-9.]+) %/\1/p' "$work/encoder.txt")
awk -v a="$accuracy" 'BEGIN { exit !(a >= 95) }' || { echo "error: $accuracy % is below 95 %" >&2; exit 1; }
"$bin/cleave" verify "$work/encoder" >/dev/null
"$bin/encoder" plan 8 | grep -q 'encoder' || { echo "error: encoder has no plan" >&2; exit 1; }

echo "-- hello_mesh"
"$bin/cleave" launch -n 8 -- "$bin/hello_mesh" 2 2 3 | tee "$work/mesh"
grep -q 'rank 7: pipe 1 data 1 tensor 1 .* and head .* 96 x 64 of 192 x 64' "$work/mesh" ||
  { echo "error: rank 7 does not say what it has" >&2; exit 1; }

echo "-- train_3d: three layouts of eight ranks learn the same"
./scripts/fetch_kjv.sh "$work/kjv.txt"
for layout in data pipe_data pipe_data_tensor; do
  "$bin/cleave" launch -n 8 -- train --deepspeed_config examples/train_3d/$layout.json --model llama-tiny --data "$work/kjv.txt" \
    --seq_len 64 --steps 12 --metrics "$work/$layout.jsonl" >/dev/null
done
python3 - "$work" <<'PYTHON'
import json, sys
def losses(layout):
    with open(f"{sys.argv[1]}/{layout}.jsonl") as lines:
        return [step["loss"] for step in map(json.loads, lines) if "loss" in step]
want = losses("data")
assert len(want) == 12 and want[-1] < 0.8 * want[0], want
for layout in ("pipe_data", "pipe_data_tensor"):
    worst = max(abs(a / b - 1) for a, b in zip(losses(layout), want, strict=True))
    print(f"{layout}: losses within {100 * worst:.3f} % of those of data parallelism alone")
    assert worst < 0.01
PYTHON

echo "-- gpt2-large does not fit without offload and is refused before anything is allocated"
sed 's/"stage": 2, "offload_optimizer": {[^}]*},/"stage": 0,/' examples/gpt2_large/ds_config.json >"$work/stage0.json"
status=0
"$bin/cleave" launch -n 2 -- train --deepspeed_config "$work/stage0.json" --model gpt2-large --data "$work/kjv.txt" \
  --seq_len 32 --steps 2 --device_memory 8GiB >"$work/log" 2>&1 || status=$?
tail -12 "$work/log"
[ "$status" -eq 3 ] || { echo "error: exit code $status, wanted 3" >&2; exit 1; }

echo "-- fine_tune: a folder of a model in, a folder of a model out"
STEPS=60 ./examples/fine_tune/run.sh "$work/fine_tune" | tail -12
"$bin/cleave" import "$work/fine_tune/tuned" "$work/again" --seq_len 128 >/dev/null
[ "$("$bin/cleave" digest "$work/again" --quiet)" = "$("$bin/cleave" digest "$work/fine_tune/run" --dtype bf16 --quiet | grep weights)" ] ||
  { echo "error: the export has other weights than the checkpoint" >&2; exit 1; }

echo "-- resume_anywhere: four ranks, a kill, one rank, three ranks"
STEPS=60 ./examples/resume_anywhere/run.sh "$work/resume" | tail -16

echo "-- the quickstart, shortened"
STEPS=3 ./scripts/quickstart.sh | tee "$work/quickstart" | tail -25
next=$(sed -n 's/^  \(.*--resume auto\) .*/\1/p' "$work/quickstart")
bash -c "$next" | tee "$work/resumed"
grep -q 'after step 6' "$work/resumed" || { echo "error: the printed command did not resume: $next" >&2; exit 1; }
