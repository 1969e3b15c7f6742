#!/usr/bin/env bash
# Builds the wheel from the release build, installs it in an empty virtual environment, and uses it outside of the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
torch_python=${CLEAVE_TORCH_PYTHON:-$root/.venv/bin/python}
work=$(mktemp -d "/tmp/cleave wheel XXXXXX")
trap 'rm -rf "$work"' EXIT
CLEAVE_PYTHON=$torch_python ./scripts/build_wheel.sh "$work/wheels" -C build-dir=build/release \
  -C cmake.define.CLEAVE_TESTS=ON -C cmake.define.CLEAVE_BENCHMARKS=ON -C cmake.define.CLEAVE_EXAMPLES=ON
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

echo "-- with torch, under the name deepspeed"
"$torch_python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$site/torch.pth"
cp "$root/examples/python/cifar10.py" "$root/examples/python/cifar10.json" .
"$bin/cleave" launch -n 2 -- "$bin/python" cifar10.py --deepspeed --deepspeed_config cifar10.json --epochs 1 --output run
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
