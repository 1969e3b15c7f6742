#!/usr/bin/env python3
"""The layout of ranks does not change the training; unsupported layouts are errors."""
import json
import unittest

from app_test import AppTest, CONFIG, version_2


class Layouts(AppTest):
    def test_transports_and_stages_give_the_same_bits(self):
        zero = {"offload_optimizer": {"device": "cpu"}}
        want = self.losses("--transport", "shm", config=self.config(zero_optimization={"stage": 0}), ranks=3)
        self.assertEqual(len(want), 3)
        for stage in (1, 2, 3):
            got = self.losses("--transport", "shm", config=self.config(zero_optimization={"stage": stage, **zero}), ranks=3)
            self.assertEqual(got, want, f"stage {stage} over shared memory")
        for stage in (0, 2, 3):
            got = self.losses("--transport", "gloo", config=self.config(zero_optimization={"stage": stage}), ranks=3)
            self.assertEqual(got, want, f"stage {stage} over Gloo")

    def test_a_pipeline_of_two_stages_learns_like_one_stage(self):
        base = {"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}
        want = self.losses("--eval_data", self.text, config=self.config(**base), ranks=2)
        for transport, pipeline in (("shm", {"stages": 2}), ("gloo", {"stages": 2}),
                                    ("shm", {"stages": 2, "schedule": "interleaved", "virtual_stages": 2}),
                                    ("shm", {"stages": 2, "schedule": "zb-h1"})):
            got = self.losses("--transport", transport, "--eval_data", self.text, ranks=4,
                              config=self.config(pipeline=pipeline, **base))
            for (loss, norm), (want_loss, want_norm) in zip(got, want, strict=True):
                self.assertAlmostEqual(loss / want_loss, 1, delta=1e-6)
                self.assertAlmostEqual(norm / want_norm, 1, delta=1e-6)
        out = self.dir / "pipeline"
        shown = self.train("--output", out, ranks=4, config=self.config(pipeline={"stages": 2}, **base)).stdout
        self.assertIn("pipeline: 2 stages, 4 micro-batches, 1f1b; expected idle share", shown)
        self.assertIn("stage 0 has wte..", shown)
        self.train("--output", out, "--resume", "required", steps=4, ranks=2, config=self.config(**base))
        self.assertIn("loss", self.run_cleave("eval", out, "--data", self.text).stdout)

    def test_exact_sums_give_the_bits_of_one_rank_over_layouts_and_transports(self):
        def losses(ranks, accumulation, *args, **changes):
            config = self.config(cleave={"exact_sums": True}, gradient_accumulation_steps=accumulation, **changes)
            return self.losses(*args, config=config, ranks=ranks, steps=6)
        want = losses(1, 12)
        self.assertEqual(losses(2, 6, "--transport", "shm", zero_optimization={"stage": 2}), want)
        self.assertEqual(losses(3, 4, "--transport", "gloo", zero_optimization={"stage": 3}), want)
        self.assertEqual(losses(4, 6, "--transport", "gloo", pipeline={"stages": 2, "schedule": "zb-h1"},
                                zero_optimization={"stage": 1, "offload_optimizer": {"device": "cpu"}}), want)
        self.assertEqual(losses(12, 2, "--transport", "shm", pipeline={"stages": 2},
                                activation_checkpointing={"partition_activations": True}), want)

    def test_recomputed_activations_change_no_bit_and_take_less_memory(self):
        def run(**changes):
            metrics = self.dir / "m.jsonl"
            shown = self.train("--metrics", metrics, "--verbose", config=self.config(**changes)).stdout
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            metrics.unlink()
            memory = next(line for line in shown.splitlines() if "activations  " in line)
            return [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line], memory
        want, whole = run()
        for section in ({"interval": 1}, {"number_checkpoints": 2}, {"policy": "selective"}):
            got, memory = run(activation_checkpointing=section)
            self.assertEqual(got, want, section)
            self.assertNotEqual(memory, whole, section)

    def test_invalid_pipelines_are_errors_with_valid_values(self):
        three = self.train(ranks=4, config=self.config(pipeline={"stages": 3}), code=2)
        self.assertIn("3 stages do not divide 4 ranks; use 1, 2, 4", three.stdout + three.stderr)
        many = self.train(ranks=4, code=2, config=self.config(
            pipeline={"stages": 4, "schedule": "interleaved", "virtual_stages": 2}))
        self.assertIn(" layers, expected at most 6", many.stdout + many.stderr)
        schedule = self.dir / "own.json"
        schedule.write_text(json.dumps({"stages": 2, "micro_batches": 2, "ranks": ["F0 F1 B0 B1", "F0 B0 B1 F1"]}))
        broken = self.train(ranks=2, code=2, config=self.config(
            gradient_accumulation_steps=2, pipeline={"stages": 2, "schedule": str(schedule)}))
        self.assertIn("before its forward", broken.stdout + broken.stderr)
        schedule.write_text(json.dumps({"stages": 2, "micro_batches": 2, "ranks": ["F0 F1 B0 B1", "F0 F1 B0 B1"]}))
        self.train(config=self.config(gradient_accumulation_steps=2,
                                      pipeline={"stages": 2, "schedule": str(schedule)}))

    def test_eight_ranks_as_pipe_data_and_tensor_learn_like_one_rank(self):
        base = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
                "fp16": {"enabled": True, "initial_scale_power": 12}, "zero_optimization": {"stage": 3}}
        def config(name, **changes):
            path = self.dir / name
            path.write_text(json.dumps({"optimizer": CONFIG["optimizer"], **base, **changes}))
            return path
        cut = config("3d.json", pipeline={"stages": 2}, tensor_parallel={"autotp_size": 2})
        for model in ("tiny", "llama-tiny"):
            want = self.losses(ranks=1, model=model, config=config("one.json"))
            got = self.losses("--output", self.dir / model, ranks=8, model=model, config=cut)
            for (loss, norm), (want_loss, want_norm) in zip(got, want, strict=True):
                self.assertAlmostEqual(loss / want_loss, 1, delta=1e-3)  # fp16 rounds at other places
                self.assertAlmostEqual(norm / want_norm, 1, delta=1e-2)
            shared = config("shared.json", pipeline={"stages": 2}, sequence_parallel_size=2)
            for (loss, _), (want_loss, _) in zip(self.losses(ranks=8, model=model, config=shared), want, strict=True):
                self.assertAlmostEqual(loss / want_loss, 1, delta=1e-3)
            self.train("--output", self.dir / model, steps=5, ranks=2, model=model, config=config(
                "other.json", tensor_parallel={"tp": {"tp_size": 2}, "sequence_parallel": False}))
            self.run_cleave("eval", self.dir / model, "--data", self.text)

    def test_eval_and_generate_in_every_layout_equal_one_rank(self):
        disk = self.dir / "disk"
        disk.mkdir()
        self.train("--output", self.dir / "out", config=self.config("train.json", zero_optimization={"stage": 2}), steps=40)
        # Training keys are not used, although these ranks could not train with them.
        other = {"train_batch_size": 64, "gradient_accumulation_steps": 4, "activation_checkpointing": {"interval": 1},
                 "optimizer": {"type": "Lamb", "params": {"lr": "auto"}}, "bf16": {"enabled": "auto"}}
        def see(ranks, *args, **changes):
            layout = ["--deepspeed_config", self.config(**{**other, **changes})] if changes else []
            launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
            loss = self.run_cleave(*launch, "eval", self.dir / "out", "--data", self.text, "--micro_batch", 2, *layout, *args).stdout
            text = self.run_cleave(*launch, "generate", self.dir / "out", "--prompt", "the ", "--tokens", 12, "--temperature", 0,
                                   *layout, *args).stdout
            self.assertEqual(loss.count("nats per token, perplexity"), 1, "said once")
            return float(loss.split("loss ")[1].split()[0]), [line.removeprefix("[0] ") for line in text.splitlines()]
        want, text = see(1)
        self.assertEqual(len("\n".join(text)), 16)
        self.assertGreater(len(set(text[0][4:])), 2, text)
        for ranks, args, changes in (
            (2, [], {}),
            (2, [], {"pipeline": {"stages": 2}}),
            (2, ["--transport", "gloo"], {"pipeline": {"stages": 2, "schedule": "interleaved", "virtual_stages": 2}}),
            (2, [], {"tensor_parallel": {"autotp_size": 2}}),
            (4, [], {"pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2, "sequence_parallel": False}}),
            (2, [], {"sequence_parallel_size": 2}),
            (4, [], {"zero_optimization": {"stage": 3, "mics_shard_size": 2}}),
            (2, [], {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}),
            (4, [], {"pipeline": {"stages": 2}, "zero_optimization": {
                "stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(disk), "max_in_cpu": 0},
                "offload_optimizer": {"device": "nvme", "nvme_path": "/nowhere"}}})):
            got, same = see(ranks, *args, **changes)
            self.assertAlmostEqual(got / want, 1, delta=1e-6, msg=changes)
            self.assertEqual(same, text, changes)
        self.assertEqual(see(1, bf16={"enabled": True})[0], see(2, bf16={"enabled": True}, pipeline={"stages": 2})[0])
        self.assertEqual(list(disk.iterdir()), [])

    def test_eval_in_an_invalid_layout_is_an_error_with_the_reason(self):
        out = self.dir / "out"
        self.train("--output", out, ranks=1, steps=1)
        def refused(ranks, code, *args):
            r = self.run_cleave("launch", "-n", ranks, "--", "eval", out, "--data", self.text, *args, code=code)
            return r.stdout + r.stderr
        def layout(**changes):
            return "--deepspeed_config", self.config(**changes)
        self.assertIn("2 stages do not divide 3 ranks; use 1, 3", refused(3, 2, *layout(pipeline={"stages": 2})))
        self.assertIn("4 heads are not divisible by 3 ranks (expected", refused(3, 2, *layout(tensor_parallel={"autotp_size": 3})))
        self.assertIn("nowhere.json: cannot be read: No such file", refused(2, 2, "--deepspeed_config", "nowhere.json"))
        small = refused(2, 3, "--device_memory", "1MiB", *layout(pipeline={"stages": 2}))
        self.assertIn("weights", small)
        self.assertNotIn("gradients ", small)
        # The manifest has the config of another family, so its parameters are missing.
        manifest = out / (out / "latest").read_text().strip() / "manifest.json"
        text = json.dumps(version_2(json.loads(manifest.read_text())))
        llama = {"model_type": "llama", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 4,
                 "num_attention_heads": 4}
        def other_family(value):
            if isinstance(value, dict):
                return {k: llama if k == "config" else other_family(v) for k, v in value.items()}
            return value
        manifest.write_text(json.dumps(other_family(json.loads(text))))
        self.assertIn("model.embed_tokens", refused(2, 4, *layout(pipeline={"stages": 2})))
        manifest.write_text(text.replace("tokenizer", "something"))
        self.assertIn("was not written by cleave train", refused(2, 4))

    def test_layers_that_cannot_be_cut_are_errors_with_valid_values(self):
        refused = self.train(ranks=3, config=self.config(tensor_parallel={"autotp_size": 3}), code=2)
        self.assertIn("4 heads are not divisible by 3 ranks (expected 1, 2, 4", refused.stderr)
        heads = self.train(ranks=8, config=self.config(sequence_parallel_size=8), model="llama-tiny", code=2)
        self.assertIn("8 ranks (expected 1, 2, 4", heads.stderr)
        divide = self.train(ranks=3, config=self.config(tensor_parallel={"autotp_size": 2}), code=2)
        self.assertIn("2 tensor ranks do not divide 3 ranks; use 1, 3", divide.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
