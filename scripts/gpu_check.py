#!/usr/bin/env python3
"""The parts of scripts/gpu_check.sh, which finds the programs and CUDA's libraries and says what A, B and C are.
usage: gpu_check.py PROGRAMS A|B|C [--quick] [--only PART]... [--list]"""
import argparse
import array
import contextlib
import glob
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(HERE, "scripts"))
import gpu_suite  # noqa: E402

# Parts of each call, with the seconds that each may take at most, beside what those before it have left.
CALLS = {"A": {"versions": 30, "first": 130, "ranks": 130, "tests": 160, "memcheck": 50},
         "B": {"ceilings": 30, "train": 270, "kernels": 150, "graphs": 60},
         "C": {"peers": 280, "sanitizers": 120, "profiles": 120}}
# Cases that come before all others, because what else would be worth little where they fail. A process may take 10 s to start. More than a few
# processes at once take each other's time, and about 20 find no room on a GPU.
FIRST = {"device_test": "*",
         "kernels_test": "*/Matmul*.EqualsDouble*:*/Dense*:*/Attention*.Forward*:*Norm*.*Double*:*/CrossEntropy*.LossAndGradient*:"
                         "*/Embedding*.*Adds*:*/Adam*:*/Cast*.Rounds*",
         "comm_test": "*.MoveAndSum*",
         "comm_process_test": "*.GiveTheBits*",
         "runtime_test": "*.TrainsAsTheCpu*:*.TrainsInSixteenBits*:*.PeakMemory*"}
LIBRARIES = {"CLEAVE_WGMMA": "the own kernels for Hopper", "CLEAVE_CUDNN": "cuDNN", "CLEAVE_GPU_EPILOGUES": "cuBLASLt's epilogues"}
# model, sequences of 1024 in a step, largest micro-batch to try; the sequences are those of the anchors, or half where a step is long
ROWS = [("gpt2", 512, 64), ("gpt2-medium", 256, 32), ("gpt2-xl", 128, 16), ("qwen2.5-1.5b", 256, 16), ("qwen2.5-3b", 128, 8), ("qwen2.5-7b", 128, 8)]
WARMUP, STEPS = 2, 6
# Groups, so that a limit that strikes costs one of them; the own attention comes second.
KERNELS = [("products", "(matmul|dense).*bf16", {}),
           ("attention_own", "attention/[a-z]*/.*bf16", {"CLEAVE_CUDNN": "off", "CLEAVE_GPU_EPILOGUES": "off"}),
           ("attention", "attention.*bf16", {}),
           ("rows", "(layer_norm|rms_norm|rotary|bias|embedding|cross|gelu|swiglu|add/|dropout|cast|sum).*bf16", {}),
           ("updates", "(adamw|sgd|random)", {}),
           ("attention_mma", "attention/[a-z]*/.*bf16", {"CLEAVE_CUDNN": "off", "CLEAVE_WGMMA": "off"}),
           ("dense_own", "dense.*bf16", {"CLEAVE_CUDNN": "off", "CLEAVE_GPU_EPILOGUES": "off"})]
SMALL = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 64, "n_embd": 128, "n_layer": 2,
         "n_head": 2, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}


def vocabulary_of(model):
    return 50257 if model.startswith("gpt2") else 128256  # that of the file; a model's may be larger


def ds_config(micro, accumulation, stage=0, graphs=None):
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "zero_optimization": {"stage": stage},
            "cleave": {"cuda_graphs": graphs} if graphs else {}}


