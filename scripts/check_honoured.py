#!/usr/bin/env python3
"""Checks that code outside of config_schema/ reads the fields of all honoured keys, or the Python package their values. Fields that
config_schema/ derives other fields from count as read if those are read.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "config_schema"
FOLDERS = ["app", "checkpoint", "data", "launcher", "model", "monitor", "offload", "optim", "pipeline", "plan", "python", "runtime", "zero"]


def honoured_fields():
    """Returns (key, field) of every honoured key that is bound to fields: k.honoured("name", &c.section.field, ...)."""
    for path in sorted(SCHEMA.glob("describe_*.cpp")):
        text = path.read_text()
        for call in re.finditer(r'honoured\(\s*"(\w+)",\s*(?:std::array<double\*, 2>)?(\{?[^"]*?\}?),\s*"', text):
            for target in re.findall(r"&([\w.]+)", call[2]):
                yield call[1], target.split(".")[-1]


def reads(sources, field):
    return bool(re.search(r"[.>]" + re.escape(field) + r"\b", sources))


def member_reads(headers, field):
    """Returns true if the headers name a field more than once: in its declaration, and in a member function that reads it."""
    return len(re.findall(r"\b" + re.escape(field) + r"\b", re.sub(r"//[^\n]*", "", headers))) > 1


def main():
    outside = "\n".join(p.read_text() for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*")) if p.suffix in {".cpp", ".h"})
    inside = "\n".join(p.read_text() for p in sorted(SCHEMA.glob("*.cpp")) if p.stem.startswith(("resolve", "batch", "elasticity")))
    headers = "\n".join(p.read_text() for p in sorted(SCHEMA.glob("*_config.h")))
    fields = list(honoured_fields())
    if len(fields) < 100:
        sys.exit(f"check_honoured.py: only {len(fields)} honoured keys found; do the describe functions look different now?")
    scripts = "\n".join(p.read_text() for p in sorted((ROOT / "python").rglob("*.py")))
    by_scripts = set(re.findall(r'_value\("[\w.]*?(\w+)"\)', scripts)) | set(re.findall(r'section\.get\("(\w+_\w+)"\)', scripts))
    read = {field for key, field in fields if key in by_scripts or reads(outside + inside, field) or member_reads(headers, field)}
    unread = [(key, field) for key, field in fields if field not in read]
    for key, field in unread:
        print(f"key {key} is called honoured, and no code reads the field {field}")
    print(f"{len(fields)} fields of honoured keys, {len(unread)} that nothing reads")
    sys.exit(1 if unread else 0)


if __name__ == "__main__":
    main()
