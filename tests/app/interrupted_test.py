#!/usr/bin/env python3
"""Failures during a run: full disks, changing data, other jobs, ranks that stop, signals."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from app_test import CLEAVE, ROOT
from run_test import RunTest


class Interrupted(RunTest):
    # Failures during a run

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

    def test_data_whose_time_alone_changes_do_not_end_the_training(self):
        job = self.start("--eval_data", self.text, "--eval_interval", 5, ranks=2)
        self.until(job, "validation")
        os.utime(self.text, (1, 1))
        self.until(job, "validation")
        self.until(job, "validation")
        job.send_signal(signal.SIGTERM)
        self.end(job, 75)

    def test_a_second_job_in_the_same_folder_gets_the_name_of_the_first(self):
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
        lock["pid"] = os.getpid()  # alive, but started at another time
        (self.out / "run.lock").write_text(json.dumps(lock))
        self.train("--output", self.out, ranks=1, steps=1)

    def test_a_lock_of_another_host_is_taken_over_only_if_it_is_not_rewritten(self):
        self.out.mkdir()
        lock = self.out / "run.lock"
        text = json.dumps({"host": "far away", "host_id": "another", "pid": 1, "begin": "5", "since": "yesterday"})
        config = self.config(cleave={"comm_timeout_s": 4})  # half of it is the watch interval
        lock.write_text(text)
        job = self.start(steps=1, config=config, ranks=2)
        self.until(job, "on another host: if the file does not change for")
        for _ in range(100):
            lock.write_text(text)  # the owner is alive
            time.sleep(0.02)
        said = self.end(job, 2)
        self.assertIn("far away", said)
        self.assertEqual(lock.read_text(), text)
        self.assertIn("took over", self.train("--output", self.out, config=config, ranks=2, steps=1).stdout)

    def test_a_suspended_job_that_lost_its_folder_does_not_write_there(self):
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
        # In the order of their start, which is the order of ranks.
        return [int(p) for p in subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True).stdout.split()]

    def test_a_suspended_rank_is_named_as_the_cause(self):
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

    def test_a_request_for_flight_records_is_answered_while_the_training_continues(self):
        job = self.start(ranks=2)
        self.until(job, "/100000  loss")
        job.send_signal(signal.SIGQUIT)
        said = self.until(job, "print it again with")
        self.assertEqual(sorted(p.name for p in (self.out / "flight").iterdir()), ["rank-0.json", "rank-1.json"])
        self.until(job, "/100000  loss")
        job.send_signal(signal.SIGTERM)
        self.end(job, 75)
        report = self.run_cleave("report", self.out / "flight").stdout
        self.assertIn("flight records of 2 of 2 ranks: SIGQUIT", report)
        self.assertIn("group 'world'", report)
        self.assertIn("rank 1, thread", self.run_cleave("report", self.out / "flight", "--stacks").stdout)
        self.assertIn("--stacks: needs the folder", self.run_cleave("report", "--stacks", code=2).stderr)

    def test_two_jobs_with_one_master_port_train_at_the_same_time(self):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        command = ["launch", "-n", "2", "--master_port", port, "--", "train", "--deepspeed_config", self.config(), "--model", "tiny",
                   "--data", self.text, "--seq_len", "32", "--steps", "300"]
        jobs = [subprocess.Popen([CLEAVE, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env={**os.environ, "OMP_NUM_THREADS": "1"}) for _ in range(2)]
        said = [job.communicate(timeout=100)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], said)  # ranks of one host meet at a port of their launcher

    def test_a_machine_whose_loopback_has_ipv6_only_trains_over_each_transport(self):
        apart = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"', "sh"]
        if not shutil.which("unshare") or not shutil.which("ip") or subprocess.run([*apart, "true"], capture_output=True).returncode:
            self.skipTest("needs a network namespace")
        for transport in ("shm", "gloo"):
            command = ["launch", "-n", 2, "--", "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text,
                       "--seq_len", 32, "--steps", 1, "--transport", transport]
            r = subprocess.run([*apart, CLEAVE, *map(str, command)], capture_output=True, text=True, timeout=100,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def test_the_error_of_the_rank_that_failed_is_among_the_last_lines(self):
        # The file is missing only on rank 1.
        script = ("import os,sys; a=sys.argv[2:]; i=a.index(sys.argv[1])+1; a[i] += '.gone' if os.environ['RANK']=='1' else ''; "
                  "os.execv(a[0], a)")
        for option, code, gone in (("--data", 7, "text.txt.gone"), ("--deepspeed_config", 2, "ds_config.json.gone")):
            r = self.run_cleave("launch", "-n", 3, "--", "python3", "-c", script, option, CLEAVE, "train", "--deepspeed_config",
                                self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 3, code=code)
            last = r.stderr.splitlines()[-4:]
            self.assertIn(f"rank 1 ended with exit code {code}", last[-1])
            self.assertTrue(any(gone in line for line in last), r.stderr)

    def test_the_last_line_of_a_job_that_cannot_save_is_the_reason(self):
        train = ["launch", "-n", 2, "--", "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32,
                 "--steps", 1, "--output", self.out]
        r = self.limited("ulimit -f 4000", *train)  # KiB: like a full disk, but not for shared memory
        self.assertEqual(r.returncode, 4)
        self.assertRegex(r.stderr.splitlines()[-1], r"error: rank \d ended with exit code 4: .*File too large")

    def test_a_stop_during_an_evaluation_saves_and_resumes_later(self):
        long = self.dir / "long.txt"
        long.write_text("and the earth was without form. " * 200000)  # takes minutes
        options = ["--save_interval", 1000, "--eval_interval", 3, "--eval_data"]
        for ranks in (1, 2):
            metrics = self.dir / f"{ranks}.jsonl"
            job = self.start(*options, long, "--metrics", metrics, ranks=ranks)
            self.wait_for(lambda: metrics.exists() and '"step":3' in metrics.read_text().replace(" ", ""))
            time.sleep(0.5)
            job.send_signal(signal.SIGINT)
            said = self.end(job, 75)
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
            job.send_signal(signal.SIGINT)
            self.assertIn("stopped on request", self.end(job, 75))
            self.assertEqual(set(folder.glob("*")) - before, set())
            self.assertEqual(list(self.out.glob("global_step*")), [])

    def test_closed_standard_streams_change_nothing(self):
        metrics = self.dir / "m.jsonl"
        for ranks in (1, 2):
            shutil.rmtree(self.out, ignore_errors=True)
            command = ["train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 3,
                       "--output", self.out, "--metrics", metrics]
            command = command if ranks == 1 else ["launch", "-n", ranks, "--", *command]
            closings = [f'exec "$@" {closed}' for closed in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-")]
            for closed in (*closings, '"$@" | true; exit ${PIPESTATUS[0]}'):
                metrics.unlink(missing_ok=True)
                r = subprocess.run(["bash", "-c", closed, "bash", CLEAVE, *map(str, command), "--resume", "never"],
                                   stdin=subprocess.DEVNULL, capture_output=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})
                self.assertEqual(r.returncode, 0, (closed, ranks, r.stderr))
                lines = [json.loads(line) for line in metrics.read_text().splitlines()]
                kinds = [line.get("event", line.get("step")) for line in lines if line.get("event") != "warning"]
                self.assertEqual(kinds, ["start", 1, 2, 3, "checkpoint", "end"])
                self.assertEqual(self.saved(), ["global_step3"])
                self.assertFalse((self.out / "run.lock").exists())

    def test_a_stop_before_the_first_step_ends_with_75_at_any_time(self):
        for times in range(20):
            job = self.start(ranks=2, out=False)
            while len(self.ranks_of(job)) < 2:
                self.assertIsNone(job.poll())
            time.sleep(times / 200)  # from the start of the second rank's process to the first steps
            job.send_signal(signal.SIGTERM)
            self.end(job, 75)

    def test_ctrl_c_twice_is_the_cause(self):
        job = self.start(ranks=2, out=False)
        self.until(job, "/100000  loss")
        for pid in self.ranks_of(job):
            os.kill(pid, signal.SIGSTOP)  # suspended, so they cannot stop by themselves
        job.send_signal(signal.SIGINT)
        self.until(job, "asked the ranks to stop")
        job.send_signal(signal.SIGINT)
        said = self.end(job, 137)
        self.assertIn("error: a second Ctrl-C or signal killed the ranks", said.splitlines()[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
