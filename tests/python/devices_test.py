#!/usr/bin/env python3
"""Devices in scripts: GPUs that torch and the engine see, modules on the meta device, and packed parameters. torch.cuda is a stub."""

from __future__ import annotations

import contextlib
import io
import tempfile
import types
import unittest
from typing import Any
from unittest import mock

import ranks
from cleave import devices
from cleave.errors import UsageError

CLOSE = 1e-6


def stub(cuda: str | None = "13.0", gpus: int = 1) -> Any:
    """Returns a torch that was built for a CUDA version and finds a number of GPUs."""
    own = types.SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus)
    return types.SimpleNamespace(__version__="2.15.0", version=types.SimpleNamespace(cuda=cuda), cuda=own)


def check(torch: Any, **job: Any) -> str:
    """Returns the error or the output of a job with this torch."""
    said = io.StringIO()
    with mock.patch.dict("sys.modules", torch=torch), contextlib.redirect_stderr(said):
        try:
            devices.require_usable({"device": "cuda:0", "cuda": 13000, "rank": 0, **job})
        except UsageError as error:
            return str(error)
    return said.getvalue()


class Devices(unittest.TestCase):
    def test_torch_and_the_engine_need_the_same_kind_of_device(self) -> None:
        self.assertEqual(check(stub()), "")
        self.assertEqual(check(stub("13.2", 8), device="cuda:7"), "")
        self.assertEqual(check(stub(None, 0), device="cpu", cuda=0), "")
        self.assertEqual(check(stub("12.6", 0), device="cpu"), "")
        self.assertIn(
            "torch: built without CUDA (got 2.15.0), but the engine computes on cuda:1; install", check(stub(None, 0), device="cuda:1")
        )
        self.assertIn(
            "torch: finds 1 GPUs (built for CUDA 13.0), but the engine computes on cuda:1; install", check(stub(), device="cuda:1")
        )
        self.assertIn("cleave: built without CUDA, but torch finds a GPU; install", check(stub(), device="cpu", cuda=0))

    def test_a_torch_for_another_cuda_is_a_warning_of_the_first_rank(self) -> None:
        self.assertIn("warning: torch: built for CUDA 12.6, this build of cleave for CUDA 13.1; ", check(stub("12.6"), cuda=13010))
        self.assertEqual(check(stub("12.6"), rank=1), "")

    def test_the_gpu_of_the_rank_becomes_the_current_device(self) -> None:
        with mock.patch("torch.cuda.set_device") as chosen:
            self.assertEqual(str(devices.adopt("cuda:3")), "cuda:3")
            self.assertEqual(str(chosen.call_args.args[0]), "cuda:3")
            chosen.reset_mock()
            self.assertEqual(str(devices.adopt("cpu")), "cpu")
            chosen.assert_not_called()


class Packed(unittest.TestCase):
    def test_frozen_packed_parameters_keep_their_bits_at_every_stage(self) -> None:
        for kind in ("uint8", "bf16", "fp16", "fp32", "int8"):
            for stage in (0, 2, 3):
                for got in ranks.answers(2, "devices_cases", "quantized", kind, stage):
                    where = f"{kind} at stage {stage}: {got}"
                    self.assertLess(max(got["losses"], got["far"]), CLOSE, where)
                    self.assertTrue(got["same"] and got["kept"] and got["moved"], where)
                    self.assertEqual(got["hidden"], stage == 3, where)
                    self.assertTrue(got["nans"] or kind in ("uint8", "int8"), "the test needs bits that are NaN in the storage type")

    def test_a_layer_that_is_not_quantized_yet_is_an_error(self) -> None:
        got = ranks.answers(1, "devices_cases", "not_quantized")[0]
        self.assertRegex(got, r"UsageError: frozen\.1\.weight: not quantized yet; .*model\.cuda\(\)")


class Meta(unittest.TestCase):
    def test_modules_on_the_meta_device_get_values_train_and_resume(self) -> None:
        for stage in (0, 3):
            with tempfile.TemporaryDirectory() as folder:
                first, second = ranks.answers(2, "devices_cases", "on_meta", stage, folder)
            self.assertEqual(first.pop("sum"), second.pop("sum"), "both ranks have the values of the first")
            self.assertEqual((first, second), (dict.fromkeys(first, True),) * 2)

    def test_missing_initialization_is_an_error_that_names_the_tensor(self) -> None:
        gpt, parameter, buffer = ranks.answers(1, "devices_cases", "without_initialization")[0]
        self.assertRegex(gpt, r"UsageError: 0\.positions: on the meta device, and Gpt has no reset_parameters; define reset_parameters")
        self.assertRegex(parameter, r"UsageError: 0\.left_out: on the meta device, and Drawn has an initialization that leaves it out")
        self.assertRegex(buffer, r"UsageError: 0\.positions: on the meta device, and Drawn has an initialization that leaves it out")

    def test_models_of_transformers_on_the_meta_device_have_their_initialization(self) -> None:
        for got in ranks.answers(2, "devices_cases", "transformers_on_meta"):
            self.assertEqual(got, dict.fromkeys(got, True))


if __name__ == "__main__":
    unittest.main()
