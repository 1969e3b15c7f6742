#!/usr/bin/env bash
# Writes digits.csv.gz, the UCI handwritten digits (Alpaydin, Kaynak 1998), to the given file. Debian's package
# python3-sklearn contains it; the script unpacks the package without installing it.
set -euo pipefail
out=${1:?usage: fetch_digits.sh FILE}
[ -s "$out" ] && exit 0
inside=usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz
mkdir -p "$(dirname "$out")"
if [ -s "/$inside" ]; then
  cp "/$inside" "$out"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/apt"
if [ "$(id -u)" -eq 0 ] && id _apt >/dev/null 2>&1; then # as root, apt downloads as this user
  chmod 711 "$work"
  chown _apt "$work/apt"
fi
(cd "$work/apt" && { apt-get download -q=2 python3-sklearn >/dev/null 2>&1 || { apt-get update -q=2; apt-get download -q=2 python3-sklearn; }; }) ||
  { echo "error: Debian's package python3-sklearn could not be downloaded; give the example your own digits.csv.gz" >&2; exit 7; }
dpkg -x "$work"/apt/python3-sklearn_*.deb "$work/d"
cp "$work/d/$inside" "$out"
