#!/usr/bin/env bash
# Writes the King James Version as plain text to the given file, one verse per line without its reference. The text is
# in the public domain; it is part of Debian's packages bible-kjv and bible-kjv-text.
set -euo pipefail
out=${1:?usage: fetch_kjv.sh FILE}
[ -s "$out" ] && exit 0
mkdir -p "$(dirname "$out")"
bible -f 'gen1:1-rev22:21' </dev/null | sed -E 's/^[0-9A-Za-z]+:[0-9]+ //' >"$out.tmp"
[ "$(wc -l <"$out.tmp")" -eq 31102 ] || { echo "error: expected 31102 verses, got $(wc -l <"$out.tmp")" >&2; exit 7; }
mv "$out.tmp" "$out"
