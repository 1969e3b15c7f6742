#!/usr/bin/env bash
# Runs all jobs of this folder in the emulator and prints their losses side by side: run.sh [WORK] (default:
# runs/azureml).
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/examples/azureml
tools=$(realpath "${TOOLS:-build/release/bin}")
work=${1:-runs/azureml}
rm -rf "$work/jobs" && mkdir -p "$work/text"
./scripts/fetch_kjv.sh "$work/text/kjv.txt"
# Debian's Python has python3-yaml; another Python earlier in PATH may not.
python=python3
"$python" -c 'import yaml' 2>/dev/null || python=/usr/bin/python3

emulate() {
  local name=$1
  shift
  "$python" "$here/emulate.py" "$here/$name.yml" --work "$work/jobs/$name" --input text="$work/text" --tools "$tools" \
    --mount "$tools/azureml_mount.so" "$@"
}
for name in pytorch_per_gpu pytorch_per_node mpi tensorflow; do emulate "$name"; done
emulate low_priority --lose_node 1
grep -hE 'cannot rename folders|resumed' "$work"/jobs/low_priority/start1/node0/user_logs/std_log_process_0.txt | sed "s|$(realpath "$work")/||g"

"$python" - "$work/jobs" <<'PYTHON'
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
def losses(name, start):
    with open(work / name / f"start{start}/node0/wd/logs/metrics.jsonl") as lines:
        return {s["step"]: s["loss"] for s in map(json.loads, lines) if "loss" in s}
want = losses("pytorch_per_gpu", 0)
assert sorted(want) == list(range(1, 31)) and want[30] < 0.8 * want[1], want
for name, start in (("pytorch_per_node", 0), ("mpi", 0), ("tensorflow", 0), ("low_priority", 1)):
    got = losses(name, start)
    worst = max(abs(loss / want[step] - 1) for step, loss in got.items())
    print(f"{name:16} steps {min(got)} to {max(got)}: losses differ from those of pytorch_per_gpu by at most {worst:.1e}")
    assert max(got) == 30 and worst < 1e-5
    assert list((work / name / f"start{start}/node0/wd/outputs/tblogs").rglob("events.out.tfevents.*")), f"{name}: no event file"
PYTHON
