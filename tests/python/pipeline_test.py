#!/usr/bin/env python3
"""Pipelines of torch modules, compared with a plain loop over the same layers in each rank."""

from __future__ import annotations

import tempfile
import unittest
from typing import Any

import ranks

CASES = "pipeline_cases"
UNIFORM = {"partition_method": "uniform"}
# Stages, ZeRO stage, micro-batches, options of PipelineModule, additional ds_config keys. Four ranks: data-parallel size 4 / stages.
LAYOUTS: list[Any] = [
    [1, 3, 2, {}, {}],
    [1, 1, 2, {**UNIFORM, "virtual_stages": 2}, {}],
    *([2, zero, 3, {}, {}] for zero in (0, 1, 2, 3)),
    *([4, zero, 3, {"activation_checkpoint_interval": zero}, {}] for zero in (0, 1, 2, 3)),
    [4, 3, 2, UNIFORM, {"pipeline": {"schedule": "gpipe"}, "gradient_clipping": 0.01}],
    [2, 3, 3, {**UNIFORM, "virtual_stages": 3}, {"pipeline": {"schedule": "interleaved"}}],
    [4, 1, 5, {**UNIFORM, "virtual_stages": 2, "dynamic_shape": True}, {"pipeline": {"schedule": "interleaved"}}],
]
# Eight layers of 204, 0, 636, 236, 236, 236, 0 and 204 elements: the largest piece has at least 636, and the other three are as equal as
# possible. The empty layer before it can belong to it or to the first piece.
METHODS = {
    "uniform": [0, 2, 4, 6, 8],
    "parameters": [0, 1, 3, 5, 8],
    "type:block": [0, 3, 4, 5, 8],
    "Type:BLOCK$": [0, 3, 4, 5, 8],
    "1,3,3,1": [0, 1, 4, 7, 8],
}


