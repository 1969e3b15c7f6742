#!/usr/bin/env bash
# Fine-tunes a model folder on a text and exports a model folder: run.sh [WORK] (default: runs/fine_tune).
set -euo pipefail
here=$(dirname "$0")
work=${1:-runs/fine_tune}
cleave=${CLEAVE:-build/release/bin/cleave}
mkdir -p "$work"

# For a published model, remove these two lines and set its folder and your text here.
model=$work/model text=$work/kjv.txt
"$here/../../scripts/fetch_kjv.sh" "$text" && python3 "$here/make_model.py" "$text" "$model"

"$cleave" data split "$text" --train "$work/train.txt" --validation "$work/validation.txt"
"$cleave" launch -n 2 -- train --deepspeed_config "$here/ds_config.json" --model "$model" --data "$work/train.txt" \
  --eval_data "$work/validation.txt" --seq_len 128 --steps "${STEPS:-400}" --eval_interval 100 --output "$work/run" --export "$work/tuned" \
  --metrics "$work/metrics.jsonl"

echo
"$cleave" generate "$work/run" --prompt "And the LORD said unto " --tokens 60 --quiet
echo
echo "The model with its tokenizer is in $work/tuned:"
ls "$work/tuned"
if python3 -c 'import torch, transformers' 2>/dev/null; then
  python3 - "$work/tuned" <<'PYTHON'
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer("And the LORD said unto ", return_tensors="pt")
print("transformers:", tokenizer.decode(model.generate(**ids, max_new_tokens=30, do_sample=False)[0]))
PYTHON
fi
