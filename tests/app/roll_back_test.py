#!/usr/bin/env python3
"""Bad steps of cleave train: a run goes back to its newest checkpoint and continues without the data of such a step."""
import json
import re
import unittest

from app_test import AppTest, version_2

SPIKE = {"non_finite": "roll_back", "loss_spike": 3, "loss_spike_steps": 3}
LAYOUTS = {"stage 0": {}, "stage 2": {"zero_optimization": {"stage": 2}},
           "stage 3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
           "pipe": {"pipeline": {"stages": 2}, "gradient_accumulation_steps": 2}}


class RollBack(AppTest):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "out"
        # 80 samples of 32 tokens that are easy to predict, and one that is not.
        self.odd = 15  # in step 11
        text = "a" * (81 * 32 + 1)
        self.text.write_text(text[:self.odd * 32] + "".join(chr(33 + (i * 29) % 90) for i in range(32)) + text[(self.odd + 1) * 32:])

    def learns(self, name="ds_config.json", **changes):
        return self.config(name, **{"optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, **changes})

    def weights(self, out, tag="latest"):
        return next(line for line in self.run_cleave("digest", out, "--tag", tag).stdout.splitlines() if line.endswith("weights"))

    def test_a_spike_is_left_out_as_if_its_data_did_not_exist(self):
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                out, skip = self.dir / name, self.dir / f"{name} skip"
                said = self.train("--output", out, "--save_interval", 4, "--keep", 0, steps=16, config=self.learns(cleave=SPIKE, **layout))
                found = re.findall(r"warning: step (\d+): the loss of (\S+) is a spike, \S+ times the median (\S+) of the last 3 updates "
                                   r"\(cleave.loss_spike is 3\); the samples of the step, counted from 0, are (.*); "
                                   r"rolled back to \S.*/global_step(\d+), "
                                   r"and skips the data of step \1\n", said.stdout + said.stderr)
                self.assertEqual(len(found), 1, said.stdout + said.stderr)
                (step, loss, median, samples, checkpoint), = found
                self.assertGreater(float(loss), 3 * float(median))
                self.assertIn(f"{self.odd} of ", samples)
                self.assertEqual(int(checkpoint), (int(step) - 1) // 4 * 4)
                # A skipped step counts, so one step more has the same updates.
                said = self.train("--output", skip, steps=17, config=self.learns(cleave={**SPIKE, "non_finite": "skip"}, **layout))
                self.assertIn(f"warning: step {step} is skipped: the loss of {loss} is a spike", said.stdout + said.stderr)
                self.assertEqual(self.weights(out), self.weights(skip))

    def test_a_resumed_run_skips_the_same_data(self):
        config = self.learns(cleave=SPIKE)
        said = self.train("--output", self.out, "--save_interval", 4, steps=16, config=config)
        step = int(re.search(r"step (\d+): the loss of \S+ is a spike", said.stdout + said.stderr)[1])
        self.assertGreater(step % 4, 2, "the test stops between the checkpoint and the spike, after the roll back")
        # Before the spike, between its checkpoint and its data after the roll back, and after it.
        for stops in ([step - 3], [step], [step - 3, step, step + 1]):
            parts = self.dir / f"parts {stops}"
            texts = [self.train("--output", parts, "--save_interval", 4, steps=s, config=config).stdout for s in (*stops, 16)]
            self.assertEqual(self.weights(parts), self.weights(self.out))
            self.assertFalse(any("samples" in text and "differ" in text for text in texts))
        # On one rank, with the same samples per step; --epochs counts the trained steps.
        other = self.dir / "other"
        self.train("--output", other, "--save_interval", 4, steps=step, config=config)
        one = self.learns("one.json", cleave=SPIKE, train_batch_size=4, gradient_accumulation_steps=2)
        said = self.train("--output", other, "--epochs", 16 / 21, ranks=1, config=one)
        self.assertNotIn("is a spike", said.stdout + said.stderr)
        self.assertEqual([self.position(out) for out in (other, parts)], [self.position(self.out)] * 2)

    def test_a_checkpoint_contains_the_data_ahead_that_are_skipped(self):
        config = self.learns(cleave=SPIKE)
        ahead = self.dir / "ahead"
        self.train("--output", self.out, "--save_interval", 4, steps=16, config=config)
        self.train("--output", ahead, steps=8, config=config)
        # As if it had been saved after the roll back.
        path = ahead / "global_step8/manifest.json"
        manifest = version_2(json.loads(path.read_text()))
        manifest["state"]["client"]["position"]["skips"] = [10]
        path.write_text(json.dumps(manifest))
        said = self.train("--output", ahead, "--save_interval", 1, "--keep", 0, steps=16, config=config)
        self.assertNotIn("is a spike", said.stdout + said.stderr)
        self.assertEqual(self.weights(ahead), self.weights(self.out))
        between, after = self.position(ahead, 9), self.position(ahead, 11)
        self.assertEqual([between.get("skips"), between.get("skipped")], [[10], None])
        self.assertEqual([after.get("skips"), after.get("skipped")], [None, 1])

    def test_checkpoints_of_an_abandoned_continuation_are_not_taken(self):
        config = self.learns(cleave={**SPIKE, "non_finite": "stop"})
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, steps=8, config=config)
        self.assertTrue((self.out / "global_step6").is_dir())
        (self.out / "latest").write_text("global_step4")
        said = self.train("--output", self.out, steps=16, config=self.learns(cleave=SPIKE))
        self.assertRegex(said.stdout + said.stderr, "step 11: .*; rolled back to .*/global_step4, and ")

    def position(self, out, step=16):
        return json.loads((out / f"global_step{step}/manifest.json").read_text())["state"]["client"]["position"]

    def test_the_limit_ends_the_run_with_the_state_before_the_step(self):
        config = self.config(gradient_clipping=1.0, optimizer={"type": "SGD", "params": {"lr": 1e30}},
                             cleave={"non_finite": "roll_back", "non_finite_limit": 2})
        r = self.train("--output", self.out, steps=20, config=config, code=5)
        said = r.stdout + r.stderr
        self.assertEqual(self.times_said("rolled back to", said), 2, said)
        where = r"the weights are finite, and the loss of micro-batch 1 on rank 0 is nan; the first layer with an output that is not " \
                r"finite is h.0, layer 2 of 6; the samples of that micro-batch, counted from 0, are \d+ of .*text.txt, \d+ of .*text.txt"
        self.assertRegex(said, rf"step 2: the loss is nan and the gradient norm nan: {where}; rolled back to \S.*/global_step0, ")
        self.assertIn("(rolled back 2 times before); the run diverged", said)
        self.assertIn("saving the state before step 2", said)

    def test_wrong_use_is_an_error_before_the_first_step(self):
        config = self.learns(cleave={"non_finite": "roll_back"})
        r = self.train(config=config, code=2)
        self.assertIn('cleave.non_finite: "roll_back" needs checkpoints (got no --output, expected a folder)', r.stderr)
        self.assertNotIn(" step ", r.stdout)
        r = self.train(config=self.learns(cleave={"loss_spike": 0.5}), code=2)
        self.assertIn("cleave.loss_spike: expected a factor above 1 over the median loss, or 0 for off, got 0.5", r.stderr)

    def test_a_spike_stops_by_default_before_its_update(self):
        config = self.learns(cleave={**SPIKE, "non_finite": "stop"})
        r = self.train("--output", self.out, steps=20, config=config, code=5)
        step = int(re.search(r"step (\d+): the loss of \S+ is a spike", r.stdout + r.stderr)[1])
        before = self.dir / "before"
        self.train("--output", before, steps=step - 1, config=config)
        self.assertEqual(self.weights(self.out), self.weights(before))


if __name__ == "__main__":
    unittest.main(verbosity=2)
