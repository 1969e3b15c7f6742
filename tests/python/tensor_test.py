#!/usr/bin/env python3
"""Tensor parallelism of modules: split layers compute what whole ones do."""

from __future__ import annotations

import unittest

import ranks

CASES = "tensor_cases"
COMPARED = ["llama", "qwen2", "gpt2", "blocks"]


class Tensor(unittest.TestCase):
    def test_losses_norms_and_weights_are_those_of_whole_modules_at_every_stage(self) -> None:
        for count in (2, 4):
            [first, *_] = ranks.answers(count, CASES, "against_torch", COMPARED, [0, 1, 2, 3])
            for case, far in first.items():
                self.assertLess(max(far), 1e-6, f"{case} on {count} ranks: {far}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
