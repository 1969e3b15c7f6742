"""Modules and losses of any kind train as in torch, at stage 3 as at the others."""

import tempfile
import unittest

import ranks

CASES, OWNERS = "modules_cases", "owners_cases"


class Modules(unittest.TestCase):
    def test_modules_and_losses_of_any_kind_train_as_in_torch(self) -> None:
        for count in (2, 3):
            for far_by_case in ranks.answers(count, CASES, "against_torch"):
                self.assertEqual(len(far_by_case), 4 * 17)
                for case, far in far_by_case.items():
                    self.assertLess(far, 1e-6, f"{case} on {count} ranks")

    def test_200_random_modules_with_wrappers_and_functions_train_as_in_torch(self) -> None:
        for count, first, last in ((2, 0, 120), (3, 120, 200)):
            for far_by_case in ranks.answers(count, "drawn_cases", "drawn", first, last):
                self.assertEqual(len(far_by_case), last - first)
                for case, far in far_by_case.items():
                    self.assertLess(far, 1e-6, f"{case} on {count} ranks")

    def test_replaced_data_is_taken_inside_gathered_parameters_and_an_error_elsewhere(self) -> None:
        for stage in (0, 1, 2, 3):
            for seen in ranks.answers(2, OWNERS, "replaced", stage):
                self.assertLess(seen["far"], 1e-6, f"stage {stage}")
                self.assertRegex(seen["later"], "layers.0.weight: its data was replaced")

    def test_an_evaluation_in_inference_mode_may_come_first(self) -> None:
        want = ranks.answers(1, CASES, "evaluated_first_in_torch")[0]
        for got in ranks.answers(2, CASES, "evaluated_first"):
            for a, b in zip(got, want, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-6)

    def test_graphs_are_freed_without_a_backward_and_after_one_that_keeps_them(self) -> None:
        self.assertEqual(ranks.answers(2, CASES, "graphs_left"), [[0, 0]] * 2)

    def test_training_continues_after_an_exception_that_all_ranks_catch(self) -> None:
        for direct in (False, True):
            for seen in ranks.answers(2, CASES, "failed_forwards", direct):
                self.assertEqual(seen["said"], ["ValueError: sample: too long"] * 3)
                self.assertLess(seen["far"], 1e-6)

    def test_clients_remove_the_hooks_and_add_them_again(self) -> None:
        for seen in ranks.answers(2, OWNERS, "without_hooks"):
            self.assertLess(seen["far"], 1e-6)
            self.assertTrue(seen["hidden"] and seen["hooks"], seen)

    def test_copies_of_a_module_have_its_values_and_no_engine(self) -> None:
        for stage in (0, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                for seen in ranks.answers(2, OWNERS, "copied", stage, folder):
                    self.assertTrue(seen["equal"] and seen["plain"], f"stage {stage}: {seen}")
                    self.assertRegex(seen["engine"], "UsageError: engine: cannot be copied or pickled")
                    self.assertRegex(seen["copy"], "copy or save the module inside zero.GatheredParameters" if stage == 3 else "nothing")
                    self.assertRegex(seen["save"], "UsageError: .*GatheredParameters|UsageError: engine: cannot be copied")

    def test_an_engine_takes_over_the_module_of_another(self) -> None:
        for stage in (0, 2, 3):
            for seen in ranks.answers(2, OWNERS, "taken_over", stage):
                self.assertLess(seen["far"], 1e-6, f"stage {stage}")
                part = "UsageError: model: shares parameters with another engine, of a Chain that also has head.weight; call destroy"
                self.assertIn(part, seen["part"])

    def test_parameters_of_two_engines_are_whole_and_change_together(self) -> None:
        for stage in (0, 2, 3):
            self.assertLess(max(ranks.answers(2, OWNERS, "mixed", stage)), 1e-6, f"stage {stage}")

    def test_a_function_saves_the_parameter_of_another_engine(self) -> None:
        for stage in (0, 2, 3):
            self.assertLess(max(ranks.answers(2, OWNERS, "taught", stage)), 1e-6, f"stage {stage}")

    def test_a_gathered_weight_of_another_engine_keeps_its_values_for_the_backward(self) -> None:
        for with_engine in (True, False):
            self.assertLess(max(ranks.answers(2, OWNERS, "borrowed", 3, with_engine)), 1e-6, f"with an engine: {with_engine}")

    def test_parameters_outside_the_optimizer_keep_no_gradients(self) -> None:
        for stage, left in ((0, 8), (2, 8), (3, 0)):
            self.assertEqual(ranks.answers(2, OWNERS, "gradients_left", stage), [[left, 0]] * 2)

    def test_autocast_keeps_no_copies_of_gathered_weights(self) -> None:
        for frozen in (False, True):
            self.assertEqual(ranks.answers(2, CASES, "casts_left", frozen), [0, 0])

    def test_aliases_of_parameters_outlive_the_engine_which_is_freed_without_destroy(self) -> None:
        for stage in (0, 2):
            self.assertEqual(ranks.answers(2, OWNERS, "aliases", stage), [{"kept": [True, True], "freed": True}] * 2)

    def test_exact_sums_take_several_backwards_per_micro_batch(self) -> None:
        for far in ranks.answers(2, CASES, "several_backwards", 3):
            self.assertLess(far, 1e-6)
        for said in ranks.answers(2, CASES, "too_many_backwards"):
            self.assertRegex(said, "UsageError: cleave.exact_sums: .* too many gradients in a step .*add losses before their backward")

    def test_a_function_that_keeps_a_view_of_a_gathered_weight_is_an_error(self) -> None:
        self.assertEqual(ranks.answers(2, CASES, "view_in_context", 2), ["nothing"] * 2)
        for said in ranks.answers(2, CASES, "view_in_context", 3):
            self.assertRegex(said, "UsageError: autograd function: an attribute of ctx is a view .*; pass it to ctx.save_for_backward")

    def test_a_backward_into_named_parameters_is_an_error(self) -> None:
        for said in ranks.answers(2, CASES, "backward_of_inputs"):
            self.assertRegex(said, r"StepOrderError: head.*: got a gradient from backward\(inputs=...\); leave inputs out")

    def test_torch_func_in_a_forward_trains_as_in_torch(self) -> None:
        for far_by_case in ranks.answers(2, "func_cases", "against_torch"):
            self.assertEqual(len(far_by_case), 3 * 9)
            for case, far in far_by_case.items():
                self.assertLess(far, 1e-6, case)

    def test_torch_func_of_the_whole_module_runs_in_gathered_parameters(self) -> None:
        for stage in (2, 3):
            for seen in ranks.answers(2, "func_cases", "of_the_engine", stage):
                self.assertLess(max(seen["far"]), 1e-6, f"stage {stage}")
                self.assertRegex(seen["alone"], r"UsageError: torch.func: .*zero.GatheredParameters\(" if stage == 3 else "nothing")

    def test_torch_func_inside_checkpointing_is_an_error_with_the_reason(self) -> None:
        for said in ranks.answers(2, "func_cases", "checkpointed"):
            self.assertRegex(said, r"UsageError: torch.func: .* hooks for saved tensors, such as those of activation checkpointing")


if __name__ == "__main__":
    unittest.main()
