#!/usr/bin/env python3
"""Faults at random moments of trainings on one, two and four hosts (hosts.py). Each job must end, or continue, within its bound, with the right
exit code, name the rank or host that is the cause, and leave no process. Prints one line per fault and the share that met all of this.

Usage: faults.py CLEAVE [--faults N] [--seed S] [--kinds KIND,...] [--python PYTHON_WITH_TORCH] [--drill N]
"""
import argparse
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "app"))
from hosts import Hosts, why_not  # noqa: E402

DEADLINE = 4  # seconds of cleave.comm_timeout_s
MODEL = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "activation_function": "gelu_new"}
SCRIPT = """import os, sys, time
import torch
import cleave as deepspeed
kind, victim, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
engine, *_ = deepspeed.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": int(sys.argv[4]), "stage3_param_persistence_threshold": 0},
    "cleave": {"comm_timeout_s": 4, "straggler_steps": 10}})
rank, x = int(os.environ["RANK"]), torch.ones(2, 16)
for step in range(60):
    if step == 3 and rank == 0:
        print("training", flush=True)
    mine = rank == victim and step == at
    if mine and kind == "exit":
        os._exit(3)
    if mine and kind == "exception":
        raise ValueError("sample 17 is damaged")
    if kind == "slow" and rank == victim and step >= at:
        time.sleep(0.05)
    for _ in range(0 if mine and kind == "skips" else 2 if mine and kind == "doubles" else 1):  # an evaluation gathers weights
        with torch.no_grad():
            engine(x)
    engine.backward(engine(x).square().mean())
    engine.step()
"""


class Tracker:
    """An HTTP server that answers no request as MLflow does."""

    def __enter__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"<html>not MLflow</html>")

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Job:
    """A training on `hosts` hosts of two ranks each, or on one host."""

    def __init__(self, run, hosts, words, env=None):
        self.hosts, self.run, self.lines, run.job = hosts, run, [], self
        (run.folder / "hostfile").write_text("".join(f"{name} slots={2 if hosts < 4 else 1}\n" for name in run.hosts.names[:hosts]))
        self.ranks = {1: 3, 2: 4, 4: 4}[hosts]
        launch = ["launch", "-n", self.ranks, "--"] if hosts == 1 else [
            "launch", "-H", run.folder / "hostfile", "--launcher_args", f"{run.hosts.ssh_options} -o ServerAliveInterval=1", "--"]
        self.p = subprocess.Popen(run.hosts.named(run.hosts.names[0], run.cleave, *launch, *words), cwd=run.folder, text=True,
                                  env={**run.env, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  start_new_session=True)
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.p.stdout.readline, "")))
        self.reader.start()

    def until(self, pattern, seconds=90):
        until = time.monotonic() + seconds
        while not re.search(pattern, "".join(self.lines)):
            if time.monotonic() > until or self.p.poll() is not None:
                raise AssertionError(f"no '{pattern}'")
            time.sleep(0.01)

    def processes(self):
        """Returns the process of each rank: {rank: (pid, host)}."""
        found = {}
        for name in self.run.hosts.names[:self.hosts]:
            for pid in self.run.hosts.processes(name):
                try:
                    env = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                if rank := next((entry[5:] for entry in env if entry.startswith("RANK=")), None):
                    found.setdefault(int(rank), (pid, name))
        return found

    def end(self, seconds):
        begin = time.monotonic()
        try:
            code = self.p.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"runs {seconds} s after the fault") from None
        self.reader.join(5)
        return code, time.monotonic() - begin, "".join(self.lines)


