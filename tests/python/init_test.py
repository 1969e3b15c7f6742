#!/usr/bin/env python3
"""Modules that are built in zero.Init equal those that are built outside of it."""

from __future__ import annotations

import unittest

import ranks

CASES = "init_cases"


class Init(unittest.TestCase):
    def test_constructors_use_parameters_of_modules_inside_them(self) -> None:
        for rank, seen in enumerate(ranks.answers(2, CASES, "constructed")):
            for kind, found in seen.items():
                with self.subTest(kind=kind, rank=rank):
                    self.assertEqual(found["other"], [], "values of rank 0 without zero.Init")
                    self.assertEqual([found["more"], found["whole"], found["shapes"]], [[], [], []])
                    self.assertLess(found["far"], 1e-5)

    def test_few_parameters_of_finished_modules_are_whole(self) -> None:
        for seen in ranks.answers(2, CASES, "room"):
            self.assertLess(max(seen["counts"]), 12, "of 36 in each copy")
            self.assertTrue(seen["before"], "a read between constructors")
            self.assertEqual(seen["after"], 0, "a write between constructors")


if __name__ == "__main__":
    unittest.main(verbosity=2)
