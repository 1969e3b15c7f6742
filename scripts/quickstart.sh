#!/usr/bin/env bash
# Installs missing Debian packages, builds, and trains a small GPT on the King James text with two ranks, ZeRO-2 and the
# optimizer state in host memory.
#   scripts/quickstart.sh      STEPS=N: optimizer steps instead of 3000; an interrupted quickstart starts again
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 0 ] || { echo "usage: [STEPS=N] scripts/quickstart.sh" >&2; exit 2; }

./scripts/install_packages.sh build example
echo "build: configuring and compiling (some minutes the first time)"
# A new build folder compiles in units of sixteen files, which halves the time.
[ -d build/release ] || units=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16)
cmake --preset release ${units[@]+"${units[@]}"} >/dev/null
# The program, the library for PyTorch scripts, and the examples in the README.
cmake --build --preset release --target cleave-bin cleave_c own_layer train_mlp encoder azureml_mount
cleave=build/release/bin/cleave
out=runs/quickstart
mkdir -p "$out"

./scripts/fetch_kjv.sh "$out/kjv.txt"
"$cleave" data split "$out/kjv.txt" --train "$out/train.txt" --validation "$out/validation.txt"

train=(launch -n 2 -- train --deepspeed_config examples/train_gpt/ds_config.json --model tiny
  --data "$out/train.txt" --eval_data "$out/validation.txt" --seq_len 64 --output "$out/checkpoints"
  --metrics "$out/metrics.jsonl" --seed 1)
train_now=("${train[@]}" --steps "${STEPS:-3000}" --eval_interval 1500 --ngrams --resume never)
echo "command: $cleave ${train_now[*]}"
"$cleave" "${train_now[@]}"

echo
echo "A sample from the model:"
"$cleave" generate "$out/checkpoints" --prompt "And the LORD said unto " --tokens 300 --seed 7
echo
echo "Checkpoint: $out/checkpoints/$(cat "$out/checkpoints/latest")"
echo "Next:"
echo "  $cleave generate $out/checkpoints --prompt \"In the beginning \" --tokens 200"
echo "  $cleave ${train[*]} --steps $((2 * ${STEPS:-3000})) --resume auto    # twice as many steps"
echo "  docs/train.md: train on your own text"
