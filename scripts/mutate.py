#!/usr/bin/env python3
"""Puts small defects into a copy of the code, one at a time, and checks that the named tests find them.

usage: mutate.py [--list scripts/mutants.txt] [--only WORD] [--work DIR] [--copies 2] [--jobs 1] [--preset release] [--seeds 1]
       mutate.py [--list FILE] --check     only checks that the list matches the current code

A line of the list is `file ; text that occurs once ; replacement ; binary ; filter of its tests`, with blanks around the semicolons and \\n
for a line end; lines that begin with # are comments. With libcleave_c.so as binary, the filter is a word in the name of a test of
tests/cuda_interpreter/scripts.py. The copies are worktrees of HEAD in --work (build/mutants), each with its own defect at
a time; only the files that a defect affects are built again. A defect that does not compile is an error of the list, not caught. With --preset interpreter, tests of GPU code
run on the CPU, in --seeds orders; a defect that fails in one of them is caught. Prints a line for each defect and the share caught; exits
with 1 if one survived or does not match the code.
"""
import argparse
import collections
import os
import pathlib
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command, cwd, timeout=900):
    # ccache then shares objects between the copies.
    env = {**os.environ, "CCACHE_BASEDIR": str(cwd)}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=timeout, env=env)


def read_list(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split(" ; ")
        if len(parts) != 5:
            sys.exit(f"{path}:{number}: wanted five parts separated by ' ; ', got {len(parts)}")
        yield number, *(part.replace("\\n", "\n") for part in parts)


def misfit(path, old, new):
    """Returns the reason why a defect does not match the code, or an empty string."""
    if not path.exists():
        return "the file does not exist"
    text = path.read_text()
    if text.count(old) != 1:
        return f"the text occurs {text.count(old)} times (expected 1)"
    return "changes nothing" if old == new else ""


class Copy:
    """A worktree with its build, which has one defect at a time."""

    def __init__(self, tree, jobs, preset, seeds):
        self.tree, self.jobs, self.preset, self.seeds = tree, jobs, preset, seeds
        self.sound = {}  # by binary and tests: they pass without a defect
        if not self.tree.exists():
            self.must(["git", "worktree", "add", "--detach", str(self.tree), "HEAD"], ROOT)
        self.must(["git", "checkout", "-q", "--detach", head()], self.tree)
        self.must(["git", "checkout", "-q", "--", "."], self.tree)
        self.must(["cmake", "--preset", preset], self.tree)

    @staticmethod
    def must(command, cwd):
        result = run(command, cwd)
        if result.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")

    def build(self, binary):
        return run(["ninja", "-C", f"build/{self.preset}", f"-j{self.jobs}", f"lib/{binary}" if binary.endswith(".so") else f"bin/{binary}"], self.tree, timeout=3600).returncode == 0

    def passes(self, binary, tests):
        """Returns true if the tests pass. The filter is GoogleTest's, names a script in tests/app if the binary is cleave, or a test of a
        script if it is the library."""
        if binary == "cleave":
            script, *names = tests.split()
            command = [sys.executable, f"tests/app/{script}", f"build/{self.preset}/bin/cleave", *names]
        elif binary.endswith(".so"):
            command = ["tests/cuda_interpreter/scripts.py", f"build/{self.preset}", "--cases", "1", "--only", tests, "--seed"]
        else:
            command = [f"build/{self.preset}/bin/{binary}", f"--gtest_filter={tests}", "--gtest_brief=1"]
        for seed in range(1, self.seeds + 1):
            interpreter = [f"CUDA_INTERPRETER_SEED={seed}", "CUDA_INTERPRETER_GPUS=3", "CUDA_INTERPRETER_DEADLOCK_S=40"]
            each = [*command, str(seed)] if command[-1] == "--seed" else command
            try:
                result = run(["env", "OMP_NUM_THREADS=1", *interpreter, *each], self.tree, timeout=600 if each is not command else 180)
            except subprocess.TimeoutExpired:
                return False, True
            nothing = "Running 0 tests" in result.stdout or "skipped: no Python" in result.stdout or "Ran 0 tests" in result.stderr or "0 tests from 0" in result.stdout
            if nothing or result.returncode:
                return False, not nothing
        return True, True

    def verdict(self, file, old, new, binary, tests):
        """Returns "caught", "survived", or the reason why the line of the list is wrong."""
        path = self.tree / file
        if why := misfit(path, old, new):
            return why
        if (binary, tests) not in self.sound:
            self.sound[binary, tests] = self.build(binary) and self.passes(binary, tests) == (True, True)
        if not self.sound[binary, tests]:
            return f"{tests} of {binary} do not pass, or do not exist, without the defect"
        text = path.read_text()
        path.write_text(text.replace(old, new))
        try:
            if not self.build(binary):
                return "does not compile"
            return "survived" if self.passes(binary, tests)[0] else "caught"
        finally:
            path.write_text(text)


def head():
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", type=pathlib.Path, default=ROOT / "scripts" / "mutants.txt")
    parser.add_argument("--only", default="", help="defects with this text in their line")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--copies", type=int, default=2, help="worktrees, which work at the same time")
    parser.add_argument("--jobs", type=int, default=1, help="compilers of each copy")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--seeds", type=int, default=1, help="orders of the interpreter's streams")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    defects = collections.deque(d for d in read_list(options.list) if options.only in " ; ".join(map(str, d[1:])))
    if options.check:
        wrong = [f"{options.list.name}:{number}: {file}: {old.strip()}: {why}" for number, file, old, new, *_ in defects
                 if (why := misfit(ROOT / file, old, new))]
        sys.exit("\n".join(wrong) if wrong else 0)
    options.work.mkdir(parents=True, exist_ok=True)
    copies = [Copy(options.work / f"tree{i}", options.jobs, options.preset, options.seeds) for i in range(options.copies)]
    found = {"caught": [], "survived": [], "error": []}
    begin = time.monotonic()
    lock = threading.Lock()

    def work(copy):
        while True:
            with lock:
                if not defects:
                    return
                number, file, old, new, binary, tests = defects.popleft()
            verdict = copy.verdict(file, old, new, binary, tests)
            label = f"{options.list.name}:{number}: {file}: {old.strip()} -> {new.strip()}".replace("\n", "\\n")
            kind = verdict if verdict in found else "error"
            with lock:
                found[kind].append(label if kind != "error" else f"{label}: {verdict}")
                print(f"{kind:9} {found[kind][-1]}", flush=True)

    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tried = len(found["caught"]) + len(found["survived"])
    share = 100 * len(found["caught"]) / tried if tried else 0
    print(f"{len(found['caught'])} of {tried} defects caught ({share:.1f} %), {len(found['error'])} lines of the list wrong, "
          f"{time.monotonic() - begin:.0f} s, commit {head()[:12]}")
    sys.exit(1 if found["survived"] or found["error"] else 0)


if __name__ == "__main__":
    main()
