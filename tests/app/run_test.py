"""Common parts of tests with stopped, killed or rejected runs: their folder, a long job, and a small disk."""
import contextlib
import os
import subprocess
import time

from app_test import AppTest, CLEAVE


class RunTest(AppTest):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "out put"

    def saved(self):
        return sorted(p.name for p in self.out.iterdir() if p.is_dir())

    def start(self, *args, ranks=1, steps=100000, out=True, env=None, config=None, launch=()):
        """Starts a long job; reads its lines up to a step or a save."""
        command = ["train", "--deepspeed_config", config or self.config(), "--model", "tiny", "--data", self.text,
                   "--seq_len", 32, "--steps", steps, *(["--output", self.out] if out else []), *args]
        if ranks > 1 or launch:
            command = ["launch", "-n", ranks, *launch, "--", *command]
        return subprocess.Popen([CLEAVE, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})

    def wait_for(self, done):
        until = time.monotonic() + 300
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

    def small_disk(self, size):
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

    def limited(self, limits, *args):
        return subprocess.run(["bash", "-c", f'{limits}; exec "$@"', "bash", CLEAVE, *map(str, args)], capture_output=True,
                              text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})