class Faults:
    def __init__(self, options):
        self.cleave, self.python = str(pathlib.Path(options.cleave).resolve()), options.python
        self.folder, self.job = pathlib.Path(tempfile.mkdtemp(prefix="cleave-faults-")), None
        self.hosts = Hosts(4)
        words = random.Random(1)
        (self.folder / "text.txt").write_text("".join(words.choice("abcdefgh ") for _ in range(20000)))
        (self.folder / "model.json").write_text(json.dumps(MODEL))
        build = pathlib.Path(self.cleave).parent.parent
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(self.folder),
                    "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2] / "python"), "CLEAVE_LIBRARY": str(build / "lib/libcleave_c.so")}
        (self.folder / ".deepspeed_env").write_text(f"OMP_NUM_THREADS=1\nPYTHONPATH={self.env['PYTHONPATH']}\nCLEAVE_LIBRARY={self.env['CLEAVE_LIBRARY']}\n")
        (self.folder / "script.py").write_text(SCRIPT)

    def training(self, rng, *more, steps=1000000, deadline=DEADLINE):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        config = self.folder / "ds_config.json"
        config.write_text(json.dumps({"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                                      "zero_optimization": {"stage": rng.randint(0, 3)}, "cleave": {"comm_timeout_s": deadline}}))
        return ["train", "--deepspeed_config", config, "--model", self.folder / "model.json", "--tokenizer", "byte", "--data",
                self.folder / "text.txt", "--seq_len", 32, "--steps", steps, *more]

    def started(self, rng, hosts, words, env=None):
        job = Job(self, hosts, words, env)
        job.until(r"step \d+/|training")
        time.sleep(rng.uniform(0, 1))
        return job

    @staticmethod
    def check(truth, text):
        if not truth:
            raise AssertionError(text)

    # Each fault returns (exit code, seconds after the fault, bound, output) after its checks of the code and the message.

    def signalled(self, rng, hosts, number, code, bound, says):
        job = self.started(rng, hosts, self.training(rng))
        ranks = job.processes()
        victim = rng.choice(sorted(ranks))
        os.kill(ranks[victim][0], number)
        got, seconds, text = job.end(bound + 20)
        self.check(got == code, f"exit code {got}, not {code}")
        last = [line for line in text.splitlines() if line.startswith("error: ")][-1:] or [""]
        self.check(re.search(says.format(victim=victim), last[0]), f"says {last[0]!r}")
        self.check(seconds <= bound, f"{seconds:.1f} s")
        return seconds

    def kill(self, rng, hosts):
        return self.signalled(rng, hosts, signal.SIGKILL, 137, 8, r"rank {victim}\b.* was killed by signal 9")

    def crash(self, rng, hosts):
        return self.signalled(rng, hosts, signal.SIGSEGV, 139, 8, r"rank {victim}\b.* was killed by signal 11")

    def suspend(self, rng, hosts):
        return self.signalled(rng, hosts, signal.SIGSTOP, 6, DEADLINE + 10, r"rank {victim}\b.*(stopped|hung)|missing: ranks? [0-9, ]*{victim}\b")

    def launcher(self, rng, hosts):
        job = self.started(rng, hosts, self.training(rng))
        os.kill(job.p.pid, signal.SIGKILL)
        job.end(5)
        return self.gone(job, 15)

    def head(self, rng, hosts):
        job = self.started(rng, hosts, self.training(rng))
        self.hosts.kill_all(self.hosts.names[0])
        job.end(5)
        return self.gone(job, 15)

    def gone(self, job, bound):
        begin = time.monotonic()
        while left := [pid for name in self.hosts.names for pid in self.hosts.processes(name)]:
            self.check(time.monotonic() - begin < bound, f"left after {bound} s: {left}")
            time.sleep(0.05)
        return time.monotonic() - begin

    def connection(self, rng, hosts):
        return self.lost_host(rng, hosts, lambda host: os.kill(min(
            pid for pid, command in self.hosts.processes(host).items() if command.startswith("sshd: ")), signal.SIGKILL), 8)

    def cable(self, rng, hosts):
        return self.lost_host(rng, hosts, self.hosts.pull_cable, 25)

    def lost_host(self, rng, hosts, fault, bound):
        job = self.started(rng, hosts, self.training(rng, deadline=30))
        host = rng.choice(self.hosts.names[1:hosts])
        fault(host)
        code, seconds, text = job.end(bound + 20)
        self.check(code == 6, f"exit code {code}, not 6")
        self.check(re.search(rf"error: {host} is unreachable or was lost", text), "the host is not named")
        self.check(seconds <= bound, f"{seconds:.1f} s")
        self.gone(job, 15) if fault != self.hosts.pull_cable else self.hosts.plug_cable(host)
        return seconds

    def loss(self, rng, hosts):
        """30 % of the packets to one host are lost: the job is slower, and computes the same."""
        host = rng.choice(self.hosts.names[1:hosts])
        rule = ["INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP"]
        words = self.training(rng, steps=6, deadline=120)
        job = Job(self, hosts, words)
        job.until(r"step 1/")
        subprocess.run(self.hosts.inside(host, "iptables", "-A", *rule), check=True)
        try:
            code, seconds, text = job.end(120)
        finally:
            subprocess.run(self.hosts.inside(host, "iptables", "-D", *rule), check=True)
        lost = re.search(rf"error: {host} is unreachable or was lost", text)  # ssh may give up after 3 unanswered requests
        self.check(code == 0 or (code == 6 and lost), f"exit code {code}")
        return seconds

    def disk(self, rng, hosts):
        disk = self.folder / "disk"
        disk.mkdir(exist_ok=True)
        inside = ["sh", "-c", f"mount -t tmpfs -o size=400k none {disk} && exec \"$@\"", "sh"]
        words = self.training(rng, "--output", disk / "run", "--save_interval", 1, "--keep", 100)
        job = Job.__new__(Job)
        job.run, job.hosts, job.lines, job.ranks, self.job = self, 1, [], 3, job
        job.p = subprocess.Popen(self.hosts.named(self.hosts.names[0], *inside, self.cleave, "launch", "-n", 3, "--", *words), cwd=self.folder, text=True,
                                 env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        job.reader = threading.Thread(target=lambda: job.lines.extend(iter(job.p.stdout.readline, "")))
        job.reader.start()
        code, seconds, text = job.end(60)
        self.check(code == 4, f"exit code {code}, not 4")
        self.check("No space left" in text and "earlier checkpoints are unchanged" in text, "the disk is not named")
        return seconds

    def tracker(self, rng, hosts):
        dead = rng.random() < 0.5
        with Tracker() as url:
            env = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9" if dead else url}
            job = Job(self, 1, self.training(rng, "--report_to", "mlflow", steps=50), env)
            code, seconds, text = job.end(60)
        self.check(code == 0, f"exit code {code}")
        self.check(text.count("warning: cleave.mlflow") == 1, f"{text.count('warning: cleave.mlflow')} warnings")
        return seconds

    def script(self, rng, hosts, kind, code, bound, says):
        victim, at = rng.randrange({1: 3, 2: 4, 4: 4}[hosts]), rng.randint(4, 40)
        stage = 3 if kind in ("skips", "doubles") else rng.randint(0, 3)
        job = Job(self, hosts, [self.python, self.folder / "script.py", kind, victim, at, stage])
        job.until("training", 180)
        got, seconds, text = job.end(bound + 60)
        self.check(got == code, f"exit code {got}, not {code}")
        self.check(re.search(says.format(victim=victim), text), "the rank is not named")
        return seconds

    def exit(self, rng, hosts):
        return self.script(rng, hosts, "exit", 3, 15, r"error: rank {victim}\b.* ended with exit code 3")

    def exception(self, rng, hosts):
        return self.script(rng, hosts, "exception", 1, 15, r"error: rank {victim}\b.*sample 17 is damaged")

    def skips(self, rng, hosts):
        return self.script(rng, hosts, "skips", 6, DEADLINE + 15, r"rank {victim} is in |missing: rank {victim}\b|look at rank {victim}\b")

    def doubles(self, rng, hosts):
        return self.script(rng, hosts, "doubles", 6, DEADLINE + 15, r"rank {victim} is in |missing: rank {victim}\b|look at rank {victim}\b")

    def slow(self, rng, hosts):
        return self.script(rng, hosts, "slow", 0, 30, r"warning: rank {victim}\b.* is slower than its peers")

    def drill(self, seed, interruptions):
        """Interrupts one training on changing numbers of hosts, and compares its weights with those of an unbroken run of one rank."""
        rng = random.Random(seed)
        words = self.training(rng, "--output", self.folder / "run", "--save_interval", 7)
        config = self.folder / "drill.json"
        config.write_text(json.dumps({**json.loads(words[2].read_text()), "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1,
                                      "cleave": {"exact_sums": True, "comm_timeout_s": DEADLINE}}))
        words[2] = config
        for n in range(interruptions):
            hosts, how = rng.choice([1, 2, 4]), rng.choice(["stop", "kill", "launcher", "head", "connection"])
            job = self.started(rng, hosts, words)
            if how == "stop":
                job.p.send_signal(signal.SIGTERM)
            elif how == "kill":
                ranks = job.processes()
                os.kill(ranks[rng.choice(sorted(ranks))][0], signal.SIGKILL)
            elif how == "launcher":
                os.kill(job.p.pid, signal.SIGKILL)
            else:
                host = self.hosts.names[0] if how == "head" or hosts == 1 else rng.choice(self.hosts.names[1:hosts])
                self.hosts.kill_all(host)
            code, _, text = job.end(60)
            self.gone(job, 20)
            step = re.findall(r"step (\d+)/", text)[-1:]
            print(f"{n} {how} on {hosts} host{'s' * (hosts > 1)}: exit code {code} after step {' '.join(step) or 'none'}", flush=True)
        job = self.started(rng, 4, words)
        job.p.send_signal(signal.SIGTERM)
        self.check(job.end(60)[0] == 75, "the last job does not stop")
        tag = (self.folder / "run/latest").read_text().strip()
        steps = tag.removeprefix("global_step")
        alone = self.folder / "alone"
        subprocess.run([self.cleave, *map(str, words[:words.index("--steps")]), "--steps", steps, "--output", str(alone)], check=True,
                       capture_output=True, env=self.env)
        digests = [subprocess.run([self.cleave, "digest", folder], check=True, capture_output=True, text=True).stdout
                   for folder in (self.folder / "run", alone)]
        print(f"step {steps}: the weights {'are' if digests[0] == digests[1] else 'ARE NOT'} those of an unbroken run of one rank")
        return 0 if digests[0] == digests[1] else 1


KINDS = {  # weight, numbers of hosts
    "kill": (6, (1, 2, 4)), "crash": (4, (1, 2, 4)), "suspend": (4, (1, 2, 4)), "launcher": (3, (1, 2, 4)), "head": (2, (2, 4)),
    "connection": (3, (2, 4)), "cable": (2, (2, 4)), "loss": (1, (2,)), "disk": (2, (1,)), "tracker": (2, (1,)),
    "exit": (1, (1, 2)), "exception": (1, (1, 2)), "skips": (1, (1, 2)), "doubles": (1, (1, 2)), "slow": (1, (1,))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--minutes", type=float, default=1e9, help="draws no fault after this time")
    parser.add_argument("--drill", type=int, metavar="N", help="interrupts one training N times instead")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"not possible here: {reason}")
    faults = Faults(options)
    if options.drill:
        with faults.hosts:
            return faults.drill(options.seed, options.drill)
    kinds = options.kinds.split(",")
    met, by_kind, begin = 0, {}, time.monotonic()
    with faults.hosts:
        for n in range(options.faults):
            if time.monotonic() - begin > 60 * options.minutes:
                break
            rng = random.Random(options.seed * 1000003 + n)
            kind = rng.choices(kinds, [KINDS[k][0] for k in kinds])[0]
            hosts = rng.choice(KINDS[kind][1])
            try:
                seconds = getattr(faults, kind)(rng, hosts)
                faults.gone(None, 15)
                answer = f"{seconds:.1f} s"
                met += 1
                good = 1
            except AssertionError as error:
                answer, good = f"FAILED: {error}", 0
                pathlib.Path(f"fault-{options.seed}-{n}.log").write_text("".join(faults.job.lines if faults.job else []))
            finally:
                for name in faults.hosts.names:
                    faults.hosts.plug_cable(name)
                    faults.hosts.kill_all(name)
            count = by_kind.setdefault(kind, [0, 0])
            count[0] += good
            count[1] += 1
            print(f"{n} {kind} on {hosts} host{'s' * (hosts > 1)}: {answer}", flush=True)
    total = sum(count for _, count in by_kind.values())
    for kind, (good, count) in sorted(by_kind.items()):
        print(f"{kind:10} {good} of {count}")
    print(f"{met} of {total} faults ended as they must ({100 * met / max(total, 1):.1f} %), {time.monotonic() - begin:.0f} s")
    shutil.rmtree(faults.folder, ignore_errors=True)
    return 0 if met == total else 1


if __name__ == "__main__":
    sys.exit(main())
