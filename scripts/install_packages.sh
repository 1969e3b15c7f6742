#!/usr/bin/env bash
# Installs the missing Debian packages for a part of the project.
#   scripts/install_packages.sh build|test|python|example|docs...
# Works as root or with sudo. Without a network it succeeds if nothing is missing.
set -euo pipefail

# ocl-icd-opencl-dev: required by oneDNN's CMake package, but only recommended by its Debian package.
build=(g++ cmake ninja-build ccache libdnnl-dev ocl-icd-opencl-dev libgloo-dev liburing-dev libcli11-dev nlohmann-json3-dev libfmt-dev zlib1g-dev libxxhash-dev
  libpcre2-dev libicu-dev libsentencepiece-dev libsodium-dev libboost-dev)
tests=(libgtest-dev libbenchmark-dev python3 python3-numpy python3-xxhash python3-yaml binutils)
# tests/multinode needs these packages and is skipped without them: the script does not install login services on users'
# machines.
[ -z "${CI:-}" ] || tests+=(iproute2 openssh-client openssh-server pdsh slurm-wlm munge)
python=(python3-venv)
example=(bible-kjv bible-kjv-text)
docs=(python3-venv doxygen)

usage="usage: scripts/install_packages.sh build|test|python|example|docs..."
case "${1:-}" in
  "") echo "error: no part given; $usage" >&2; exit 2 ;;
  -h | --help) echo "$usage"; exit 0 ;;
esac

wanted=()
for part in "$@"; do
  case "$part" in
    build) wanted+=("${build[@]}") ;;
    test) wanted+=("${tests[@]}") ;;
    python) wanted+=("${python[@]}") ;;
    example) wanted+=("${example[@]}") ;;
    docs) wanted+=("${docs[@]}") ;;
    *) echo "error: unknown part '$part'; use build, test, python, example or docs" >&2; exit 2 ;;
  esac
done

present() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing=()
for package in "${wanted[@]}"; do
  present "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all ${#wanted[@]} are installed"
  exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "error: missing packages: ${missing[*]}; become root or install sudo" >&2; exit 1; }
  sudo=(sudo)
fi
echo "packages: installing ${missing[*]}"
"${sudo[@]}" apt-get update -q=2 || echo "warning: the package lists could not be refreshed; trying with the present ones" >&2
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q=2 -y --no-install-recommends "${missing[@]}" >/dev/null
