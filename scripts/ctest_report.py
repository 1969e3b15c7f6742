#!/usr/bin/env python3
"""What ctest's JUnit file says, for the summary of scripts/test.sh: `PASSED FAILED SKIPPED` in the first line, then a line for each
reason why tests were skipped with how many, the names of those that failed, the slowest five, and behind them what those that failed
printed.

usage: ctest_report.py JUNIT.xml"""
import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

SHOWN_LINES = 60  # of the output of a test that failed: its end, where a test says what was wrong


def name_of(case):
    return case.get("name").split("  #")[0]


def reason_of(case):
    """What the test itself printed when it was skipped: GoogleTest's line after `Skipped`, or a script's `skipped: ...`."""
    text = case.findtext("system-out") or ""
    found = re.search(r": Skipped\n(.*)", text) or re.search(r"^skipped: (.*)", text, re.MULTILINE)
    return found[1].strip() if found else "no reason given"


def main():
    cases = ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    passed = [c for c in cases if c.get("status") == "run"]
    failed = [c for c in cases if c.get("status") == "fail"]
    skipped = [c for c in cases if c.get("status") == "notrun"]  # disabled ones are no tests
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
