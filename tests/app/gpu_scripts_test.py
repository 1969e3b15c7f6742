#!/usr/bin/env python3
"""scripts/gpu_check.sh without a GPU: what it says then, a rehearsal of its three calls with programs that only pretend, and the table that
is made of a run's logs. usage: gpu_scripts_test.py PROGRAMS"""
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
PARTS = {"A": ["versions", "first", "ranks", "tests", "memcheck"], "B": ["ceilings", "train", "kernels", "graphs"], "C": ["peers", "sanitizers", "profiles"]}


def run(*command, env=None):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=100, env={**os.environ, **(env or {})})


class Calls(unittest.TestCase):
    def test_lists_its_parts_and_refuses_others(self):
        for call, parts in PARTS.items():
            self.assertEqual(run(CHECK, call, "--list", "--programs", PROGRAMS).stdout.split(), parts)
        for wrong in (["A", "--only", "train"], ["D"], [], ["A", "--fast"], ["A", "--programs", "/nowhere"]):
            r = run(CHECK, *(wrong if "--programs" in wrong else [*wrong, "--programs", PROGRAMS]))
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("gpu_check: ", r.stderr)

    def test_without_a_gpu_says_so_and_why_and_ends_with_77(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        with tempfile.TemporaryDirectory() as out:
            for call in PARTS:
                r = run(CHECK, call, "--programs", PROGRAMS, env={"OUT": out})
                self.assertEqual(r.returncode, 77, r.stdout + r.stderr)
                self.assertIn("gpu_check: no GPU: ", r.stdout)
                self.assertIn("nothing was tested or measured", r.stdout)
                self.assertTrue(os.path.exists(os.path.join(out, f"gpu_check_{call}_logs.tar.gz")))

    def test_its_small_model_can_be_made(self):
        sys.path.insert(0, str(ROOT / "scripts"))
        import gpu_check
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (("small.json", gpu_check.SMALL), ("ds.json", gpu_check.ds_config(1, 1, 3))):
                (pathlib.Path(folder) / name).write_text(json.dumps(content))
            r = run(f"{PROGRAMS}/cleave", "plan", "--deepspeed_config", f"{folder}/ds.json", "--model", f"{folder}/small.json", "--seq_len", "64",
                    "--world_size", "2")
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        for call, parts in gpu_check.CALLS.items():
            self.assertLess(sum(parts.values()), 540, f"the parts of {call} take 9 minutes or more")


# Stands for every program of the bundle. What a case of a test does is in its name.
PRETENDER = '''#!/usr/bin/env python3
import json, os, signal, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
value = lambda option: args[args.index(option) + 1]
start = float(os.environ.get("PRETEND_START", 0))  # of a process that starts CUDA; a launcher's ranks start behind it
time.sleep(2 * start if args[:1] == ["launch"] else start)
if name == "cleave" and args[0] == "report":
    if os.environ.get("PRETEND_HANG"):
        time.sleep(60)
    gpu = {"name": "pretended", "memory_bytes": 2**37, "memory_free_bytes": 2**37}
    print(json.dumps({"cuda": {"gpus": [gpu], "driver": "13.0"}, "missing": []}))
elif name == "cleave":
    if args[0] == "launch":
        args = args[args.index("--") + 1:]
        args = args[args.index("train"):]
    config = json.load(open(value("--deepspeed_config")))
    micro = config["train_micro_batch_size_per_gpu"]
    if micro > 8 and "gpt2-xl" in args:
        sys.exit(3)
    if "qwen2.5-3b" in args:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)
    if "nccl" in args:
        print("error: NCCL 2.27 refuses several ranks on one GPU")
        sys.exit(2)
    with open(value("--metrics"), "w") as f:
        for step in range(int(value("--steps"))):
            f.write(json.dumps({"step": step, "loss": 4.25, "grad_norm": 1.5, "tokens_per_s": 1000.0 * micro}) + "\\\\n")
elif name == "kernels_bench":
    out = next(a.split("=")[1] for a in args if a.startswith("--benchmark_out="))
    limits = next(a.split("=")[1] for a in args if a.startswith("--limits="))
    assert "--gpu_only" in args
    known = os.path.exists(limits)
    open(limits, "w").write("1")
    print("cuda:0; limits: 780 TFLOP/s" + (", as known" if known else ""))
    row = {"name": "cuda/matmul/qkv/real_time", "run_name": "x", "TFLOP/s": 640.0, "%limit": 82.0}
    text = json.dumps({"context": {}, "benchmarks": [row, {**row, "name": "cuda/attention/forward/real_time"}]})
    if "attention" in " ".join(args):
        open(out, "w").write(text[:-40])
        os.kill(os.getpid(), signal.SIGKILL)
    open(out, "w").write(text)
else:
    cases = {"kernels_test": ["On/Matmul.Fits/cuda", "On/Matmul.Illegal/cuda", "On/Matmul.After/cuda", "On/Norm.Crash/cuda", "On/Norm.Hang/cuda",
                              "On/Norm.Skip/cuda", "On/Norm.Wrong/cuda", "On/Norm.Last/cuda"]}.get(name, ["On/Other.Fits/cuda"])
    if "PRETEND_CASES" in os.environ:
        cases = json.load(open(os.environ["PRETEND_CASES"]))[name]
    if "--gtest_list_tests" in args:
        last = ""
        for case in cases:
            suite, rest = case.split(".")
            if suite != last:
                print(suite + ".")
            print("  " + rest + "  # GetParam() = cuda")
            last = suite
        sys.exit(0)
    flags = [a.split("=")[1] for a in args if a.startswith("--gtest_flagfile=")]
    text = open(flags[0]).read() if flags else "\\\\n".join(args)
    wanted = next(line for line in text.splitlines() if line.startswith("--gtest_filter=")).split("=")[1].split(":")
    if "Trial" in wanted[0]:
        sys.exit(0)
    print("process", os.getpid(), flush=True)
    for case in wanted:
        print("[ RUN      ]", case, flush=True)
        if "Crash" in case:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "Hang" in case:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(100)
        if "Slow" in case:
            time.sleep(4)
        if "Skip" in case:
            print("no peer")
            print("[  SKIPPED ]", case, "(0 ms)", flush=True)
            continue
        if "Illegal" in case or "Wrong" in case:
            print("CUDA: an illegal memory access was encountered" if "Illegal" in case else "Expected equality of 1 and 2")
            print("[  FAILED  ]", case + ", where GetParam() = cuda (3 ms)", flush=True)
            sys.exit(1)
        print("[       OK ]", case, "(1 ms)", flush=True)
'''
SANITIZER = '''#!/usr/bin/env python3
import os, sys, time
time.sleep(float(os.environ.get("PRETEND_START", 0)))
print("========= COMPUTE-SANITIZER")
if "kernels_test" in " ".join(sys.argv):
    print("========= Invalid __global__ read of size 4 bytes")
    sys.exit(9)
print("========= ERROR SUMMARY: 0 errors")
'''
NCU = '''#!/usr/bin/env python3
print("a line of the program")
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
n = 0
for step in (9, 1):
    for kernel, us in (("void cleave::kernels::gpu::each_kernel<Lookup<float>>", 10), ("nvjet_gemm", 900000), ("void forward(Attention<float>)", 100),
                       ("void cleave::kernels::gpu::each_kernel<AdamStep<float, float>>", 50)):
        n += 1
        print(f'"{n}","{kernel}","gpu__time_duration.sum","us","{us * step:,}"')
'''


class Rehearsal(unittest.TestCase):
    """The three calls with programs that only pretend: every branch ends in time and brings back what there is."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.folder.name)
        self.programs, self.tools, self.out = root / "bin", root / "tools", root / "out"
        for folder in (self.programs, self.tools, self.out):
            folder.mkdir()
        for name in ("cleave", "kernels_bench", "kernels_test", "device_test", "comm_test", "comm_process_test", "runtime_test"):
            self.make(self.programs / name, PRETENDER.replace("\\\\n", "\\n"))
        self.make(self.tools / "compute-sanitizer", SANITIZER)
        self.make(self.tools / "ncu", NCU)
        self.env = {"OUT": str(self.out), "PATH": f"{self.tools}:{os.environ['PATH']}", "GPU_CHECK_HANG": "2", "GPU_CHECK_SECONDS": "60"}

    def tearDown(self):
        self.folder.cleanup()

    def make(self, path, content):
        path.write_text(content)
        path.chmod(0o755)

    def call(self, name, code, *options, **env):
        r = run(CHECK, name, "--programs", self.programs, *options, env={**self.env, **env})
        self.assertEqual(r.returncode, code, r.stdout + r.stderr)
        self.results = json.loads((self.out / f"results_{name}.json").read_text())
        return r.stdout

    def suite(self, call, name):
        return json.loads(self.log(call, name + ".suite.json"))

    def log(self, call, name):
        with tarfile.open(self.out / f"gpu_check_{call}_logs.tar.gz") as tar:
            return tar.extractfile(f"logs/{name}").read().decode()

    def test_of_call_a_settles_every_case_however_bad_its_neighbours_are(self):
        out = self.call("A", 1)
        self.assertRegex(out, r"kernels_test +3 +4 +1 +0\n")
        self.assertRegex(out, r"runtime_test +1 +0 +0 +0\n")
        self.assertIn("failed: On/Matmul.Illegal/cuda: CUDA: an illegal memory access", out)
        self.assertIn("memcheck of On/Matmul.Illegal/cuda: Invalid __global__ read", out)
        self.assertIn("failed: On/Norm.Crash/cuda: ended the process with -11", out)
        self.assertIn("failed: On/Norm.Hang/cuda: hung for 2 s", out)
        self.assertIn("skipped: 1, as On/Norm.Skip/cuda: no peer", out)
        self.assertNotIn("memcheck of On/Norm.Wrong", out)  # an error of numbers, not of memory
        # Behind each that did not pass the cases run in a process of their own.
        self.assertEqual(self.log("A", "kernels_test.log").count("process"), 5)
        self.assertRegex(out, r"ZeRO-3, CUDA IPC +the same bits, 10 steps")
        self.assertRegex(out, r"ZeRO-0, NCCL +not possible here: error: NCCL 2.27")
        self.assertRegex(out, r"sanitizer_memcheck +clean")
        self.assertIn("ulimit -n: ", self.log("A", "machine.log"))

    def test_of_call_a_settles_what_matters_first_where_processes_start_slowly(self):
        """An eighth of every time: 10 s for each process to start, half a minute for each of eight cases, 9 minutes for all."""
        cases = {name: [f"On/{case}/cuda" for case in listed] for name, listed in {
            "device_test": ["Stream.RunsInOrder", "Stream.IsOrdered"],
            "kernels_test": ["SlowKernel.Later1", "MatmulKernel.EqualsDoublePrecision", "SlowKernel.Later2", "SlowKernel.Later3", "SlowKernel.Later4",
                             "AttentionKernel.ForwardAndBackward", "SlowKernel.Later5", "SlowKernel.Later6", "SlowKernel.Later7", "SlowKernel.Later8"],
            "comm_test": ["CudaCollectives.MoveAndSum", "CudaCollectives.Number"],
            "comm_process_test": ["CudaProcesses.GiveTheBits", "CudaProcesses.End"],
            "runtime_test": ["CudaEngine.TrainsAsTheCpuDoes", "CudaEngine.SlowTexts"]}.items()}
        (pathlib.Path(self.folder.name) / "cases.json").write_text(json.dumps(cases))
        begun = time.monotonic()
        out = self.call("A", 1, GPU_CHECK_PACE="0.12", GPU_CHECK_SECONDS="62", GPU_CHECK_HANG="4.8", PRETEND_START="1.2",
                        PRETEND_CASES=str(pathlib.Path(self.folder.name) / "cases.json"))
        self.assertLess(time.monotonic() - begun, 62 + 6)  # the limit is what is tested
        results = {case: r["result"] for name in cases for case, r in self.suite("A", name)["cases"].items()}
        first = [c for name in cases for c in cases[name] if re.search(r"Stream|Matmul|Attention|MoveAndSum|GiveTheBits|TrainsAs", c)]
        self.assertEqual({results[c] for c in first}, {"passed"}, results)
        ran = re.findall(r"RUN +\] (\S+)", self.log("A", "kernels_test.log"))
        self.assertEqual(ran[:2], [c for c in cases["kernels_test"] if "Slow" not in c])
        # The suites' cases that matter, then ranks, then the other cases.
        order = re.findall(r"^(?:first|ranks|tests): (\w+) ended", out, re.M)
        self.assertLess(order.index("suite_comm_process_test_first"), order.index("ranks_host_3"))
        self.assertLess(order.index("ranks_ipc_3"), order.index("suite_kernels_test"))
        self.assertRegex(out, r"ZeRO-3, CUDA IPC +the same bits, 10 steps")
        self.assertIn("not run", results.values())
        self.assertRegex(out, r"left out: \d+, from On/SlowKernel.Later\d/cuda on")

    def test_of_call_b_measures_what_it_can(self):
        out = self.call("B", 1, GPU_CHECK_SECONDS="9")  # the model that hangs takes what is left of that
        self.assertRegex(out, r"gpt2-xl +8 x 16 +52,000 +[\d,]+ +8,000")
        self.assertRegex(out, r"qwen2.5-3b[^\n]*\n +out of its time limit")
        self.assertEqual(sum("the whole time was up" in r.get("error", "") for r in self.results["kernels"]), 7)
        out = self.call("B", 1, "--only", "ceilings", "--only", "kernels")
        self.assertRegex(out, r"matmul/qkv +640\.00 TFLOP/s +82\.0")
        self.assertRegex(out, r"kernels_attention +not measured: killed by signal 9")
        self.assertNotIn("as known", self.log("B", "kernels_ceilings.log"))
        self.assertIn("as known", self.log("B", "kernels_updates.log"))

    def test_of_call_c_names_the_kernel_to_blame(self):
        out = self.call("C", 0, "--only", "sanitizers", "--only", "profiles", GPU_CHECK_SECONDS="120")
        self.assertRegex(out, r"sanitizer_initcheck +clean")
        self.assertRegex(out, r"gpt2, a step of 8192 tokens: kernels took 900\.16 ms")
        self.assertRegex(out, r"products +900\.00 ms, predicted +\d+\.\d\d: +\+\d+\.\d\d ms; most of it nvjet_gemm \(900\.00 ms\)")
        self.make(self.tools / "ncu", "#!/bin/sh\nexit 1\n")
        out = self.call("C", 0, "--only", "profiles")
        self.assertIn("no kernel times: exit code 1", out)

    def test_peers_that_are_not_there_are_skipped_with_the_reason(self):
        self.make(self.tools / "python3", f"#!/bin/sh\nexec {sys.executable} -S -I \"$@\"\n")
        out = self.call("C", 0, "--only", "peers", PYTHONPATH="")
        self.assertIn("skipped: PyTorch is not installed", out)

    def test_a_driver_that_hangs_is_one_line(self):
        begun = time.monotonic()
        r = run(CHECK, "A", "--programs", self.programs, env={**self.env, "PRETEND_HANG": "1"})
        self.assertEqual(r.returncode, 1)
        self.assertIn("cleave report did not end within 2 s: the driver hangs", r.stderr)
        self.assertLess(time.monotonic() - begun, 20)

    def test_a_call_that_is_stopped_brings_back_what_it_has(self):
        process = subprocess.Popen([str(CHECK), "B", "--programs", str(self.programs)], env={**os.environ, **self.env}, stdout=subprocess.PIPE,
                                   text=True, start_new_session=True)
        for line in process.stdout:
            if "train_qwen2.5-1.5b ended" in line:
                break
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        rows = {r["model"]: r for r in json.loads((self.out / "results_B.json").read_text())["training"]}
        self.assertEqual(rows["gpt2-medium"]["tokens_per_s"], 32000)


class Table(unittest.TestCase):
    def setUp(self):
        self.logs = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.logs.cleanup()

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (pathlib.Path(self.logs.name) / name).write_text(text)

    def table(self, code):
        r = run(sys.executable, TABLE, self.logs.name)
        self.assertEqual(r.returncode, code, r.stdout + r.stderr)
        return r.stdout

    def test_takes_the_median_after_the_first_steps_beside_goal_prediction_and_peer(self):
        steps = [{"event": "start"}] + [{"step": i, "tokens_per_s": 100_000 * i} for i in range(1, 10)]
        self.write("train_gpt2.json", {"model": "gpt2", "micro": 64, "accumulation": 1, "warmup": 5, "status": 0})
        self.write("train_gpt2.jsonl", "\n".join(map(json.dumps, steps)))
        self.write("peer_gpt2.log", 'a warning\n{"peer": "pytorch", "tokens_per_s": 400000.0}\n')
        predicted = run(sys.executable, ROOT / "benchmarks" / "predict.py").stdout.splitlines()[1].split()
        out = self.table(0)
        self.assertRegex(out, rf"gpt2 +64 x 1 +500,000 +{predicted[6]} +750,000 +1\.50 +400,000 +1\.88")  # of a step of as many tokens
        self.assertIn("nothing failed", out)
        self.assertTrue((pathlib.Path(self.logs.name) / "results.json").exists())

    def test_says_what_the_gpu_had_in_use_beside_the_plan(self):
        start = {"event": "start", "memory_planned": {"device": {"weights": 600 * 2**20, "staging": 400 * 2**20}, "pinned host": {"staging": 2**30}}}
        self.write("train_gpt2.json", {"model": "gpt2", "micro": 64, "accumulation": 1, "warmup": 0, "status": 0})
        self.write("train_gpt2.jsonl", "\n".join(map(json.dumps, [start, {"step": 1, "tokens_per_s": 1.0}])))
        self.write("train_gpt2.memory", "0\n500\n2000\n1600\n1602\n1604\n552\n")  # before and after it there is less
        self.assertRegex(self.table(0), r"\n +603 MiB of the GPU beside the plan, 1000 at most\n")

    def test_a_suite_that_never_began_is_named(self):
        self.write("suite_comm_test_first.status", "125")
        self.write("suite_kernels_test_first.status", "0")
        self.write("kernels_test.suite.json", {"name": "kernels_test", "cases": {"On/A.B/cuda": {"result": "passed", "note": ""}}, "notes": [], "memchecks": []})
        out = self.table(1)
        self.assertRegex(out, r"comm_test +0 +1 +0 +0\n +left out, all of it: the whole time was up")
        self.assertRegex(out, r"kernels_test +1 +0 +0 +0\n")

    def test_compares_the_bits_of_two_ranks_over_cuda_ipc_with_those_through_host_memory(self):
        for stage, loss in (("0", 4.25), ("3", 4.2500001)):
            for way in ("host", "ipc", "nccl"):
                self.write(f"ranks_{way}_{stage}.log", "")
                self.write(f"ranks_{way}_{stage}.status", "0")
                steps = [{"step": i, "loss": loss if way != "host" and i == 2 else 4.25, "grad_norm": 1.5} for i in (1, 2)]
                self.write(f"ranks_{way}_{stage}.jsonl", "\n".join(map(json.dumps, steps)))
        out = self.table(1)
        self.assertRegex(out, r"ZeRO-0, CUDA IPC +the same bits, 2 steps")
        self.assertRegex(out, r"ZeRO-3, CUDA IPC +FAILED: 1 of 2 steps differ")
        self.assertRegex(out, r"ZeRO-3, NCCL +the same to 0\.001, 2 steps")
        self.write("ranks_ipc_3.status", "6")
        self.write("ranks_ipc_3.log", "rank 0: all_reduce was given up\n")
        self.assertIn("ranks_ipc_3 ended with exit code 6: rank 0: all_reduce was given up", self.table(1))

    def test_compares_training_with_and_without_cuda_graphs(self):
        for use, rate in (("off", 1000), ("on", 1100)):
            self.write(f"graphs_small_{use}.log", "")
            self.write(f"graphs_small_{use}.jsonl", "\n".join(json.dumps({"tokens_per_s": 1 if i < 5 else rate}) for i in range(10)))
        self.assertRegex(self.table(0), r"small, CUDA graphs on / off +1,100 / 1,000 tokens/s, 1\.100 x")
        self.write("graphs_small_on.jsonl", "")
        self.write("graphs_small_on.log", "error: a kernel failed\n")
        self.assertRegex(self.table(1), r"small, CUDA graphs on / off +FAILED: error: a kernel failed")

    def test_a_row_that_did_not_run_and_a_dirty_sanitizer_are_failures(self):
        self.write("train_qwen2.5-7b.json", {"model": "qwen2.5-7b", "micro": 1, "accumulation": 16, "warmup": 2, "status": 3})
        self.write("train_qwen2.5-7b.log", "error: the plan does not fit\n")
        self.write("sanitizer_racecheck.log", "========= RACECHECK SUMMARY: 2 hazards displayed\n")
        self.write("sanitizer_racecheck.status", "9")
        out = self.table(1)
        self.assertIn("exit code 3: error: the plan does not fit", out)
        self.assertIn("2 hazards", out)
        self.assertIn("2 failed", out)

    def test_reads_logs_that_end_in_the_middle(self):
        self.write("kernels_test.suite.json", '{"name": "kernels_test", "cases": {"A": ')
        self.write("train_gpt2.json", {"model": "gpt2", "micro": 64, "accumulation": 1, "warmup": 0, "status": 137})
        self.write("train_gpt2.jsonl", '{"step": 1, "tokens_per_s": 1000}\n{"step": 2, "tok')
        self.write("profile_gpt2.json", {"model": "gpt2", "tokens": 8192})
        self.write("profile_gpt2.log", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Va')
        out = self.table(1)
        self.assertIn("its results cannot be read", out)
        self.assertRegex(out, r"gpt2 +64 x 1 +500,000 +[\d,]+ +1,000")
        self.assertIn("killed", out)
        self.assertIn("no kernel times", out)


if __name__ == "__main__":
    unittest.main()
