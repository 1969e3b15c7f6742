#!/usr/bin/env python3
"""Files of earlier versions are read: runs resume with the losses of an unbroken run (tests/fixtures/make_written_fixtures.py)."""
import json
import shutil
import sys
import unittest

from app_test import AppTest, ROOT

sys.path.insert(0, str(ROOT / "tests" / "fixtures"))
from make_written_fixtures import VERSIONS, unpack  # noqa: E402

RUNS = {"stage_2": 2, "fp16_stage_3": 2, "lora": 1, "words": 1}


class Written(AppTest):
    def test_runs_resume_in_any_layout(self):
        for version in VERSIONS:
            at = self.dir / version.name
            expected = unpack(version, at)
            for name in RUNS:
                for ranks in (1, 2):
                    with self.subTest(version=version.name, run=name, ranks=ranks):
                        config = json.loads((at / f"{name}.json").read_text())
                        config["train_micro_batch_size_per_gpu"] = 2 * RUNS[name] // ranks  # the batch of the saved run
                        (at / "ds.json").write_text(json.dumps(config))
                        output, metrics = self.dir / f"{version.name}_{name}_{ranks}", self.dir / "metrics.jsonl"
                        shutil.copytree(at / name, output)
                        metrics.unlink(missing_ok=True)
                        tokenizer = ["--tokenizer", ROOT / "tests/fixtures/tokenizer_gpt2.json"] if name == "words" else []
                        self.run_cleave("launch", "-n", ranks, "--", "train", "--deepspeed_config", at / "ds.json", "--model", at / f"model_{name}.json", "--data",
                                        at / "corpus.txt", "--seq_len", 16, "--steps", 6, "--output", output, "--resume", "required", "--metrics", metrics,
                                        *tokenizer)
                        steps = [x for x in map(json.loads, metrics.read_text().splitlines()) if "loss" in x and "event" not in x]
                        self.assertEqual([x["step"] for x in steps], [5, 6])
                        for step, want in zip(steps, expected[name]):
                            self.assertAlmostEqual(step["loss"], want, delta=2e-3 if "fp16" in name else 1e-4)

    def test_checkpoints_are_complete_and_exports_start_a_training(self):
        for version in VERSIONS:
            at = self.dir / version.name
            expected = unpack(version, at)
            for name in (*RUNS, "module", "native"):
                self.assertIn("is complete: ", self.run_cleave("verify", at / name).stdout)
            self.assertEqual(self.run_cleave("digest", at / "stage_2").stdout.splitlines(), expected["digest"])
            self.run_cleave("export", at / "stage_2", self.dir / f"again_{version.name}")
            weights = [f / "model.safetensors" for f in (at / "export", self.dir / f"again_{version.name}")]
            self.assertEqual(*(f.read_bytes() for f in weights))
            self.run_cleave("export", at / "lora", self.dir / f"adapter_{version.name}", "--adapter")
            adapters = [f / "adapter_model.safetensors" for f in (at / "adapter", self.dir / f"adapter_{version.name}")]
            self.assertEqual(*(f.read_bytes() for f in adapters))
            self.run_cleave("train", "--deepspeed_config", at / "stage_2.json", "--model", at / "export", "--data", at / "corpus.txt", "--seq_len", 16, "--steps", 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
