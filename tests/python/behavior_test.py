"""Behavior of DeepSpeed that scripts rely on: the returned optimizer, gradients inside no_sync, steps that are not finite, tags."""

import tempfile
import unittest

import ranks

CASES = "behavior_cases"
CLOSE = 1e-5


class ReturnedOptimizer(unittest.TestCase):
    def test_it_has_the_class_of_the_scripts_and_is_equal_to_it(self) -> None:
        for stage in (0, 1, 3):
            for got in ranks.answers(2, CASES, "returned", stage):
                self.assertTrue(got["of the ds_config"])
                for name in ("adam", "its own"):
                    self.assertEqual(got[name], [True] * 4, f"{name}, stage {stage}")
                    self.assertLess(got[f"{name}, apart"], CLOSE, f"{name}, stage {stage}")
                self.assertEqual(got["again"], [True, True])


class InsideNoSync(unittest.TestCase):
    def test_a_rank_reads_and_discards_the_gradients_that_it_has_accumulated(self) -> None:
        offload = {"device": "cpu"}
        for stage, more in (
            (0, {}),
            (1, {}),
            (1, {"zero_optimization": {"stage": 1, "offload_optimizer": offload}}),
            (1, {"cleave": {"exact_sums": True}}),
            (0, {"fp16": {"enabled": True, "initial_scale_power": 8}}),
            (1, {"bf16": {"enabled": True}}),
        ):
            half = "fp16" in more or "bf16" in more
            for got in ranks.answers(2, CASES, "inside_no_sync", stage, more):
                case = f"stage {stage}, {more}"
                self.assertLess(got["far"], 0.1 if half else CLOSE, case)
                self.assertLess(got["apart"], 2e-2 if half else CLOSE, case)
                self.assertEqual([got["discarded"], got["steps"], got["zero"]], [True, 1, [[]] * 4], case)
                self.assertIn("or inside no_sync call deepspeed.utils.safe_get_full_grad", got["early"])

    def test_gradients_stay_in_a_step_outside_of_it_and_the_first_call_says_so(self) -> None:
        for stage in (0, 2, 3):
            for rank, got in enumerate(ranks.answers(2, CASES, "zeroed_within_a_step", stage)):
                self.assertEqual(got["counts"], [0, 1 if rank == 0 else 0, 0], f"stage {stage}")
                self.assertLess(got["apart"], CLOSE, f"stage {stage}")

    def test_a_parameter_without_use_has_gradient_zero(self) -> None:
        for first, first_rarely, second, second_rarely in ranks.answers(2, CASES, "unused_inside_no_sync"):
            self.assertAlmostEqual(first, first_rarely, 5)
            self.assertAlmostEqual(first, second, 5)
            self.assertGreater(first, 1)
            self.assertEqual(second_rarely, 0)


class NotFinite(unittest.TestCase):
    def test_without_a_check_values_go_to_the_weights_with_a_warning_at_the_start(self) -> None:
        offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
        for stage, more in ((0, {}), (1, {"gradient_clipping": 1.0}), (2, offload), (3, {})):
            for got in ranks.answers(2, CASES, "overflows", stage, False, more):
                self.assertEqual(got, {"skipped": 0, "steps": 1, "finite": False}, f"stage {stage}")
            for got in ranks.answers(2, CASES, "overflows", stage, True, more):
                self.assertEqual(got, {"skipped": 1, "steps": 1, "finite": True}, f"stage {stage}")
        ended = ranks.run(2, CASES, "overflows", 1, False, {})
        self.assertEqual(ended.code, 0, ended.output)
        self.assertEqual(ended.output.count("bf16.check_grad_overflow: false: gradients that are not finite go to the weights"), 1)
        self.assertNotIn("check_grad_overflow", ranks.run(2, CASES, "overflows", 1, True, {}).output)


class FailedBackward(unittest.TestCase):
    def test_training_continues_without_its_gradients(self) -> None:
        offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
        for stage, more, own in (
            (0, {}, True),
            (1, {"cleave": {"exact_sums": True}}, False),
            (2, offload, False),
            (3, {}, False),
            (3, {}, True),
        ):
            for fails, where in (("hook", [0, 1]), ("recomputation", [0, 1]), ("hook", [1])):
                for rank, seen in enumerate(ranks.answers(2, CASES, "failed", stage, own, fails, where, more)):
                    case = f"stage {stage}, {more}, {fails} on {where}, {own}"
                    on_others = "TrainingError: backward: failed on another rank"
                    self.assertIn(f"{fails} of the script failed" if rank in where else on_others, seen["said"], case)
                    self.assertLess(seen["apart"], CLOSE, case)
                    self.assertEqual([seen["steps"], seen["skipped"]], [3, 0], case)

    def test_earlier_gradients_of_its_step_cannot_be_separated(self) -> None:
        for said in ranks.answers(2, CASES, "failed_late"):
            self.assertEqual(said[:3], ["nothing", "nothing", "RuntimeError: a hook of the script failed"])
            cause = "the engine cannot continue: a backward after others of its step failed with RuntimeError: a hook of the script"
            self.assertIn(cause, said[3])


class Tags(unittest.TestCase):
    def test_different_tags_save_one_checkpoint_or_are_an_error(self) -> None:
        for mode in (None, "IGNORE", "fail"):
            with tempfile.TemporaryDirectory() as folder:
                for got in ranks.answers(2, CASES, "tags", folder, mode):
                    if mode == "fail":
                        self.assertIn("save_checkpoint: tag differs between ranks", got["said"])
                        self.assertEqual(got["saved"], [])
                    else:
                        self.assertEqual(got, {"said": "nothing", "saved": ["of-0"], "loads": True}, mode)
        said = "warning: save_checkpoint: the tag differs between ranks; saving of-0, the tag of rank 0"
        for mode, count in (("Warn", 1), ("Ignore", 0)):
            with tempfile.TemporaryDirectory() as folder:
                ended = ranks.run(2, CASES, "tags", folder, mode)
                self.assertEqual([ended.code, ended.output.count(said)], [0, count], ended.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
