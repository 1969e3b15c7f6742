#!/usr/bin/env python3
"""Adapters from the command line: trained on a published model, resumed, evaluated, merged and exported for peft."""
import json
import struct
import unittest

from app_test import AppTest
from exchange_test import read_safetensors

LORA = {"rank": 4, "alpha": 8, "targets": "all-linear"}


class Lora(AppTest):
    def setUp(self):
        super().setUp()
        self.base = self.dir / "base"
        self.run_cleave("train", "--deepspeed_config", self.config(), "--model", "llama-tiny", "--data", self.text, "--seq_len", 16,
                        "--steps", 2, "--output", self.dir / "runs", "--export", self.base)

    def tune(self, steps, *args, ranks=1, code=0, lora=LORA, **config):
        file = self.config("lora.json", cleave={"lora": lora}, optimizer={"type": "AdamW", "params": {"lr": 1e-2}},
                           train_batch_size=2, train_micro_batch_size_per_gpu=1,
                           gradient_accumulation_steps=2 // (ranks if not config else 1), **config)
        launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
        return self.run_cleave(*launch, "train", "--deepspeed_config", file, "--model", self.base, "--data", self.text, "--seq_len", 16,
                               "--steps", steps, "--output", self.dir / "tuned", *args, code=code)

    def loss(self, folder, *args):
        out = self.run_cleave("eval", folder, "--data", self.text, "--tokenizer", "byte", "--seq_len", 16, "--quiet", *args).stdout
        return float(out.split()[1])

    def test_adapters_are_trained_resumed_and_merged(self):
        out = self.tune(3).stdout
        self.assertIn("frozen:     853 K parameters; 39 K of 892 K are trained", out)
        self.assertIn(f"weights:    {self.base} (39 tensors in 1 file, fp32)", out)
        out = self.tune(6, ranks=2, zero_optimization={"stage": 1}, tensor_parallel={"autotp_size": 2}).stdout
        self.assertIn("resumed from", out)
        self.assertIn("the same as in the checkpoint", out)
        self.run_cleave("export", self.dir / "tuned", self.dir / "merged")
        tuned, base = self.loss(self.dir / "tuned"), self.loss(self.base)
        self.assertLess(tuned, base - 0.1)
        self.assertAlmostEqual(self.loss(self.dir / "merged"), tuned, delta=1e-5 * tuned)
        before, after = (read_safetensors(folder / "model.safetensors") for folder in (self.base, self.dir / "merged"))
        self.assertEqual(before.keys(), after.keys())
        changed = {name for name in before if before[name] != after[name]}
        self.assertEqual(changed, {name for name in before if name.endswith("_proj.weight")})
        self.assertIn("has no adapters", self.run_cleave("export", self.dir / "runs", self.dir / "x", "--adapter", code=4).stderr)

    def test_adapters_are_written_for_peft(self):
        self.tune(2, lora={"rank": 2, "targets": ["q_proj", "mlp.down_proj"], "use_rslora": True})
        self.run_cleave("export", self.dir / "tuned", self.dir / "adapter", "--adapter")
        config = json.loads((self.dir / "adapter/adapter_config.json").read_text())
        self.assertEqual({k: config[k] for k in ("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "fan_in_fan_out")},
                         {"peft_type": "LORA", "r": 2, "lora_alpha": 8.0, "use_rslora": True, "target_modules": ["q_proj", "mlp.down_proj"],
                          "fan_in_fan_out": False})
        tensors = read_safetensors(self.dir / "adapter/adapter_model.safetensors")
        self.assertEqual(len(tensors), 2 * 2 * 4)
        kind, shape, data = tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
        self.assertEqual((kind, shape), ("F32", [2, 128]))
        self.assertTrue(any(struct.unpack("<256f", data)))
        self.assertEqual(tensors["base_model.model.model.layers.3.mlp.down_proj.lora_B.weight"][1], [128, 2])

    def test_other_adapters_than_the_checkpoints_are_noticed(self):
        self.tune(1)
        said = self.tune(2, lora={**LORA, "alpha": 16, "use_rslora": True}).stderr
        self.assertIn("warning: cleave.lora.alpha is '16.0' now and was '8.0' in the checkpoint", said)
        self.assertIn("warning: cleave.lora.use_rslora is 'true' now and was 'false' in the checkpoint", said)
        said = self.tune(3, lora={**LORA, "rank": 2}, code=4).stderr
        self.assertIn("lora_A.weight", said)
        self.assertIn("resume with the cleave.lora.rank of the saved training", said)
        self.assertIn("cleave.lora.targets: the blocks of", self.tune(3, lora={**LORA, "targets": ["c_attn"]}, code=2).stderr)

    def test_trained_adapters_are_not_dropped_unless_asked_for(self):
        self.tune(2)
        fewer = {**LORA, "targets": ["q_proj", "down_proj"]}
        for ranks, lora in ((1, fewer), (2, fewer), (1, None)):
            said = self.tune(3, ranks=ranks, lora=lora, code=4).stderr
            self.assertIn("cleave.lora.targets: ", said)
            self.assertIn("model.layers.0.mlp.gate_proj and 19 more" if lora is fewer else "down_proj and 27 more", said)
            self.assertIn("--reset_adapters", said)
        self.assertFalse((self.dir / "tuned/global_step3").exists())
        out = self.tune(3, "--reset_adapters", lora=fewer).stdout
        self.assertIn("resumed from", out)
        self.tune(4, lora=fewer)
        self.tune(5, "--reset_adapters", "--reset_optimizer", lora=None)
        self.assertIn("cleave.lora.targets: adapts nothing", self.tune(6, lora={"targets": []}, code=2).stderr)


if __name__ == "__main__":
    unittest.main()
