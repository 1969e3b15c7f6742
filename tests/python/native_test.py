#!/usr/bin/env python3
"""transformers models that the engine computes, compared with torch."""

from __future__ import annotations

import math
import tempfile
import unittest

import ranks

CASES = "native_cases"


class Native(unittest.TestCase):
    def expect_near(self, found: dict[str, dict[str, float]], bound: float, what: str, elsewhere: bool = False) -> None:
        for case, far in found.items():
            # Large parameters at stage 3, and cut ones, have no values on any rank between uses.
            self.assertEqual(math.isnan(far.pop("shown")), elsewhere or (case.endswith("3") and "2 ranks" in what), f"{case}, {what}")
            self.assertEqual(far.pop("plan"), 0, f"bytes of {case}, {what}")
            for value, apart in far.items():
                self.assertLess(apart, bound * (10 if value == "logits" else 1), f"{value} of {case}, {what}")

    def expect_as_in_torch(self, stage: int, count: int, samples: int) -> None:
        """Trains two steps of four samples by the Trainer: on one rank without a ds_config, and on `count` ranks with one."""
        config = {
            "zero_optimization": {"stage": stage},
            "gradient_clipping": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "cleave": {"native": True, "sequence_length": 18},
        }
        with tempfile.TemporaryDirectory() as folder:
            [want] = ranks.answers(1, CASES, "by_the_trainer", folder, None, 2, samples)
            got, *_ = ranks.answers(count, CASES, "by_the_trainer", folder, config, 2 // count, samples)
        self.assertEqual(len(want["seen"]), 2)
        for mine, its in zip(got["seen"], want["seen"], strict=True):
            for a, b in zip(mine, its, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-4)
        self.assertAlmostEqual(got["sum"], want["sum"], delta=1e-5 * want["sum"])

    def test_losses_norms_and_weights_are_those_of_torch_at_every_stage(self) -> None:
        for count in (1, 2):
            for found in ranks.answers(count, CASES, "against_torch", [0, 1, 2, 3], {}):
                self.assertEqual(len(found), 8)
                self.expect_near(found, 1e-5, f"{count} ranks")

    def test_layers_may_be_cut_and_sixteen_bits_are_near(self) -> None:
        for found in ranks.answers(2, CASES, "against_torch", [1], {"tensor_parallel": {"autotp_size": 2}}):
            self.expect_near(found, 1e-5, "a tensor axis", elsewhere=True)
        for found in ranks.answers(2, CASES, "against_torch", [2], {"bf16": {"enabled": True}}):
            self.expect_near(found, 1.6e-2, "bf16")

    def test_sequences_may_be_cut_and_optimizer_state_may_be_on_the_host(self) -> None:
        offloaded = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
        for stage, more in ((1, {"sequence_parallel_size": 2}), (2, offloaded)):
            for found in ranks.answers(2, CASES, "against_torch", [stage], more):
                self.expect_near(found, 1e-5, f"{more}")

    def test_an_overflow_in_fp16_skips_the_step_and_halves_the_scale(self) -> None:
        [seen, other] = ranks.answers(2, CASES, "overflows", 16)
        self.assertEqual(seen, other)
        skipped = seen["skipped"]
        self.assertTrue(0 < skipped < 16, skipped)
        self.assertEqual(seen["applied"], [False] * skipped + [True] * (16 - skipped))
        self.assertEqual(seen["changed"], seen["applied"])
        self.assertEqual(seen["scales"], [2.0 ** (28 - min(step, skipped)) for step in range(17)])

    def test_losses_may_be_divided_by_the_labels_of_a_whole_step(self) -> None:
        for found in ranks.answers(2, CASES, "divided_by_items", [1, 3]):
            for case, far in found.items():
                self.assertLess(far, 1e-5, case)

    def test_the_trainer_trains_as_in_torch(self) -> None:
        self.expect_as_in_torch(2, 2, 8)

    def test_a_step_may_end_before_its_last_micro_batch(self) -> None:
        for found in ranks.answers(2, CASES, "ends_early", [0, 1, 3]):
            for case, far in found.items():
                self.assertLess(far, 1e-5, case)

    def test_the_trainers_last_step_of_an_epoch_may_be_shorter(self) -> None:
        """Three micro-batches with two per step: the Trainer ends the second step after the third."""
        self.expect_as_in_torch(1, 1, 6)

    def test_unsupported_models_and_options_are_errors(self) -> None:
        words = {
            "another module": "the module is a Mine (expected a transformers causal language model",
            "another class": "(expected a GPT2LMHeadModel",
            "another head": "cleave.native: the module has a parameter lm_head.bias that a LlamaForCausalLM does not have;",
            "an untied head": "cleave.native: the module has a parameter lm_head.weight that a GPT2LMHeadModel does not have;",
            "an activation": "hidden_act: relu6 is not supported",
            "stages": "pipeline.stages",
            "rates": "in a parameter group with its own rates",
            "a long sample": "cleave.sequence_length is 25, and GPT2LMHeadModel has 24 positions",
            "no labels": "labels are missing in training; give them",
            "position ids": "unsupported arguments of a call (got position_ids",
            "left padding": "attention_mask",
            "a label on padding": "use -100 there",
            "a token": "GPT2LMHeadModel has 96 of them",
            "too many samples": "4 samples with 16 tokens, expected at most 3 samples with 18",
            "too many tokens": "2 samples with 32 tokens, expected at most 3 samples with 18",
            "two calls": "the last loss had no engine.backward yet",
            "a loss used otherwise": "(got 1, expected 2)",
            "autocast": "torch_autocast: has no effect with cleave.native",
        }
        [said] = ranks.answers(1, CASES, "refusals")
        self.assertEqual(said.keys(), words.keys())
        for case, part in words.items():
            self.assertIn(part, said[case], case)


if __name__ == "__main__":
    unittest.main(verbosity=2)
