"""`cleave compare` names planted differences, and finds none in correct modules."""

from __future__ import annotations

import pathlib
import tempfile
import unittest
from typing import Any

import ranks
from cleave.compare import judge, report

CASES = "compare_cases"

# Planted difference: what, where, step, rank, micro-batch of the first difference (from 0), and a part of the cause.
NAMED: dict[str, tuple[str, str, int, int | None, int | None, str]] = {
    "a lost gradient": ("missing gradient", "twice.bias", 0, None, None, "zero in the engine"),
    "a lost second use": ("gradient", "twice.weight", 0, None, None, "only this gradient"),
    "a wrong divisor": ("gradient", "out.bias", 0, None, None, "factor 2: they are not divided by"),
    "a frozen layer that moves": ("frozen parameter moved", "frozen.weight", 1, None, None, "requires_grad"),
    "a parameter that does not move": ("update", "norm.weight", 0, None, None, "not updated"),
    "a rate of another group": ("lr", "first.bias", 0, None, None, "groups or the schedule"),
    "weight decay of a bias": ("weight_decay", "first.bias", 0, None, None, "groups"),
    "a parameter outside the optimizer": ("parameter without optimizer", "head.weight", 0, None, None, "model_parameters"),
    "clipping left out": ("update", "first.weight", 0, None, None, "not clipped"),
    "a missing micro-batch": ("micro-batch", "", 0, 0, 1, "gradient_accumulation_steps"),
    "a rank with other data": ("input", "", 0, 1, 0, "other samples|different samples only on rank 1"),
    "another eps": ("eps", "first.weight", 0, None, None, "another eps"),
    "betas swapped": ("betas", "first.weight", 0, None, None, "another betas"),
    "dropout in one run": ("output", "drop", 0, 0, 0, "dropout"),
    "a detached branch": ("missing gradient", "first.bias", 0, None, None, "detached"),
    "a wrong sign": ("gradient", "head.weight", 0, None, None, "wrong sign"),
    "a stale weight": ("output", "twice", 1, 0, 0, "stale"),
    "a tied weight untied": ("parameter without optimizer", "head.weight", 0, None, None, "model_parameters"),
    "a schedule one step late": ("lr", "first.weight", 1, None, None, "schedule"),
    "a wrong initial value on one rank": ("initial value", "head.weight", 0, 1, None, "before initialize"),
    "a change of 1e-4 in one gradient": ("gradient", "norm.bias", 0, None, None, "only this gradient"),
    "a change of 1e-4 in one element": ("gradient", "first.weight", 0, None, None, "only this gradient"),
    "another loss": ("loss", "", 0, 0, 0, "loss itself"),
    "another call": ("call", "norm", 0, 0, 0, "another way"),
    "a skipped step": ("skipped step", "", 1, None, None, "overflow"),
}


def verdicts(count: int, case: str, *args: Any) -> dict[str, judge.Verdict]:
    """Runs a case in both roles and compares the records of its scripts."""
    with tempfile.TemporaryDirectory() as folder:
        for role in ("subject", "reference"):
            loaded = ranks.answers(count, CASES, case, role, folder, *args)
            assert loaded == [role == "subject"] * count, "the reference loads the native library"
        return {script.name: judge.judge(script, 3) for script in pathlib.Path(folder).iterdir() if script.is_dir()}


class Compare(unittest.TestCase):
    def test_planted_differences_are_named(self) -> None:
        found = verdicts(2, "planted")
        self.assertEqual(found.keys() - {"nothing"}, NAMED.keys())
        self.assertEqual(found["nothing"].differences, [])
        for name, (what, where, step, rank, micro, cause) in NAMED.items():
            with self.subTest(name):
                said = report.text(found[name])
                self.assertTrue(found[name].differences, said)
                first = found[name].differences[0]
                self.assertEqual((first.what, first.where, first.step, first.rank, first.micro), (what, where, step, rank, micro), said)
                self.assertRegex(report.cause(found[name]), cause, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
