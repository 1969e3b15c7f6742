#!/usr/bin/env python3
"""scripts/gpu_check.sh without a GPU: a rehearsal of both calls with programs that pretend. usage: gpu_scripts_test.py PROGRAMS"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

PROGRAMS = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHECK, TABLE = ROOT / "scripts" / "gpu_check.sh", ROOT / "scripts" / "gpu_table.py"
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_calls
import gpu_suite
import gpu_table


def run(*command, env=None):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=200, env={**os.environ, "OUT": "", **(env or {})})


class Calls(unittest.TestCase):
    def test_the_limits_of_all_cases_fit_the_budget(self):
        for call, cases in gpu_calls.CALLS.items():
            self.assertLessEqual(sum(c.seconds for c in cases), gpu_calls.BUDGET[call])
            self.assertEqual(len({c.name for c in cases}), len(cases))
        # A machine is available for 900 s, including two starts of at most 120 s.
        self.assertLessEqual(sum(gpu_calls.BUDGET.values()), 900 - 240)

    def test_the_manual_lists_the_expectation_of_every_case(self):
        manual = (ROOT / "docs" / "gpu.md").read_text()
        for cases in gpu_calls.CALLS.values():
            for case in cases:
                self.assertIn(f"| `{case.name}` |", manual)

    def test_wrong_options_are_errors(self):
        for call in gpu_calls.CALLS:
            self.assertEqual(run(CHECK, f"--{call}", "--list", "--programs", PROGRAMS).stdout.count(" s  "), len(gpu_calls.CALLS[call]))
        for wrong in (["--first", "--only", "gpt2"], ["A"], [], ["--first", "--second"], ["--first", "--programs", "/nowhere"]):
            r = run(CHECK, *(wrong if "--programs" in wrong else [*wrong, "--programs", PROGRAMS]))
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("gpu_check: ", r.stderr)

    def test_without_a_gpu_prints_the_reason_and_exits_with_77(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        with tempfile.TemporaryDirectory() as out:
            r = run(CHECK, "--first", "--programs", PROGRAMS, env={"OUT": out})
            self.assertEqual(r.returncode, 77, r.stdout + r.stderr)
            self.assertIn("gpu_check: no GPU: ", r.stdout)
            self.assertIn("nothing was tested or measured", r.stdout)
            self.assertTrue(os.path.exists(os.path.join(out, "gpu_first.tar.gz")))

    def test_its_configurations_are_valid(self):
        with tempfile.TemporaryDirectory() as folder:
            at = pathlib.Path(folder)
            (at / "small.json").write_text(json.dumps(gpu_calls.SMALL))
            for zero in ({"stage": 3}, gpu_calls.ALL_ON_HOST, gpu_calls.OFFLOAD["zero_optimization"]):
                (at / "ds.json").write_text(json.dumps(gpu_calls.ds_config(1, 2, zero, {"tune_products": False, "comm_timeout_s": 12})))
                r = run(f"{PROGRAMS}/cleave", "plan", "--deepspeed_config", at / "ds.json", "--model", at / "small.json", "--seq_len", 64, "--world_size", 2)
                self.assertEqual(r.returncode, 0, r.stdout + r.stderr)


# Replaces every program of the bundle and Python. The name of a case selects its behavior.
PRETENDER = r'''#!/usr/bin/env python3
import json, os, signal, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
value = lambda option: args[args.index(option) + 1]
time.sleep(float(os.environ.get("PRETEND_START", 0)))
if name == "cleave" and args[0] == "report":
    if os.environ.get("PRETEND_HANG"):
        time.sleep(60)
    gpu = {"name": "pretended", "memory_bytes": 2**37, "memory_free_bytes": 2**37}
    print(json.dumps({"cuda": {"gpus": [gpu], "driver": "13.0"}, "missing": []}))
elif name == "cleave":
    if args[0] == "launch":
        args = args[args.index("train"):]
    config = json.load(open(value("--deepspeed_config")))
    zero, micro = config["zero_optimization"], config["train_micro_batch_size_per_gpu"]
    if os.environ.get("PRETEND_TROUBLE"):
        if "offload_param" in zero and "pretend" not in args:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(100)
        if "ipc" in args:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "offload_optimizer" in zero and "host" in args:
            print("\x00\xff garbage")
            open(value("--metrics"), "w").write('{"loss": nonsense\n[1]\n')
            sys.exit(0)
    if "nccl" in args:
        print("error: NCCL 2.27 refuses several ranks on one GPU")
        sys.exit(2)
    with open(value("--metrics"), "w") as f:
        f.write(json.dumps({"event": "start", "memory_planned": {"device": {"weights": 2**20}}, "matmul_flops_per_s": 7.5e14}) + "\n")
        if "product_choices" not in config["cleave"]:
            f.write(json.dumps({"event": "choices", "choices": {"a": "b"}}) + "\n")
        for step in range(int(value("--steps"))):
            f.write(json.dumps({"step": step, "loss": 4.25, "grad_norm": 1.5, "step_ms": 1, "mfu": 0.5, "tokens_per_s": 1000.0 * micro}) + "\n")
elif name == "kernels_bench":
    out = next(a.split("=")[1] for a in args if a.startswith("--benchmark_out="))
    print("cuda:0; limits: 780 TFLOP/s")
    row = {"name": "cuda/swiglu/forward/real_time", "run_name": "x", "TB/s": 2.5, "%limit": 82.0}
    text = json.dumps({"context": {}, "benchmarks": [row, {**row, "name": "cuda/attention/forward/real_time"}]})
    open(out, "w").write(text[:-40])  # as if killed while writing
    os.kill(os.getpid(), signal.SIGKILL)
else:
    cases = json.load(open(os.environ["PRETEND_CASES"])).get(name, ["On/Other.Fits/cuda"])
    if "--gtest_list_tests" in args:
        last = ""
        for case in cases:
            suite, rest = case.split(".")
            print(*([suite + "."] if suite != last else []), "  " + rest + "  # GetParam() = cuda", sep="\n")
            last = suite
        sys.exit(0)
    flags = [a.split("=")[1] for a in args if a.startswith("--gtest_flagfile=")]
    text = open(flags[0]).read() if flags else "\n".join(args)
    print("process", os.getpid(), flush=True)
    for case in next(line for line in text.splitlines() if line.startswith("--gtest_filter=")).split("=")[1].split(":"):
        print("[ RUN      ]", case, flush=True)
        if "Crash" in case:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "Hang" in case:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(100)
        if "Slow" in case:
            time.sleep(2)
        if "Skip" in case:
            print("no peer\n[  SKIPPED ]", case, "(0 ms)", flush=True)
            continue
        if "Illegal" in case or "Wrong" in case:
            print("CUDA: an illegal memory access was encountered" if "Illegal" in case else "Expected equality of 1 and 2")
            print("[  FAILED  ]", case + ", where GetParam() = cuda (3 ms)", flush=True)
            sys.exit(1)
        print("note: measured 7\n[       OK ]", case, "(1 ms)", flush=True)
'''
SANITIZER = """#!/bin/sh
case "$*" in *kernels_test*) echo "========= Invalid __global__ read of size 4 bytes"; exit 9 ;; esac
echo "========= ERROR SUMMARY: 0 errors"
"""
NCU = '''#!/usr/bin/env python3
print('a line of the program\\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for step in (9, 1):
    for kernel, us in (("void cleave::kernels::gpu::each_kernel<Lookup<float>>", 10), ("nvjet_gemm", 900000), ("void forward(Attention<float>)", 100)):
        print(f'"1","{kernel}","gpu__time_duration.sum","us","{us * step:,}"')
'''
TESTS = {
    "device_test": ["On/Stream.Fits/cuda"],
    "kernels_test": ["On/Other.Last/cuda", "On/Norm.Wrong/cuda", "On/Norm.Skip/cuda", "On/Matmul.Fits/cuda", "On/Matmul.Illegal/cuda", "On/Norm.Crash/cuda",
                     "On/Norm.Hang/cuda"],
    "runtime_test": ["On/Engine.Fits/cuda", "On/Engine.UpdatesOffloaded/cuda"],
    "python": ["Python.one", "Python.two_Hang", "Python.three"],
}  # fmt: skip


class Rehearsal(unittest.TestCase):
    """Both calls with replaced programs: every branch ends in time and returns the results."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.folder.name)
        self.programs, self.tools, self.out = root / "bin", root / "tools", root / "out"
        for folder in (self.programs, self.tools, self.out):
            folder.mkdir()
        for name in ("cleave", "kernels_bench", "kernels_test", "device_test", "runtime_test", "python"):
            self.make(self.programs / name, PRETENDER)
        self.make(self.tools / "compute-sanitizer", SANITIZER)
        self.make(self.tools / "ncu", NCU)
        self.cases(TESTS)
        self.env = {"OUT": str(self.out), "PATH": f"{self.tools}:{os.environ['PATH']}", "GPU_CHECK_PACE": "0.1", "PRETEND_CASES": str(root / "cases.json"),
                    "GPU_CHECK_PYTHON": str(self.programs / "python")}  # fmt: skip

    def tearDown(self):
        self.folder.cleanup()

    def make(self, path, content):
        path.write_text(content)
        path.chmod(0o755)

    def cases(self, tests):
        (pathlib.Path(self.folder.name) / "cases.json").write_text(json.dumps(tests))

    def call(self, name, code, *options, **env):
        r = run(CHECK, f"--{name}", "--programs", self.programs, *options, env={**self.env, **env})
        self.assertEqual(r.returncode, code, r.stdout + r.stderr)
        self.results = json.loads(self.log(name, "results.json"))["results"]
        self.assertEqual(self.log(name, "table.txt").strip(), gpu_table.table(name, self.results).strip())
        return r.stdout

    def log(self, call, name):
        with tarfile.open(self.out / f"gpu_{call}.tar.gz") as tar:
            return tar.extractfile(f"logs/{name}").read().decode(errors="replace")

    def of(self, name):
        return self.results[name]["result"]

    def test_the_first_call_settles_every_case_despite_its_neighbors(self):
        begun = time.monotonic()
        out = self.call("first", 1, PRETEND_TROUBLE="1")
        self.assertLess(time.monotonic() - begun, 0.1 * gpu_calls.BUDGET["first"] + 15)  # checks the budget
        self.assertEqual([c.name for c in gpu_calls.CALLS["first"]], list(self.results))
        self.assertEqual(self.of("eager_loading"), "passed")
        self.assertIn("the same bits as lazy_loading", self.results["eager_loading"]["note"])
        self.assertEqual(self.of("parameter_offload"), "hung")
        self.assertIn("process", self.log("first", "parameter_offload.stacks"))
        self.assertEqual(self.of("host_offload"), "failed")
        self.assertIn("0 of 10 steps", self.results["host_offload"]["note"])
        self.assertIn("killed by signal 11", self.results["ipc_stage_3"]["note"])
        self.assertEqual(self.of("nccl_tensor"), "skipped")
        self.assertEqual(self.of("memcheck"), "passed")
        suites = self.results["suites_and_python"]["suites"]
        kernels = {name: c["result"] for name, c in suites["kernels_test"]["cases"].items()}
        self.assertEqual(kernels, {"On/Other.Last/cuda": "passed", "On/Norm.Wrong/cuda": "failed", "On/Norm.Skip/cuda": "skipped", "On/Matmul.Fits/cuda": "passed",
                                   "On/Matmul.Illegal/cuda": "failed", "On/Norm.Crash/cuda": "failed", "On/Norm.Hang/cuda": "hung"})  # fmt: skip
        self.assertIn("memcheck: Invalid __global__ read", suites["kernels_test"]["cases"]["On/Matmul.Illegal/cuda"]["note"])
        self.assertNotIn("memcheck", suites["kernels_test"]["cases"]["On/Norm.Wrong/cuda"]["note"])  # wrong numbers are not a memory error
        # After each failed case, the next one starts in a new process.
        self.assertEqual(len(re.findall(r"^process \d+$", self.log("first", "kernels_test.log"), re.M)), 4)
        self.assertEqual([c["result"] for c in suites["python"]["cases"].values()], ["passed", "hung", "passed"])
        self.assertRegex(out, r"passed +python Python.one \([\d.]+ s\): measured 7")
        self.assertRegex(out, r"\d+ passed, \d+ failed, 1 hung, \d+ skipped\n$")

    def test_a_second_try_of_a_call_skips_passed_cases(self):
        self.call("first", 1, PRETEND_TROUBLE="1")
        (self.out / "gpu_first.tar.gz").rename(self.out / "earlier.tar.gz")
        self.cases({**TESTS, "kernels_test": [c.replace("Hang", "Fits") for c in TESTS["kernels_test"]]})
        out = self.call("first", 1, "--earlier", self.out / "earlier.tar.gz")
        self.assertNotIn("lazy_loading: passed", out)
        self.assertIn("parameter_offload: passed", out)
        self.assertEqual(self.of("lazy_loading"), "passed")
        self.assertEqual(self.results["suites_and_python"]["suites"]["kernels_test"]["cases"]["On/Norm.Fits/cuda"]["result"], "passed")
        runs = re.findall(r"RUN +\] (\S+)", self.log("first", "kernels_test.log"))
        self.assertEqual(runs.count("On/Matmul.Fits/cuda"), 1)

    def test_cases_at_the_end_are_cut_where_processes_start_slowly(self):
        self.cases({**TESTS, "kernels_test": ["On/Slow.Later/cuda", *(f"On/Slow.Later{i}/cuda" for i in range(12)), "On/Matmul.EqualsDouble/cuda"],
                    "python": ["Python.one"]})  # fmt: skip
        self.call("first", 0, PRETEND_START="1")
        self.assertEqual({self.of(name) for name in ("lazy_loading", "optimizer_offload", "host_offload", "ipc_stage_3")}, {"passed"})
        kernels = self.results["suites_and_python"]["suites"]["kernels_test"]["cases"]
        self.assertEqual(next(iter(kernels)), "On/Matmul.EqualsDouble/cuda")
        self.assertEqual(kernels["On/Matmul.EqualsDouble/cuda"]["result"], "passed")
        self.assertIn("not reached", {c["result"] for c in kernels.values()})

    def test_the_second_call_measures_and_replays_choices(self):
        out = self.call("second", 1)
        self.assertRegex(out, r"gpt2 +64,000 +500,000 +0\.13 +[\d,]+\n")
        self.assertIn("MFU 50.0 % of the measured product, 37.9 % of 989.4 TFLOP/s", self.results["gpt2"]["note"])
        self.assertIn("choices", self.log("second", "gpt2.jsonl"))
        self.assertNotIn("choices", self.log("second", "gpt2_again.jsonl"))
        self.assertNotIn("choices", self.log("second", "qwen_fp8_delayed.jsonl"))
        # Whole rows of a truncated file count.
        self.assertEqual([k["name"] for k in self.results["bench"]["kernels"]], ["swiglu/forward"])
        self.assertIn("swiglu/forward", out)
        shown = run(sys.executable, TABLE, self.out / "gpu_second.tar.gz").stdout
        self.assertRegex(shown, r"gpt2, a step of 32768 tokens: 900\.11 ms in kernels")
        self.assertRegex(shown, r"products +900\.00 ms, predicted +\d+\.\d\d\n +900\.00 ms  nvjet_gemm")

    def test_a_driver_that_hangs_is_one_line(self):
        begun = time.monotonic()
        r = run(CHECK, "--first", "--programs", self.programs, env={**self.env, "PRETEND_HANG": "1"})
        self.assertEqual(r.returncode, 77)
        self.assertIn("cleave report did not end within", r.stdout)
        self.assertLess(time.monotonic() - begun, 0.1 * gpu_calls.BUDGET["first"])

    def test_a_stopped_call_returns_its_results(self):
        process = subprocess.Popen([str(CHECK), "--second", "--programs", str(self.programs)], env={**os.environ, **self.env}, stdout=subprocess.PIPE, text=True,
                                   start_new_session=True)  # fmt: skip
        for line in process.stdout:
            if "gpt2_again: passed" in line:
                break
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        results = json.loads(self.log("second", "results.json"))["results"]
        self.assertEqual(results["gpt2_again"]["tokens_per_s"], 64000)


class Suite(unittest.TestCase):
    def test_a_program_that_cannot_start_is_one_problem(self):
        for program in ("/nowhere", "/bin/false"):
            with tempfile.TemporaryDirectory() as logs:
                done = gpu_suite.Suite([program], "none", logs, 5).main()
                self.assertEqual(len(done["problems"]), 1, done)


if __name__ == "__main__":
    unittest.main()
