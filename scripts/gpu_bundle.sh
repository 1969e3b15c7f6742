#!/usr/bin/env bash
# Packs the files that scripts/gpu_check.sh needs on a machine with a GPU: programs of the CUDA build, the library for
# PyTorch scripts with its package, and the shared libraries that a minimal Debian or Ubuntu does not have. CUDA
# libraries come from the target machine.
#   scripts/gpu_bundle.sh [--generations] [--no-build]     writes gpu_bundle/, which git ignores
#   --generations       use the preset cuda-release, with machine code for more GPUs, instead of the preset cuda
#   BUILD=build/cuda    build to pack, if it is not the preset's
#   CUOBJDUMP=FILE, PYTHON=python3    cuobjdump, or a Python with a Triton that contains it, to check the architectures
set -euo pipefail
cd "$(dirname "$0")/.."

preset=cuda most_mib=50 wanted=(sm_80 sm_90) build_it=true
for option in "$@"; do
  case $option in
    --generations) preset=cuda-release most_mib=96 wanted=(sm_80 sm_86 sm_89 sm_90 sm_100 sm_120) ;;
    --no-build) build_it=false ;;
    *) echo "usage: scripts/gpu_bundle.sh [--generations] [--no-build]" >&2; exit 2 ;;
  esac
done
build=${BUILD:-build/$preset}
out=gpu_bundle
# The GPU cases of these tests use no fixtures, so they need no path of this machine.
programs=(cleave kernels_test device_test runtime_test kernels_bench)

if $build_it; then
  [ -f "$build/build.ninja" ] || cmake --preset $preset
  cmake --build "$build" --target gpu_programs kernels_bench cleave_c -j "$(nproc)"
fi
for p in "${programs[@]}"; do
  [ -x "$build/bin/$p" ] || { echo "gpu_bundle: $build/bin/$p is missing; run without --no-build" >&2; exit 2; }
done

rm -rf "$out"
stage=$out/cleave-gpu
mkdir -p "$stage/bin" "$stage/lib" "$stage/scripts" "$stage/benchmarks" "$stage/python"
# Keeps function names, for the stacks of hung processes.
for p in "${programs[@]}"; do strip --strip-debug -o "$stage/bin/$p" "$build/bin/$p"; done
cp scripts/gpu_check.sh scripts/gpu_*.py "$stage/scripts/"
cp benchmarks/torch_peer.py benchmarks/predict.py "$stage/benchmarks/"
cp -r python/cleave python/deepspeed_name/deepspeed "$stage/python/"
find "$stage/python" -name __pycache__ -prune -exec rm -r {} +
version=$(sed -n 's/^version = "\(.*\)"/\1/p' python/deepspeed_name/pyproject.toml)
mkdir "$stage/python/deepspeed-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: deepspeed\nVersion: %s\n' "$version" >"$stage/python/deepspeed-$version.dist-info/METADATA"

# of_cuda NAME, of_system NAME: true for libraries that the target machine provides.
of_cuda() { case $1 in libcuda.* | libcudart* | libcublas* | libcudnn* | libnccl* | libnvrtc* | libnvJitLink*) true ;; *) false ;; esac }
of_system() {
  case $1 in
    linux-vdso* | ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libstdc++.so* | libgcc_s.so*) true ;;
    *) false ;;
  esac
}
strip --strip-debug -o "$stage/lib/libcleave_c.so" "$build/lib/libcleave_c.so"
ldd "$stage"/bin/* "$stage/lib/libcleave_c.so" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u | while read -r name path; do
  of_cuda "$name" || of_system "$name" || install -m 755 "$(readlink -f "$path")" "$stage/lib/$name"
done
for library in "$stage"/lib/*; do [ "${library##*/}" = libcleave_c.so ] || strip --strip-unneeded "$library" 2>/dev/null || true; done

# All libraries must come from the bundle, from CUDA or from a minimal system.
wrong=$(LD_LIBRARY_PATH=$PWD/$stage/lib ldd "$stage"/bin/* "$stage"/lib/* | awk '/=>/ {print $1, $3}' | sort -u |
  while read -r name path; do
    if of_cuda "$name" || of_system "$name"; then continue; fi
    case $path in "$PWD/$stage/lib/"*) ;; *) echo "$name -> $path" ;; esac
  done)
[ -z "$wrong" ] || { printf 'gpu_bundle: not in the bundle:\n%s\n' "$wrong" >&2; exit 1; }

# cuobjdump of the toolkit, or of Triton in Python.
dump=${CUOBJDUMP:-$(command -v cuobjdump || find /usr/local/cuda/bin "$("${PYTHON:-python3}" -c \
  'import importlib.util as u; s = u.find_spec("triton"); print(s.submodule_search_locations[0] if s else "/nowhere")')" \
  -name cuobjdump 2>/dev/null | head -1 || true)}
if [ -n "$dump" ]; then
  # Every kernel of the project except Hopper-specific ones has code for each GPU.
  for p in cleave kernels_test kernels_bench; do
    "$dump" -res-usage "$stage/bin/$p" | awk '/^arch = / {gpu = $3} /^ Function / {print gpu, $2}' | sort -u >"$out/kernels.txt"
    of() { sed -n "s/^$1 //p" "$out/kernels.txt"; }
    for gpu in "${wanted[@]}"; do
      [ -n "$(of "$gpu")" ] && diff <(of "${wanted[0]}") <(of "$gpu") >&2 || { echo "gpu_bundle: $p lacks kernels for ${wanted[0]} or $gpu" >&2; exit 1; }
    done
    [ -n "$(of sm_90a)" ] || { echo "gpu_bundle: $p has no code for sm_90a" >&2; exit 1; }
    ptx=$("$dump" --list-ptx "$stage/bin/$p" | grep -oE 'sm_[0-9]+a?' | sort -u | paste -sd' ')
    [ -n "$ptx" ] || { echo "gpu_bundle: $p has no PTX for later GPUs" >&2; exit 1; }
    echo "$p: machine code of $(of "${wanted[0]}" | wc -l) kernels for ${wanted[*]}, of $(of sm_90a | wc -l) for sm_90a, PTX of $ptx"
  done
  rm "$out/kernels.txt"
else
  echo "cuobjdump: not found; the architectures in the programs were not looked at"
fi

needs=$(objdump -T "$stage"/bin/* "$stage"/lib/* 2>/dev/null | grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -1)
{
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', with changes')"
  echo "built $(date -u +%Y-%m-%dT%H:%MZ) with g++ $(${CXX:-c++} -dumpfullversion 2>/dev/null)"
  echo "needs ${needs:-a C library} or newer"
} >"$stage/manifest.txt"
# All programs contain the same kernels: a dictionary longer than several programs packs these once.
tar -C "$out" -cf - cleave-gpu | xz --lzma2=preset=3,dict=384MiB >"$out/cleave-gpu.tar.xz"
(cd "$stage" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs du -h --apparent-size)
cat "$stage/manifest.txt"
unpacked=$(du -sm --apparent-size "$stage" | cut -f1)
packed=$(($(stat -c %s "$out/cleave-gpu.tar.xz") / 1048576 + 1))
rm -rf "$stage"
echo "$out/cleave-gpu.tar.xz: $packed MiB, unpacked $unpacked MiB"
[ "$packed" -le "$most_mib" ] || { echo "gpu_bundle: larger than $most_mib MiB" >&2; exit 1; }
