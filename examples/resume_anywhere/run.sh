#!/usr/bin/env bash
# Trains over three layouts and a kill: run.sh [WORK] (default: runs/resume_anywhere). An unbroken run on one rank
# shows that nothing was lost.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/examples/resume_anywhere scripts=$PWD/scripts
cleave=$(realpath "${CLEAVE:-build/release/bin/cleave}")
mkdir -p "${1:-runs/resume_anywhere}"
cd "${1:-runs/resume_anywhere}"
rm -rf run disk exported && mkdir -p disk
"$scripts/fetch_kjv.sh" kjv.txt

steps=${STEPS:-120}
train=(train --model llama-tiny --data kjv.txt --seq_len 64)
third=$((steps / 3))

echo "== unbroken, on one rank"
"$cleave" "${train[@]}" --deepspeed_config "$here/one_rank.json" --steps "$steps" --metrics unbroken.jsonl | tail -1

: >four.jsonl
echo "== four ranks: two stages x two data-parallel ranks, ZeRO-3, weights and optimizer state on disk; rank 3 is killed"
"$cleave" launch -n 4 -- "${train[@]}" --deepspeed_config "$here/four_ranks.json" --steps "$steps" --output run \
  --save_interval $((third / 4)) --keep 2 --metrics four.jsonl >four.log 2>&1 &
launcher=$!
until [ "$(grep -c '"loss"' four.jsonl || true)" -gt $((third + 2)) ]; do
  kill -0 $launcher 2>/dev/null || { cat four.log; exit 1; }
  sleep 0.05
done
kill -9 "$(pgrep -P $launcher | tail -1)"
status=0
wait $launcher || status=$?
tail -1 four.log
echo "exit code $status; complete checkpoints: $(cd run && ls -d global_step*/ | tr -d / | sort -V | paste -sd ' ')"

echo "== one rank resumes"
"$cleave" "${train[@]}" --deepspeed_config "$here/one_rank.json" --steps $((2 * third)) --output run --metrics one.jsonl |
  grep -E 'resum|saved'
echo "== three ranks, ZeRO-2 with optimizer state in host memory, finish"
"$cleave" launch -n 3 -- "${train[@]}" --deepspeed_config "$here/three_ranks.json" --steps "$steps" --output run --metrics three.jsonl |
  grep -E 'resum|saved'

echo "== losses compared with the unbroken run"
python3 - <<'PYTHON'
import json
def losses(name):
    with open(f"{name}.jsonl") as lines:
        return {s["step"]: s["loss"] for s in map(json.loads, lines) if "loss" in s}
want = losses("unbroken")
for name in ("four", "one", "three"):
    got = losses(name)
    worst = max(abs(loss / want[step] - 1) for step, loss in got.items())
    print(f"{name:6} steps {min(got)} to {max(got)}: difference at most {worst:.1e}")
    assert worst < 1e-4
PYTHON
"$scripts/plot_losses.py" losses.svg "Llama, $steps steps:unbroken, one rank=unbroken.jsonl" "Llama, $steps steps:four ranks, killed=four.jsonl" \
  "Llama, $steps steps:then one=one.jsonl" "Llama, $steps steps:then three=three.jsonl"

"$cleave" export run exported
if python3 -c 'import torch, transformers' 2>/dev/null; then
  python3 -c 'import sys, transformers as t; print("transformers:", t.AutoModelForCausalLM.from_pretrained("exported").num_parameters(), "parameters")'
fi
