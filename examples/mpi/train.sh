#!/usr/bin/env bash
# Trains on the ranks of mpirun; Cleave does not link an MPI library. On several hosts, listed as Open MPI expects:
#   RANKS=8 HOSTFILE=hosts MASTER_ADDR=node-0 train.sh --deepspeed_config ds_config.json --data corpus.txt
# MASTER_ADDR is the host of rank 0, the first in the list. Open MPI 4 does not need it.
set -euo pipefail
options=(-n "${RANKS:-2}" --bind-to none)
[ -z "${HOSTFILE:-}" ] || options+=(--hostfile "$HOSTFILE")
[ -z "${MASTER_ADDR:-}" ] || options+=(-x MASTER_ADDR)
exec mpirun "${options[@]}" "${CLEAVE:-cleave}" train "$@"
