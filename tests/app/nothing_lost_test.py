#!/usr/bin/env python3
"""What a user could lose: checkpoints, inputs that outputs overwrite, hours of training that end in a fault known at the start."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import unittest

from app_test import AppTest, CLEAVE, ROOT, version_2


class NothingLost(AppTest):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "out put"

    def saved(self):
        return sorted(p.name for p in self.out.iterdir() if p.is_dir())

    def start(self, *args, ranks=1, steps=100000, out=True, env=None, config=None):
        """A job that goes on for long, and its lines so far up to a step or a save."""
        command = ["train", "--deepspeed_config", config or self.config(), "--model", "tiny", "--data", self.text,
                   "--seq_len", 32, "--steps", steps, *(["--output", self.out] if out else []), *args]
        if ranks > 1:
            command = ["launch", "-n", ranks, "--", *command]
        return subprocess.Popen([CLEAVE, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})

    def wait_for(self, done):
        until = time.monotonic() + 60
        while not done():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def until(self, job, part):
        said = []
        for line in job.stdout:
            said.append(line)
            if part in line:
                return said
        self.fail(f"'{part}' was not said:\n{''.join(said)}")

    def end(self, job, code):
        rest = job.stdout.read()
        job.stdout.close()
        self.assertEqual(job.wait(60), code, rest)
        return rest

    # Which checkpoint a run goes on from

    def test_without_latest_the_newest_whole_checkpoint_is_resumed_and_none_is_lost(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, steps=6)
        (self.out / "latest").unlink()
        r = self.train("--output", self.out, "--keep", 2, "--resume", "auto", steps=8)
        self.assertIn("at step 6", r.stdout)
        self.assertIn("no file 'latest'", r.stderr)
        self.assertEqual(self.saved(), ["global_step6", "global_step8"])

    def test_a_kill_before_latest_names_the_newest_checkpoint_does_not_go_back(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, steps=6)
        (self.out / "latest").rename(self.out / "latest.tmp")  # what is there between the two renames
        (self.out / "latest").write_text("global_step4\n")
        self.assertIn("global_step6", self.run_cleave("verify", self.out).stdout)
        r = self.train("--output", self.out, "--keep", 0, steps=6)
        self.assertIn("at step 6", r.stdout)
        self.assertIn("a job was killed before 'latest' named the checkpoint it had saved, 'global_step6'", r.stderr)
        self.assertEqual((self.out / "latest").read_text(), "global_step6\n")
        # Between the two, the folder of the checkpoint has no name yet: the one before is the newest.
        (self.out / "global_step6").rename(self.out / ".tmp.global_step6")
        (self.out / "latest.tmp").write_text("global_step6\n")
        (self.out / "latest").write_text("global_step4\n")
        r = self.train("--output", self.out, "--keep", 0, steps=6)
        self.assertIn("at step 4", r.stdout)
        self.assertIn("'.tmp.global_step6'", r.stdout)
        # Pointed back by hand, it goes back, and says so.
        (self.out / "latest").write_text("global_step2\n")
        r = self.train("--output", self.out, "--keep", 0, steps=2)
        self.assertIn("at step 2", r.stdout)
        self.assertIn("'latest' names 'global_step2', so newer ones are passed over: 'global_step6', 'global_step4'", r.stderr)

    def test_a_damaged_latest_is_named_and_the_newest_whole_checkpoint_is_resumed(self):
        self.train("--output", self.out, "--save_interval", 2, ranks=1, steps=4)
        for text in (b"", b"\x1b[2J\xff" * 50, b"../elsewhere", b"global_step99\n"):
            (self.out / "latest").write_bytes(text)
            r = self.train("--output", self.out, ranks=1, steps=4)
            self.assertIn("at step 4", r.stdout)
            self.assertIn("latest", r.stderr)
            self.assertNotIn("\x1b", r.stderr)
            self.assertLess(len(r.stderr), 1000)

    def test_damaged_checkpoints_are_passed_over_with_the_reason_on_every_rank(self):
        def flip(path):
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)
        faults = (lambda c: (c / "manifest.json").write_text("{"), lambda c: (c / "manifest.json").unlink(),
                  lambda c: (c / "shard-00001.safetensors").unlink(), lambda c: flip(c / "shard-00001.safetensors"),
                  lambda c: os.truncate(c / "shard-00000.safetensors", 1000))
        self.train("--output", self.out, "--save_interval", 2, steps=4)
        for ranks, fault in zip((1, 2, 1, 2, 1), faults):
            copy = self.dir / "copy"
            shutil.copytree(self.out, copy)
            fault(copy / "global_step4")
            r = self.train("--output", copy, ranks=ranks, steps=2)
            self.assertIn("global_step2 at step 2", r.stdout, r.stderr)
            self.assertEqual(r.stderr.count("'global_step4' is passed over"), 1, r.stderr)
            self.assertIn("global_step4", os.listdir(copy))
            fault(copy / "global_step2")
            r = self.train("--output", copy, ranks=ranks, steps=5, code=4)
            self.assertIn("global_step", r.stderr)
            self.assertNotIn("global_step5", os.listdir(copy))
            shutil.rmtree(copy)

    def test_a_folder_whose_checkpoint_is_gone_does_not_begin_at_step_0(self):
        self.train("--output", self.out, ranks=1, steps=2)
        shutil.rmtree(self.out / "global_step2")
        r = self.train("--output", self.out, ranks=1, steps=2, code=4)
        self.assertIn("global_step2", r.stderr)
        self.train("--output", self.dir / "new", "--resume", "required", ranks=1, steps=2, code=4)
        self.train("--output", self.dir / "new", "--resume", "global_step1", ranks=2, steps=2, code=4)
        self.assertFalse((self.dir / "new").exists())

    def test_old_checkpoints_go_only_when_this_run_wrote_them(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, ranks=1, steps=4)
        others = self.dir / "another"
        self.train("--output", others, "--seed", 7, ranks=1, steps=1)
        shutil.copytree(others / "global_step1", self.out / "best so far")
        for name in ("notes", "global_step0"):
            (self.out / name).mkdir()
            (self.out / name / "precious.txt").write_text("x")
        self.train("--output", self.out, "--save_interval", 1, "--keep", 1, ranks=1, steps=6)
        self.assertEqual(self.saved(), ["best so far", "global_step0", "global_step6", "notes"])
        # Pointed back by hand, a run leaves the newer ones until it reaches them.
        self.train("--output", self.out, "--save_interval", 1, "--keep", 0, ranks=1, steps=8)
        (self.out / "latest").write_text("global_step6\n")
        self.train("--output", self.out, "--keep", 1, ranks=1, steps=7)
        self.assertEqual(self.saved(), ["best so far", "global_step0", "global_step7", "global_step8", "notes"])

    def test_a_damaged_checkpoint_that_was_passed_over_is_not_one_of_those_kept(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, ranks=1, steps=8)
        for step, cut in ((8, False), (6, True)):  # one shows when its bytes are read, one before
            shard = self.out / f"global_step{step}" / "shard-00000.safetensors"
            data = bytearray(shard.read_bytes())
            data[-5] ^= 1
            shard.write_bytes(data[:-100] if cut else data)
        (self.out / "latest").unlink()
        r = self.train("--output", self.out, "--keep", 2, ranks=1, steps=9)  # beyond the damaged ones
        self.assertIn("resumed", r.stdout)
        self.assertIn("at step 4", r.stdout)
        self.assertEqual(self.saved(), ["global_step4", "global_step6", "global_step8", "global_step9"])
        self.assertIn("'global_step8' is passed over", r.stderr)
        self.assertIn("'global_step6' is passed over", r.stderr)
        self.train("--output", self.out, "--keep", 2, ranks=1, steps=10)  # two newer ones now
        self.assertEqual(self.saved(), ["global_step10", "global_step6", "global_step8", "global_step9"])

    def test_what_killed_jobs_left_is_removed_and_named_and_nothing_else_goes(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, ranks=2, steps=6)
        whole = self.out / "global_step6"
        for name in (".tmp.global_step8", ".old.global_step6", ".old.global_step4"):
            shutil.copytree(whole, self.out / name)
        shutil.rmtree(self.out / "global_step4")  # so the folder above is the only one of what it was
        for name in ("global_step1", "global_step9"):  # a removal that was killed; a manifest that somebody lost
            shutil.copytree(whole, self.out / name)
            (self.out / name / "manifest.json").unlink()
        shutil.copytree(self.out / "global_step1", self.out / "global_step7")
        (self.out / "global_step7/shard-00000.json").write_text("{}")  # a save in its place that was killed
        for name in (".tmp.notes", "global_step0", "notes"):
            (self.out / name).mkdir()
            (self.out / name / "precious.txt").write_text("x")
        r = self.train("--output", self.out, "--keep", 0, ranks=2, steps=7)
        self.assertIn("at step 6", r.stdout)
        for name in (".tmp.global_step8", ".old.global_step6", "global_step1", "global_step7"):
            self.assertEqual(self.times_said(f"'{name}'", r.stdout), 1, r.stdout)
        self.assertEqual(self.saved(), [".old.global_step4", ".tmp.notes", "global_step0", "global_step2", "global_step6", "global_step7",
                                        "global_step9", "notes"])
        self.run_cleave("verify", self.out, "--tag", "global_step7")
        # The first save of all was killed.
        for name, file in (".tmp.global_step1", "shard-00000.safetensors"), ("global_step2", "shard-00000.json"):
            (self.dir / "first" / name).mkdir(parents=True)
            (self.dir / "first" / name / file).write_text("x")
        (self.dir / "first/global_step2/shard-00000.safetensors").write_text("x")
        r = self.train("--output", self.dir / "first", ranks=1, steps=1)
        self.assertIn("'.tmp.global_step1', 'global_step2'", r.stdout)
        self.assertEqual(sorted(p.name for p in (self.dir / "first").iterdir() if p.is_dir()), ["global_step1"])

    def test_no_tag_leaves_the_folder(self):
        self.train("--output", self.out, ranks=1, steps=1)
        inside = self.dir / "inside"
        inside.mkdir()
        for tag in ("../out put/global_step1", str(self.out / "global_step1"), "..", "a\x1bb"):
            for r in (self.run_cleave("eval", inside, "--tag", tag, "--data", self.text, code=4),
                      self.train("--output", self.out, "--resume", tag, ranks=1, steps=2, code=4)):
                self.assertIn("is not the name of a checkpoint", r.stderr)
                self.assertNotIn("\x1b", r.stderr)
        (inside / "latest").write_text("../out put/global_step1")
        self.assertIn("is not the name", self.run_cleave("eval", inside, "--data", self.text, code=4).stderr)
        manifest = version_2(json.loads((self.out / "global_step1/manifest.json").read_text()))
        manifest["records"][0]["file"] = "../../text.txt"
        (self.out / "global_step1/manifest.json").write_text(json.dumps(manifest))
        self.assertIn("is not the name of a shard", self.run_cleave("eval", self.out, "--data", self.text, code=4).stderr)

    # What is known at the start

    def test_evaluation_data_are_checked_before_the_first_step(self):
        short, high = self.dir / "short.txt", self.dir / "high.bin"
        short.write_text("x")
        high.write_bytes(b"\x05\x00" * 5000 + b"\xff\xff" + b"\x05\x00" * 5000)
        for data, part in ((short, "has 1 tokens, but one sample needs 2"), (high, "token 5000 is 65535")):
            for ranks in (1, 2):
                r = self.train("--eval_data", data, ranks=ranks, code=7)
                self.assertIn(part, r.stderr)
                self.assertNotIn("loss", r.stdout)

    def test_places_that_cannot_be_written_are_refused_before_the_first_step(self):
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

    def test_little_space_for_a_checkpoint_is_said_at_the_start(self):
        with self.small_disk("9m") as disk:
            (pathlib.Path(disk) / "filler").write_bytes(b"x" * (1 << 20))
            r = self.train("--output", disk, ranks=2, steps=1, code=4)
            self.assertEqual(r.stderr.count("warning: a checkpoint takes"), 1, r.stderr)
        with self.small_disk("30m") as disk:  # room for two of 11 MB, where three stand at a time
            r = self.train("--output", disk, "--save_interval", 1, ranks=2, steps=4, code=4)
            self.assertRegex(r.stderr, r"warning: a checkpoint takes .* and 3 of them, .* which is room for 2: ")

    def small_disk(self, size):
        import contextlib

        @contextlib.contextmanager
        def mounted():
            disk = self.dir / "small disk"
            disk.mkdir(exist_ok=True)
            if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk]).returncode:
                self.skipTest("needs to mount a small tmpfs")
            try:
                yield disk
            finally:
                subprocess.run(["umount", disk], check=True)
        return mounted()

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
                     [*train, "--eval_data", hard, "--metrics", hard]):
            r = self.run_cleave(*args, code=2)
            self.assertTrue("same" in r.stderr, r.stderr)
            self.assertEqual((self.text.read_bytes(), config.read_bytes()), (text, read), args)
            self.assertFalse(new.exists())
        other = self.dir / "other"  # another file that is there may be replaced
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

    # What goes wrong while a run is under way

    def test_a_full_disk_for_metrics_trace_and_monitors_is_a_warning_each_and_training_saves(self):
        with self.small_disk("64k") as disk:
            (disk / "filler").write_bytes(b"x" * 40000)
            config = self.config(csv_monitor={"enabled": True, "output_path": str(disk), "job_name": "j"},
                                 tensorboard={"enabled": True, "output_path": str(disk / "b"), "job_name": "j"})
            job = self.start("--metrics", disk / "m.jsonl", "--trace", disk / "t.json", "--trace_steps", 100000, steps=60, config=config)
            said = self.end(job, 0)
            self.assertIn("saved", said)
            warnings = [line for line in said.splitlines() if line.startswith("warning:")]
            self.assertEqual(len(warnings), len(set(w.split(": ")[1] for w in warnings)), said)
            self.assertTrue(any("m.jsonl" in w and "No space left" in w for w in warnings), said)
            self.assertTrue(any("--trace" in w for w in warnings), said)

    def test_data_cut_short_or_replaced_while_training_end_it_with_7_after_saving(self):
        for ranks, which in ((1, "data"), (2, "data"), (2, "eval")):
            shutil.rmtree(self.out, ignore_errors=True)
            big = self.dir / "big.txt"
            big.write_bytes(self.text.read_bytes() * 30)
            args = ["--eval_data", big, "--eval_interval", 5] if which == "eval" else []
            good, self.text = self.text, self.text if which == "eval" else big
            job = self.start(*args, ranks=ranks)
            self.text = good
            self.until(job, "validation" if which == "eval" else "/100000  loss")
            os.truncate(big, 3000)
            said = self.end(job, 7)
            self.assertIn("big.txt", said.splitlines()[-1] + said.splitlines()[-2])
            self.assertIn("saved", said)
            step = int((self.out / "latest").read_text().strip().removeprefix("global_step"))
            self.assertGreater(step, 0)
        big.write_bytes(good.read_bytes() * 3)
        self.text = big
        job = self.start(ranks=2, out=False)
        self.until(job, "/100000  loss")
        os.rename(shutil.copy(good, self.dir / "other.txt"), big)
        self.assertIn("replaced", self.end(job, 7))

    # Two jobs

    def test_a_second_job_in_the_same_folder_is_told_whose_it_is(self):
        first = self.start()
        self.until(first, "/100000  loss")
        holder = json.loads((self.out / "run.lock").read_text())
        self.assertEqual((holder["pid"], holder["host"]), (first.pid, socket.gethostname()))
        for ranks in (1, 2):
            r = self.train("--output", self.out, ranks=ranks, code=2)
            for part in (f"pid {first.pid}", socket.gethostname(), holder["since"], "run.lock"):
                self.assertIn(part, r.stderr)
        first.kill()
        self.end(first, -signal.SIGKILL)
        self.assertTrue((self.out / "run.lock").exists())
        r = self.train("--output", self.out, ranks=2, steps=1)
        self.assertIn("took over", r.stdout + r.stderr)
        self.assertFalse((self.out / "run.lock").exists())

    def test_a_lock_of_an_earlier_process_with_the_same_number_is_taken_over(self):
        first = self.start()
        self.until(first, "/100000  loss")
        lock = json.loads((self.out / "run.lock").read_text())
        first.send_signal(signal.SIGTERM)
        self.end(first, 75)
        lock["pid"] = os.getpid()  # is alive, and began at another time
        (self.out / "run.lock").write_text(json.dumps(lock))
        self.train("--output", self.out, ranks=1, steps=1)

    def test_a_lock_of_another_host_is_taken_over_only_when_nobody_writes_it(self):
        self.out.mkdir()
        lock = self.out / "run.lock"
        text = json.dumps({"host": "far away", "host_id": "another", "pid": 1, "begin": "5", "since": "yesterday"})
        config = self.config(cleave={"comm_timeout_s": 4})  # half of it is watched
        lock.write_text(text)
        job = self.start(steps=1, config=config, ranks=2)
        self.until(job, "cannot be looked at from here")
        for _ in range(100):
            lock.write_text(text)  # its owner is alive
            time.sleep(0.02)
        said = self.end(job, 2)
        self.assertIn("far away", said)
        self.assertEqual(lock.read_text(), text)
        self.assertIn("took over", self.train("--output", self.out, config=config, ranks=2, steps=1).stdout)

    def test_a_job_that_lost_its_folder_while_it_stood_still_does_not_write_there(self):
        job = self.start("--save_interval", 1000000)
        self.until(job, "/100000  loss")
        lock = json.loads((self.out / "run.lock").read_text())
        lock.update(pid=1, host="elsewhere")
        (self.out / "run.lock").write_text(json.dumps(lock))
        job.send_signal(signal.SIGTERM)
        self.assertIn("elsewhere", self.end(job, 4))
        self.assertEqual(self.saved(), [])
        self.assertTrue((self.out / "run.lock").exists())

    def ranks_of(self, job):
        # In the order of their start, which is that of their ranks.
        return [int(p) for p in subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True).stdout.split()]

    def test_a_rank_that_stands_still_is_named_as_the_cause(self):
        for ranks, which in ((3, 1), (2, 0)):
            config = self.config(cleave={"comm_timeout_s": 3})
            job = self.start(ranks=ranks, out=False, config=config)
            self.until(job, "/100000  loss")
            pid = self.ranks_of(job)[which]
            os.kill(pid, signal.SIGSTOP)
            said = self.end(job, 6)
            for part in (f"rank {which} (pid {pid})", "SIGSTOP"):
                self.assertIn(part, said.splitlines()[-1])
            self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_the_job_that_loses_a_port_says_which_job_has_it(self):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        command = ["launch", "-n", "2", "--master_port", port, "--", "train", "--deepspeed_config", self.config(), "--model", "tiny",
                   "--data", self.text, "--seq_len", "32", "--steps", "300"]
        jobs = [subprocess.Popen([CLEAVE, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env={**os.environ, "OMP_NUM_THREADS": "1"}) for _ in range(2)]
        said = [job.communicate(timeout=100)[0] for job in jobs]
        codes = [job.returncode for job in jobs]
        self.assertEqual(sorted(codes), [0, 2], said)
        lost = said[codes.index(2)]
        # The second finds the port taken, or loses it between looking and listening.
        self.assertRegex("".join(lost.splitlines()[-3:]), r"has this port|cannot be used for the rendezvous: cleave \(pid \d+\) has it")

    def test_the_error_of_the_rank_that_failed_is_among_the_last_lines(self):
        # Rank 1 alone finds a file gone.
        script = ("import os,sys; a=sys.argv[2:]; i=a.index(sys.argv[1])+1; a[i] += '.gone' if os.environ['RANK']=='1' else ''; "
                  "os.execv(a[0], a)")
        for option, code, gone in (("--data", 7, "text.txt.gone"), ("--deepspeed_config", 2, "ds_config.json.gone")):
            r = self.run_cleave("launch", "-n", 3, "--", "python3", "-c", script, option, CLEAVE, "train", "--deepspeed_config",
                                self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 3, code=code)
            last = r.stderr.splitlines()[-4:]
            self.assertIn(f"rank 1 ended with exit code {code}", last[-1])
            self.assertTrue(any(gone in line for line in last), r.stderr)

    def test_the_last_line_of_a_job_that_cannot_save_is_why(self):
        train = ["launch", "-n", 2, "--", "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32,
                 "--steps", 1, "--output", self.out]
        r = self.limited("ulimit -f 4000", *train)  # KiB: as a full disk, but not for shared memory
        self.assertEqual(r.returncode, 4)
        self.assertRegex(r.stderr.splitlines()[-1], r"error: rank \d ended with exit code 4: .*File too large")

    def test_a_stop_in_the_middle_of_an_evaluation_saves_and_goes_on_later(self):
        long = self.dir / "long.txt"
        long.write_text("and the earth was without form. " * 200000)  # minutes
        options = ["--save_interval", 1000, "--eval_interval", 3, "--eval_data"]
        for ranks in (1, 2):
            metrics = self.dir / f"{ranks}.jsonl"
            job = self.start(*options, long, "--metrics", metrics, ranks=ranks)
            self.wait_for(lambda: metrics.exists() and '"step":3' in metrics.read_text().replace(" ", ""))
            time.sleep(0.5)
            begin = time.monotonic()
            job.send_signal(signal.SIGINT)
            said = self.end(job, 75)
            self.assertLess(time.monotonic() - begin, 10)  # and a slow machine
            for part in ("Ctrl-C or signal kills", "the evaluation after step 3 is not finished", "saving after step 3"):
                self.assertIn(part, said)
            self.assertEqual(self.saved(), ["global_step3"])
            self.assertIn("at step 3", self.train(*options, self.text, "--output", self.out, ranks=ranks, steps=4).stdout)
            shutil.rmtree(self.out)

    def test_a_stop_in_the_middle_of_tokenizing_leaves_nothing(self):
        long = self.dir / "long.txt"
        long.write_text("and the earth was without form, and void. " * 3000000)
        fixture = self.dir / "tokenizer.json"
        shutil.copy(ROOT / "tests/fixtures/tokenizer_gpt2.json", fixture)
        tokenize = ["data", "tokenize", long, self.dir / "long.bin", "--tokenizer", fixture]
        train = ["train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", long, "--tokenizer", fixture, "--seq_len", 32,
                 "--steps", 1, "--output", self.out]
        for command, folder in ((tokenize, self.dir), (train, self.out / "tokens"), (["launch", "-n", 2, "--", *train], self.out / "tokens")):
            before = set(folder.glob("*")) if folder.exists() else set()
            job = subprocess.Popen([CLEAVE, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
            self.wait_for(lambda: folder.exists() and set(folder.glob("*")) - before)
            begin = time.monotonic()
            job.send_signal(signal.SIGINT)
            self.assertIn("stopped on request", self.end(job, 75))
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(set(folder.glob("*")) - before, set())
            self.assertEqual(list(self.out.glob("global_step*")), [])

    def test_ctrl_c_twice_is_the_cause(self):
        job = self.start(ranks=2, out=False)
        self.until(job, "/100000  loss")
        for pid in self.ranks_of(job):
            os.kill(pid, signal.SIGSTOP)  # they cannot stop
        job.send_signal(signal.SIGINT)
        self.until(job, "asked to stop")
        job.send_signal(signal.SIGINT)
        said = self.end(job, 137)
        self.assertIn("error: the ranks were killed, because a second Ctrl-C or signal asked", said.splitlines()[-1])

    # Limits of the system, and what is no file

    def limited(self, limits, *args):
        return subprocess.run(["bash", "-c", f'{limits}; exec "$@"', "bash", CLEAVE, *map(str, args)], capture_output=True,
                              text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def test_no_limit_of_the_system_ends_a_job_with_code_1_or_without_words(self):
        train = ["train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 1]
        for limits, args, codes, part in (
                ("ulimit -v 100000", train, (3,), ""), ("ulimit -v 100000", ["launch", "-n", 2, "--", *train], (3,), "rank"),
                ("ulimit -n 10", train, (2,), "ulimit -n"), ("ulimit -n 20", ["launch", "-n", 2, "--", *train], (2,), "ulimit -n"),
                ("ulimit -n 8", ["launch", "-n", 2, "--", *train], (2,), "ulimit -n"),
                ("ulimit -f 100", [*train, "--output", self.out], (4,), "File too large"),
                ("ulimit -f 0", [*train, "--metrics", self.dir / "m.jsonl"], (0,), "File too large")):
            r = self.limited(limits, *args)
            self.assertIn(r.returncode, codes, (limits, args, r.stderr))
            self.assertIn(part, r.stderr)
            self.assertTrue(any("error:" in line or "warning:" in line for line in r.stderr.splitlines()), r.stderr)

    def test_files_of_another_user_are_refused_with_the_code_of_what_they_are(self):
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

    def test_pipes_and_devices_are_refused_wherever_a_file_is_read(self):
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
                self.assertTrue("not a regular file" in r.stderr or "neither a preset" in r.stderr or "--device" in r.stderr, r.stderr)
            for file in (shard, self.out / "global_step1/manifest.json", self.out / "latest"):
                good = file.read_bytes()
                file.unlink()
                file.symlink_to(odd)
                self.assertIn("not a regular file", self.run_cleave("eval", self.out, "--data", self.text, code=4, timeout=20).stderr)
                file.unlink()
                file.write_bytes(good)

    def test_a_billion_layers_are_refused_before_anything_is_built(self):
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
        self.assertEqual(r.stderr.count("reduce_bucket_size is 20"), 1, r.stderr)
        calls = int(r.stderr.split("about ")[1].split()[0])
        self.assertTrue(parameters / 20 <= calls <= parameters / 20 + 100, (calls, parameters))
        self.assertNotIn("calls in every step", self.train(steps=1).stderr)

    # Damaged bytes

    def test_bytes_of_damaged_files_are_shown_escaped_and_cut(self):
        self.train("--output", self.out, ranks=1, steps=1)
        noise = b"\x1b]0;title\x07\xff\xfe\x00" * 5000
        for name in ("latest", "global_step1/manifest.json", "global_step1/shard-00000.safetensors"):
            file = self.out / name
            good = file.read_bytes()
            # A manifest and a header that are JSON, with names nobody would choose.
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

    def test_a_token_file_is_no_text_to_count_or_cut(self):
        tokens = self.dir / "tokens.bin"
        self.run_cleave("data", "tokenize", self.text, tokens)
        for args in (["ngrams", "--train", tokens, "--validation", self.text], ["ngrams", "--train", self.text, "--validation", tokens],
                     ["split", tokens, "--train", self.dir / "a", "--validation", self.dir / "b"], ["tokenize", tokens, self.dir / "c.bin"]):
            r = self.run_cleave("data", *args, code=7)
            self.assertIn("tokens (llm.c uint16) and not text", r.stderr)
        self.train("--output", self.out, ranks=1, steps=1)
        high = self.dir / "high.bin"
        high.write_bytes(b"\x05\x00" * 5000 + b"\xff\xff" + b"\x05\x00" * 5000)
        r = self.run_cleave("eval", self.out, "--data", high, code=7)  # of a model of bytes
        self.assertIn("token 5000 is 65535", r.stderr)

    def test_as_many_ranks_as_no_machine_has_are_refused(self):
        self.assertIn("1 to 4096", self.run_cleave("launch", "-n", 1000000, "--", "true", code=2).stderr)

    # What a run was trained with

    def test_another_optimizer_seed_data_or_length_is_said_with_both_values_and_strict_refuses(self):
        self.train("--output", self.out, ranks=2, steps=1)
        other = self.dir / "other.txt"
        other.write_bytes(self.text.read_bytes()[::-1])
        lion = self.config("lion.json", optimizer={"type": "Lion", "params": {"lr": 1e-4}})
        lamb = self.config("lamb.json", optimizer={"type": "Lamb", "params": {"lr": 1e-4}})
        for args, kwargs, parts in ((["--seed", 7], {}, ("--seed", "'7'", "'42'")),
                                    (["--seq_len", 16], {}, ("--seq_len", "'16'", "'32'")),
                                    (["--data", other], {}, ("other.txt", "text.txt")),
                                    ([], {"config": lion}, ("'Lion'", "'AdamW'")),
                                    ([], {"config": lamb}, ("'Lamb'", "'AdamW'"))):
            copy = self.dir / "copy"
            shutil.copytree(self.out, copy)
            command = ["train", "--deepspeed_config", kwargs.get("config") or self.config(), "--model", "tiny", "--steps", 2,
                       "--output", copy]
            given = dict(zip(args[::2], args[1::2]))
            for name, value in (("--data", self.text), ("--seq_len", 32)):
                given.setdefault(name, value)
            command += [x for pair in given.items() for x in pair]
            r = self.run_cleave(*command, "--strict", code=4)
            for part in parts:
                self.assertIn(part, r.stderr)
            self.assertNotIn("global_step2", os.listdir(copy))
            r = self.run_cleave(*command)
            self.assertIn("warning: ", r.stderr)
            for part in parts:
                self.assertIn(part, r.stderr)
            shutil.rmtree(copy)
        self.assertNotIn("warning", self.train("--output", self.out, "--strict", ranks=1, steps=2).stderr)

    def test_optimizer_state_that_does_not_fit_is_refused_unless_it_begins_anew(self):
        sgd = self.config("sgd.json", optimizer={"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}})
        for ranks in (1, 2):
            self.train("--output", self.out, config=sgd, ranks=ranks, steps=1)
            r = self.train("--output", self.out, ranks=ranks, steps=2, code=4)
            for part in ("exp_avg", "--reset_optimizer"):
                self.assertIn(part, r.stderr)
            self.assertEqual(self.saved(), ["global_step1"])
            r = self.train("--output", self.out, "--reset_optimizer", ranks=ranks, steps=2)
            self.assertIn("the optimizer begins anew", r.stdout)
            self.assertIn("at step 1", r.stdout)
            shutil.rmtree(self.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
