#!/usr/bin/env python3
"""Every honoured key has a visible effect: jobs that differ only in two values of the key must differ in the output that the key affects. A
new key needs a row in honoured_rows.py.
"""
import concurrent.futures
import json
import os
import re
import socket
import subprocess
import unittest

from app_test import AppTest, CLEAVE, ROOT
from honoured_rows import COSINE, CYCLE, DECAY, ELSEWHERE, OUTPUTS, RANGE, ROWS, WARM, how_tested, with_value

BASE = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
MODEL = {"model_type": "gpt2", "vocab_size": 2304, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4, "attn_pdrop": 0.0,
         "activation_function": "gelu_new"}
PLANNED = {"memory", "bytes", "calls"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Honoured(AppTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        self.model = self.dir / "model.json"
        self.model.write_text(json.dumps(MODEL))
        # 23 samples of 16 tokens: no batch size divides them.
        self.data = self.dir / "data.txt"
        self.data.write_text(self.text.read_text()[:23 * 16 + 1])

    def honoured_keys(self):
        """Returns the honoured keys that `check` lists, over configurations that together contain every key."""
        found = set()
        kinds = ["AdamW", "Lamb", "Lion", "SGD", "Adagrad", "Adam"]
        for kind, rest in zip(kinds, [WARM, DECAY, COSINE, CYCLE, RANGE, {}]):
            out = self.run_cleave("check", "--all", self.config(**{**BASE, **rest, "optimizer": {"type": kind}})).stdout
            found |= {m[1] for m in re.finditer(r"^(?:\S+:\d+:\d+: )?(\S+) = .*\): honoured(?: by [a-z ]+)?: ", out, re.MULTILINE)}
        return found

    def test_every_honoured_key_has_a_row_and_every_row_a_key(self):
        keys = self.honoured_keys()
        self.assertGreater(len(keys), 120)
        self.assertEqual(keys - set(ROWS) - set(ELSEWHERE), set(), "honoured keys without a row")
        self.assertEqual((set(ROWS) | set(ELSEWHERE)) - keys, set(), "no such honoured key")
        self.assertEqual([key for key in keys if not how_tested(key)], [])
        self.assertEqual({row[0] for row in ROWS.values()}, set(OUTPUTS))
        for folder, name in ELSEWHERE.values():
            files = [path for kind in ("*.cpp", "*.py") for path in (ROOT / folder).rglob(kind)]
            self.assertTrue(any(name in path.read_text() for path in files), name)

    def job(self, path, value, rest, folder):
        folder.mkdir()
        config = with_value({**BASE, **rest}, path, value)
        config = {k: v for k, v in config.items() if v != "absent"}
        file = folder / "ds_config.json"
        file.write_text(json.dumps(config).replace("$DIR", str(folder)))
        return ["--deepspeed_config", file, "--model", self.model, "--seq_len", 16]

    def run_job(self, *args, env=None):
        return subprocess.run([CLEAVE, *map(str, args)], capture_output=True, text=True, timeout=120, cwd=self.dir,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})

    def plan(self, what, path, value, rest, ranks, folder):
        r = self.run_job("plan", *self.job(path, value, rest, folder), "--world_size", ranks, "--json")
        self.assertEqual(r.returncode, 0, f"{path} = {value}: {r.stderr}")
        plan = json.loads(r.stdout)["ranks"]
        return [rank["comm_bytes"] if what == "bytes" else rank["memory"] for rank in plan]

    def trained(self, what, path, value, rest, ranks, folder):
        metrics = folder / "metrics.jsonl"
        if what == "calls":
            rest = {**rest, "comms_logger": {}}
        options = ["train", *self.job(path, value, rest, folder), "--data", self.data, "--steps", 10, "--metrics", metrics]
        if what == "saved":
            options += ["--output", folder / "out", "--save_interval", 4]
        r = self.run_job(*(["launch", "-n", ranks, "--"] if ranks > 1 else []), *options)
        if what == "code":
            return r.returncode
        self.assertEqual(r.returncode, 0, f"{path} = {value}: {r.stderr}")
        if what in {"files", "saved"}:
            # Without the time of TensorBoard files and the numbers of MLflow's runs.
            return sorted(re.sub(r"(?<=tfevents).*|[0-9a-f]{32}|(?<!\d)\d{18}(?!\d)", "", str(p.relative_to(folder))) for p in folder.rglob("*"))
        if what == "lines":
            kept = [line for line in r.stdout.splitlines() if "config" not in line and not re.search(r"step +\d+/\d+", line)]
            return re.sub(r"[0-9.]+", "", "\n".join(kept))
        if what == "profile":
            return re.findall(r"after \d+ steps", r.stdout)
        if what == "disk":
            return re.findall(r"io_uring, [^,]* in flight|threads, [^,]* in flight", r.stdout)
        if what == "calls":
            rows = re.findall(r"(all_reduce|reduce_scatter|all_gather) +([\d.]+ \S+) +\d+ +(\d+)", r.stdout)
            self.assertTrue(rows)
            return rows
        field = {"loss": "loss", "lr": "lr", "scale": "loss_scale", "skipped": "skipped", "norm": "grad_norm"}[what]
        return [line[field] for line in map(json.loads, metrics.read_text().splitlines()) if "event" not in line]

    # One of two ranks, which waits for the other until its deadline.
    def alone(self, path, value, rest, folder):
        r = self.run_job("train", *self.job(path, value, rest, folder), "--data", self.data,
                         env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
        self.assertEqual(r.returncode, 6, r.stderr)
        return re.findall(r"within (\S+) s", r.stderr)

    def differs(self, path):
        what, a, b, rest, ranks = ROWS[path]
        seen = []
        for i, value in enumerate([a, b]):
            folder = self.dir / f"{path} {i}"
            if what == "alone":
                seen.append(self.alone(path, value, rest, folder))
            else:
                seen.append((self.plan if what in {"memory", "bytes"} else self.trained)(what, path, value, rest, ranks, folder))
        return seen[0] != seen[1]

    def test_every_honoured_key_changes_its_output(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = dict(zip(ROWS, pool.map(self.outcome, ROWS)))
        self.assertEqual({key: answer for key, answer in answers.items() if answer is not True}, {})

    def outcome(self, path):
        try:
            return self.differs(path) or f"{ROWS[path][0]} is the same with {ROWS[path][1]} and {ROWS[path][2]}"
        except (AssertionError, subprocess.TimeoutExpired) as e:
            return str(e)[:600]


if __name__ == "__main__":
    unittest.main(verbosity=2)
