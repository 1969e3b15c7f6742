#!/usr/bin/env python3
"""Modules that are built in zero.Init equal those that are built outside of it."""

from __future__ import annotations

import unittest

import init_cases
import models
import ranks

CASES = "init_cases"


class Init(unittest.TestCase):
    def test_constructors_use_parameters_of_modules_inside_them(self) -> None:
        for rank, seen in enumerate(ranks.answers(2, CASES, "constructed")):
            for kind, found in seen.items():
                with self.subTest(kind=kind, rank=rank):
                    self.assertEqual(found["other"], [], "values of rank 0 without zero.Init")
                    self.assertEqual([found["more"], found["whole"], found["shapes"]], [[], [], []])
                    self.assertLess(found["far"], 1e-5)

    def test_copies_after_the_context_are_whole(self) -> None:
        self.assertEqual(ranks.answers(2, CASES, "copied"), [[True, True, True]] * 2)

    def test_conversions_after_the_context_keep_values(self) -> None:
        names = [name for name, _ in init_cases.Reader().named_parameters()]
        for seen in ranks.answers(2, CASES, "converted"):
            for kind, found in seen.items():
                with self.subTest(kind=kind):
                    self.assertEqual([found["other"], found["held"], found["names"]], [[], [], names])
                    self.assertEqual(found["buffer"], "torch.bfloat16" if kind in ("bfloat16", "swapped") else "torch.float32")
                    if kind != "data":  # the conversions of a script have memory
                        self.assertEqual(found["bytes"], 2 if kind in ("bfloat16", "swapped") else 4, "memory of one number")

    def test_few_parameters_of_finished_modules_are_whole(self) -> None:
        for seen in ranks.answers(2, CASES, "room"):
            self.assertLess(max(seen["counts"]), 12, "of 36 in each copy")
            self.assertTrue(seen["before"], "a read between constructors")
            self.assertEqual(seen["after"], 0, "a write between constructors")

    def test_tiles_are_a_linear_layer(self) -> None:
        seen = ranks.answers(1, CASES, "tiles")[0]
        self.assertLess(seen["far"], 1e-5)
        self.assertEqual(seen["sizes"], [[[rows, columns] for columns in (3, 2, 2)] for rows in (3, 2)])
        self.assertEqual(seen["splits"], "UsageError: TiledLinear: wrong in_splits (got 3, expected 1 to 2)")
        self.assertEqual(seen["parts"], "UsageError: TiledLinear: wrong input (got 1 parts, expected 3)")
        self.assertIn("the layer to copy differs (got [5, 7] and bias False, expected [5, 7] and bias True)", seen["layer"])

    def test_an_engine_has_what_examples_call(self) -> None:
        names = len([*models.Mlp().state_dict()])
        self.assertEqual(ranks.answers(2, CASES, "names_of_an_engine"), [[1, 1, 16, True, names], [1, 1, 16, True, None]])

    def test_a_configuration_marks_leaf_modules(self) -> None:
        ended = ranks.run(1, CASES, "leaves")
        self.assertIn("marked ['layers.1', 'layers.3', 'head']", ended.output)
        self.assertIn("warning: zero_optimization.leaf_module: Mlp contains no nowhere\n", ended.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
