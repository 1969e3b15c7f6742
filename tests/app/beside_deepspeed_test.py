#!/usr/bin/env python3
"""200 command lines and hostfiles, compared with the ranks that DeepSpeed's launcher started for each (tests/launcher/beside_deepspeed.py).
Cleave starts the same ranks with the same places, variables and arguments. Intended differences are listed here and in a table of
docs/launching.md. Usage: beside_deepspeed_test.py CLEAVE
"""
import collections
import json
import os
import re
import shlex
import subprocess
import unittest

from app_test import AppTest, ROOT
from launched import DEEPSPEED

FIXTURE = json.loads((ROOT / "tests/fixtures/deepspeed/launches.json").read_text())
PLACE = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"]


def started(text):
    """Returns (variables, arguments) of every rank of a dry run."""
    found = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        words = shlex.split(line)
        words = words[words.index("env") + 1:]
        env = {}
        while re.match(r"[A-Za-z_]\w*=", words[0]):
            name, value = words.pop(0).split("=", 1)
            env[name] = value
        if words[0] == "taskset":
            words = words[3:]
        if re.search(r"/python3?$", words[0]):
            words[0] = "python"
        found.append((env, words))
    return found


class BesideDeepSpeed(AppTest):
    maxDiff = None

    def ours(self, case):
        (self.dir / "hosts").write_text(case["hostfile"])
        (self.dir / ".deepspeed_env").write_text(case["file"])
        env = {"PATH": os.environ["PATH"], "HOME": str(self.dir / "home"), **case["env"]}
        return subprocess.run([DEEPSPEED, "--dry_run", *case["args"]], cwd=self.dir, env=env, capture_output=True, text=True, timeout=60)

    def test_the_same_ranks_places_and_arguments(self):
        for name in ("train.py", "pack.train"):
            (self.dir / name).touch()
        different = collections.Counter()
        ranks = 0
        for number, case in enumerate(FIXTURE["cases"]):
            theirs, r = case["deepspeed"], self.ours(case)
            where = f"case {number}: {shlex.join(case['args'])}\n{case['hostfile']}{r.stdout}{r.stderr}"
            if "error" in theirs:
                self.assertEqual((r.returncode, r.stdout), (2, ""), f"{theirs['error']}\n{where}")
                continue
            self.assertEqual(r.returncode, 0, where)
            ours = started(r.stdout)
            self.assertEqual(len(ours), len(theirs["ranks"]), where)
            several = "by ssh" in r.stderr or "# ssh " in r.stdout
            sizes = {row[FIXTURE["names"].index("LOCAL_SIZE")] for row in theirs["ranks"]}
            place_on_host = collections.Counter()
            for (env, argv), row in zip(ours, theirs["ranks"]):
                ranks += 1
                want = dict(zip(FIXTURE["names"], row))
                place = str(place_on_host[want["CROSS_RANK"]])
                place_on_host[want["CROSS_RANK"]] += 1
                if want["LOCAL_RANK"] != place:
                    # DeepSpeed's value is the rank modulo the host's ranks, which is wrong for hosts with different numbers of ranks.
                    self.assertTrue(len(sizes) > 1 or "--no_ssh" in case["args"], where)
                    different["local rank"] += 1
                    want["LOCAL_RANK"] = place
                if not any(a.startswith("--master_port") for a in case["args"]) and "--no_ssh" not in case["args"]:
                    # Each job has its own port, so that two jobs on a machine do not meet.
                    self.assertNotEqual(env["MASTER_PORT"], want["MASTER_PORT"], where)
                    different["port"] += 1
                    want["MASTER_PORT"] = env["MASTER_PORT"]
                names = FIXTURE["names"] if several else PLACE  # on this machine a rank has the launcher's whole environment
                self.assertEqual({n: env.get(n) for n in names}, {n: want[n] for n in names}, where)
                self.assertEqual(argv, [a.replace("--local_rank=N", f"--local_rank={place}") for a in theirs["argv"]], where)
        self.assertGreater(ranks, 700)
        self.assertGreater(different["local rank"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
