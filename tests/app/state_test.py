#!/usr/bin/env python3
"""Checkpoints, state on disk, and the files that remain after any end of a job."""
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

from app_test import AppTest, CLEAVE


class State(AppTest):
    def on_disk(self, folder, **more):
        return {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": str(folder), **more}, "sub_group_size": 70000}

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
            if "/100000  loss" in line:
                break
        stopped.send_signal(signal.SIGTERM)
        rest = stopped.stdout.read()
        stopped.stdout.close()
        self.assertEqual(stopped.wait(60), 75, rest)
        self.assertIn("stop requested", rest)
        self.assertGreater(int((out / "latest").read_text().strip().removeprefix("global_step")), 6)

    def steps_in(self, folder):
        return sorted(int(f.name.removeprefix("global_step")) for f in folder.iterdir() if f.name.startswith("global_step"))

    def test_checkpoints_are_kept_by_count_and_by_step_and_saved_by_the_clock(self):
        out = self.dir / "kept"
        self.train("--output", out, "--save_interval", 1, "--keep", 2, "--keep_every", 4, steps=11)
        self.assertEqual(self.steps_in(out), [4, 8, 10, 11])
        self.train("--output", out, "--save_interval", 1, "--keep", 1, "--keep_every", 4, steps=14)
        self.assertEqual(self.steps_in(out), [4, 8, 12, 14])
        self.train("--output", out, "--save_interval", 1, "--keep", 1, "--keep_every", 4, steps=16)
        self.assertEqual(self.steps_in(out), [4, 8, 12, 16])  # 15 is removed after the next save
        by_clock = self.dir / "clock"
        self.train("--output", by_clock, "--save_minutes", 1e-6, "--keep", 0, steps=4)
        self.assertEqual(self.steps_in(by_clock), [1, 2, 3, 4])
        rarely = self.dir / "rarely"
        self.train("--output", rarely, "--save_minutes", 60, "--keep", 0, steps=4)
        self.assertEqual(self.steps_in(rarely), [4])
        for option in ("--save_minutes", "--save_interval", "--keep_every"):
            self.assertIn(f"{option}: needs --output", self.train(option, 2, ranks=1, code=2).stderr)

    def test_a_file_save_now_requests_a_save(self):
        out = self.dir / "out"
        job = subprocess.Popen([CLEAVE, "launch", "-n", "2", "--", "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data",
                                self.text, "--seq_len", "32", "--steps", "100000", "--output", out], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for line in job.stdout:
            if " step " in line:
                break
        (out / "save_now").touch()
        for line in job.stdout:
            if " saved " in line:
                break
        else:
            self.fail("nothing was saved")
        self.assertFalse((out / "save_now").exists())
        step, = self.steps_in(out)
        job.send_signal(signal.SIGUSR1)
        job.stdout.read()
        job.stdout.close()
        self.assertEqual(job.wait(60), 75)
        self.assertGreater(self.steps_in(out)[-1], step)

    def test_a_run_that_diverges_saves_the_state_before_that_step(self):
        config = self.config(gradient_clipping=1.0, optimizer={"type": "AdamW", "params": {"lr": 1e30}})
        one, out = self.dir / "one", self.dir / "out"
        self.train("--output", one, steps=1, config=config)
        r = self.train("--output", out, steps=5, config=config, code=5)
        self.assertIn("saving the state before step 2", r.stdout + r.stderr)
        self.assertEqual(self.steps_in(out), [1])
        self.assertEqual(self.run_cleave("digest", out).stdout, self.run_cleave("digest", one).stdout)
        r = self.train(steps=5, config=config, code=5)
        self.assertIn("nothing is saved without --output", r.stdout + r.stderr)
        self.assertNotIn("saving the state before", r.stdout + r.stderr)
        # Without clipping, the update runs during the backward.
        config = self.config(gradient_clipping=0, optimizer={"type": "AdamW", "params": {"lr": 1e30}})
        r = self.train("--output", self.dir / "none", steps=5, config=config, code=5)
        self.assertIn("nothing is saved: the step failed after it began to update the weights; set gradient_clipping to save the state before a failed step", r.stdout + r.stderr)
        self.assertEqual(self.steps_in(self.dir / "none"), [])

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
        self.assertLess(time.monotonic() - began, 600)  # communication deadline: the ranks did not wait for it
        self.assertIn("killed by signal 9", rest.splitlines()[-1])
        for pid in children:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "a rank is still there")

    def test_a_full_disk_keeps_the_previous_checkpoint(self):
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

    def test_state_on_disk_gives_the_same_bits_and_the_start_shows_the_disk_speed(self):
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

    def test_small_pieces_of_state_on_disk_are_planned_with_the_minimum_size(self):
        disk = self.dir / "disk"
        disk.mkdir()
        plans = []
        for size, times in ((100, 1), (65536, 0)):
            config = self.config(zero_optimization={**self.on_disk(disk), "sub_group_size": size})
            r = self.run_cleave("plan", "--deepspeed_config", config, "--model", "tiny", "--seq_len", 32, "--world_size", 2)
            plans.append(r.stdout.splitlines())
            self.assertEqual(self.times_said("sub_group_size: 100 is below the tile of 65536", r.stdout + r.stderr), times)
        self.assertEqual([line for line in plans[0] if line not in plans[1]], [line for line in plans[0] if "sub_group_size" in line])

    def test_an_unusable_disk_is_an_error_before_training(self):
        disk = self.dir / "disk"
        disk.mkdir()
        (self.dir / "file").write_text("")
        for path, part in (("/proc/none", "No such file"), (self.dir / "file", "not a folder")):
            r = self.train(config=self.config(zero_optimization=self.on_disk(path)), ranks=3, code=2)
            self.assertIn(part, r.stderr)
            self.assertEqual(self.times_said("nvme_path: ", r.stderr), 1, "said once, not by every rank")
        zero = {"stage": 1, "offload_optimizer": {"device": "nvme"}}
        self.assertIn("needs nvme_path", self.train(config=self.config(zero_optimization=zero), ranks=1, code=2).stderr)
        self.assertIn("0 to 1", self.train(config=self.config(zero_optimization=self.on_disk(disk, ratio=2)), code=2).stderr)
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "none", disk]).returncode != 0:
            self.skipTest("needs to mount a small tmpfs")
        try:  # 11 MiB of state: each of two ranks has space for its half, but not both
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

    def test_families_train_save_resume_evaluate_and_generate(self):
        folder = self.dir / "a model"
        folder.mkdir()
        shape = {"model_type": "qwen2", "vocab_size": 300, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
        (folder / "config.json").write_text(json.dumps(shape))
        for model in ("llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny", "phi-3-tiny", folder, folder / "config.json"):
            out = self.dir / "out"
            metrics = self.dir / "m.jsonl"
            config = self.config(zero_optimization={"stage": 3}, bf16={"enabled": True})
            asked = ["--init", "random"] if model in (folder, folder / "config.json") else []
            whole = self.losses(*asked, model=model, config=config, steps=4)
            for steps in (2, 4):
                self.train("--output", out, "--metrics", metrics, *asked, model=model, config=config, steps=steps)
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

    def test_resuming_with_a_changed_config_json_prints_the_changes(self):
        path = self.dir / "config.json"
        shape = {"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
                 "num_attention_heads": 2}
        for rope_theta, said in ((10000.0, False), (20000.0, True)):
            path.write_text(json.dumps({**shape, "rope_theta": rope_theta}))
            err = self.train("--output", self.dir / "out", model=path, steps=int(rope_theta / 10000)).stderr
            self.assertEqual("warning: rope_theta of the model" in err, said, err)
        path.write_text(json.dumps({**shape, "intermediate_size": 24}))
        err = self.train("--output", self.dir / "out", model=path, steps=3, code=4).stderr
        self.assertIn("mlp.", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
