#!/usr/bin/env python3
"""A step with a loss or gradients that are not finite names the first such value, and may be skipped."""

from __future__ import annotations

import unittest

import ranks

CASES = "not_finite_cases"


class NotFinite(unittest.TestCase):
    def test_the_error_names_the_first_value(self) -> None:
        expected = {
            "loss": "the weights are finite, and the loss of micro-batch 2 on rank 1 is nan",
            "weight": "before the step, element 55 of layers.3.weight is inf (rank ",
            # The inputs of the head have no gradient in its own parameters, so the last layer before it is first.
            "gradient": "all weights and losses are finite; the backward first has a gradient of ",
        }
        for precision in ("fp32", "bf16"):
            answers = ranks.answers(2, CASES, "causes", [0, 1, 2, 3], precision)
            self.assertEqual(answers[0], answers[1], "every rank says the same")
            for case, error in answers[0].items():
                cause = case.split()[1]
                if precision == "bf16" and cause == "gradient":  # bf16.check_grad_overflow skips it
                    self.assertEqual(error, "nothing")
                    continue
                self.assertRegex(error, r"^TrainingError: step 2: the loss is \S+ and the gradient norm \S+: ", case)
                self.assertIn(expected[cause], error, case)
                if cause == "gradient":
                    self.assertIn(" in layers.3.", error, case)

    def test_a_step_may_be_skipped(self) -> None:
        for stage, precision in ((0, "fp32"), (2, "bf16"), (3, "fp32")):
            for seen in ranks.answers(2, CASES, "skipped", stage, precision, 2):
                self.assertEqual([seen["applied"], seen["skipped"], seen["steps"]], [False, 1, 3])
                self.assertEqual(seen["with"], seen["without"], "the weights of a training without that step")
                self.assertIn("(step 3 of this kind in a row); the run diverged", seen["limit"])


if __name__ == "__main__":
    unittest.main()
