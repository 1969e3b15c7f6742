#!/usr/bin/env bash
# Compares reads and writes of a file, past the page cache, with fio at the same sizes, in turns; prints medians in GB/s
# and the share of fio's speed. Then compares training steps of GPT-2 124M with fio: masters and moments are on disk,
# almost nothing is computed, and each step reads and writes the state once. Without fio, only Cleave runs.
#   benchmarks/disk.sh FOLDER     BUILD=build/release TOTAL_MIB=1024 TENSOR_MIB=24 BLOCK_KIB=1024 DEPTH=32 ROUNDS=5
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?a folder on the disk to measure}
bench=${BUILD:-build/release}/bin/disk_bench
total=${TOTAL_MIB:-1024} tensor=${TENSOR_MIB:-24} block=${BLOCK_KIB:-1024} depth=${DEPTH:-32} rounds=${ROUNDS:-5}
work=$(mktemp -d -p "$folder")
trap 'rm -rf "$work"' EXIT
echo "commit: $(git rev-parse --short HEAD), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg); $total MiB, blocks of $block KiB, $depth in flight"

# fio_rate read|write: GB/s. Uses huge pages, as Cleave does: 4 KiB pages make many segments, which halves the speed of
# some disks.
fio_rate() {
  GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=peer --directory="$work" --size="${total}M" --bs="${block}k" --ioengine=io_uring --iodepth="$depth" --direct=1 --rw="$1" \
    --overwrite=1 --output-format=json | python3 -c "import json, sys; print('%.3f' % (json.load(sys.stdin)['jobs'][0]['$1']['bw_bytes'] / 1e9))"
}
peer=false
command -v fio >/dev/null && peer=true
$peer || echo "fio is not installed: only ours"
for ((i = 0; i < rounds; i++)); do
  for engine in io_uring threads; do
    read -r w r < <("$bench" "$work" "$total" "$tensor" "$block" "$depth" $engine)
    echo "$w" >>"$work/$engine.write" && echo "$r" >>"$work/$engine.read"
  done
  $peer && fio_rate write >>"$work/fio.write" && fio_rate read >>"$work/fio.read"
done
# Moments and masters of 124,439,808 parameters, 12 bytes each.
state_mib=1425
tr -dc 'a-z ' </dev/urandom | head -c 100000 >"$work/text" || true
printf '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
 "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "%s"}}}' "$work" >"$work/ds_config.json"
for ((i = 0; i < 2; i++)); do
  rm -f "$work/m.jsonl"
  "${bench%disk_bench}cleave" train --deepspeed_config "$work/ds_config.json" --model gpt2 --data "$work/text" --seq_len 8 --steps 6 \
    --metrics "$work/m.jsonl" >/dev/null
  grep '"tokens_per_s"' "$work/m.jsonl" | tail -n 4 | sed -nE "s/.*\"step_ms\":([0-9.]+).*/\1/p" |
    awk -v mib=$state_mib '{print 2 * mib * 1.048576 / $1}' >>"$work/step"
  $peer && GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=peer --directory="$work" --size="${state_mib}M" --io_size="$((2 * state_mib))M" \
    --bs="${block}k" --ioengine=io_uring --iodepth="$depth" --direct=1 --rw=rw --overwrite=1 --output-format=json |
    python3 -c "import json, sys; j = json.load(sys.stdin)['jobs'][0]; print((j['read']['bw_bytes'] + j['write']['bw_bytes']) / 1e9)" >>"$work/fio.step"
done
python3 - "$work" <<'P'
import os, statistics, sys
def median(name):
    path = os.path.join(sys.argv[1], name)
    return statistics.median(float(x) for x in open(path)) if os.path.exists(path) else None
for way in ("write", "read"):
    peer = median("fio." + way)
    for engine in ("io_uring", "threads"):
        ours = median(engine + "." + way)
        share = f"   {100 * ours / peer:.0f} % of fio's {peer:.2f}" if peer else ""
        print(f"{way:<6} {engine:<9} {ours:.2f} GB/s{share}")
ours, peer = median("step"), median("fio.step")
print(f"whole steps, read and written  {ours:.2f} GB/s" + (f"   {100 * ours / peer:.0f} % of fio's {peer:.2f}" if peer else ""))
P
