#!/usr/bin/env python3
"""Ranks with different inputs train nothing: every rank exits with code 2, and the message names the input, the ranks and both values.
Options
that may differ between ranks stay allowed.
"""
import json
import os
import pathlib
import re
import shutil
import unittest

from app_test import CLEAVE, CONFIG, AppTest

# Replaces options of the command line on rank 1, or adds missing ones.
RANK_1_WITH = """import json, os, sys
changes, program = json.loads(sys.argv[1]), sys.argv[2:]
for option, value in changes.items() if os.environ["RANK"] == "1" else ():
    if option in program:
        program[program.index(option) + 1] = value
    else:
        program += [option, *([] if value is None else [value])]
os.execv(program[0], program)
"""
ZERO = {"zero_optimization": {"stage": 1}}
# Changes on rank 1: options; or sections of the ds_config, by the key in the message.
OPTIONS = {
    "--seed": "43", "--seq_len": "16", "--steps": "4", "--save_interval": "2", "--save_minutes": "5", "--keep": "7", "--keep_every": "2",
    "--eval_interval": "2", "--resume_check": "off", "--reset_optimizer": None, "--strict": None, "--trace": "t.json",
    "--model": "qwen2-tiny", "--init": "random", "--output": "elsewhere", "--export": "exported", "--transport": "gloo",
    "--jsonl_key": "body", "--token_bytes": "4", "--reset_adapters": None, "--resume": "never", "--keep_best": None, "--early_stopping_patience": "3", "--ngrams": None,
}
KEYS = {
    "optimizer.params.lr": {"optimizer": {"type": "AdamW", "params": {"lr": 2e-3}}},
    "optimizer.params.weight_decay": {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}},
    "optimizer.type": {"optimizer": {"type": "SGD", "params": {"lr": 1e-3}}},
    "gradient_clipping": {"gradient_clipping": 0.5},
    "scheduler.type": {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}},
    "train_micro_batch_size_per_gpu": {"train_micro_batch_size_per_gpu": 4},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
    "gradient_allreduce_op": {"gradient_allreduce_op": "sum"},
    "bf16.enabled": {"bf16": {"enabled": True}},
    "zero_optimization.stage": {"zero_optimization": {"stage": 3}},
    "zero_optimization.reduce_bucket_size": {"zero_optimization": {"stage": 1, "reduce_bucket_size": 1000}},
    "checkpoint.async": {"checkpoint": {"async": True}},
    "cleave.loss_average": {"cleave": {"loss_average": "micro_batches"}},
    "cleave.weight_decay_on": {"cleave": {"weight_decay_on": "all"}},
    "cleave.lora.targets": {"cleave": {"lora": {"targets": ["c_attn"]}}},
    "cleave.freeze": {"cleave": {"freeze": "*.mlp.*"}},
    "activation_checkpointing.interval": {"activation_checkpointing": {"interval": 1}},
}


class DifferentInputs(AppTest):
    def job(self, changes, ranks=2, code=2, config=None, data=None):
        """Runs a job with these options on rank 1."""
        script = self.dir / "rank_1_with.py"
        script.write_text(RANK_1_WITH)
        options = {"--deepspeed_config": config or self.config(**ZERO), "--model": "tiny", "--data": data or self.text, "--seq_len": 32,
                   "--steps": 3, "--output": self.dir / "out", "--seed": 42}
        words = [str(word) for pair in options.items() for word in pair]
        changes = json.dumps({option: value if value is None else str(value) for option, value in changes.items()})
        shutil.rmtree(self.dir / "out", ignore_errors=True)
        return self.run_cleave("launch", "-n", ranks, "--", "python3", script, changes, CLEAVE, "train", *words, code=code)

    def refused(self, name, changes, **others):
        r = self.job(changes, **others)
        said = r.stdout + r.stderr
        self.assertRegex(said, rf"error: (.*; )?{re.escape(name)}: ranks differ \(rank 0: .+, rank 1: .+\)", said)
        self.assertIn("start all ranks with the same command", said)
        self.assertNotIn("loss ", said)
        self.assertNotIn("defect", said)
        self.assertFalse(list((self.dir / "out").glob("global_step*")))
        return said

    def test_each_option(self):
        needs = {"--keep_best": ["--eval_data", "--eval_interval"], "--early_stopping_patience": ["--eval_data", "--eval_interval"],
                 "--ngrams": ["--eval_data"], "--eval_interval": ["--eval_data"]}
        values = {"--eval_data": self.text, "--eval_interval": 2}
        for option, value in OPTIONS.items():
            with self.subTest(option=option):
                if option in ("--output", "--export", "--trace"):
                    value = self.dir / value
                self.refused(option, {option: value, **{other: values[other] for other in needs.get(option, [])}})
        documents = self.dir / "documents.bin"
        self.run_cleave("data", "tokenize", self.text, documents, "--format", "megatron")
        for option in ("--pack", "--document_mask"):
            self.refused(option, {option: None}, data=documents)
        said = self.refused("--seed", {"--seed": 43})
        self.assertIn("error: --seed: ranks differ (rank 0: 42, rank 1: 43); start all ranks with the same command", said)

    def test_each_key_of_the_configuration(self):
        for key, section in KEYS.items():
            with self.subTest(key=key):
                self.refused(key, {"--deepspeed_config": self.config("other.json", **{**ZERO, **section})})

    def test_other_data(self):
        text = self.text.read_text()
        other = self.dir / "other.txt"
        for content in ("x" + text[1:], text[:-2] + "xx", text[:9000] + "x" + text[9001:], text + "more"):
            other.write_text(content)
            self.refused("--data", {"--data": other})
            self.refused("--eval_data", {"--eval_data": other})
        lines = self.dir / "lines.jsonl"
        lines.write_text(json.dumps({"text": text}) + "\n")
        self.refused("--data", {"--data": lines}, data=self.text)
        other.write_text(text[::-1])
        blends = [self.dir / f"blend{weight}.txt" for weight in (0.4, 0.5)]
        for weight, blend in zip((0.4, 0.5), blends, strict=True):
            blend.write_text(f"{weight} {self.text}\n{1 - weight} {other}\n")
        self.refused("--data", {"--data": f"@{blends[1]}"}, data=f"@{blends[0]}")

    def test_the_ranks_are_named_and_at_most_eight_inputs(self):
        said = self.job({"--seed": 7}, ranks=4).stderr
        self.assertIn("--seed: ranks differ (ranks 0, 2 to 3: 42, rank 1: 7)", said)
        alone = {"--output", "--export", "--model", "--eval_interval", "--early_stopping_patience"}
        changes = {option: value for option, value in OPTIONS.items() if value is not None and option not in alone}
        said = self.refused("--seq_len", changes)
        line = next(line for line in said.splitlines() if "error: --" in line)
        self.assertEqual(line.count("ranks differ"), 8)
        self.assertIn("; and others; start", line)

    def test_options_that_may_differ_between_ranks(self):
        copy = self.dir / "copy.txt"
        shutil.copy(self.text, copy)
        other = self.dir / "other.json"
        config = {**CONFIG, **ZERO, "name": "another", "tensorboard": {"enabled": True, "output_path": str(self.dir / "board")}}
        other.write_text(json.dumps(dict(reversed(config.items()))))
        self.job({"--threads": 1, "--metrics": self.dir / "m.jsonl", "--quiet": None, "--data": copy, "--local_rank": 1, "--device": "cpu",
                  "--host_memory": "64GiB", "--deepspeed_config": other,
                  "--output": pathlib.Path(os.path.relpath(self.dir / "." / "out"))}, code=0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
