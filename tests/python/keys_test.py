#!/usr/bin/env python3
"""Every honoured key of a ds_config has a visible effect in PyTorch scripts, or a warning or an error names it. The values are those of the
program's test (tests/app/honoured_rows.py)."""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import unittest
from typing import Any

import ranks

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "app"))
from honoured_rows import ROWS, with_value  # type: ignore[import-not-found]

CASES = "keys_cases"
BASE = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
}
# A run on the CPU does not show the effect of these keys in scripts; a test of the part does.
AHEAD = {"zero_optimization.overlap_comm": "tests/runtime", "zero_optimization.stage3_prefetch_bucket_size": "tests/zero"}
ON_GPUS = {"cleave.tf32", "cleave.tune_products", "cleave.product_choices", "cleave.deterministic"}
# save_16bit_model writes whole weights with any value.
ALWAYS = {"zero_optimization.stage3_gather_16bit_weights_on_model_save", "zero_optimization.stage3_gather_fp16_weights_on_model_save"}


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns one with the sections of the other, whose keys count."""
    sections = {key: {**one[key], **value} for key, value in other.items() if isinstance(value, dict) and isinstance(one.get(key), dict)}
    return {**one, **other, **sections}


def jobs(more: dict[str, Any], folder: str) -> dict[int, list[Any]]:
    """Returns key, two configurations and whether checkpoints matter, by number of ranks."""
    made: dict[int, list[Any]] = {}
    for key, (what, a, b, rest, count) in ROWS.items():
        logs = {"comms_logger": {}} if what in ("calls", "bytes") else {}
        pair = []
        for i, value in enumerate((a, b)):
            given = with_value(merged(merged({**BASE, **logs}, more), rest), key, value)
            config = {name: item for name, item in given.items() if item != "absent"}
            pair.append(json.loads(json.dumps(config).replace("$DIR", f"{folder}/{key}/{i}").replace("1e-39", "1e-37")))
        made.setdefault(count, []).append([key, pair, what == "saved"])
    return made


class Keys(unittest.TestCase):
    maxDiff = None

    def outcomes(self, more: dict[str, Any]) -> dict[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            found: dict[str, str] = {}
            for count, rows in jobs(more, folder).items():
                found |= ranks.answers(count, CASES, "outcomes", rows, folder)[0]
        return found

    def test_each_key_acts_or_is_named(self) -> None:
        found = self.outcomes({})
        self.assertEqual(found.keys(), ROWS.keys())
        silent = {key: how for key, how in found.items() if how.startswith("nothing")}
        self.assertEqual(silent.keys(), ALWAYS | AHEAD.keys(), silent)
        for key in ("activation_checkpointing.interval", "nebula.num_of_version_in_retention"):
            self.assertEqual(found[key], "warned", key)
        for key in ("cleave.tf32", "cleave.logits_rows", "cleave.weight_decay_on", "cleave.lora.rank"):
            self.assertEqual(found[key], "error", key)
        self.assertGreater(sum(how.startswith("honoured") for how in found.values()), 80)

    def test_each_key_acts_on_models_of_the_engine_or_is_named(self) -> None:
        found = self.outcomes({"cleave": {"native": True, "sequence_length": 16}})
        silent = {key: how for key, how in found.items() if how.startswith("nothing")}
        self.assertEqual(silent.keys(), ALWAYS | ON_GPUS, silent)


if __name__ == "__main__":
    unittest.main(verbosity=1)
