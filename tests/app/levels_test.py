#!/usr/bin/env python3
"""Training with every instruction-set level of kernels and oneDNN (scripts/at_cpu_level.py)."""
import sys
import unittest

from app_test import AppTest


class Training(AppTest):
    def test_learns_and_does_not_depend_on_ranks_or_threads(self):
        for precision in ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}}):
            one = self.losses(ranks=1, steps=12, config=self.config(train_micro_batch_size_per_gpu=4, **precision))
            self.assertLess(one[-1][0], one[0][0] - 0.5)
            self.assertEqual(self.losses("--threads", 2, ranks=1, steps=12,
                                         config=self.config(train_micro_batch_size_per_gpu=4, **precision)), one)
            two = self.losses(ranks=2, steps=12, config=self.config(**precision))
            for (loss, _), (other, _) in zip(one, two):
                self.assertAlmostEqual(loss, other, delta=0.02)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
