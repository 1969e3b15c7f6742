#!/usr/bin/env python3
"""torch.compile of modules in the engine, compared with torch.compile in torch alone."""

from __future__ import annotations

import unittest

import ranks

CASES = "compiled_cases"
WAYS = ("torch.compile(block)", "torch.compile(module)", "block.compile", "module.compile", "engine.compile")
EVERY = [*((way, 3) for way in WAYS), *(("engine.compile", stage) for stage in (0, 1, 2)), ("block.compile", 2)]


class Compiled(unittest.TestCase):
    def test_blocks_are_graphs_without_breaks_at_every_stage_as_in_torch_alone(self) -> None:
        for recomputes in (False, True):
            [first, _] = ranks.answers(2, CASES, "graphs", recomputes, "aot_eager", EVERY)
            self.assertEqual(len(first), 9)
            for case, got in first.items():
                with self.subTest(case=case, recomputes=recomputes):
                    self.assertEqual(got["seen"], got["want"], "breaks, graphs, operations")
                    self.assertEqual(got["seen"][:2], [0, 1])
                    self.assertLess(got["far"], 1e-6)

    def test_inductor_compiles_blocks_with_gathered_parameters(self) -> None:
        [first, _] = ranks.answers(2, CASES, "graphs", True, "inductor", [("engine.compile", 3)])
        for got in first.values():
            self.assertEqual(got["seen"], got["want"], "breaks, graphs, operations")
            self.assertLess(got["far"], 1e-6)

    def test_frozen_parameters_of_compiled_blocks_may_be_recomputed(self) -> None:
        for got in ranks.answers(2, CASES, "frozen"):
            self.assertEqual(got, {"far": 0, "again": 3 * 3, "held": 0, "in use": 0})

    def test_compiled_blocks_gather_however_they_are_called(self) -> None:
        for got in ranks.answers(2, CASES, "called_by_others"):
            for way in ("before", "compiled", "by another", "alone", "copy"):
                self.assertLess(got.pop(way), 1e-6, way)
            self.assertEqual(got, {"hooks of the copy": False, "hidden": True, "restored": True})

    def test_training_continues_after_an_exception_in_a_compiled_block(self) -> None:
        for got in ranks.answers(2, CASES, "failing"):
            self.assertLess(got.pop("far"), 1e-6)
            self.assertEqual(got, {"said": "ValueError: a block failed", "in use": 0})

    def test_values_of_a_parameter_have_one_address_if_all_fit(self) -> None:
        for got in ranks.answers(2, CASES, "addresses", 0):
            self.assertEqual(got, [1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
