#!/usr/bin/env bash
# Trains on the ranks of torchrun, with up to three restarts from the newest complete checkpoint. On several hosts, run
# it on each:
#   NODES=2 HOST0=node-0 train.sh --deepspeed_config ds_config.json --data corpus.txt --output run
set -euo pipefail
exec torchrun --no-python --nnodes "${NODES:-1}" --nproc_per_node "${RANKS:-2}" --max_restarts 3 \
  --rdzv_backend c10d --rdzv_endpoint "${HOST0:-localhost}:${PORT:-29400}" --rdzv_id "${ID:-cleave}" \
  "${CLEAVE:-cleave}" train "$@"
