#!/usr/bin/env python3
"""Runs that people look at: the page, state and metrics of a live run, `cleave top`, and `cleave runs`."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from app_test import AppTest, CLEAVE

# https://prometheus.io/docs/instrumenting/exposition_formats
COMMENT = re.compile(r"# (?:HELP cleave_\w+ .+|TYPE (cleave_\w+) (?:counter|gauge))")
SAMPLE = re.compile(r'(cleave_\w+)(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})? (?:[-+]?[\d.]+(?:e[-+]?\d+)?|NaN|[-+]Inf)')


class Live(AppTest):
    def setUp(self):
        super().setUp()
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            job.terminate()
            job.stdout.close()
            job.wait(60)
        super().tearDown()

    def fails(self, *args):
        return self.run_cleave(*args, code=2).stderr

    def started(self, *args, ranks=2, steps=100000, config=None, **env):
        command = [CLEAVE, "launch", "-n", ranks, "--", "train", "--deepspeed_config", config or self.config(), "--model", "tiny",
                   "--data", self.text, "--seq_len", 32, "--steps", steps, *args]
        job = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1", **env})
        self.jobs.append(job)
        for line in job.stdout:
            if found := re.search(r"live page: http://([\d.]+:\d+)/", line):
                return job, found[1]
        self.fail("the address of the page was not said")

    def get(self, address, path, **headers):
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", headers=headers), timeout=10) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def refused(self, address, path, **headers):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.get(address, path, **headers)
        caught.exception.close()
        return caught.exception.code

    def state_with_steps(self, address, steps=3, **headers):
        for _ in range(600):
            state = json.loads(self.get(address, "/status", **headers)[1])
            if len(state["curve"]) >= steps:
                return state
            time.sleep(0.05)
        self.fail("no steps")

    def test_a_live_run_serves_its_page_state_and_metrics(self):
        metrics = self.dir / "m.jsonl"
        _, address = self.started("--http", 0, "--metrics", metrics, config=self.config(wall_clock_breakdown=True))
        state = self.state_with_steps(address)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        start, steps = lines[0], [line for line in lines if "event" not in line]
        del start["event"]
        self.assertEqual(state["start"], start)
        for row, step in zip(state["curve"], steps):
            self.assertEqual(row, [step[column] for column in state["columns"]])
        later = json.loads(self.get(address, f"/status?after={state['curve'][-1][0]}")[1])
        self.assertTrue(all(row[0] > state["curve"][-1][0] for row in later["curve"]))

        kind, text = self.get(address, "/metrics")
        self.assertEqual(kind, "text/plain; version=0.0.4; charset=utf-8")
        typed = None
        for line in text.splitlines():
            if line.startswith("#"):
                typed = (COMMENT.fullmatch(line) or self.fail(line))[1] or typed
            else:
                self.assertEqual((SAMPLE.fullmatch(line) or self.fail(line))[1], typed)
        for name in ("loss", "step", "phase_seconds", "memory_planned_bytes", "sent_bytes_total"):
            self.assertIn(f"\ncleave_{name}", text)

        kind, page = self.get(address, "/")
        self.assertEqual(kind, "text/html; charset=utf-8")
        self.assertNotRegex(page, r'(?:src|href)\s*=\s*["\']?http')
        self.assertEqual(self.refused(address, "/other"), 404)
        self.assertEqual(self.refused(address, "/status?after=x"), 400)
        self.assertEqual(self.refused(address, "/status", Host="evil.example"), 403)

        shown = self.run_cleave("top", address).stdout
        self.assertIn("step ", shown)
        self.assertIn("█", shown)
        self.assertIn("tiny, 2 ranks", self.run_cleave("top", metrics).stdout)

    def test_a_page_for_other_hosts_needs_a_token(self):
        said = self.fails("train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--http", "0.0.0.0:0")
        self.assertIn("CLEAVE_HTTP_TOKEN", said)
        config = self.config(cleave={"http": "0.0.0.0:0"})
        _, address = self.started(config=config, ranks=1, CLEAVE_HTTP_TOKEN="open sesame")
        address = address.replace("0.0.0.0", "127.0.0.1")
        known = {"Authorization": "Bearer open sesame"}
        self.state_with_steps(address, **known)
        self.assertEqual(self.refused(address, "/"), 401)
        self.assertEqual(self.refused(address, "/metrics", Authorization="Bearer other"), 401)
        self.assertIn("cleave_ranks 1", self.get(address, "/metrics", **known)[1])
        self.assertIn("<html", self.get(address, "/?token=open%20sesame")[1])
        self.assertIn("no valid token", self.fails("top", address))
        self.assertIn("tiny", self.run_cleave("top", address, env={"CLEAVE_HTTP_TOKEN": "open sesame"}).stdout)

    def test_a_wrong_address_is_an_error_before_the_training(self):
        _, address = self.started("--http", 0, ranks=1)
        port = address.split(":")[1]
        for value, part in ((port, "choose another port"), ("70000", "a port from 0 to 65535"), ("myhost:1", "an IP address of this host")):
            said = self.fails("train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--http", value)
            self.assertIn(part, said)
        self.assertIn("no answer", self.fails("top", "localhost:1"))

    def test_runs_are_compared(self):
        files = []
        for name, lr in (("slow", 1e-4), ("fast", 1e-2)):
            files.append(self.dir / f"{name}.jsonl")
            config = self.config(optimizer={"type": "AdamW", "params": {"lr": lr}})
            self.train("--metrics", files[-1], "--eval_data", self.text, "--eval_interval", 4, steps=8, config=config)
        page = self.dir / "runs.html"
        table = self.run_cleave("runs", *files, "--html", page).stdout
        losses = [json.loads(next(x for x in reversed(f.read_text().splitlines()) if "event" not in x))["loss"] for f in files]
        for file, loss in zip(files, losses):
            self.assertRegex(table, rf"{file.stem} +8 +{loss:.4g}")
        different = [line.split()[0] for line in table.split("setting")[1].splitlines()[1:]]
        self.assertEqual(different, ["optimizer.params.lr"])
        states = json.loads(self.run_cleave("runs", *files, "--json").stdout)
        self.assertEqual([len(s["curve"]) for s in states], [8, 8])
        self.assertEqual([len(s["evaluations"][""]) for s in states], [2, 2])
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser:
            shown = subprocess.run([browser, "--headless", "--no-sandbox", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()],
                                   capture_output=True, text=True, timeout=120).stdout
            self.assertEqual(len(re.findall("<figure", shown)), 6, shown[-2000:])
            self.assertIn("Settings that differ", shown)

    def test_what_is_not_a_run_is_named(self):
        (self.dir / "x.jsonl").write_text("hello\n")
        (self.dir / "none").mkdir()
        self.assertIn("not a metrics file", self.fails("runs", self.dir / "x.jsonl"))
        self.assertIn("cannot be read", self.fails("runs", self.dir / "gone.jsonl"))
        self.assertIn("no file of metrics in this folder", self.fails("top", self.dir / "none"))
        for name in "ab":
            (pathlib.Path(self.dir) / "none" / f"{name}.jsonl").write_text('{"event":"start"}\n')
        self.assertIn("several files of metrics", self.fails("top", self.dir / "none"))
        self.assertIn("has no steps yet", self.fails("runs", self.dir / "none" / "a.jsonl"))


if __name__ == "__main__":
    unittest.main()
