#!/usr/bin/env python3
"""Losses that reach an engine through the module of another one, or inside an object."""

from __future__ import annotations

import unittest

import ranks

CASES = "losses_cases"


class Losses(unittest.TestCase):
    def test_a_loss_may_go_through_the_module_of_another_engine(self) -> None:
        for seen in ranks.answers(2, CASES, "adversaries", [0, 1, 2, 3]):
            self.assertEqual(len(seen), 12)
            for case, (maker, judge) in seen.items():
                self.assertLess(max(maker, judge), 1e-5, case)

    def test_a_loss_inside_an_object_is_an_output(self) -> None:
        for seen in ranks.answers(2, CASES, "objects", [0, 1, 2, 3]):
            self.assertEqual(len(seen), 16)
            for case, far in seen.items():
                self.assertLess(far, 1e-5, case)


if __name__ == "__main__":
    unittest.main(verbosity=2)
