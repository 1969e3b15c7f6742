#!/usr/bin/env python3
"""Scripts of compared_cases.py on the engine, compared step by step with DeepSpeed."""

from __future__ import annotations

import json
import math
import pathlib
import unittest
from typing import Any, ClassVar

import compared_cases
import ranks

FIXTURE = pathlib.Path(__file__).resolve().parents[1] / "fixtures/deepspeed_runs.json"

# Relative bounds of losses and norms. DeepSpeed sums gradients in the model's type, with 11 or 8 bits, and the engine in fp32.
BOUNDS = {"fp16": 2e-3, "bf16": 1.6e-2, "fp32": 1e-5}
# Bounds of a parameter, relative to its norm: in 16 bits, Adam's first updates amplify the rounding of small gradients to full steps.
OF_WEIGHTS = {"fp16": 1e-2, "bf16": 8e-2, "fp32": 1e-5}


def far(got: float, want: float, size: float | None = None) -> float:
    if not math.isfinite(want):
        return 0.0 if got == want else math.inf
    return abs(got - want) / max(abs(want) if size is None else size, 1e-12)


class Compared(unittest.TestCase):
    want: ClassVar[dict[str, Any]]
    got: ClassVar[dict[str, Any]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.want = json.loads(FIXTURE.read_text())["cases"]
        cls.got = ranks.answers(2, "compared_cases", "here", [])[0]

    def test_every_script_was_on_both(self) -> None:
        self.assertEqual(list(self.want), list(compared_cases.CASES))
        self.assertGreaterEqual(len(self.want), 24)

    def test_losses_norms_and_rates_are_those_of_deepspeed_in_every_step(self) -> None:
        for name, want in self.want.items():
            bound = BOUNDS.get(name.partition("_")[0], BOUNDS["fp32"])
            self.assertEqual(len(self.got[name]["steps"]), len(want["steps"]), name)
            for step, (a, b) in enumerate(zip(self.got[name]["steps"], want["steps"], strict=True)):
                at = f"{name}, step {step}"
                self.assertLess(far(a["loss"], b["loss"]), bound, f"{at}: loss {a['loss']}, there {b['loss']}")
                if b["norm"] is not None:  # no norm in fp32 without ZeRO
                    self.assertLess(far(a["norm"], b["norm"]), bound, f"{at}: norm {a['norm']}, there {b['norm']}")
                for mine, theirs in zip(a["lr"], b["lr"], strict=True):
                    self.assertLess(far(mine, theirs), 1e-6, f"{at}: rate {mine}, there {theirs}")

    def test_loss_scales_skipped_steps_and_counts_are_those_of_deepspeed(self) -> None:
        for name, want in self.want.items():
            for key in ("scale", "skipped", "steps", "samples"):
                self.assertEqual([s[key] for s in self.got[name]["steps"]], [s[key] for s in want["steps"]], f"{name}: {key}")
        self.assertEqual([s["skipped"] for s in self.want["fp16_overflows_at_stage_2"]["steps"]], [0, 1, 1, 1, 2, 2])

    def test_weights_are_those_of_deepspeed(self) -> None:
        for name, want in self.want.items():
            bound = OF_WEIGHTS.get(name.partition("_")[0], OF_WEIGHTS["fp32"])
            self.assertEqual(list(self.got[name]["weights"]), list(want["weights"]), name)
            for parameter, values in want["weights"].items():
                for mine, theirs in zip(self.got[name]["weights"][parameter], values, strict=True):
                    self.assertLess(far(mine, theirs, values[0]), bound, f"{name}, {parameter}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
