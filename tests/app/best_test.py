#!/usr/bin/env python3
"""The checkpoint with the smallest validation loss, and early stopping. Usage: best_test.py CLEAVE"""
import json
import math
import random
import unittest

from app_test import AppTest


class Best(AppTest):
    def setUp(self):
        super().setUp()
        rng = random.Random(7)
        self.other = self.dir / "other.txt"  # training on the other text helps with this one only for a while
        self.other.write_text("".join(rng.choice("etaoin shrdlu\n") for _ in range(1500)))

    def run_with(self, *args, steps=40, ranks=1, lr=0.001, code=0, every=4):
        metrics = self.dir / "m.jsonl"
        config = self.config(optimizer={"type": "AdamW", "params": {"lr": lr}})
        r = self.train("--metrics", metrics, "--eval_data", self.other, "--eval_interval", every, *args, steps=steps, ranks=ranks, config=config,
                       code=code)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if code == 0 else []
        return r, {line["step"]: line["validation_loss"] for line in lines if line.get("event") == "evaluation"}, lines

    def folders(self, out):
        return sorted(int(p.name.removeprefix("global_step")) for p in out.glob("global_step*"))

    def test_the_checkpoint_of_the_smallest_validation_loss_stays_and_is_named(self):
        for name, more in ("plain", []), ("behind", ["async"]):
            out = self.dir / name
            config = {"checkpoint": {"async": True}} if more else {}
            metrics = self.dir / "m.jsonl"
            self.train("--metrics", metrics, "--eval_data", self.other, "--eval_interval", 4, "--output", out, "--keep_best", "--keep", 1,
                       "--save_interval", 6, "--export", self.dir / f"{name} exported", steps=40, ranks=2,
                       config=self.config(optimizer={"type": "AdamW", "params": {"lr": 0.001}}, **config))
            losses = {e["step"]: e["validation_loss"] for e in map(json.loads, metrics.read_text().splitlines()) if e.get("event") == "evaluation"}
            best = min(losses, key=losses.get)
            self.assertTrue(4 < best < 40, losses)  # otherwise this test shows nothing
            self.assertEqual((out / "best").read_text(), f"global_step{best}\n")
            self.assertEqual((out / "latest").read_text(), "global_step40\n")
            self.assertEqual(self.folders(out), sorted({best, 40}))
            evaluated = float(self.run_cleave("eval", out, "--tag", "best", "--data", self.other).stdout.split()[1])
            self.assertAlmostEqual(evaluated / losses[best], 1, delta=1e-3)
            self.run_cleave("export", out, self.dir / f"{name} again", "--tag", "best")
            one, two = (self.dir / f"{name} {word}" / "model.safetensors" for word in ("exported", "again"))
            self.assertEqual(one.read_bytes(), two.read_bytes())

    def test_a_training_ends_after_so_many_evaluations_without_a_smaller_loss(self):
        # Weights that do not change: the first evaluation is the best, and the others bring no improvement.
        r, losses, lines = self.run_with("--early_stopping_patience", 3, lr=0, every=2)
        self.assertEqual(sorted(losses), [2, 4, 6, 8])
        self.assertEqual(lines[-1]["step"], 8)
        self.assertEqual(r.stdout.count("step 8: validation loss"), 1)  # not repeated at the end
        self.assertIn("stopped early after step 8: 3 evaluations without improvement", r.stdout)
        self.assertIn("after step 2", r.stdout.split("best:       validation loss")[1])
        # Losses fall, but by less than the threshold.
        _, losses, _ = self.run_with("--early_stopping_patience", 2, "--early_stopping_threshold", 100, every=2)
        self.assertEqual(sorted(losses), [2, 4, 6])
        _, losses, _ = self.run_with("--early_stopping_patience", 2, lr=1e-4, steps=10, every=2)
        self.assertEqual(sorted(losses), [2, 4, 6, 8, 10])

    def test_a_resumed_run_goes_on_waiting_and_keeps_what_was_the_best(self):
        whole, out = self.dir / "whole", self.dir / "parts"
        options = ["--keep_best", "--keep", 1, "--early_stopping_patience", 3]
        _, losses, _ = self.run_with("--output", whole, *options)
        best, last = min(losses, key=losses.get), max(losses)
        self.assertTrue(4 < best < last < 40, losses)
        for steps in range(8, 48, 8):  # each start ends with an evaluation that the whole run also has
            self.run_with("--output", out, *options, steps=steps)
        self.assertEqual(self.folders(out), self.folders(whole))
        self.assertEqual((out / "best").read_text(), (whole / "best").read_text())
        # The restarted run has already ended.
        r, _, lines = self.run_with("--output", whole, *options)
        self.assertIn(f"stopped early after step {last}", r.stdout)
        self.assertEqual([line for line in lines if "loss" in line and line["step"] > last], [])

    def test_several_sets_are_evaluated_by_name_and_the_first_decides(self):
        metrics, out = self.dir / "m.jsonl", self.dir / "out"
        r = self.train("--metrics", metrics, "--eval_data", f"letters={self.other}", "--eval_data", f"words={self.text}", "--eval_interval", 4,
                       "--output", out, "--keep_best", steps=40, ranks=2)
        lines = [e for e in map(json.loads, metrics.read_text().splitlines()) if e.get("event") == "evaluation"]
        self.assertEqual([(e["step"], e["data"]) for e in lines[:4]], [(4, "letters"), (4, "words"), (8, "letters"), (8, "words")])
        for e in lines:
            self.assertAlmostEqual(e["perplexity"] / math.exp(e["validation_loss"]), 1, delta=1e-6)
        letters = {e["step"]: e["validation_loss"] for e in lines if e["data"] == "letters"}
        self.assertEqual((out / "best").read_text(), f"global_step{min(letters, key=letters.get)}\n")
        self.assertIn("validation loss of words ", r.stdout)
        for name, data in ("letters", self.other), ("words", self.text):  # losses of eval for the same weights
            seen, last = self.run_cleave("eval", out, "--data", data).stdout, [e for e in lines if e["data"] == name][-1]
            self.assertAlmostEqual(float(seen.split()[1]) / last["validation_loss"], 1, delta=1e-3)
            self.assertAlmostEqual(float(seen.split("token accuracy ")[1].split(",")[0]), last["accuracy"], delta=2e-3)
        odd = self.dir / "a=b.txt"
        odd.write_text(self.other.read_text())
        self.assertNotIn("validation loss of", self.train("--eval_data", odd, ranks=1).stdout)
        twice = ["--eval_data", f"a={self.other}", "--eval_data", f"a={self.text}"]
        self.assertIn("two data sets have the name a", self.train(*twice, ranks=1, code=2).stderr)
        self.assertIn("two data sets have no name", self.train("--eval_data", self.other, "--eval_data", self.text, ranks=1, code=2).stderr)

    def test_options_that_require_another_one_are_errors_without_it(self):
        for args, says in [(["--keep_best", "--eval_interval", 2, "--eval_data", self.other], "--keep_best: needs --output"),
                           (["--keep_best", "--output", self.dir / "o"], "--keep_best: needs --eval_data"),
                           (["--early_stopping_patience", 2, "--eval_data", self.other], "and --eval_interval"),
                           (["--early_stopping_threshold", 0.1], "needs --early_stopping_patience")]:
            self.assertIn(says, self.train(*args, ranks=1, code=2).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
