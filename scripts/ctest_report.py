#!/usr/bin/env python3
"""Summarizes ctest's JUnit file for scripts/test.sh: `PASSED FAILED SKIPPED` in the first line, then one line per reason for skipped tests
with their number, the names of failed tests, the slowest five, and the output of failed tests.

usage: ctest_report.py JUNIT.xml
"""
import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

SHOWN_LINES = 60  # last lines of a failed test's output, which contain the reason


def name_of(case):
    return case.get("name").split("  #")[0]


def reason_of(case):
    """Returns the reason that a skipped test printed: GoogleTest's line after `Skipped`, or a script's `skipped: ...`."""
    text = case.findtext("system-out") or ""
    found = re.search(r": Skipped\n(.*)", text) or re.search(r"^skipped: (.*)", text, re.MULTILINE)
    return found[1].strip() if found else "no reason given"


def main():
    cases = ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    passed = [c for c in cases if c.get("status") == "run"]
    failed = [c for c in cases if c.get("status") == "fail"]
    skipped = [c for c in cases if c.get("status") == "notrun"]  # disabled tests do not count
    print(len(passed), len(failed), len(skipped))
    for reason, count in collections.Counter(map(reason_of, skipped)).most_common():
        print(f"skipped: {count} tests: {reason}")
    for case in failed:
        print(f"failed: {name_of(case)}")
    slowest = sorted(cases, key=lambda c: -float(c.get("time") or 0))[:5]
    print("slowest: " + ", ".join(f"{name_of(c)} {float(c.get('time')):.0f} s" for c in slowest))
    for case in failed:
        print(f"-- what {name_of(case)} printed")
        print("\n".join((case.findtext("system-out") or "").splitlines()[-SHOWN_LINES:]))


if __name__ == "__main__":
    main()