class Pipelines(unittest.TestCase):
    every: list[dict[str, Any]]

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            cls.every = ranks.answers(4, CASES, "everything", LAYOUTS, list(METHODS), folder)

    def test_weights_losses_and_norms_are_those_of_a_plain_loop(self) -> None:
        for rank in self.every:
            self.assertEqual(len(rank["far"]), len(LAYOUTS))
            for case, (losses, weights) in rank["far"].items():
                self.assertLess(losses, 1e-5, case)
                self.assertLess(weights, 1e-5, case)

    def test_layers_are_cut_as_the_method_says(self) -> None:
        for method, got in zip(METHODS, self.every[0]["splits"], strict=True):
            self.assertEqual(got, METHODS[method], method)

    def test_a_checkpoint_continues_at_another_number_of_stages(self) -> None:
        for rank in self.every:
            want = rank["resumed"]["2"]["losses"]
            for stages in "41":
                for got, expected in zip(rank["resumed"][stages]["losses"], want, strict=True):
                    for a, b in zip(got, expected, strict=True):
                        self.assertAlmostEqual(a, b, delta=1e-5, msg=f"{stages} stages")

    def test_an_evaluation_is_that_of_the_plain_loops_weights_on_every_rank(self) -> None:
        for rank in self.every:
            for stages, got in rank["resumed"].items():
                self.assertAlmostEqual(got["eval"], rank["evaluated"], delta=1e-5, msg=f"{stages} stages")
                self.assertAlmostEqual(got["sum"], rank["evaluated"] * int(stages), delta=1e-4, msg=f"{stages} stages")
                self.assertEqual(got["own"], [[3, 6, 11], int(stages)] if got["last"] else [None, None])

    def test_outputs_of_one_element_are_losses_where_there_is_no_loss_fn(self) -> None:
        for rank, got in enumerate(answer["without loss"] for answer in self.every):
            self.assertLess(got["far"], 1e-6)
            self.assertLess(got["trained"], 1e-6)
            self.assertTrue(got["kept"])
            self.assertEqual([got["outputs"], got["tuples"]], ["Tensor", [2, 2]] if rank >= 2 else ["NoneType", "NoneType"])
            self.assertLess(got.get("mean", 0.0), 1e-6)

    def test_grids_and_topologies_are_those_of_deepspeed(self) -> None:
        for rank, got in enumerate(answer["asked"] for answer in self.every):
            self.assertEqual(got["lists"][0], [[0, 4], [1, 5], [2, 6], [3, 7]])
            self.assertEqual(got["lists"][1], [[0, 2], [1, 3], [4, 6], [5, 7]])
            self.assertEqual(got["lists"][2], [[0, 1], [2, 3], [4, 5], [6, 7]])
            self.assertEqual([got["coord"], got["rank"], got["repr"], got["match"]], [[1, 0, 1], 5, "model_01", [1, 3]])
            self.assertEqual(got["dims"], [2, 2, 2, 0])
            stage, data = divmod(rank, 2)
            self.assertEqual([got["place"], got["sizes"]], [[stage, data, stage, 0], [2, 2, 1]])
            self.assertEqual([got["group"], got["groups"]], [[2 * stage, 2 * stage + 1], [2, data]])
            self.assertEqual(got["kept"], [2], "intervals at which layers are computed again")
            self.assertEqual([got["engine"], got["axes"]], [[stage == 0, stage == 1, 3, 18], ["pipe", "data"]])

    def test_mistakes_are_named(self) -> None:
        for call in ("forward", "backward", "step"):
            self.assertRegex(self.every[0]["mistakes"][call], r"StepOrderError: .*call engine.train_batch\(data_iter\)")
        for call, words in {
            "by parameter": "NotBuilt: .*engine.parameters_of",
            "layers": "too many pieces .got 4 for 3 layers, expected at most 3",
            "world": r"\[3, 1\] of .* does not match the job .expected 4 ranks.; set num_stages to a divisor",
            "method": 'partition_method "profile": use balanced, parameters, uniform',
            "stages": "pipeline.stages: differs from PipelineModule .expected 2.; remove the key",
            "init": "zero.Init: not supported around a PipelineModule",
            "schedule": "zb-h1: splits backwards.*use 1f1b or interleaved",
        }.items():
            self.assertRegex(self.every[0]["mistakes"][call], words)
        ended = ranks.run(2, CASES, "ends_early")
        self.assertNotEqual(ended.code, 0)
        self.assertIn("data: wrong batch (got no more batches, expected (inputs, labels), 3 per step)", ended.output)

    def test_layers_that_work_in_place_may_be_the_first_of_a_stage(self) -> None:
        for seen in ranks.answers(4, CASES, "in_place"):
            self.assertEqual(seen["starts"], [1, 4, 6], "layers that change received tensors")
            self.assertLess(seen["losses"], 1e-5)
            self.assertLess(seen["weights"], 1e-5)

    def test_half_precision_loaders_buffers_and_lengths_that_change(self) -> None:
        loss, norm = self.every[0]["resumed"]["2"]["losses"][0][0], 0.0
        for answer in (rank["other"] for rank in self.every):
            for precision in ("bf16", "fp16"):
                loss, norm = answer[precision]
                self.assertTrue(2 < loss < 3 and norm > 0, answer[precision])
            self.assertIn(answer["order"], [list(range(0, 24, 2)), list(range(1, 24, 2))], "DeepSpeed's pipelines do not shuffle")
            self.assertEqual(answer["loader"], [4, True, True, 24], "24 samples in batches of 3 x 2 ranks, two batches per step")
            self.assertTrue(answer["lengths"])
            self.assertEqual(len(set(answer["given"])), 1, "of an argument, of the engine's loader, of its iterator")
            buffers = [f"1.norm.{name}" for name in ("num_batches_tracked", "running_mean", "running_var")]
            self.assertEqual(answer["beside"], [buffers, ["1.frozen.weight", "1.frozen.bias"]], "of all stages")


if __name__ == "__main__":
    unittest.main(verbosity=2)
