#!/usr/bin/env bash
# Installs the packages for the tests of the Python package in .venv: torch and libraries that use it, several
# gigabytes. Does nothing if they exist. Exits non-zero if it cannot install them; then these tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=scripts/requirements/torch
python=.venv/bin/python
if [ ! -x $python ]; then
  if ! python3 -m venv .venv 2>/dev/null; then
    rm -rf .venv
    ./scripts/install_packages.sh python
    python3 -m venv .venv
  fi
fi
# The hashes are those of x86-64 and the Python versions of Debian 12 and Ubuntu 24.04; others get the same versions of
# the named packages.
wanted=$packages.txt checked=(--require-hashes)
if [ "$(uname -m)" != x86_64 ] || ! $python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'; then
  wanted=$packages.in checked=()
fi
if cmp -s $wanted .venv/wanted; then
  echo "torch: installed in .venv"
  exit 0
fi
echo "torch: installing it and its clients in .venv (several gigabytes, some minutes)"
.venv/bin/pip install --quiet --disable-pip-version-check "${checked[@]}" -r $wanted
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e python/deepspeed_name  # libraries import it
cp $wanted .venv/wanted
echo "torch: installed in .venv"
