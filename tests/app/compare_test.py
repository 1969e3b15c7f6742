#!/usr/bin/env python3
"""`cleave compare` of two ds_configs: no difference between layouts of one training, and the name of every planted difference."""
import json
import os
import signal
import subprocess
import time
import unittest

from app_test import CLEAVE, AppTest

BASE = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5, "zero_optimization": {"stage": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3}}}
BF16 = {"bf16": {"enabled": True}}
ADAMW = BASE["optimizer"]["params"]
# Layouts of the same training: ranks, changes of both configurations, changes of the second.
LAYOUTS = {
    "stage 3": (2, {}, {"zero_optimization": {"stage": 3}}),
    "a pipeline": (2, {}, {"pipeline": {"stages": 2}}),
    "tensor parallelism": (2, {}, {"tensor_parallel": {"autotp_size": 2}}),
    "larger micro-batches": (1, {}, {"train_micro_batch_size_per_gpu": 4}),
    "offload": (2, BF16, {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}}),
    "bf16 in a grid": (4, BF16, {"pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2}}),
    "fp32 and bf16": (1, {}, BF16),
    "signs, in two types": (2, {"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}, BF16),
}


def adamw(**changes):
    return {"optimizer": {"type": "AdamW", "params": {**ADAMW, **changes}}}


# Changes of the second configuration, and the first difference that the comparison has to name.
DIFFERENCES = {
    "another rate": ({"scheduler": {"type": "WarmupLR", "params": {**BASE["scheduler"]["params"], "warmup_max_lr": 1.0001e-3}}}, "learning rate", 3),
    "a longer warm-up": ({"scheduler": {"type": "WarmupLR", "params": {**BASE["scheduler"]["params"], "warmup_num_steps": 5}}}, "learning rate", 3),
    "another weight decay": (adamw(weight_decay=0.2), "update of ", 1),
    "another first beta": (adamw(betas=[0.9001, 0.95]), "update of ", 2),
    "another second beta": (adamw(betas=[0.9, 0.951]), "update of ", 2),
    "another eps": (adamw(eps=1e-6), "update of ", 1),
    "another clipping": ({"gradient_clipping": 0.4}, "update of ", 1),
    "another optimizer": ({"optimizer": {"type": "Adam", "params": {**ADAMW, "adam_w_mode": False}}}, "update of ", 1),
    "another batch": ({"train_batch_size": 4}, "loss", 1),
}


class Compared(AppTest):
    def compare(self, second, ranks="1", first=None, code=0, more=(), train=()):
        a, b = self.config("a.json"), self.config("b.json")
        a.write_text(json.dumps({**BASE, **(first or {})}))
        b.write_text(json.dumps({**BASE, **(first or {}), **second}))
        return self.run_cleave("compare", "-n", ranks, a, b, *more, "--", "train", "--model", "tiny", "--seq_len", 32, "--data", self.text, *train,
                               code=code)

    def test_layouts_of_one_training_are_the_same(self):
        for name, (ranks, both, second) in LAYOUTS.items():
            with self.subTest(name):
                out = self.compare(second, ranks=f"1,{ranks}", first=both).stdout
                self.assertTrue(out.startswith("same: 3 steps, 52 parameters; "), out)
                self.assertIn(f"b.json on {ranks} rank", out)

    def test_every_planted_difference_is_named(self):
        for name, (second, where, step) in DIFFERENCES.items():
            with self.subTest(name):
                found = json.loads(self.compare(second, code=8, more=["--json"]).stdout)
                first = found["different"][0]
                self.assertTrue(first["what"].startswith(where), found["different"][:3])
                self.assertEqual(first["step"], step, first)
                self.assertGreater(first["difference"], first["allowed"])

    def test_a_divisor_of_the_loss_is_suggested(self):
        # Of 8 micro-batches, the mean of means differs from the mean over all targets only if their targets differ.
        samples = [{"text": "one two three four five six seven eight nine ten"[:9 * (1 + i % 5)]} for i in range(40)]
        self.text = self.dir / "short.jsonl"
        self.text.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        out = self.compare({"cleave": {"loss_average": "micro_batches"}}, code=8, train=["--pack"]).stdout
        self.assertRegex(out, "^different: step 1, loss; ")
        self.assertIn("hint: ", out)

    def test_errors_name_their_cause(self):
        r = self.compare({"pipeline": {"stages": 3}}, ranks="2", code=2)
        self.assertIn("pipeline.stages", r.stderr)
        self.assertIn("--output: not an option of a comparison", self.compare({}, code=2, train=["--output", "x"]).stderr)
        self.assertIn("needs two ds_config files (got a.json), or a script", self.run_cleave("compare", "a.json", code=2).stderr)
        self.assertIn("nothing to train; write options after --", self.run_cleave("compare", "a.json", "b.json", code=2).stderr)
        self.assertIn("--nproc: expected one number, or two with a comma, from 1 to 4096 (got 1,x)", self.compare({}, ranks="1,x", code=2).stderr)
        for more, said in ((["--seed", 3], "--seed: only for scripts"), (["--against", "torch"], "--against: only for scripts")):
            self.assertIn(said, self.compare({}, code=2, more=more).stderr)
        other = self.dir / "full"
        other.mkdir()
        (other / "file").touch()
        self.assertIn("is not empty; choose another folder", self.compare({}, code=2, more=["--keep", other]).stderr)
        frozen = self.compare({"cleave": {"freeze": ["wte*"]}}, code=2).stderr
        self.assertIn("frozen or with another shape there; compare configurations of the same model", frozen)

    def test_records_are_removed_unless_wanted(self):
        temporary = self.dir / "tmp"
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        try:
            self.compare({})
            self.assertEqual(list(temporary.iterdir()), [])
            self.compare({}, more=["--keep", self.dir / "kept"])
            self.assertEqual(sorted(p.name for p in (self.dir / "kept").iterdir()), ["first", "moved", "second"])
            run = subprocess.Popen([CLEAVE, "compare", "a.json", "b.json", "--steps", "1000", "--", "--model", "tiny", "--data", self.text],
                                   cwd=self.dir, stderr=subprocess.PIPE, text=True)
            while not list(temporary.glob("*/first/gradients-2")):
                time.sleep(0.01)
            run.send_signal(signal.SIGTERM)
            run.communicate(timeout=60)
            self.assertNotEqual(run.returncode, 0)
            self.assertEqual(list(temporary.iterdir()), [])
        finally:
            del os.environ["TMPDIR"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
