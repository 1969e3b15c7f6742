#!/usr/bin/env bash
# Reads and writes of a file past the page cache, ours beside fio's with the same sizes, in turns; prints medians in GB/s and ours as a
# share of fio's. Without fio only ours.
#   benchmarks/disk.sh FOLDER     BUILD=build/release TOTAL_MIB=1024 TENSOR_MIB=24 BLOCK_KIB=1024 DEPTH=32 ROUNDS=5
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?a folder on the disk to measure}
bench=${BUILD:-build/release}/bin/disk_bench
total=${TOTAL_MIB:-1024} tensor=${TENSOR_MIB:-24} block=${BLOCK_KIB:-1024} depth=${DEPTH:-32} rounds=${ROUNDS:-5}
work=$(mktemp -d -p "$folder")
trap 'rm -rf "$work"' EXIT
echo "commit: $(git rev-parse --short HEAD), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg); $total MiB, blocks of $block KiB, $depth in flight"

# read or write: GB/s. With huge pages, as ours: a block in 4 KiB pages is twice as slow on some disks, for many segments.
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
P
