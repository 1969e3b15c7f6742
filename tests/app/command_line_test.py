#!/usr/bin/env python3
"""The contract of the command line, tried as a user would: real processes, real files, exit codes and messages."""
import glob
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

CLEAVE = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def shared_memory():
    return set(glob.glob("/dev/shm/*cleave*"))


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cleave test "))  # a path with a blank
        self.before = shared_memory()
        rng = random.Random(5)
        words = ["light", "water", "earth", "heaven", "and", "the", "was", "upon", "face", "deep"]
        self.text = self.dir / "text.txt"
        self.text.write_text(" ".join(rng.choice(words) for _ in range(4000)) + "\n")

    def tearDown(self):
        self.assertEqual(shared_memory() - self.before, set(), "shared memory was left behind")
        shutil.rmtree(self.dir)

    def config(self, name="ds_config.json", **changes):
        path = self.dir / name
        path.write_text(json.dumps({**CONFIG, **changes}, indent=1))
        return path

    def run_cleave(self, *args, code=0, env=None, timeout=120):
        r = subprocess.run([CLEAVE, *map(str, args)], capture_output=True, text=True, errors="replace", timeout=timeout,
                           env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})
        self.assertEqual(r.returncode, code, f"{args}\n{r.stdout}\n{r.stderr}")
        return r

    def train(self, *args, ranks=2, config=None, steps=3, code=0, env=None, model="tiny"):
        command = ["train", "--deepspeed_config", config or self.config(), "--model", model, "--data", self.text,
                   "--seq_len", 32, "--steps", steps, *args]
        if ranks > 1:
            command = ["launch", "-n", ranks, "--", *command]
        return self.run_cleave(*command, code=code, env=env)

    def losses(self, *args, **kwargs):
        metrics = self.dir / f"metrics {time.monotonic_ns()}.jsonl"
        self.train("--metrics", metrics, *args, **kwargs)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual(lines[0]["event"], "start")
        self.assertEqual(lines[-1]["event"], "end")
        return [(line["loss"], line["grad_norm"]) for line in lines[1:-1]]

    def test_help_is_there_for_every_command(self):
        self.assertIn("train", self.run_cleave("--help").stdout)
        for command in ["train", "launch", "check", "plan", "eval", "generate", "data", "report"]:
            self.assertIn("Example:", self.run_cleave(command, "--help").stdout)
        self.assertIn("not a command", self.run_cleave("trian", code=2).stderr)

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

    def test_a_pipeline_of_two_stages_learns_what_one_stage_learns(self):
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
            shown = self.train("--metrics", metrics, config=self.config(**changes)).stdout
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            metrics.unlink()
            memory = next(line for line in shown.splitlines() if "activations  " in line)
            return [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line], memory
        want, whole = run()
        for section in ({"interval": 1}, {"number_checkpoints": 2}, {"policy": "selective"}):
            got, memory = run(activation_checkpointing=section)
            self.assertEqual(got, want, section)
            self.assertNotEqual(memory, whole, section)

    def test_pipelines_that_do_not_fit_are_refused_with_what_works(self):
        three = self.train(ranks=4, config=self.config(pipeline={"stages": 3}), code=2)
        self.assertIn("3 stages do not divide 4 ranks; use 1, 2, 4", three.stdout + three.stderr)
        many = self.train(ranks=4, code=2, config=self.config(
            pipeline={"stages": 4, "schedule": "interleaved", "virtual_stages": 2}))
        self.assertIn("use at most 6", many.stdout + many.stderr)
        schedule = self.dir / "own.json"
        schedule.write_text(json.dumps({"stages": 2, "micro_batches": 2, "ranks": ["F0 F1 B0 B1", "F0 B0 B1 F1"]}))
        broken = self.train(ranks=2, code=2, config=self.config(
            gradient_accumulation_steps=2, pipeline={"stages": 2, "schedule": str(schedule)}))
        self.assertIn("before its forward", broken.stdout + broken.stderr)
        schedule.write_text(json.dumps({"stages": 2, "micro_batches": 2, "ranks": ["F0 F1 B0 B1", "F0 F1 B0 B1"]}))
        self.train(config=self.config(gradient_accumulation_steps=2,
                                      pipeline={"stages": 2, "schedule": str(schedule)}))

    def test_eight_ranks_as_pipe_data_and_tensor_learn_what_one_rank_learns(self):
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

    def test_layers_that_cannot_be_cut_are_refused_with_what_works(self):
        refused = self.train(ranks=3, config=self.config(tensor_parallel={"autotp_size": 3}), code=2)
        self.assertIn("4 heads cannot be cut over 3 tensor ranks; tensor_parallel.autotp_size may be 1, 2, 4", refused.stderr)
        heads = self.train(ranks=4, config=self.config(sequence_parallel_size=4), model="llama-tiny", code=2)
        self.assertIn("4 sequence ranks; sequence_parallel_size may be 1, 2", heads.stderr)
        divide = self.train(ranks=3, config=self.config(tensor_parallel={"autotp_size": 2}), code=2)
        self.assertIn("2 tensor ranks do not divide 3 ranks; use 1, 3", divide.stderr)

    def test_auto_takes_the_trainers_defaults_and_its_options(self):
        config = self.dir / "auto.json"
        config.write_text(json.dumps({
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                              "warmup_num_steps": "auto", "total_num_steps": "auto"}},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                                  "stage3_param_persistence_threshold": "auto"}}))
        def values(*args):
            metrics = self.dir / "auto.jsonl"
            self.train("--metrics", metrics, *args, config=config, steps=2)
            return json.loads(metrics.read_text().splitlines()[0])["config"]
        start = values()
        self.assertEqual((start["train_batch_size"], start["gradient_clipping"], start["optimizer.params.lr"]), (16, 1, 5e-5))
        start = values("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "3", "--learning-rate", "0.01",
                       "--bf16", "true")
        self.assertEqual((start["train_batch_size"], start["optimizer.params.lr"], start["bf16.enabled"]), (12, 0.01, True))

    def test_a_plan_is_what_training_then_measures(self):
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
        sent["all_reduce"] += 3 * 8  # between steps the ranks agree on going on: one fp64 to each of the others
        self.assertEqual(steps[1]["comm_bytes"], sent)

        self.assertIn("needs the most", self.run_cleave("plan", *shape).stdout)
        page = self.dir / "plan.html"
        self.run_cleave("plan", *shape, "--html", page)
        self.assertIn("One step of the pipeline", page.read_text())
        lost = self.run_cleave("plan", *shape, "--html", self.dir / "no folder" / "plan.html", code=2).stderr
        self.assertIn("cannot be written", lost)
        small = self.run_cleave("plan", *shape, "--device_memory", "1MiB", code=3)
        self.assertIn("the plan does not fit", small.stderr)
        self.assertIn("no change of the configuration was found", small.stderr)
        self.assertIn("use 1, 3", self.run_cleave("plan", *shape[:-1], "3", code=2).stderr)
        self.assertIn("not.json", self.run_cleave("plan", "--deepspeed_config", "not.json", code=2).stderr)

    def test_resume_continues_bit_for_bit_and_stops_on_request_with_75(self):
        out = self.dir / "out put"
        whole = self.losses(steps=6)
        metrics = self.dir / "m.jsonl"
        self.train("--output", out, "--metrics", metrics, steps=3)
        self.train("--output", out, "--metrics", metrics, steps=6)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual([(x["loss"], x["grad_norm"]) for x in lines if "loss" in x], whole)
        self.assertIn("already", self.train("--output", out, steps=6).stdout)

        stopped = subprocess.Popen([CLEAVE, "launch", "-n", "2", "--", "train", "--deepspeed_config", self.config(),
                                    "--model", "tiny", "--data", self.text, "--seq_len", "32", "--steps", "100000",
                                    "--output", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
        for line in stopped.stdout:
            if " step " in line:
                break
        stopped.send_signal(signal.SIGTERM)
        rest = stopped.stdout.read()
        stopped.stdout.close()
        self.assertEqual(stopped.wait(60), 75, rest)
        self.assertIn("stop requested", rest)
        self.assertGreater(int((out / "latest").read_text().strip().removeprefix("global_step")), 6)

    def test_a_killed_rank_ends_all_names_the_cause_and_leaves_nothing(self):
        job = subprocess.Popen([CLEAVE, "launch", "-n", "3", "--", "train", "--deepspeed_config", self.config(),
                                "--model", "tiny", "--data", self.text, "--seq_len", "32", "--steps", "100000"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
        for line in job.stdout:
            if " step " in line:
                break
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(children), 3)
        os.kill(int(children[1]), signal.SIGKILL)
        began = time.monotonic()
        rest = job.stdout.read()
        job.stdout.close()
        self.assertEqual(job.wait(60), 128 + signal.SIGKILL, rest)
        self.assertLess(time.monotonic() - began, 30)  # far below the communication deadline of 600 s
        self.assertIn("killed by signal 9", rest.splitlines()[-1])
        for pid in children:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "a rank is still there")

    def test_resident_memory_is_what_was_planned(self):
        # Beside the plan: the binary, its libraries and stacks (18 MiB) and the scratch of this model's matrix products.
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

    def test_check_reports_every_error_with_its_position(self):
        path = self.dir / "bad.json"
        path.write_text('{\n "train_batch_size": "8",\n "gradient_clipp1ng": 1.0,\n "zero_optimization": {"stage": 7}\n}\n')
        err = self.run_cleave("check", path, code=2).stderr
        for part in ("bad.json:2:", "bad.json:3:", "bad.json:4:", "gradient_clipping", "train_batch_size", "stage"):
            self.assertIn(part, err)

    def test_report_says_what_the_machine_offers_and_what_is_missing(self):
        report = json.loads(self.run_cleave("report", "--json").stdout)
        with open("/proc/cpuinfo") as f:
            self.assertIn(report["cpu"]["model"], f.read())
        self.assertEqual(report["cpu"]["cores_usable"], len(os.sched_getaffinity(0)))
        self.assertIn("avx2", report["cpu"]["instruction_sets"])
        self.assertGreater(report["cpu"]["memory_bytes"], 1 << 28)
        self.assertEqual(bool(report["cuda"]["gpus"]), not any("GPU" == m["for"].split()[-1] for m in report["missing"]))
        uring = report["io_uring"]
        self.assertEqual(bool(uring["problem"]), any("io_uring" in m["for"] for m in report["missing"]))
        text = self.run_cleave("report").stdout
        self.assertIn("threads" if uring["problem"] else f"liburing {uring['liburing']}", text)
        self.assertIn(report["cpu"]["model"], text)
        for m in report["missing"]:
            self.assertIn(m["what"], text)

    def test_every_key_of_a_guide_s_configuration_is_explained(self):
        out = self.run_cleave("check", "--world_size", 2, ROOT / "examples/gpt2_large/ds_config.json").stdout
        for key in ("train_batch_size", "fp16.enabled", "fp16.loss_scale", "zero_optimization.stage", "overlap_comm",
                    "allgather_partitions", "contiguous_gradients", "reduce_bucket_size", "pin_memory"):
            self.assertIn(key, out)

    def test_bad_input_has_its_exit_code_and_says_what_to_do(self):
        empty = self.dir / "empty.txt"
        empty.write_text("")
        for args, code, part in [
            (["--deepspeed_config", self.dir / "none.json", "--data", self.text], 2, "none.json"),
            (["--deepspeed_config", self.config(), "--data", self.dir / "none.txt"], 7, "none.txt"),
            (["--deepspeed_config", self.config(), "--data", empty], 7, "empty.txt"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--seq_len", 2000], 2, "1024"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--model", "gpt5"], 2, "gpt2-medium"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--steps", "many"], 2, "steps"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--device", "gpu"], 2, "cuda:INDEX"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--gpu_transport", "mpi"], 2, "auto, nccl and host"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--device", "cpu", "--gpu_transport", "nccl"], 2, "CPU"),
            (["--deepspeed_config", self.config("f.json", train_batch_size=7), "--data", self.text], 2, "train_batch_size"),
            (["--deepspeed_config", self.config("g.json", train_micro_batch_size_per_gpu=100000), "--data", self.text], 7, "100000"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--resume", "required", "--output", self.dir / "x"], 4, "latest"),
        ]:
            r = self.run_cleave("train", *args, code=code)
            self.assertIn(part, r.stderr)
            self.assertTrue(any(line.startswith(("error:", str(self.dir))) for line in r.stderr.splitlines()), r.stderr)
        self.assertFalse((self.dir / "x").exists())

    def test_a_gpu_that_is_not_there_is_refused_with_the_fix(self):
        if json.loads(self.run_cleave("report", "--json").stdout)["cuda"]["gpus"]:
            self.skipTest("there is a GPU")
        for wanted in "cuda", "cuda:0":
            r = self.train("--device", wanted, ranks=1, code=2)
            self.assertIn("--device cpu", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
            r = self.train("--device", wanted, ranks=3, code=2)
            self.assertEqual(r.stderr.count("--device cpu"), 1, r.stderr)
            self.assertIn("rank 0 ended with exit code 2", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 2, r.stderr)

    def test_what_a_refused_plan_proposes_fits_when_tried(self):
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
        # Training refuses alike, before any rank waits for another.
        self.assertIn("what would make it fit", self.train(*limit, config=path, code=3).stderr)

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
        self.assertIn("use more ranks", self.run_cleave("plan", *shape, "--device", "a100-40", "--suggest",
                                                        "--device_memory", "1MiB", code=3).stderr)
        self.assertIn("this machine's part", self.run_cleave("plan", *shape, "--ranks_here", "4", code=3).stderr)

    def test_a_plan_that_does_not_fit_is_refused_with_the_table(self):
        r = self.train("--device_memory", "5MiB", code=3)
        for part in ("does not fit", "weights", "optimizer_state", "total", "largest:"):
            self.assertIn(part, r.stderr)
        self.assertEqual(r.stderr.count("does not fit"), 1, "said once, not by every rank")

    def test_a_port_in_use_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            r = self.run_cleave("launch", "-n", 2, "--master_port", port, "--", "train", "--deepspeed_config", self.config(),
                                "--data", self.text, code=2)
            self.assertIn(str(port), r.stderr)

    def test_a_full_disk_leaves_the_checkpoint_before_it(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to mount a small tmpfs")
        small = self.dir / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m", "none", small]).returncode != 0:
            self.skipTest("mounting is not allowed here")
        try:
            self.train("--output", small, ranks=1, steps=1)
            r = self.train("--output", small, ranks=1, steps=2, code=4)
            self.assertIn("No space left", r.stderr)
            self.assertEqual((small / "latest").read_text().strip(), "global_step1")
            self.assertEqual([p.name for p in small.iterdir() if p.name.startswith(".")], [])
            self.run_cleave("eval", small, "--data", self.text)
        finally:
            subprocess.run(["umount", small], check=True)

    def on_disk(self, folder, **more):
        return {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": str(folder), **more}, "sub_group_size": 40000}

    def test_state_on_disk_gives_the_same_bits_and_the_start_says_how_fast_the_disk_is(self):
        disk = self.dir / "di sk"
        disk.mkdir()
        want = self.losses(config=self.config(zero_optimization={"stage": 2}), ranks=2)
        config = self.config(zero_optimization=self.on_disk(disk), aio={"queue_depth": 4})
        self.assertEqual(self.losses(config=config, ranks=2), want)
        self.assertEqual(list(disk.iterdir()), [])
        out = self.train(config=config).stdout
        for part in ("di sk", "reads", "writes", "at least", "4 x 1.00 MiB"):
            self.assertIn(part, out)
        plan = self.run_cleave("plan", "--deepspeed_config", config, "--model", "tiny", "--seq_len", 32, "--world_size", 2)
        self.assertIn("disk", plan.stdout)

    def test_a_disk_that_cannot_be_used_is_refused_before_training(self):
        disk = self.dir / "disk"
        disk.mkdir()
        (self.dir / "file").write_text("")
        for path, part in ((self.dir / "missing", "No such file"), (self.dir / "file", "not a folder")):
            r = self.train(config=self.config(zero_optimization=self.on_disk(path)), ranks=3, code=2)
            self.assertIn(part, r.stderr)
            self.assertEqual(r.stderr.count("nvme_path: "), 1, "said once, not by every rank")
        zero = {"stage": 1, "offload_optimizer": {"device": "nvme"}}
        self.assertIn("needs nvme_path", self.train(config=self.config(zero_optimization=zero), ranks=1, code=2).stderr)
        self.assertIn("0 to 1", self.train(config=self.config(zero_optimization=self.on_disk(disk, ratio=2)), code=2).stderr)
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "none", disk]).returncode != 0:
            self.skipTest("needs to mount a small tmpfs")
        try:  # 11 MiB of state: each of two ranks has room for its half, but not both
            r = self.train(config=self.config(zero_optimization=self.on_disk(disk)), ranks=2, code=3)
            for part in ("2 of the ranks", "9437184 bytes", "nvme_path", "larger disk"):
                self.assertIn(part, r.stderr)
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            r = self.train(config=self.config(zero_optimization=self.on_disk(disk)), ranks=2, code=2)
            self.assertIn("Read-only file system", r.stderr)
            self.assertEqual(list(disk.iterdir()), [])
        finally:
            subprocess.run(["umount", disk], check=True)

    # CLEAVE_KILLS=50 for the long form.
    def test_ranks_killed_at_any_time_leave_nothing_on_the_disk_and_resume(self):
        disk, out = self.dir / "disk", self.dir / "out"
        disk.mkdir()
        config = self.config(zero_optimization=self.on_disk(disk))
        rng, reached = random.Random(3), 0
        for kill in range(int(os.environ.get("CLEAVE_KILLS", 3))):
            job = subprocess.Popen([CLEAVE, "launch", "-n", "2", "--", "train", "--deepspeed_config", config, "--model", "tiny",
                                    "--data", self.text, "--seq_len", "32", "--steps", "100000", "--output", out,
                                    "--save_interval", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
            said = []
            for line in job.stdout:
                said.append(line)
                if "saved" in line:
                    break
            time.sleep(rng.random() * 0.3)
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True).stdout.split()
            os.kill(int(rng.choice(children)), signal.SIGKILL)
            job.stdout.read()
            job.stdout.close()
            self.assertNotEqual(job.wait(60), 0)
            self.assertEqual(list(disk.iterdir()), [], f"kill {kill}")
            self.assertEqual(any("resumed from" in line for line in said), kill > 0, said)
            at = int((out / "latest").read_text().strip().removeprefix("global_step"))
            self.assertGreater(at, reached)
            reached = at

    def test_eval_and_generate_read_a_checkpoint_of_any_precision(self):
        for section in ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}):
            out = self.dir / f"out{len(section)}{list(section)}"
            self.train("--output", out, config=self.config(zero_optimization={"stage": 3}, **section), steps=2)
            loss = float(self.run_cleave("eval", out, "--data", self.text).stdout.split()[1])
            self.assertTrue(3 < loss < 6, loss)
            a = self.run_cleave("generate", out, "--prompt", "the", "--tokens", 5, "--seed", 3)
            self.assertTrue(a.stdout.startswith("the"))

    def test_llama_and_qwen2_train_save_resume_evaluate_and_generate(self):
        folder = self.dir / "a model"
        folder.mkdir()
        shape = {"model_type": "qwen2", "vocab_size": 300, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
        (folder / "config.json").write_text(json.dumps(shape))
        for model in ("llama-tiny", "qwen2-tiny", folder, folder / "config.json"):
            out = self.dir / "out"
            metrics = self.dir / "m.jsonl"
            config = self.config(zero_optimization={"stage": 3}, bf16={"enabled": True})
            whole = self.losses(model=model, config=config, steps=4)
            for steps in (2, 4):
                self.train("--output", out, "--metrics", metrics, model=model, config=config, steps=steps)
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            self.assertEqual([(x["loss"], x["grad_norm"]) for x in lines if "loss" in x], whole)
            hidden = folder.rename(self.dir / "moved away")  # a checkpoint does not need the file that named its model
            loss = float(self.run_cleave("eval", out, "--data", self.text).stdout.split()[1])
            self.assertTrue(3 < loss < 7, loss)
            text = self.run_cleave("generate", out, "--prompt", "the", "--tokens", 4, "--temperature", 0).stdout
            self.assertTrue(text.startswith("the"))
            hidden.rename(folder)
            shutil.rmtree(out)
            metrics.unlink()

    def test_resuming_with_a_changed_config_json_says_what_changed(self):
        path = self.dir / "config.json"
        shape = {"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
                 "num_attention_heads": 2}
        for rope_theta, said in ((10000.0, False), (20000.0, True)):
            path.write_text(json.dumps({**shape, "rope_theta": rope_theta}))
            out = self.train("--output", self.dir / "out", model=path, steps=int(rope_theta / 10000)).stdout
            self.assertEqual("warning: rope_theta of the model" in out, said, out)
        path.write_text(json.dumps({**shape, "intermediate_size": 24}))
        err = self.train("--output", self.dir / "out", model=path, steps=3, code=4).stderr
        self.assertIn("mlp.", err)

    def test_a_config_json_that_cannot_be_made_says_why(self):
        path = self.dir / "config.json"
        for text, parts in (
            ("{}", ["config.json", "model_type"]),
            ('{"model_type": "llama", "hidden_act": "gelu", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}',
             ["hidden_act", "yarn", "vocab_size: missing", "num_hidden_layers: missing"]),
        ):
            path.write_text(text)
            r = self.train(model=path, code=2)
            for part in parts:
                self.assertIn(part, r.stderr)
            self.assertEqual(r.stderr.count(parts[-1]), 1, "said once, not by every rank")

    def test_monitors_are_written_where_the_config_says(self):
        self.train(config=self.config(tensorboard={"enabled": True, "output_path": str(self.dir / "tb"), "job_name": "j"},
                                      csv_monitor={"enabled": True, "output_path": str(self.dir / "csv"), "job_name": "j"}))
        self.assertEqual(len(list((self.dir / "tb" / "j").glob("events.out.tfevents.*"))), 1)
        lines = (self.dir / "csv" / "j" / "Train_Samples_lr.csv").read_text().splitlines()
        self.assertEqual(lines[0], "step,lr")
        self.assertEqual(len(lines), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
