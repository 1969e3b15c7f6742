#!/usr/bin/env python3
"""A resumed run compares the loss of its next step with the one in the checkpoint."""
import json
import random
import re
import shutil
import struct
import unittest

from app_test import AppTest, version_2

SAME = "the same as in the checkpoint"
SKIPPED = "the first loss is not compared"
MODEL = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4, "attn_pdrop": 0.0,
         "activation_function": "gelu_new"}


def swap_tensors(checkpoint, one, other):
    """Exchanges the masters of two tensors of one shape, with their checksums, so that readers find no damage."""
    manifest = version_2(json.loads((checkpoint / "manifest.json").read_text()))
    found = [[r for r in manifest["records"] if (r["kind"], r["tensor"]) == ("master", name)] for name in (one, other)]
    assert [len(f) for f in found] == [1, 1]
    places = []
    for record, in found:
        shard = checkpoint / record["file"]
        data = bytearray(shard.read_bytes())
        length, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        begin, end = header[record["name"]]["data_offsets"]
        places.append((shard, 8 + length + begin, bytes(data[8 + length + begin:8 + length + end]), record))
    for (shard, at, bytes_here, _), (_, _, bytes_there, _) in (places, places[::-1]):
        data = bytearray(shard.read_bytes())
        assert len(bytes_here) == len(bytes_there)
        data[at:at + len(bytes_there)] = bytes_there
        shard.write_bytes(data)
    a, b = places[0][3], places[1][3]
    a["xxh3"], b["xxh3"] = b["xxh3"], a["xxh3"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


class ResumeCheck(AppTest):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "out"

    def goes_on(self, *args, out=None, code=0, **kwargs):
        r = self.train("--output", out or self.out, *args, code=code, **kwargs)
        return r.stdout + r.stderr

    def copy(self):
        shutil.copytree(self.out, self.dir / "copy", dirs_exist_ok=True)
        return self.dir / "copy"

    def test_other_weights_end_the_run_before_it_trains_and_writes(self):
        self.train("--output", self.out, ranks=1, steps=2)
        swap_tensors(self.out / "global_step2", "h.0.mlp.c_fc.weight", "h.3.mlp.c_fc.weight")
        self.run_cleave("verify", self.out)
        said = self.goes_on(ranks=1, steps=3, code=4)
        for part in ("the checkpoint belongs to another training", "the weights", "verify", "--resume_check off"):
            self.assertIn(part, said)
        self.assertNotIn("step 3/3", said)
        self.assertFalse((self.out / "global_step3").exists())
        said = self.goes_on(ranks=2, steps=3, code=4, config=self.config(train_micro_batch_size_per_gpu=1))
        self.assertEqual(self.times_said("the checkpoint belongs to another training", said), 1, said)
        said = self.goes_on("--resume_check", "off", ranks=1, steps=3)
        self.assertNotIn(SAME, said)
        self.assertNotIn(SKIPPED, said)
        self.assertIn("the checkpoint has no first loss", self.goes_on(ranks=1, steps=4))

    def test_every_layout_and_type_continues(self):
        base = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": "absent"}
        layouts = [(1, {"gradient_accumulation_steps": 2}), (2, {"zero_optimization": {"stage": 3}}),
                   (2, {"pipeline": {"stages": 2}, "gradient_accumulation_steps": 4}), (2, {"tensor_parallel": {"autotp_size": 2}}),
                   (2, {"sequence_parallel_size": 2}), (4, {"zero_optimization": {"stage": 2}, "checkpoint": {"async": True}}),
                   (1, {"bf16": {"enabled": True}}), (2, {"fp16": {"enabled": True}}),
                   (2, {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "zero_quantized_weights": True}})]
        differences = []
        for ranks, changes in layouts:
            def config(changes):
                c = {k: v for k, v in {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **base, **changes}.items() if v != "absent"}
                path = self.dir / "layout.json"
                path.write_text(json.dumps(c))
                return path
            shutil.rmtree(self.out, ignore_errors=True)
            self.train("--output", self.out, ranks=ranks, steps=3, config=config(changes))
            state = json.loads((self.out / "global_step3/manifest.json").read_text())["state"]["client"]["first_loss"]
            self.assertEqual(state["batch"], 4)
            for other_ranks, others in [(ranks, changes), (1, {}), (2, {"bf16": {"enabled": True}})]:
                said = self.goes_on(out=self.copy(), ranks=other_ranks, steps=4, config=config(others))
                self.assertIn(SAME, said, (changes, others))
                shutil.rmtree(self.dir / "copy")
                now = float(re.search(r"the loss of the next step is ([\d.]+)", said)[1])
                differences.append((abs(now - state["loss"]), ranks, changes, others))
        worst = max(differences, key=lambda d: d[0])
        self.assertLess(worst[0], 0.01, worst)  # half of the allowed difference between fp32 and bf16

    def test_an_intentionally_different_training_is_not_compared(self):
        self.train("--output", self.out, ranks=1, steps=2)
        longer = self.dir / "longer.txt"
        longer.write_text(self.text.read_text() + "and the deep")
        for part, args, config in (("--seed", ["--seed", 7], {}),
                                   ("train_batch_size", [], {"train_micro_batch_size_per_gpu": 1}),
                                   ("--data: the content changed (", [], {})):
            self.text = longer if "--data" in part else self.text
            said = self.goes_on(*args, out=self.copy(), ranks=1, steps=3, config=self.config(**config))
            self.assertIn(SKIPPED, said)
            self.assertIn(part, said.split(SKIPPED)[1])
            shutil.rmtree(self.dir / "copy")
        self.assertNotIn("first loss", self.goes_on(out=self.copy(), ranks=1, steps=2))  # no steps are left

    def losses_of_samples(self, data, batches, ranks=None, drop=()):
        """Returns the losses of runs that resume one another with these batches at a learning rate of 0: each loss identifies the samples
        of a step."""
        out, metrics = self.dir / "positions", self.dir / "positions.jsonl"
        shutil.rmtree(out, ignore_errors=True)
        metrics.unlink(missing_ok=True)
        done = 0
        for i, (batch, taken) in enumerate(batches):
            done += taken
            each = batch // (ranks[i] if ranks else 1)
            config = self.config(train_micro_batch_size_per_gpu=each, optimizer={"type": "SGD", "params": {"lr": 0.0}})
            self.train("--data", data, "--output", out, "--metrics", metrics, ranks=ranks[i] if ranks else 1, steps=done, config=config)
            if drop:
                path = out / f"global_step{done}/manifest.json"
                manifest = version_2(json.loads(path.read_text()))
                for key in drop:
                    del manifest["state"]["client"][key]
                path.write_text(json.dumps(manifest))
        return [m for m in map(json.loads, metrics.read_text().splitlines()) if "event" not in m]

    def check_positions(self, alone, lines, batches):
        at = 0
        for batch, taken in batches:
            for _ in range(taken):
                line, *lines = lines
                self.assertAlmostEqual(line["loss"], sum(alone[at:at + batch]) / batch, delta=2e-5, msg=f"position {at}, batch {batch}")
                at += batch

    def test_another_batch_continues_at_the_next_sample(self):
        second = self.dir / "second.txt"
        second.write_text("".join(random.Random(5).choices("abcdefgh ", k=6000)))
        mix = self.dir / "mix.txt"
        mix.write_text(f"0.7 {self.text}\n0.3 {second}\n")
        for data in (self.text, f"@{mix}"):
            alone = [m["loss"] for m in self.losses_of_samples(data, [(1, 36)])]
            for batches, ranks, drop in (([(2, 3), (4, 4), (2, 7)], None, ()), ([(4, 3), (2, 5)], (2, 1), ()), ([(2, 4), (4, 3)], (1, 2), ()),
                                         ([(4, 3), (2, 5)], None, ("position", "batch"))):
                self.check_positions(alone, self.losses_of_samples(data, batches, ranks=ranks, drop=drop), batches)

    def test_another_batch_is_a_warning_and_epochs_then_need_steps(self):
        self.train("--output", self.out, ranks=1, steps=3, config=self.config(train_micro_batch_size_per_gpu=2))
        other = self.config(train_micro_batch_size_per_gpu=4)
        self.assertIn("train_batch_size is 4 now and was 2 in the checkpoint", self.goes_on(ranks=1, steps=3, config=other))
        self.assertIn("train_batch_size is 4", self.goes_on("--strict", ranks=1, steps=4, config=other, code=4))
        said = self.goes_on("--epochs", 2, ranks=1, config=other, code=2)
        self.assertIn("--epochs: the checkpoint was trained with another number of samples per step", said)
        steps = int(re.search(r"give --steps (\d+)", said)[1])
        self.assertIn(" 2 epochs", self.goes_on(ranks=1, steps=steps, config=other))

    def test_other_settings_of_the_training_are_warnings(self):
        optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}
        base = dict(optimizer=optimizer, gradient_clipping=1.0)
        self.train("--output", self.out, ranks=1, steps=1, config=self.config(**base))
        def params(**more):
            return {"optimizer": {"type": "AdamW", "params": {**optimizer["params"], **more}}}
        schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}
        cases = [("gradient_clipping is 0.5 now and was 1", {"gradient_clipping": 0.5}), ("bf16.enabled is true", {"bf16": {"enabled": True}}),
                 ("optimizer.params.lr is 0.002", params(lr=2e-3)), ("betas is [0.8, 0.999]", params(betas=[0.8, 0.999])),
                 ("weight_decay is 0 now and was 0.1", params(weight_decay=0)), ('scheduler.type is "WarmupLR"', {"scheduler": schedule}),
                 ('cleave.freeze is ["*wpe*"] now and was []', {"cleave": {"freeze": ["*wpe*"]}}),
                 ('loss_average is "micro_batches"', {"cleave": {"loss_average": "micro_batches"}})]
        for said, change in cases:
            config = self.config(**{**base, **change})
            self.assertIn(f"warning: {said}" if said.startswith(("g", "bf16", "optimizer")) else said,
                          self.goes_on(out=self.copy(), ranks=1, steps=2, config=config))
            refused = self.goes_on("--strict", out=self.copy(), ranks=1, steps=2, config=config, code=4)
            self.assertEqual(refused.count(said), 1, refused)
            self.assertIn("; restore them, or leave out --strict", refused)
            shutil.rmtree(self.dir / "copy")
        # A longer training moves the end of an automatic schedule, which --strict allows.
        auto = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 1}}
        longer = self.config(**base, scheduler=auto)
        shutil.rmtree(self.out)
        self.train("--output", self.out, ranks=1, steps=2, config=longer)
        said = self.goes_on("--strict", out=self.copy(), ranks=1, steps=3, config=longer)
        self.assertIn("scheduler.params.total_num_steps is 3 now and was 2 in the checkpoint", said)
        self.assertNotIn("warning: scheduler", said)
        auto["params"]["warmup_num_steps"] = "auto"
        shutil.rmtree(self.dir / "copy")
        shutil.rmtree(self.out)
        warm = self.config(**base, scheduler=auto)
        self.train("--output", self.out, "--warmup_steps", 1, ranks=1, steps=2, config=warm)
        said = self.goes_on("--strict", "--warmup_steps", 2, out=self.copy(), ranks=1, steps=3, config=warm, code=4)
        self.assertIn("scheduler.params.warmup_num_steps is 2 now and was 1", said)
        shutil.rmtree(self.dir / "copy")
        shutil.rmtree(self.out)
        self.train("--output", self.out, ranks=1, steps=1, config=self.config(**base))
        layout = self.config(**base, zero_optimization={"stage": 3}, gradient_accumulation_steps=1)
        self.assertNotIn("in the checkpoint; ", self.goes_on("--strict", out=self.copy(), ranks=1, steps=2, config=layout))

    def test_a_text_that_changed_in_its_middle_is_named(self):
        rng = random.Random(3)
        text = bytearray(rng.randbytes(3 << 20).hex().encode())
        self.text.write_bytes(text)
        self.train("--output", self.out, ranks=2, steps=1, config=self.config(train_micro_batch_size_per_gpu=8))
        middle = slice(1 << 20, 5 << 20)
        text[middle] = text[middle][::-1]
        self.text.write_bytes(text)
        for ranks, micro in ((2, 8), (1, 16)):
            said = self.goes_on(ranks=ranks, steps=2, code=4, config=self.config(train_micro_batch_size_per_gpu=micro))
            self.assertIn("the data: the samples of the next step", said)

    def test_another_configuration_of_the_model_is_named(self):
        model = self.dir / "config.json"
        model.write_text(json.dumps({**MODEL, "layer_norm_epsilon": 1e-5}))
        self.train("--output", self.out, ranks=1, steps=2, model=model)
        model.write_text(json.dumps({**MODEL, "layer_norm_epsilon": 1e-1}))
        said = self.goes_on(ranks=1, steps=3, model=model, code=4)
        self.assertIn("the configuration: ", said)
        self.assertIn("layer_norm_epsilon", said.split("the configuration: ")[1])

    def test_a_run_whose_next_data_cannot_be_computed_saves_without_the_loss(self):
        self.train("--output", self.out, ranks=1, steps=2)
        lost = {"optimizer": {"type": "SGD", "params": {"lr": 1e30}}, "gradient_clipping": 1e30}
        diverged = self.dir / "diverged"
        self.train("--output", diverged, ranks=1, steps=20, config=self.config(**lost), code=5)
        saved, = [p for p in diverged.iterdir() if p.name.startswith("global_step")]
        self.assertNotIn("first_loss", json.loads((saved / "manifest.json").read_text())["state"]["client"])
        self.assertIn("the checkpoint has no first loss", self.goes_on(out=diverged, ranks=1, steps=20, config=self.config(**lost), code=5))


if __name__ == "__main__":
    unittest.main(verbosity=2)
