#!/usr/bin/env python3
"""Torch optimizers without an engine kernel, compared with torch alone."""

from __future__ import annotations

import tempfile
import unittest

import outside_cases
import ranks

CASES = "outside_cases"
ALL = list(outside_cases.ELEMENTWISE)


class Outside(unittest.TestCase):
    def test_they_are_those_of_torch_at_every_stage_and_home(self) -> None:
        cpu, nvme = {"device": "cpu", "ratio": 0.4}, {"device": "nvme"}
        homes = {1: {"offload_optimizer": cpu}, 3: {"offload_optimizer": nvme, "offload_param": {"device": "cpu"}}}
        for stages, which in (({s: {} for s in range(4)}, ALL + list(outside_cases.WHOLE)), (homes, ["RMSprop", "NAdam"])):
            [first, _] = ranks.answers(2, CASES, "against_torch", stages, which)
            self.assertEqual(len(first), 38 if len(stages) == 4 else 4)
            for case, far in first.items():
                self.assertLess(far, 1e-5, case)

    def test_a_checkpoint_continues_at_another_stage_on_other_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            unbroken = ranks.answers(2, CASES, "resumed", folder, {"NAdam": 1, "RMSprop": 2, "Adafactor": 0}, True)[0]
            for count, stages in ((1, {"NAdam": 3, "Adafactor": 0}), (2, {"RMSprop": 3, "NAdam": 0})):
                for key, again in ranks.answers(count, CASES, "resumed", folder, stages, False)[0].items():
                    for what in ("losses", "anew"):
                        for got, want in zip(again[what], unbroken[key][what], strict=True):
                            self.assertAlmostEqual(got[0], want[0], delta=1e-5, msg=f"{key} {what} on {count} ranks")
                            self.assertAlmostEqual(got[1], want[1], delta=1e-5, msg=f"{key} {what} on {count} ranks")
        for key, went in unbroken.items():
            self.assertNotAlmostEqual(went["losses"][1][0], went["anew"][1][0], delta=1e-5, msg=f"the state of {key} counts")

    def test_a_checkpoint_of_another_optimizer_is_an_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            said = ranks.answers(1, CASES, "another", folder)[0]["refused"]
        self.assertIn(
            "checkpoint: wrong optimizer (got torch.optim.nadam.NAdam, expected torch.optim.radam.RAdam); use that optimizer", said
        )

    def test_an_overflow_leaves_everything_as_it_was(self) -> None:
        for seen in ranks.answers(2, CASES, "overflows", [1, 3])[0]:
            self.assertEqual(seen["same"], [not applied for applied in seen["applied"]])
            self.assertEqual(seen["updates"], sum(seen["applied"]))
            self.assertTrue(0 < seen["updates"] < 9)

    def test_a_configuration_may_name_one(self) -> None:
        seen = ranks.answers(2, CASES, "named", 1)[0]
        self.assertEqual(seen["name"], "RMSprop")
        self.assertGreater(seen["moved"], 0)
        for got, want in zip(seen["rates"], [0, 0, 2.5e-3], strict=True):
            self.assertAlmostEqual(got, want)

    def test_unsupported_optimizers_are_errors_with_their_name(self) -> None:
        wanted = {
            "Rprop stage 1 without": "torch.optim.rprop.Rprop is not supported; use Adam",
            "NAdam stage 1 without": '"zero_allow_untested_optimizer": true, with which torch updates the part of each rank',
            "Rprop stage 1": "nothing",
            "Rprop without": "nothing",
            "Adafactor stage 1": "not supported at ZeRO stage 1, because it updates whole parameters",
            "Adafactor": "nothing",
            "Muon stage 1": "torch.optim.Muon: not supported at ZeRO stage 1",
            "LBFGS": "torch.optim.lbfgs.LBFGS: its step failed with TypeError",
            "SparseAdam": "its step failed with RuntimeError: SparseAdam does not support dense gradients",
            "Sharing": "outside_cases.Sharing: not supported, because the update of a parameter depends on other parameters",
        }
        said = ranks.answers(1, CASES, "refusals", list(wanted))[0]
        for which, words in wanted.items():
            self.assertIn(words, said[which], which)
            self.assertTrue(said[which] == "nothing" or said[which].startswith("NotBuilt: "), said[which])


if __name__ == "__main__":
    unittest.main(verbosity=2)
