#!/usr/bin/env python3
"""Errors of a GPU's memory, with a stub of torch.cuda and with an engine on a CPU."""

from __future__ import annotations

import os
import unittest
from unittest import mock

import ranks
import torch
from cleave import OutOfMemory, memory_errors

CASES = "memory_errors_cases"
GIB = 2**30
GPU = torch.device("cuda:1")


class Engine:
    """The facts of an engine that holds 30 GiB of a GPU."""

    def facts(self) -> dict[str, dict[str, dict[str, int]]]:
        return {"live": {"device": {"weights": 10 * GIB, "optimizer_state": 20 * GIB, "workspace": 0}, "pinned": {"gradients": GIB}}}


class MemoryErrors(unittest.TestCase):
    def torch_holds(self, reserved: int, allocated: int) -> None:
        """Stubs a GPU of 80 GiB with 5 GiB free."""
        for name, value in (
            ("mem_get_info", (5 * GIB, 80 * GIB)),
            ("memory_reserved", reserved * GIB),
            ("memory_allocated", allocated * GIB),
        ):
            self.enterContext(mock.patch(f"torch.cuda.{name}", return_value=value))
        self.freed = self.enterContext(mock.patch("torch.cuda.empty_cache"))

    def said(self) -> str:
        with self.assertRaises(torch.OutOfMemoryError) as caught, memory_errors.explained(Engine(), GPU):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.00 GiB.")
        return str(caught.exception)

    def test_an_error_of_torch_names_the_holders(self) -> None:
        self.torch_holds(40, 38)
        first, about, *rows, advice = self.said().splitlines()
        self.assertEqual(first, "CUDA out of memory. Tried to allocate 7.00 GiB.")
        self.assertEqual(about, "memory of cuda:1: 80.00 GiB, 5.00 GiB free")
        self.assertEqual(
            [row.split(maxsplit=3)[:2] for row in rows], [["engine", "30.00"], ["PyTorch", "40.00"], ["others", "5.00"]], "80 GiB in all"
        )
        self.assertIn("optimizer_state 20.00 GiB, weights 10.00 GiB", rows[0])
        self.assertIn("38.00 GiB in tensors, 2.00 GiB in free blocks", rows[1])
        self.assertIn("train_micro_batch_size_per_gpu", advice)
        self.assertNotIn("expandable_segments", advice)

    def test_free_blocks_of_torch_get_advice(self) -> None:
        self.torch_holds(40, 20)
        self.assertIn("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", self.said())

    def test_inner_contexts_explain_once_and_other_errors_stay(self) -> None:
        self.torch_holds(40, 38)
        with (
            self.assertRaises(torch.OutOfMemoryError) as caught,
            memory_errors.explained(Engine(), GPU),
            memory_errors.explained(Engine(), GPU),
        ):
            raise torch.OutOfMemoryError("full")
        self.assertEqual(str(caught.exception).count("memory of cuda:1"), 1)
        with self.assertRaisesRegex(RuntimeError, "^other$"), memory_errors.explained(Engine(), GPU):
            raise RuntimeError("other")

    def test_an_engine_that_does_not_fit_names_the_holders_after_freeing_blocks(self) -> None:
        self.torch_holds(3, 1)
        with self.assertRaises(OutOfMemory) as caught, memory_errors.refused(GPU):
            self.freed.assert_called_once_with()
            raise OutOfMemory("the plan does not fit")
        self.assertEqual(caught.exception.exit_code, 3)
        self.assertRegex(
            str(caught.exception), r"^the plan does not fit\nmemory of cuda:1: 80.00 GiB, 5.00 GiB free\n  engine +0.00 GiB\n  PyTorch +3"
        )
        with self.assertRaisesRegex(OutOfMemory, "^full$"), memory_errors.refused(torch.device("cpu")):
            raise OutOfMemory("full")

    def test_the_forward_and_backward_of_an_engine_are_explained(self) -> None:
        for where, said in zip(("forward", "backward"), ranks.answers(1, CASES, "fails")[0], strict=True):
            self.assertRegex(said, r"^CUDA out of memory in a layer\nmemory of cpu\n  engine +0\.00 GiB  .*weights", where)

    @unittest.skipUnless(os.environ.get("CLEAVE_INTERPRETED"), "needs a GPU in the interpreter")
    def test_no_rank_allocates_if_a_gpu_is_too_small(self) -> None:
        with mock.patch.dict(os.environ, {"CUDA_INTERPRETER_MEMORY_MIB": "1020"}):
            ended = ranks.run(2, CASES, "starts")
        self.assertEqual(ended.code, 3, ended.output)
        self.assertRegex(
            ended.output,
            r"found by rank 0: cuda:0 .* has .* of its 1\.00 GiB free, and this rank needs "
            r".*,? (and )?CUDA 1\.00 GiB(| and NCCL .*) for itself",
        )
        self.assertNotIn("started", ended.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
