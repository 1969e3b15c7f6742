#!/usr/bin/env python3
"""Learning-rate schedules of parameter groups, against traces of DeepSpeed (tests/fixtures/make_deepspeed_fixtures.py)."""

from __future__ import annotations

import json
import pathlib
import tempfile
import unittest
from typing import Any

import cleave
import ranks
import torch

CASES = "schedules_cases"
TRACES = json.loads((pathlib.Path(__file__).resolve().parents[1] / "fixtures/lr_schedules_of_groups.json").read_text())


class Schedules(unittest.TestCase):
    def equal(self, got: list[list[float]], want: list[list[float]], where: str) -> None:
        for group, expected in zip(got, want, strict=True):
            for a, b in zip(group, expected, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-12 + 1e-9 * abs(b), msg=where)

    def test_groups_have_deepspeeds_rates_also_after_a_resume(self) -> None:
        for number, case in enumerate(TRACES):
            saved: Any = None
            for step, want in enumerate(case["trace"]):
                if step in (0, case["resumed_at"]):
                    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in case["rates"]]
                    optimizer = torch.optim.AdamW(groups)
                    schedule = getattr(cleave.runtime.lr_schedules, case["type"])(optimizer, **case["params"])
                if step == case["resumed_at"]:
                    optimizer.load_state_dict(saved[0])
                    schedule.load_state_dict(saved[1])
                self.equal([[g["lr"], *g["betas"]] for g in optimizer.param_groups], want, f"case {number}, step {step}")
                self.assertEqual(schedule.get_last_lr(), [g["lr"] for g in optimizer.param_groups])
                schedule.step()
                saved = optimizer.state_dict(), schedule.state_dict()

    def test_schedules_have_deepspeeds_bounds_and_first_momentum(self) -> None:
        def optimizer() -> torch.optim.Optimizer:
            groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.1, 0.2)]
            return torch.optim.Adam(groups, betas=(0.5, 0.99))

        of = cleave.runtime.lr_schedules
        steps = {"cycle_first_step_size": 30, "cycle_second_step_size": 10}
        cycle = of.OneCycle(optimizer(), [0.001, 0.002], 0.01, cycle_max_mom=[0.9, 0.95], **steps)
        self.assertEqual((cycle.min_lrs, cycle.max_lrs, cycle.step_ratio), ([0.001, 0.002], [0.01, 0.01], 0.75))
        self.assertEqual([group["betas"][0] for group in cycle.optimizer.param_groups], [0.8, 0.8])
        self.assertEqual([betas[0] for betas in cycle.get_mom()], [0.9, 0.95])
        cycle.step()
        self.assertEqual(cycle.get_mom(), [group["betas"] for group in cycle.optimizer.param_groups])
        self.assertEqual(of.OneCycle(optimizer(), 0.001, 0.01, cycle_first_step_size=30).step_ratio, 0.5)
        warmup = of.WarmupLR(optimizer(), warmup_num_steps=10)
        self.assertEqual((warmup.min_lrs, warmup.max_lrs), ([0, 0], [0.1, 0.2]))
        self.assertEqual(of.WarmupDecayLR(optimizer(), 100, 0.01, [0.3, 0.4]).max_lrs, [0.3, 0.4])
        self.assertFalse(hasattr(of.LRRangeTest(optimizer()), "max_lrs"))

    def test_an_engine_trains_groups_with_the_rates_of_a_ds_config(self) -> None:
        cases = [case for case in TRACES if case["resumed_at"] < 10][:20]
        self.assertEqual(len({case["type"] for case in cases}), 5)
        for stage in (0, 3):
            with tempfile.TemporaryDirectory() as folder:
                for number, found in enumerate(ranks.answers(1, CASES, "trained", cases, stage, folder)[0]):
                    where = f"stage {stage}, case {number}, {cases[number]['type']}"
                    for step, rates in enumerate(found["seen"]):
                        self.equal(rates, cases[number]["trace"][step], f"{where}, step {step}")
                    largest = max(rate for rates in found["seen"] for rate, *_ in rates)  # large ones amplify the last bits
                    self.assertLess(found["far"], 2e-5 if largest < 0.02 else 0.1, where)

    def test_groups_whose_schedule_begins_at_zero_stay_apart(self) -> None:
        for kind in ("torch function", "torch object", "function", "object", "function, equal", "object, equal"):
            found = ranks.answers(2, CASES, "divided", kind)
            want = [0.005, 0.0005] if "torch" in kind else [0.125, 0.25]
            with self.subTest(kind=kind):
                self.assertEqual(found[0][0], [0, 0])
                rates = next(rates for rates in found[0] if rates[0] > 0)
                self.equal([rates], [want], kind)
                self.assertEqual(found[0], found[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
