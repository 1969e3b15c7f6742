#!/usr/bin/env bash
# Builds the wheel from the release build, installs it in an empty virtual environment, and uses it outside of the tree.
#   scripts/test_wheel.sh [--cuda]
#   --cuda    the CUDA wheel, whose first build takes half an hour on two cores, on a machine with or without a GPU
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
torch_python=${CLEAVE_TORCH_PYTHON:-$root/.venv/bin/python}
work=$(mktemp -d "/tmp/cleave wheel XXXXXX")
trap 'rm -rf "$work"' EXIT
cuda=false
if [ "${1:-}" = --cuda ]; then
  cuda=true
  CLEAVE_PYTHON=$torch_python ./scripts/build_wheel.sh --cuda "$work/wheels"
else
  # With the options of the release build, which then has the same objects.
  names="CLEAVE_TESTS|CLEAVE_BENCHMARKS|CLEAVE_EXAMPLES|CMAKE_UNITY_BUILD|CMAKE_UNITY_BUILD_BATCH_SIZE"
  mapfile -t options < <(sed -nE "s/^($names):[A-Z]+=(.*)/-C\ncmake.define.\1=\2/p" build/release/CMakeCache.txt)
  grep -q ^CMAKE_UNITY_BUILD: build/release/CMakeCache.txt || options+=(-C cmake.define.CMAKE_UNITY_BUILD=OFF)
  CLEAVE_PYTHON=$torch_python ./scripts/build_wheel.sh "$work/wheels" -C build-dir=build/release "${options[@]}"
fi
ls -l "$work/wheels"
"$torch_python" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" install --quiet --disable-pip-version-check --no-deps "$work/wheels"/cleave-*.whl
cd "$work"
site=$("$bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")

echo "-- without torch"
"$bin/python" - <<'PYTHON'
import sys, time
begin = time.perf_counter()
import cleave
took = time.perf_counter() - begin
assert "torch" not in sys.modules and cleave.__file__.startswith(sys.prefix), cleave.__file__
print(f"import cleave {cleave.__version__}: {1000 * took:.0f} ms")
PYTHON
"$bin/cleave" --version
"$bin/ds_report" | head -3
"$bin/deepspeed" --help | grep -q -- --num_gpus || { echo "error: deepspeed is not the launcher" >&2; exit 1; }


if $cuda; then
  "$bin/python" - "$work/wheels"/*.whl <<'PYTHON'
import os, re, sys, zipfile
most_mb, wheel = 60, sys.argv[1]
cuda = [name for name in zipfile.ZipFile(wheel).namelist() if re.search(r"lib(cuda|cublas|cudnn|nccl|nvrtc|nvJitLink)", name)]
assert not cuda, f"CUDA libraries in the wheel: {cuda}"
assert os.path.getsize(wheel) <= most_mb * 1_000_000, f"the wheel is larger than {most_mb} MB: {os.path.getsize(wheel)}"
PYTHON
  echo "-- without CUDA libraries"
  # In a namespace with an empty folder in place of the toolkit's.
  without='mount -t tmpfs none /usr/local && exec "$0" "$@"'
  if [[ $(readlink -f "$torch_python") == /usr/local/* ]] || ! unshare -rm sh -c "$without" true; then
    echo "skipped: no namespaces, or Python is in /usr/local"
  else
    unshare -rm sh -c "$without" "$bin/ds_report" | tee bare
    for package in "nvidia-cublas==13.*" nvidia-nccl-cu13 nvidia-cudnn-cu13; do grep -qF "run pip install \"$package\"" bare; done
    printf '{"train_batch_size": 2, "optimizer": {"type": "AdamW"}}' >small.json
    yes "a line of text" | head -c 20000 >text.txt || true
    unshare -rm sh -c "$without" "$bin/cleave" train --device cpu --deepspeed_config small.json --model tiny --data text.txt --seq_len 32 --steps 2
  fi
fi

echo "-- with torch, under the name deepspeed"
"$torch_python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$site/torch.pth"
if $cuda; then
  "$bin/ds_report" | tee report
  # The engine takes the libraries that torch loaded, which the loader finds by their names.
  "$bin/python" - report <<'PYTHON'
import ctypes, os, sys
import torch
for name, file in (("cuBLASLt", "libcublasLt.so.13"), ("NCCL", "libnccl.so.2"), ("cuDNN", "libcudnn.so.9")):
    row = next(line for line in open(sys.argv[1]) if line.startswith(name))
    assert "/site-packages/nvidia/" in row and row.endswith("(Python package)\n"), row
    ctypes.CDLL(file, os.RTLD_NOLOAD | os.RTLD_NOW)
PYTHON
fi
cp "$root/examples/python/cifar10.py" "$root/examples/python/cifar10.json" .
"$bin/cleave" launch -n 2 -- "$bin/python" cifar10.py --deepspeed --deepspeed_config cifar10.json --epochs 1 --output run 2>&1 | tee log
if $cuda && [ ! -e /dev/nvidiactl ]; then grep 'device: cpu (no NVIDIA driver found' log; fi
"$bin/cleave" verify run
"$bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$root/scripts/requirements/setuptools.txt"
cp -r "$root/python/deepspeed_name" name
mkdir "$site/deepspeed" && echo '"""Another one."""' >"$site/deepspeed/__init__.py"
if "$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation ./name 2>refused; then
  echo "error: a package of the same name was replaced without an error" >&2
  exit 1
fi
grep 'is another package of this name' refused
rm -r "$site/deepspeed"
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation ./name
"$bin/python" -c "import deepspeed, importlib.metadata as m; print('deepspeed', m.version('deepspeed'), 'is', deepspeed.DeepSpeedEngine)"
