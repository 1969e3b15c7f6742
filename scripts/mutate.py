#!/usr/bin/env python3
"""Puts small defects into a copy of the code, one at a time, and checks that the named tests find them.

usage: mutate.py [--list scripts/mutants.txt] [--only WORD] [--work DIR] [--jobs N] [--preset release] [--seeds 1]
       mutate.py [--list FILE] --check     only checks that the list matches the current code

A line of the list is `file ; text that occurs once ; replacement ; binary ; filter of its tests`, with blanks around the semicolons and \\n
for a line end; lines that begin with # are comments. The copy is a worktree of HEAD in --work (build/mutants); only the files that a defect
affects are built again. A defect that does not compile is an error of the list, not caught. With --preset interpreter, tests of GPU code
run on the CPU, in --seeds orders; a defect that fails in one of them is caught. Prints a line for each defect and the share caught; exits
with 1 if one survived or does not match the code.
"""
import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command, cwd, timeout=900):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=timeout)


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
    def __init__(self, work, jobs, preset, seeds):
        self.tree, self.jobs, self.preset, self.seeds = work / "tree", jobs, preset, seeds
        if not self.tree.exists():
            self.must(["git", "worktree", "add", "--detach", str(self.tree), "HEAD"], ROOT)
        self.must(["git", "checkout", "-q", "--detach", self.head()], self.tree)
        self.must(["git", "checkout", "-q", "--", "."], self.tree)
        self.must(["cmake", "--preset", preset], self.tree)

    @staticmethod
    def head():
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()

    @staticmethod
    def must(command, cwd):
        result = run(command, cwd)
        if result.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")

    def build(self, binary):
        return run(["ninja", "-C", f"build/{self.preset}", f"-j{self.jobs}", f"bin/{binary}"], self.tree)

    def passes(self, binary, tests):
        """Returns true if the tests pass. The filter is GoogleTest's, or names a script in tests/app if the binary is cleave."""
        if binary == "cleave":
            script, *names = tests.split()
            command = [sys.executable, f"tests/app/{script}", f"build/{self.preset}/bin/cleave", *names]
        else:
            command = [f"build/{self.preset}/bin/{binary}", f"--gtest_filter={tests}", "--gtest_brief=1"]
        for seed in range(1, self.seeds + 1):
            interpreter = [f"CUDA_INTERPRETER_SEED={seed}", "CUDA_INTERPRETER_GPUS=3", "CUDA_INTERPRETER_DEADLOCK_S=40"]
            try:
                result = run(["env", "OMP_NUM_THREADS=1", *interpreter, *command], self.tree, timeout=180)
            except subprocess.TimeoutExpired:
                return False, True
            nothing = "Running 0 tests" in result.stdout or "Ran 0 tests" in result.stderr or "0 tests from 0" in result.stdout
            if nothing or result.returncode:
                return False, not nothing
        return True, True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", type=pathlib.Path, default=ROOT / "scripts" / "mutants.txt")
    parser.add_argument("--only", default="", help="defects with this text in their line")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--preset", default="release")
    parser.add_argument("--seeds", type=int, default=1, help="orders of the interpreter's streams")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    defects = [d for d in read_list(options.list) if options.only in " ; ".join(map(str, d[1:]))]
    if options.check:
        wrong = [f"{options.list.name}:{number}: {file}: {old.strip()}: {why}" for number, file, old, new, *_ in defects
                 if (why := misfit(ROOT / file, old, new))]
        sys.exit("\n".join(wrong) if wrong else 0)
    options.work.mkdir(parents=True, exist_ok=True)
    copy = Copy(options.work, options.jobs, options.preset, options.seeds)
    sound = {}
    caught, survived, broken = 0, [], []
    begin = time.monotonic()
    for number, file, old, new, binary, tests in defects:
        path = copy.tree / file
        label = f"{options.list.name}:{number}: {file}: {old.strip()} -> {new.strip()}".replace("\n", "\\n")
        if why := misfit(path, old, new):
            broken.append(f"{label}: {why}")
        else:
            text = path.read_text()
            if (binary, tests) not in sound:  # the tests pass without the defect
                built = copy.build(binary)
                sound[binary, tests] = built.returncode == 0 and copy.passes(binary, tests) == (True, True)
            path.write_text(text.replace(old, new))
            built = copy.build(binary)
            if not sound[binary, tests]:
                broken.append(f"{label}: {tests} of {binary} do not pass, or do not exist, without the defect")
            elif built.returncode:
                broken.append(f"{label}: does not compile")
            elif copy.passes(binary, tests)[0]:
                survived.append(label)
            else:
                caught += 1
            path.write_text(text)
        verdict = "survived" if survived[-1:] == [label] else "error" if broken and broken[-1].startswith(label) else "caught"
        print(f"{verdict:9} {label}", flush=True)
    for line in broken:
        print("error:", line)
    tried = caught + len(survived)
    share = 100 * caught / tried if tried else 0
    print(f"{caught} of {tried} defects caught ({share:.1f} %), {len(broken)} lines of the list wrong, "
          f"{time.monotonic() - begin:.0f} s, commit {copy.head()[:12]}")
    sys.exit(1 if survived or broken else 0)


if __name__ == "__main__":
    main()