class Check:
    def __init__(self, programs, call, quick):
        self.programs, self.call, self.quick = os.path.abspath(programs), call, quick
        self.begun = time.monotonic()
        self.pace = float(os.environ.get("GPU_CHECK_PACE", 1))  # what all limits are multiplied with, for a rehearsal
        self.seconds = float(os.environ.get("GPU_CHECK_SECONDS", 520 * self.pace))
        self.hang = float(os.environ.get("GPU_CHECK_HANG", 40 * self.pace))
        self.out = os.environ.get("OUT")
        self.work = tempfile.mkdtemp()
        self.logs = os.path.join(self.work, "logs")
        os.mkdir(self.logs)
        self.part, self.part_end = "start", self.begun + self.seconds
        self.environment, self.report, self.said = {}, {}, threading.Lock()

    # Time and processes.

    def left(self):
        return min(self.part_end, self.begun + self.seconds) - time.monotonic()

    def run(self, name, limit, *command, env=None, out=None):
        """Runs a command into LOGS/name.log within this limit, the part's and the call's. Its exit code; 124 when a limit struck, also when
        the driver holds the process, which is then left behind; 125 when there was no time left."""
        limit = min(limit * self.pace, self.left())
        log = self.path(f"{name}.log")
        if self.left() < 3 * self.pace:
            with open(log, "w") as f:
                f.write("out of time\n")
            status = 125
        else:
            with open(log, "w") as f:
                process = subprocess.Popen([str(c) for c in command], stdout=f if out is None else out, stderr=f if out is None else subprocess.STDOUT,
                                           start_new_session=True, env={**os.environ, **self.environment, **(env or {})})
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                gpu_suite.kill(process)
                status = 124
        with open(self.path(f"{name}.status"), "w") as f:
            f.write(f"{status}\n")
        with self.said:
            print(f"{self.part}: {name} ended with {status} after {time.monotonic() - self.begun:.0f} s in all", flush=True)
        return status

    def path(self, name):
        return os.path.join(self.logs, name)

    def write(self, name, value):
        with open(self.path(name), "w") as f:
            f.write(value if isinstance(value, str) else json.dumps(value))
        return self.path(name)

    def program(self, name):
        return os.path.join(self.programs, name)

    def pack(self):
        """What is known so far, as two files in $OUT; never half a file."""
        if not self.out:
            return
        os.makedirs(self.out, exist_ok=True)
        new = os.path.join(self.out, f".gpu_check_{self.call}.new")
        with tarfile.open(new, "w:gz") as tar:
            tar.add(self.logs, "logs")
        os.replace(new, os.path.join(self.out, f"gpu_check_{self.call}_logs.tar.gz"))
        subprocess.run([sys.executable, os.path.join(HERE, "scripts", "gpu_table.py"), self.logs], stdout=subprocess.DEVNULL, timeout=30, check=False)
        if os.path.exists(self.path("results.json")):
            shutil.copy(self.path("results.json"), new)
            os.replace(new, os.path.join(self.out, f"results_{self.call}.json"))

    # What comes before every call.

    def find_gpu(self):
        """0, or the exit code that says why there is nothing to do."""
        try:
            shown = subprocess.run([self.program("cleave"), "report", "--json"], capture_output=True, text=True, timeout=self.hang, check=False)
        except subprocess.TimeoutExpired:
            print(f"gpu_check: cleave report did not end within {self.hang:.0f} s: the driver hangs", file=sys.stderr)
            return 1
        try:
            self.report = json.loads(shown.stdout)
            gpus = self.report["cuda"]["gpus"]
        except (ValueError, KeyError):
            print(f"gpu_check: cleave report ended with {shown.returncode}: {(shown.stderr or shown.stdout).strip()[:300]}", file=sys.stderr)
            return 1
        self.write("report.json", self.report)
        if not gpus:
            why = next((m["what"] for m in self.report["missing"] if m["for"] == "training on a GPU"), "none is visible")
            print(f"gpu_check: no GPU: {why}\ngpu_check: nothing was tested or measured")
            return 77
        self.free_mib = min(g["memory_free_bytes"] for g in gpus) >> 20
        return 0

    def try_libraries(self):
        """What ends the process costs its speed, not everything below. A trial that only fails is answered by the programs themselves."""
        def trials(name):
            return self.run(name, self.hang / self.pace, self.program("kernels_test"), "--gtest_filter=*Trial*/cuda")

        status = trials("trials")
        if status == 0:
            return
        # An error that stays with the GPU's context may come from the own kernels for Hopper.
        self.environment["CLEAVE_WGMMA"] = "off"
        second = trials("trials_without_hopper")
        if second == 0 or (self.died(status) and not self.died(second)):
            print(f"gpu_check: the trials end with {status}, and with {second} without {LIBRARIES['CLEAVE_WGMMA']}: they are off from here on")
        elif self.died(second):
            self.environment.update({switch: "off" for switch in LIBRARIES})
            print(f"gpu_check: the trials of {', '.join(LIBRARIES.values())} ended with {second} (trials.log): plain own kernels from here on")
        else:
            del self.environment["CLEAVE_WGMMA"]
            print("gpu_check: not every library is used (trials.log)")

    @staticmethod
    def died(status):
        return status < 0 or status >= 124

    # Inputs.

    def tokens(self, vocabulary):
        """Random ids as an llm.c file, of 16-bit tokens where they suffice."""
        name = os.path.join(self.work, f"tokens_{vocabulary}.bin")
        if not os.path.exists(name):
            magic, version, code = (20240520, 1, "H") if vocabulary <= 65536 else (20240801, 7, "I")
            count, repeats = 200_000, 22  # enough for all steps of a row
            with open(name, "wb") as f:
                f.write(struct.pack("<3i", magic, version, count * repeats) + b"\0" * (1024 - 12))
                f.write(array.array(code, random.Random(1).choices(range(vocabulary), k=count)).tobytes() * repeats)
        return name

    def train(self, name, limit, model, config, *options, tokens=50257, seq=1024, launcher=(), env=None):
        ds = os.path.join(self.work, f"{name}.ds.json")
        with open(ds, "w") as f:
            json.dump(config, f)
        metrics = self.path(f"{name}.jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        with self.memory_watched(name):
            return self.run(name, limit, self.program("cleave"), *launcher, "train", "--device", "cuda", "--deepspeed_config", ds, "--model", model, "--data",
                            self.tokens(tokens), "--seq_len", seq, "--metrics", metrics, *options, env=env)

    @contextlib.contextmanager
    def memory_watched(self, name):
        """What the first GPU's memory in use is meanwhile, five times a second, as LOGS/name.memory: MiB, a line each."""
        if not shutil.which("nvidia-smi"):
            yield
            return
        with open(self.path(f"{name}.memory"), "w") as f:
            watch = subprocess.Popen(["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "200"], stdout=f,
                                     stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                yield
            finally:
                gpu_suite.kill(watch)

    def small(self):
        name = os.path.join(self.work, "small.json")
        with open(name, "w") as f:
            json.dump(SMALL, f)
        return name

    def sanitizer(self):
        found = [shutil.which("compute-sanitizer")] + sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")) + \
            sorted(glob.glob("/opt/nvidia/**/compute-sanitizer", recursive=True))
        return next((f for f in found if f and os.access(f, os.X_OK)), None)

    # Call A.

    def part_versions(self):
        self.run("nvidia_smi", 20, "nvidia-smi") if shutil.which("nvidia-smi") else None
        self.run("report", 20, self.program("cleave"), "report")
        lines = [f"{k}: {v}" for k, v in (("kernel", os.uname().release), ("cores", os.cpu_count()), ("python", sys.version.split()[0]))]
        for limit in ("-n", "-l", "-v"):
            lines.append(f"ulimit {limit}: " + subprocess.run(["bash", "-c", f"ulimit {limit}"], capture_output=True, text=True, check=False).stdout.strip())
        shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
        lines.append(f"/dev/shm: {shm.f_bavail * shm.f_frsize >> 20} MiB free" if shm else "/dev/shm: there is none")
        self.write("machine.log", "\n".join(lines) + "\n")

    def part_first(self):
        self.suites(first=True)

    def part_tests(self):
        self.suites(first=False)

    def suites(self, first):
        sanitizer = self.sanitizer()

        def suites(*names):
            for name in names:
                seconds = min(60 * self.pace if self.quick else self.seconds, self.left() - self.pace)
                command = [sys.executable, os.path.join(HERE, "scripts", "gpu_suite.py"), self.program(name), self.logs, "--seconds", seconds,
                           "--case-seconds", self.hang, *(["--first", FIRST[name]] if first else []), *(["--sanitizer", sanitizer] if sanitizer else [])]
                self.run(f"suite_{name}{'_first' if first else ''}", seconds / self.pace + 8, *command)

        beside = threading.Thread(target=suites, args=("runtime_test",))
        beside.start()
        suites("device_test", "kernels_test", "comm_test", "comm_process_test")
        beside.join()

    def part_ranks(self):
        """Two ranks, on one GPU where there is no second: the same losses over CUDA IPC as through host memory, bit for bit; over NCCL,
        which sees two hosts by NCCL_HOSTID and so lets them share a GPU, losses that agree."""
        small = self.small()
        offload = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
        for name, beside in (("3", {"zero_optimization": {"stage": 3}}), ("0", {}), ("pipe", {"pipeline": {"stages": 2}}),
                             ("tensor", {"tensor_parallel": {"autotp_size": 2}}), ("offload", {"zero_optimization": offload})):
            for way in ("host", "ipc", "nccl"):
                # Two processes that measure products may choose apart, and then differ in the last bits.
                config = {**ds_config(1, 2), **beside, "cleave": {"tune_products": False}}
                self.train(f"ranks_{way}_{name}", 40, small, config, "--share_gpu", "--gpu_transport", way, "--steps", 10, seq=64,
                           launcher=("launch", "-n", 2, "--", "bash", "-c", 'NCCL_HOSTID=$RANK exec "$0" "$@"', self.program("cleave")),
                           env={"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"})

    def part_memcheck(self):
        self.sanitize("memcheck")

    # Call B.

    def bench(self, name, limit, *options, env=None):
        return self.run(f"kernels_{name}", limit, self.program("kernels_bench"), "--gpu_only", f"--limits={self.path('ceilings.json')}",
                        "--benchmark_min_time=0.05", f"--benchmark_out={self.path(f'kernels_{name}.json')}", "--benchmark_out_format=json", *options, env=env)

    def part_ceilings(self):
        self.bench("ceilings", 30, "--benchmark_filter=^none$")

    def part_train(self):
        for model, sequences, micro in ROWS[:1] if self.quick else ROWS:
            sequences = min(sequences, 64) if self.quick else sequences
            name = f"train_{model}"
            while True:  # a micro-batch that does not fit is refused with code 3 before anything starts
                status = self.train(name, 110, model, ds_config(micro, sequences // micro), "--steps", WARMUP + STEPS, "--device_memory",
                                    f"{self.free_mib - 1500}MiB", tokens=vocabulary_of(model))
                if status != 3 or micro == 1:
                    break
                micro //= 2
            self.write(f"{name}.json", {"model": model, "micro": micro, "accumulation": sequences // micro, "warmup": WARMUP, "status": status})

    def part_kernels(self):
        for name, rows, env in KERNELS[:1] if self.quick else KERNELS:
            self.bench(name, 45, f"--benchmark_filter=^cuda/{rows}", env=env)

    def part_graphs(self):
        """Passes launched as CUDA graphs and kernel by kernel, of a model whose kernels are long and of one whose are short."""
        for use in ("off", "on"):
            self.train(f"graphs_gpt2_{use}", 30, "gpt2", ds_config(self.micro_of("gpt2", 64), 1, 0, use), "--steps", 20)
            self.train(f"graphs_small_{use}", 30, self.small(), ds_config(1, 4, 0, use), "--steps", 100, seq=64)

    def micro_of(self, model, otherwise):
        """As the training row of this call, or of the one before it, had it."""
        for name in (self.path(f"train_{model}.json"), os.path.join(self.out or self.work, "results_B.json")):
            try:
                with open(name) as f:
                    found = json.load(f)
            except (OSError, ValueError):
                continue
            rows = [found] if "micro" in found else found.get("training", [])
            return next((r["micro"] for r in rows if r["model"] == model and r["micro"]), otherwise)
        return otherwise

    # Call C.

    def part_peers(self):
        environment = {"LD_LIBRARY_PATH": os.environ.get("GPU_CHECK_PEER_PATH", "")}
        peer = [sys.executable, os.path.join(HERE, "benchmarks", "torch_peer.py")]
        if self.run("torch", 40, sys.executable, "-c", "import torch; print(torch.__version__)", env=environment) != 0:
            self.write("peers.skipped", "PyTorch is not installed")
            return
        for model, sequences, micro in ROWS[:1] if self.quick else ROWS:
            # Ours and theirs in turn, on the same batches; fewer sequences than call B has, to fit both.
            micro, sequences = self.micro_of(model, micro), min(sequences, 64)
            self.train(f"beside_{model}", 60, model, ds_config(micro, sequences // micro), "--steps", WARMUP + STEPS, "--device_memory",
                       f"{self.free_mib - 1500}MiB", tokens=vocabulary_of(model))
            self.run(f"peer_{model}", 75, *peer, "--model", model, "--micro", micro, "--accumulation", sequences // micro, "--warmup", WARMUP, "--steps", STEPS,
                     env=environment)
        self.run("peer_attention", 40, *peer, "--attention", env=environment)

    def sanitize(self, tool):
        found = self.sanitizer()
        if not found:
            self.write("sanitizer.skipped", "compute-sanitizer is not installed")
            return
        ds = os.path.join(self.work, "small.ds.json")
        with open(ds, "w") as f:
            json.dump(ds_config(1, 1), f)
        self.run(f"sanitizer_{tool}", 60, found, "--tool", tool, "--error-exitcode", 9, self.program("cleave"), "train", "--device", "cuda", "--deepspeed_config",
                 ds, "--model", self.small(), "--data", self.tokens(50257), "--seq_len", 64, "--steps", 2)

    def part_sanitizers(self):
        self.sanitize("racecheck")
        self.sanitize("initcheck")

    def part_profiles(self):
        """Each kernel's time in a step of two models, from Nsight Compute where it is, else spans from our own trace."""
        ncu = shutil.which("ncu")
        for model in ("gpt2",) if self.quick else ("gpt2", "qwen2.5-1.5b"):
            config, name = ds_config(self.micro_of(model, 8), 1, 0, "off"), f"profile_{model}"
            options = ["--steps", 2, "--device_memory", f"{self.free_mib - 1500}MiB"]
            tokens = vocabulary_of(model)
            self.write(f"{name}.json", {"model": model, "tokens": config["train_micro_batch_size_per_gpu"] * 1024})
            if ncu:
                ds = os.path.join(self.work, f"{name}.ds.json")
                with open(ds, "w") as f:
                    json.dump(config, f)
                status = self.run(name, 60, ncu, "--clock-control", "none", "--cache-control", "none", "--csv", "--metrics", "gpu__time_duration.sum",
                                  self.program("cleave"), "train", "--device", "cuda", "--deepspeed_config", ds, "--model", model, "--data", self.tokens(tokens),
                                  "--seq_len", 1024, *options)
                if status == 0:
                    continue
            self.train(f"{name}_trace", 40, model, config, *options, "--trace", self.path(f"{name}.trace.json"), tokens=tokens)

    def main(self, only):
        status = self.find_gpu()
        if status != 0:
            self.pack()
            return status
        manifest = os.path.join(self.programs, "..", "manifest.txt")
        if os.path.exists(manifest):
            shutil.copy(manifest, self.path("manifest.txt"))
        try:
            self.try_libraries()
            end = time.monotonic()
            for part, seconds in CALLS[self.call].items():
                if only and part not in only:
                    continue
                end += self.seconds if only else seconds * self.pace
                self.part, self.part_end = part, end
                getattr(self, f"part_{part}")()
                self.pack()
        finally:
            self.pack()
        table = subprocess.run([sys.executable, os.path.join(HERE, "scripts", "gpu_table.py"), self.logs], timeout=60, check=False)
        return table.returncode


def main():
    parser = argparse.ArgumentParser(prog="gpu_check", usage="scripts/gpu_check.sh A|B|C [--quick] [--only PART]... [--programs DIR] [--list]")
    parser.add_argument("programs")
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    for part in args.only:
        if part not in CALLS[args.call]:
            parser.error(f"--only {part}: the parts of {args.call} are {', '.join(CALLS[args.call])}")
    if args.list:
        print(*CALLS[args.call])
        return 0
    check = Check(args.programs, args.call, args.quick)
    # A call that is stopped still brings back what it has.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return check.main(set(args.only))
    finally:
        shutil.rmtree(check.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
