#!/usr/bin/env python3
"""The memory and traffic of a job are known, and checked, before it starts."""
import concurrent.futures
import json
import os
import re
import subprocess
import unittest

from app_test import AppTest, CLEAVE, CONFIG


class Plan(AppTest):
    def test_a_plan_equals_the_measurement_in_training(self):
        config = self.config(gradient_accumulation_steps=3, pipeline={"stages": 2}, bf16={"enabled": True},
                             zero_optimization={"stage": 1, "offload_optimizer": {"device": "cpu"}})
        shape = ["--deepspeed_config", config, "--model", "tiny", "--seq_len", "32", "--world_size", "4"]
        plan = json.loads(self.run_cleave("plan", *shape, "--json").stdout)
        self.assertEqual(plan["mesh"], {"pipe": 2, "data": 2, "sequence": 1, "tensor": 1})
        first = next(r for r in plan["ranks"] if 0 in r["ranks"])
        metrics = self.dir / "planned.jsonl"
        self.train("--metrics", metrics, ranks=4, config=config)
        start, *steps, end = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual(start["memory_planned"], first["memory"])
        self.assertEqual(end["memory_peak"], first["memory"])
        sent = {}
        for group in first["comm_bytes"].values():
            for collective, count in group.items():
                sent[collective] = sent.get(collective, 0) + count
        for step in steps:
            self.assertEqual(step["comm_bytes"], sent)

        self.assertIn("needs the most", self.run_cleave("plan", *shape).stdout)
        page = self.dir / "plan.html"
        self.run_cleave("plan", *shape, "--html", page)
        self.assertIn("One step of the pipeline", page.read_text())
        lost = self.run_cleave("plan", *shape, "--html", self.dir / "no folder" / "plan.html", code=2).stderr
        self.assertIn("cannot be written", lost)
        small = self.run_cleave("plan", *shape, "--device_memory", "1MiB", code=3)
        self.assertIn("the plan does not fit", small.stderr)
        self.assertIn("no change of the ds_config was found", small.stderr)
        self.assertIn("use more ranks, a shorter --seq_len, or a smaller model", small.stderr)
        self.assertIn("use 1, 3", self.run_cleave("plan", *shape[:-1], "3", code=2).stderr)
        self.assertIn("not.json", self.run_cleave("plan", "--deepspeed_config", "not.json", code=2).stderr)

    def plans(self, jobs):
        """Returns the exit codes of plans, two at a time; a plan that fails is a usage error or does not fit."""
        def plan(job):
            config, model, world = job
            path = self.dir / f"{abs(hash(json.dumps(job)))}.json"
            path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, **config}))
            r = subprocess.run(list(map(str, [CLEAVE, "plan", "--deepspeed_config", path, "--model", model, "--seq_len", 64, "--world_size", world])),
                               capture_output=True, text=True)
            self.assertIn(r.returncode, (0, 2, 3), f"{job}\n{r.stderr}")
            return r.returncode
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(plan, jobs))

    def test_adapters_and_frozen_layers_have_a_plan_at_every_tensor_size(self):
        presets = ["gpt2", "llama-3.2-1b", "llama-3.1-8b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-4b", "mistral-7b-v0.3",
                   "phi-3-mini", "gemma-2-2b", "gemma-3-1b"]
        trained = [{"lora": {"targets": ["c_attn" if p == "gpt2" else "qkv_proj" if p.startswith("phi") else "q_proj"]}} for p in presets]
        jobs = [({"bf16": {"enabled": True}, "tensor_parallel": {"autotp_size": size}, "cleave": own}, preset, size)
                for preset, few in zip(presets, trained) for size in (1, 2, 4, 8, 16, 32)
                for own in (few, {"lora": {"targets": "all-linear"}}, {"freeze": ["*.mlp.*"]})]
        codes = self.plans(jobs)
        more = [code for code, (config, preset, size) in zip(codes, jobs) if preset == "llama-3.2-1b" and size in (16, 32)]
        self.assertEqual(more, [0] * 6, "8 key/value heads of")
        self.assertGreater(codes.count(0), len(codes) // 2)

    def test_parameters_on_disk_come_in_the_order_of_their_use(self):
        def job(model, own, limit, stage3):
            zero = {"stage": 3, "stage3_param_persistence_threshold": stage3, "stage3_max_live_parameters": limit,
                    "offload_param": {"device": "nvme", "nvme_path": str(self.dir), "max_in_cpu": 0}}
            return {"zero_optimization": zero, "cleave": own}, model, 2
        models = ["tiny", "llama-tiny", "qwen2-tiny", "phi-3-tiny", "gemma-2-tiny"]
        owns = [{"lora": {"targets": "all-linear"}}, {"freeze": ["*.mlp.*"]}, {"freeze": ["*norm*", "*ln_*"]}, {}]
        jobs = [job(m, own, limit, threshold) for m in models for own in owns for limit in (1, 30000, 200000, 300000, 10**6, 10**9)
                for threshold in (0, 1000)]
        codes = self.plans(jobs)
        self.assertGreater(codes.count(0), len(codes) // 2)
        config, model, _ = job("llama-tiny", owns[0], 300000, 1000)
        alike = {}
        for limit in (1, 300000, 10**9):
            config["zero_optimization"]["stage3_max_live_parameters"] = limit
            alike[limit] = self.losses(ranks=2, model=model, config=self.config(**config))
        self.assertEqual(alike[1], alike[10**9])
        self.assertEqual(alike[300000], alike[10**9])

    def test_resident_memory_equals_the_plan(self):
        # In addition to the plan: the binary, its libraries and stacks (18 MiB), and the scratch of this model's matrix products.
        beside = 48 << 20
        model = self.dir / "wide.json"
        model.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 512, "n_positions": 128, "n_embd": 768, "n_layer": 5,
                                     "n_head": 12, "attn_pdrop": 0.0, "activation_function": "gelu_new"}))
        offload = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
        for name, changes in [("fp32", {}), ("bf16", {"bf16": {"enabled": True}}), ("offload", {"zero_optimization": offload})]:
            path = self.dir / f"{name}.json"
            path.write_text(json.dumps({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, **changes}))
            options = ["--deepspeed_config", path, "--model", model, "--seq_len", 64]
            plan = json.loads(self.run_cleave("plan", *options, "--json").stdout)["ranks"][0]["memory"]
            planned = sum(sum(categories.values()) for kind, categories in plan.items() if kind != "disk")
            self.assertGreater(planned, 500 << 20)
            trained = subprocess.Popen(list(map(str, [CLEAVE, "train", *options, "--data", self.text, "--steps", 2])),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env={**os.environ, "OMP_NUM_THREADS": "1"})
            _, status, usage = os.wait4(trained.pid, 0)
            trained.returncode = status
            self.assertEqual(status, 0, name)
            resident = usage.ru_maxrss << 10
            self.assertGreater(resident, 0.98 * planned, name)
            self.assertLess(resident, 1.02 * planned + beside, name)

    def test_proposals_of_a_failed_plan_fit(self):
        config = {**CONFIG, "train_micro_batch_size_per_gpu": 8}
        path = self.config(**config)
        shape = ["--model", "tiny", "--seq_len", "32", "--world_size", "2"]
        most = 2 * max(sum(r["memory"]["device"].values()) for r in json.loads(
            self.run_cleave("plan", "--deepspeed_config", path, *shape, "--json").stdout)["ranks"]) // 3
        limit = ["--device_memory", str(most)]
        refused = self.run_cleave("plan", "--deepspeed_config", path, *shape, *limit, code=3).stderr
        proposals = [line.strip() for line in refused.splitlines() if line.startswith("  {")]
        self.assertTrue(1 <= len(proposals) <= 3, refused)
        self.assertIn("device", proposals[0])
        for line in proposals:
            patch, end = json.JSONDecoder().raw_decode(line)
            changed = self.config("changed.json", **{**config, **patch})
            self.run_cleave("plan", "--deepspeed_config", changed, *shape, *limit)
            self.train("--device_memory", str(most), config=changed, steps=1)
        # Training reports the same errors, before any rank waits for another.
        self.assertIn("changes that make it fit", self.train(*limit, config=path, code=3).stderr)

    def test_a_suggested_configuration_is_one_that_fits(self):
        path = self.config(train_micro_batch_size_per_gpu=16)
        shape = ["--deepspeed_config", path, "--model", "gpt2-xl", "--seq_len", "1024", "--world_size", "4"]
        self.assertIn("--device", self.run_cleave("plan", *shape, "--suggest", code=2).stderr)
        found = self.run_cleave("plan", *shape, "--device", "a100-40", "--suggest")
        suggested = self.dir / "suggested.json"
        suggested.write_text(found.stdout)
        batch = json.loads(found.stdout)["train_batch_size"]
        self.assertEqual(batch, 64)
        again = self.run_cleave("plan", "--deepspeed_config", suggested, *shape[2:], "--device", "a100-40")
        self.assertIn("not exact", again.stdout)
        self.assertIn("the given one:", found.stderr)
        self.assertRegex(found.stderr, r"this one: .* (less time|more time|the same time)\n")
        predicted = json.loads(self.run_cleave("plan", "--deepspeed_config", suggested, *shape[2:], "--device", "a100-40",
                                               "--json").stdout)["predicted"]
        self.assertIn(f"{predicted['step_s']:.4g} s a step", again.stdout)
        self.assertAlmostEqual(predicted["step_s"], sum(predicted[f"{part}_s"] for part in (
            "compute", "pipeline_idle", "communication", "update")))
        self.assertIn("use more ranks", self.run_cleave("plan", *shape, "--device", "a100-40", "--suggest",
                                                        "--device_memory", "1MiB", code=3).stderr)
        self.assertIn("host memory", self.run_cleave("plan", *shape, "--ranks_here", "4", code=3).stderr)

    def test_a_plan_that_does_not_fit_is_an_error_with_the_table(self):
        r = self.train("--device_memory", "5MiB", code=3)
        for part in ("does not fit", "weights", "optimizer_state", "total", "largest:"):
            self.assertIn(part, r.stderr)
        self.assertEqual(self.times_said("does not fit", r.stderr), 1, "said once, not by every rank")
        plan = ["plan", "--deepspeed_config", self.config(), "--model", "tiny", "--seq_len", 32, "--device_memory", "5MiB"]
        for more in [], ["--json"]:
            r = self.run_cleave(*plan, *more, code=3)
            self.assertEqual(len(re.findall(r"^  optimizer_state ", r.stdout + r.stderr, re.M)), 1, "the plan or the error has the table")
            self.assertIn("does not fit: ", r.stderr)
            self.assertIn("largest: ", r.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
