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

# Metrics appear in an MLflow server of this machine, if the program is installed: pip install mlflow.
server= url=
mlflow=${MLFLOW:-mlflow}
if command -v "$mlflow" >/dev/null; then
  url=http://127.0.0.1:${MLFLOW_PORT:-5000}
  mkdir -p "$work/mlflow"
  (cd "$work/mlflow" && exec "$mlflow" server --backend-store-uri sqlite:///runs.db --port "${url##*:}" >server.log 2>&1) &
  server=$!
  trap 'kill $server' EXIT
  for _ in $(seq 600); do
    curl -fs "$url/health" >/dev/null && break
    kill -0 "$server" || { tail "$work/mlflow/server.log" >&2; exit 1; }
    sleep 0.1
  done
fi

emulate() {
  local name=$1
  shift
  "$python" "$here/emulate.py" "$here/$name.yml" --work "$work/jobs/$name" --input text="$work/text" --tools "$tools" \
    --mount "$tools/azureml_mount.so" ${url:+--mlflow "$url"} "$@"
}
for name in pytorch_per_gpu pytorch_per_node mpi tensorflow; do emulate "$name"; done
emulate low_priority --lose_node 1
grep -hE 'cannot rename folders|resumed' "$work"/jobs/low_priority/start1/node0/user_logs/std_log_process_0.txt | sed "s|$(realpath "$work")/||g"

"$python" - "$work/jobs" $url <<'PYTHON'
import json, pathlib, sys, urllib.request
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
def mlflow(call, values):
    request = urllib.request.Request(f"{sys.argv[2]}/api/2.0/mlflow/{call}", json.dumps(values).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
for name, start in (("pytorch_per_gpu", 0), ("low_priority", 1)) if len(sys.argv) > 2 else ():
    found = mlflow("runs/search", {"experiment_ids": ["0"], "filter": f"attributes.run_name = '{name}'"})["runs"][0]
    run = found["info"]["run_id"]
    with urllib.request.urlopen(f"{sys.argv[2]}/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key=loss", timeout=10) as answer:
        metrics = {int(m["step"]): m["value"] for m in json.load(answer)["metrics"]}
    print(f"{name:16} MLflow run {found['info']['status']}: losses of steps {min(metrics)} to {max(metrics)}")
    assert all(abs(metrics[step] / loss - 1) < 1e-6 for step, loss in losses(name, start).items())
PYTHON
