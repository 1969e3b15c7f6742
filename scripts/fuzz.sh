#!/usr/bin/env bash
# Searches with libFuzzer for files that crash a reader: one program per reader, two at a time. Exits non-zero if it
# finds one and keeps its bytes in build/fuzz/found. Needs clang; cmake --preset fuzz && cmake --build --preset fuzz
# builds the programs.
#   FUZZ_SEED=1 scripts/fuzz.sh [--runs N | --seconds N] [reader...]     60 seconds each by default
set -euo pipefail
cd "$(dirname "$0")/.."
limit=-max_total_time=60
case "${1:-}" in
  --runs) limit=-runs=$2; shift 2 ;;
  --seconds) limit=-max_total_time=$2; shift 2 ;;
  -*) echo "usage: scripts/fuzz.sh [--runs N | --seconds N] [reader...]" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || set -- $(cd build/fuzz/bin && printf '%s\n' fuzz_* | grep -v _test | sed s/fuzz_//)
mkdir -p build/fuzz/found

fuzz() {
  local log=build/fuzz/$1.log
  if build/fuzz/bin/fuzz_"$1" "$limit" -seed="${FUZZ_SEED:-1}" -max_len=200000 -rss_limit_mb=4096 -artifact_prefix=build/fuzz/found/"$1"- >"$log" 2>&1; then
    echo "$1: $(sed -nE 's/^Done ([0-9]+) runs in ([0-9]+) second.*/\1 inputs in \2 s/p' "$log")"
  else
    echo "error: $1 did not survive an input; the end of $log:"
    tail -30 "$log" | cut -c1-300
    return 1
  fi
}
export -f fuzz
export limit
printf '%s\n' "$@" | xargs -P2 -I{} bash -c 'fuzz {}'
