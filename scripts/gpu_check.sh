#!/bin/sh
# Proves the CUDA build on a machine with a GPU in two calls; scripts/gpu_check.py has the options and exit codes.
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
