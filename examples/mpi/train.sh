#!/usr/bin/env bash
# mpirun's ranks; no library of MPI's is linked. On several hosts, whose list is Open MPI's:
#   RANKS=8 HOSTFILE=hosts MASTER_ADDR=node-0 train.sh --deepspeed_config ds_config.json --data corpus.txt
# MASTER_ADDR is the host of rank 0, the first of the list; with Open MPI 4 it may be left out.
set -euo pipefail
options=(-n "${RANKS:-2}" --bind-to none)
[ -z "${HOSTFILE:-}" ] || options+=(--hostfile "$HOSTFILE")
[ -z "${MASTER_ADDR:-}" ] || options+=(-x MASTER_ADDR)
exec mpirun "${options[@]}" "${CLEAVE:-cleave}" train "$@"
