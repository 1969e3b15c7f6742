#!/usr/bin/env python3
"""Errors before anything is lost: outputs over inputs, wrong files, damaged bytes."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

from app_test import CLEAVE
from run_test import RunTest


class Refused(RunTest):
    # Errors known at the start

    def test_evaluation_data_are_checked_before_the_first_step(self):
        short, high = self.dir / "short.txt", self.dir / "high.bin"
        short.write_text("x")
        high.write_bytes(b"\x05\x00" * 5000 + b"\xff\xff" + b"\x05\x00" * 5000)
        for data, part in ((short, "has 1 tokens, but one sample needs 2"), (high, "token 5000 is 65535")):
            for ranks in (1, 2):
                r = self.train("--eval_data", data, ranks=ranks, code=7)
                self.assertIn(part, r.stderr)
                self.assertNotIn("loss", r.stdout)

    def test_unwritable_places_are_errors_before_the_first_step(self):
        file = self.dir / "file"
        file.write_text("x")
        for args, section in ((["--output", file / "out"], {}), (["--metrics", file / "m.jsonl"], {}),
                              (["--trace", file / "t.json"], {}), (["--metrics", self.dir], {}),
                              ([], {"tensorboard": {"enabled": True, "output_path": str(file), "job_name": "j"}}),
                              ([], {"flops_profiler": {"enabled": True, "output_file": str(file / "profile")}}),
                              ([], {"csv_monitor": {"enabled": True, "output_path": str(file), "job_name": "j"}})):
            for ranks in (1, 2):
                r = self.train(*args, config=self.config(**section), ranks=ranks, code=2)
                self.assertIn("irectory", r.stderr)  # "Not a directory", "Is a directory"
                self.assertNotIn("loss", r.stdout)
        self.assertEqual(file.read_text(), "x")
        self.assertEqual([p.name for p in self.dir.iterdir() if p.name.startswith(".")], [])

    def test_a_monitor_that_hangs_delays_no_step_and_no_end(self):
        curves = self.dir / "curves" / "job"
        curves.mkdir(parents=True)
        os.mkfifo(curves / "Train_Samples_tokens_per_s.csv")  # opening it waits for a reader
        section = {"csv_monitor": {"enabled": True, "output_path": str(curves.parent), "job_name": "job"}}
        r = self.train("--metrics", self.dir / "m.jsonl", config=self.config(**section), steps=6)
        self.assertEqual(r.stderr.count("warning: csv_monitor: 6 events were not written"), 1, r.stderr)
        self.assertIn("step 6/6", r.stdout)
        lines = [json.loads(line) for line in (self.dir / "m.jsonl").read_text().splitlines()]
        self.assertEqual([line.get("step") for line in lines if "event" not in line], [1, 2, 3, 4, 5, 6])
        self.assertEqual(lines[-1]["event"], "end")

    def test_little_space_for_a_checkpoint_is_a_warning_at_the_start(self):
        with self.small_disk("9m") as disk:
            (pathlib.Path(disk) / "filler").write_bytes(b"x" * (1 << 20))
            r = self.train("--output", disk, ranks=2, steps=1, code=4)
            self.assertEqual(r.stderr.count("warning: --output: too little space"), 1, r.stderr)
        with self.small_disk("30m") as disk:  # space for two of 11 MB, but three exist at a time
            r = self.train("--output", disk, "--save_interval", 1, ranks=2, steps=4, code=4)
            self.assertRegex(r.stderr, r"warning: --output: too little space .a checkpoint takes .*, up to 3 are in .*; this is enough for 2 checkpoints; ")

    def test_the_last_save_comes_before_the_last_evaluation(self):
        out = self.train("--output", self.out, "--eval_data", self.text, "--save_interval", 1, "--eval_interval", 1, steps=2).stdout
        at = [out.index(part) for part in ("global_step1", "step 1: validation", "global_step2", "step 2: validation")]
        self.assertEqual(at, sorted(at), out)

    # Outputs and inputs

    def test_no_output_overwrites_an_input_or_another_output(self):
        text = self.text.read_bytes()
        link, hard = self.dir / "link", self.dir / "hard"
        link.symlink_to(self.text)
        os.link(self.text, hard)
        config = self.config()
        read = config.read_bytes()
        train = ["train", "--deepspeed_config", config, "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 1]
        plan = ["plan", "--deepspeed_config", config, "--model", "tiny", "--seq_len", 32, "--world_size", 1]
        new = self.dir / "new"
        for args in (["data", "split", self.text, "--train", link, "--validation", new],
                     ["data", "split", self.text, "--train", new, "--validation", hard],
                     ["data", "split", self.text, "--train", new, "--validation", self.dir / "." / "new"],
                     ["data", "tokenize", self.text, hard], ["data", "tokenize", link, self.text],
                     [*plan, "--html", config],
                     [*train, "--metrics", link], [*train, "--metrics", config], [*train, "--trace", hard],
                     [*train, "--output", new, "--metrics", new], [*train, "--metrics", new, "--trace", new],
                     [*train, "--output", new, "--metrics", new / "latest"],
                     [*train, "--output", new, "--export", new],
                     [*train, "--eval_data", hard, "--metrics", hard]):
            r = self.run_cleave(*args, code=2)
            self.assertTrue("same" in r.stderr, r.stderr)
            self.assertEqual((self.text.read_bytes(), config.read_bytes()), (text, read), args)
            self.assertFalse(new.exists())
        other = self.dir / "other"  # other existing files may be replaced
        other.write_text("of before")
        self.run_cleave("data", "split", self.text, "--train", other, "--validation", new)
        self.assertNotEqual(other.read_text(), "of before")
        traced = self.dir / "t.1.json"
        shutil.copy(self.text, traced)
        self.train("--trace", self.dir / "t.json", "--eval_data", traced, ranks=2, code=2)
        self.assertEqual(traced.read_bytes(), text)
        profiled = self.config("profiled.json", flops_profiler={"enabled": True, "profile_step": 0, "output_file": str(link)})
        self.assertIn("flops_profiler.output_file", self.train(config=profiled, ranks=1, code=2).stderr)
        self.assertEqual(self.text.read_bytes(), text)

    # System limits and other kinds of files

    def test_no_system_limit_ends_a_job_with_code_1_or_without_an_error(self):
        train = ["train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 1]
        for limits, args, codes, part in (
                ("ulimit -v 100000", train, (3,), ""), ("ulimit -v 100000", ["launch", "-n", 2, "--", *train], (3,), "rank"),
                ("ulimit -n 10", train, (2,), "ulimit -n"), ("ulimit -n 20", ["launch", "-n", 2, "--", *train], (2,), "ulimit -n"),
                ("ulimit -n 8", ["launch", "-n", 2, "--", *train], (2,), "ulimit -n"),
                ("ulimit -n 4", ["launch", "-n", 2, "--", *train], (2,), "ulimit -n"),
                ("ulimit -f 100", [*train, "--output", self.out], (4,), "File too large"),
                ("ulimit -f 0", [*train, "--metrics", self.dir / "m.jsonl"], (0,), "File too large")):
            r = self.limited(limits, *args)
            self.assertIn(r.returncode, codes, (limits, args, r.stderr))
            self.assertIn(part, r.stderr)
            self.assertTrue(any("error:" in line or "warning:" in line for line in r.stderr.splitlines()), r.stderr)

    def test_files_of_another_user_are_errors_with_the_code_of_their_kind(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to be another user")
        self.train("--output", self.out, ranks=1, steps=1)
        os.chmod(self.dir, 0o755)
        config = self.config()
        for path, args, code in (
                (config, [], 2), (self.text, [], 7), (self.out, ["--output", self.out], 2), (self.out / "global_step1", [], 0),
                (self.dir / "m.jsonl", ["--metrics", self.dir / "m.jsonl"], 2)):
            path.touch() if path.suffix == ".jsonl" else None
            mode = path.stat().st_mode
            os.chmod(path, 0)
            r = subprocess.run([CLEAVE, "train", "--deepspeed_config", config, "--model", "tiny", "--data", self.text, "--seq_len", "32",
                                "--steps", "1", *map(str, args)], capture_output=True, text=True, user=65534, group=65534,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
            os.chmod(path, mode)
            self.assertEqual(r.returncode, code, r.stderr)
            if code:
                self.assertIn("ermission denied", r.stderr)
        for path in (self.out, self.out / "latest", self.out / "global_step1/manifest.json", self.out / "global_step1/shard-00000.safetensors"):
            mode = path.stat().st_mode
            os.chmod(path, 0)
            r = subprocess.run([CLEAVE, "eval", self.out, "--data", self.text], capture_output=True, text=True, user=65534, group=65534)
            os.chmod(path, mode)
            self.assertEqual(r.returncode, 4, r.stderr)
            self.assertIn("ermission denied", r.stderr)

    def test_pipes_and_devices_are_errors_in_place_of_files(self):
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        self.train("--output", self.out, ranks=1, steps=1)
        config, train = self.config(), ["--model", "tiny", "--seq_len", 32, "--steps", 1]
        shard = self.out / "global_step1/shard-00000.safetensors"
        for odd in (pipe, "/dev/zero"):
            for args, code in ((["train", "--deepspeed_config", odd, "--data", self.text, *train], 2),
                               (["train", "--deepspeed_config", config, "--data", odd, *train], 7),
                               (["train", "--deepspeed_config", config, "--data", self.text, "--eval_data", odd, *train], 7),
                               (["train", "--deepspeed_config", config, "--data", self.text, "--model", odd], 2),
                               (["check", odd], 2), (["data", "inspect", odd], 7),
                               (["plan", "--deepspeed_config", config, "--model", "tiny", "--seq_len", 32, "--device", odd], 2)):
                r = self.run_cleave(*args, code=code, timeout=20)
                self.assertTrue("not a regular file" in r.stderr or "not a preset" in r.stderr or "--device" in r.stderr, r.stderr)
            for file in (shard, self.out / "global_step1/manifest.json", self.out / "latest"):
                good = file.read_bytes()
                file.unlink()
                file.symlink_to(odd)
                self.assertIn("not a regular file", self.run_cleave("eval", self.out, "--data", self.text, code=4, timeout=20).stderr)
                file.unlink()
                file.write_bytes(good)

    def test_a_billion_layers_are_an_error_before_anything_is_built(self):
        path = self.dir / "config.json"
        shape = {"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                 "num_attention_heads": 2}
        for change, parts in (({"num_hidden_layers": 10**9}, ["num_hidden_layers", "from 1 to 10000", "1000000000"]),
                              ({"hidden_size": 10**12}, ["hidden_size", "from 1 to 1048576"]),
                              ({"num_hidden_layers": 10000, "hidden_size": 2**20}, ["parameters"])):
            path.write_text(json.dumps({**shape, **change}))
            for args in (["plan", "--world_size", 1], ["train", "--data", self.text]):
                r = self.run_cleave(args[0], "--deepspeed_config", self.config(), "--model", path, *args[1:], code=2, timeout=20)
                for part in parts:
                    self.assertIn(part, r.stderr)

    def test_buckets_that_make_very_many_calls_are_a_warning_with_their_count(self):
        parameters = json.loads(self.run_cleave("plan", "--deepspeed_config", self.config(), "--model", "tiny", "--seq_len", 32,
                                                "--world_size", 1, "--json").stdout)["parameters"]
        config = self.config(zero_optimization={"stage": 1, "reduce_bucket_size": 20})
        r = self.train(config=config, steps=1)
        self.assertEqual(r.stderr.count("reduce_bucket_size: too small (got 20"), 1, r.stderr)
        calls = int(r.stderr.split("which makes ")[1].split()[0])
        self.assertTrue(parameters / 20 <= calls <= parameters / 20 + 100, (calls, parameters))
        cut = self.config(zero_optimization={"stage": 1, "reduce_bucket_size": 20}, tensor_parallel={"autotp_size": 2})
        half = int(self.train(config=cut, steps=1, ranks=4).stderr.split("which makes ")[1].split()[0])
        self.assertTrue(calls / 2 <= half <= 0.6 * calls, (calls, half))  # the tensor ranks' own sums do not count
        self.assertNotIn("calls per step", self.train(steps=1).stderr)
        # Many micro-batches also make many calls, each of a whole unit.
        many = self.config(train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=3000, zero_optimization={"stage": 2})
        self.text.write_text(10 * self.text.read_text())
        self.assertNotIn("calls per step", self.train("--output", self.out, "--resume", "required", config=many, code=4).stderr)

    # Damaged bytes

    def test_bytes_of_damaged_files_are_shown_escaped_and_cut(self):
        self.train("--output", self.out, ranks=1, steps=1)
        noise = b"\x1b]0;title\x07\xff\xfe\x00" * 5000
        for name in ("latest", "global_step1/manifest.json", "global_step1/shard-00000.safetensors"):
            file = self.out / name
            good = file.read_bytes()
            # A manifest and a header in JSON with invalid names.
            forms = [noise]
            if name.endswith("manifest.json"):
                manifest = json.loads(good)
                manifest["version"] = "\x1b[2J" * 1000
                forms += [json.dumps(manifest).encode(), b"{}", b"[1, 2", b'{"format": "cleave", "version": 1, "state": {}, "records": 7}']
            for form in forms:
                file.write_bytes(form)
                r = self.run_cleave("eval", self.out, "--data", self.text, code=4)
                self.assertFalse(set(r.stderr) & set("\x1b\x07\x00"), r.stderr)
                self.assertNotIn("json.exception", r.stderr)
                self.assertLess(len(r.stderr), 1500)
            file.write_bytes(good)

    def test_a_token_file_is_not_a_text(self):
        tokens = self.dir / "tokens.bin"
        self.run_cleave("data", "tokenize", self.text, tokens)
        for args in (["ngrams", "--train", tokens, "--validation", self.text], ["ngrams", "--train", self.text, "--validation", tokens],
                     ["split", tokens, "--train", self.dir / "a", "--validation", self.dir / "b"], ["tokenize", tokens, self.dir / "c.bin"]):
            r = self.run_cleave("data", *args, code=7)
            self.assertIn(" tokens (llm.c uint16) instead of text; give the original text", r.stderr)
        self.train("--output", self.out, ranks=1, steps=1)
        high = self.dir / "high.bin"
        high.write_bytes(b"\x05\x00" * 5000 + b"\xff\xff" + b"\x05\x00" * 5000)
        r = self.run_cleave("eval", self.out, "--data", high, code=7)  # for a model of bytes
        self.assertIn("token 5000 is 65535", r.stderr)

    def test_a_text_truncated_by_a_full_disk_is_removed(self):
        with self.small_disk("16k") as disk:
            r = self.run_cleave("data", "split", self.text, "--train", disk / "train.txt", "--validation", disk / "v.txt", code=7)
            self.assertIn("train.txt: cannot be written: No space left on device", r.stderr)
            self.assertEqual(list(disk.iterdir()), [])

    def test_an_absurd_number_of_ranks_is_an_error(self):
        self.assertIn("1 to 4096", self.run_cleave("launch", "-n", 1000000, "--", "true", code=2).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
