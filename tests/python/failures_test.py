#!/usr/bin/env python3
"""Flight records, slow ranks and weights that differ between ranks, in scripts."""

from __future__ import annotations

import os
import pathlib
import tempfile
import unittest
from unittest import mock

import ranks

CASES = "failures_cases"


class Failures(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.enterContext(mock.patch.dict(os.environ, {"CLEAVE_FLIGHT": self.folder.name}))

    def test_a_hang_names_the_rank_its_call_and_the_line_of_the_script(self) -> None:
        ended = ranks.run(2, CASES, "hangs", timeout=90)
        self.assertEqual(ended.code, 6, ended.output)
        for part in ("flight records of 2 of 2 ranks: ", "rank 1 is missing: ", "look at rank 1\n", "rank 1, Python:", "failures_cases.py"):
            self.assertIn(part, ended.output)
        self.assertRegex(ended.output, r"in hangs\b")
        self.assertEqual(sorted(p.name for p in pathlib.Path(self.folder.name).iterdir()), ["rank-0.json", "rank-1.json"])

    def test_a_rank_that_ends_its_script_early_is_the_cause(self) -> None:
        for code in (0, 3):
            ended = ranks.run(2, CASES, "leaves", code, timeout=90)
            self.assertEqual(ended.code, 3 if code else 6, ended.output)
            self.assertIn(f"rank 1 ended with exit code {code} and wrote no record", ended.output)
            self.assertIn("look at rank 1\n", ended.output)
            while_others = " while the others still ran; rank 0 " if code == 0 else ""
            self.assertIn(f"rank 1 ended with exit code {code}{while_others}", ended.output.splitlines()[-1])

    def test_a_signal_records_and_the_training_continues(self) -> None:
        ended = ranks.run(2, CASES, "records", timeout=90)
        self.assertEqual(ended.code, 0, ended.output)
        self.assertEqual(ended.output.count("] continues\n"), 2)
        text = pathlib.Path(self.folder.name, "rank-1.json").read_text()
        self.assertIn('"reason":"SIGQUIT"', text)
        self.assertIn("in records", text)

    def test_a_slow_rank_is_named_with_its_host(self) -> None:
        ended = ranks.run(2, CASES, "is_slow", timeout=90)
        self.assertEqual(ended.code, 0, ended.output)
        self.assertRegex(ended.output, r"warning: rank 1 on \S+ is slower than its peers in 4 consecutive steps: ")
        self.assertNotIn("warning: rank 0 on", ended.output)

    def test_weights_that_differ_stop_all_ranks_or_are_repaired(self) -> None:
        ended = ranks.run(2, CASES, "drifts", "stop", timeout=90)
        self.assertEqual(ended.code, 5, ended.output)
        self.assertRegex(ended.output, r"weights: copies on several ranks differ: \S*weight: rank 1 differs from rank 0 \(first seen")
        repaired = ranks.run(2, CASES, "drifts", "repair", timeout=90)
        self.assertEqual(repaired.code, 0, repaired.output)
        self.assertIn("repaired from rank 0", repaired.output)
        self.assertEqual(repaired.output.count("] equal\n"), 2, repaired.output)
        warned = ranks.run(2, CASES, "drifts", "warn", timeout=90)
        self.assertEqual(warned.code, 0, warned.output)
        self.assertEqual(warned.output.count("] different\n"), 2, warned.output)


if __name__ == "__main__":
    unittest.main()
