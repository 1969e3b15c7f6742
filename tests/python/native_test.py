#!/usr/bin/env python3
"""Models of transformers that the engine computes, against the same in torch."""

from __future__ import annotations

import math
import unittest

import ranks

CASES = "native_cases"


class Native(unittest.TestCase):
    def test_losses_norms_and_weights_are_those_of_torch_at_every_stage(self) -> None:
        for count in (1, 2):
            for found in ranks.answers(count, CASES, "against_torch", [0, 1, 2, 3]):
                self.assertEqual(len(found), 8)
                for case, far in found.items():
                    elsewhere = case.endswith("3") and count == 2  # large ones, between their uses
                    self.assertEqual(math.isnan(far.pop("shown")), elsewhere, f"{case} on {count} ranks")
                    for what, apart in far.items():
                        self.assertLess(apart, 1e-5 if what != "logits" else 1e-4, f"{what} of {case} on {count} ranks")


if __name__ == "__main__":
    unittest.main(verbosity=2)
