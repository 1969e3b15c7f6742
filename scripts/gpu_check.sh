#!/usr/bin/env bash
# Tests the CUDA build on a machine with a GPU in two calls of at most 360 s and 280 s:
#   scripts/gpu_check.sh --first    correctness: test suites, ranks over each transport, PyTorch scripts, offload,
#       memcheck
#   scripts/gpu_check.sh --second   speed: training rows, FP8, kernels, PyTorch scripts and peers, profiles
# Needs the bundle of scripts/gpu_bundle.sh (or a CUDA build), cuBLAS of CUDA 13 in Python's nvidia packages or the
# toolkit, and python3; no network and no compiler. Cases run in order of importance; each has a limit, and after each
# one $OUT has an archive of all results. A table is printed last. An archive of the same call in gpu_bundle/ is
# resumed: cases that passed do not run again.
#   scripts/gpu_check.sh --first|--second [--only CASE]... [--programs DIR] [--earlier ARCHIVE] [--list]
# Exit codes: 0 nothing failed, 1 something failed, 2 wrong usage or nothing to run, 77 no usable GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

die() { echo "gpu_check: $1" >&2; exit 2; }
programs="" arguments=() call="" earlier=""
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --programs) programs=${2:-}; shift ;;
    --first | --second) call=${1#--} arguments+=("$1") ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# Finds the programs: given folder, unpacked bundle next to this script, bundle, build.
if [ -z "$programs" ]; then
  bundle=$here/gpu_bundle/cleave-gpu.tar.xz
  if [ -x "$here/bin/cleave" ]; then
    programs=$here/bin
  elif [ -f "$bundle" ]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    tar -xJf "$bundle" -C "$unpacked" 2>/dev/null || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
      "$bundle" "$unpacked" || die "$bundle cannot be unpacked"
    programs=$unpacked/cleave-gpu/bin
    earlier=$here/gpu_bundle/gpu_$call.tar.gz
  else
    programs=$here/build/cuda/bin
  fi
fi
[ -x "$programs/cleave" ] || die "no programs in $programs: run scripts/gpu_bundle.sh where nvcc is and bring gpu_bundle/ along"

# CUDA libraries, from the toolkit or Python packages.
cuda_folders() {
  python3 - <<'P' 2>/dev/null
import glob, os, site, sys, sysconfig
roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages(), *sys.path}
found = []
for root in sorted(r for r in roots if r):
    for folder in glob.glob(os.path.join(root, "nvidia", "*", "lib")):
        if glob.glob(os.path.join(folder, "lib*.so*")):
            found.append(folder)
print(":".join(dict.fromkeys(found)))
P
}
toolkit=""
for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/lib /usr/local/cuda*/targets/x86_64-linux/lib /usr/local/nvidia/lib64; do
  [ -d "$folder" ] && toolkit=$toolkit:$folder
done
export LD_LIBRARY_PATH="$programs/../lib:$(cuda_folders)$toolkit:${LD_LIBRARY_PATH:-}"
missing=$(ldd "$programs/cleave" 2>/dev/null | awk '/not found/ {print $1}' | sort -u | paste -sd' ')
[ -z "$missing" ] || die "libraries not found: $missing (cuBLAS of CUDA 13 comes with the toolkit or with pip's nvidia-cublas)"

case " ${arguments[*]-} " in *" --earlier "*) ;; *) [ ! -f "$earlier" ] || arguments+=(--earlier "$earlier") ;; esac
python3 "$here/scripts/gpu_check.py" "$programs" ${arguments[@]+"${arguments[@]}"}
