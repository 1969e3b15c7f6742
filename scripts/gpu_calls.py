"""The cases of scripts/gpu_check.sh: command, limit and expected result. A case returns a dictionary with `result` (passed, failed, hung,
skipped, not reached), `note` and numbers for the table.
"""

from __future__ import annotations

import array
import collections
import concurrent.futures
import contextlib
import glob
import json
import os
import random
import re
import shutil
import statistics
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Seconds of commands in each call; a machine is available for 900 s in total, including up to 120 s per start.
BUDGET = {"first": 360, "second": 280}
DENSE_BF16 = 989.4e12  # FLOP/s of an H100 SXM, datasheet
WARMUP = 2
SMALL = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 64, "n_embd": 128, "n_layer": 2,
         "n_head": 2, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}  # fmt: skip
HOST = {"device": "cpu", "pin_memory": True}
# Cases of a suite that run first.
FIRST = {
    "kernels_test": ("*/Matmul*.EqualsDouble*", "*/Dense*", "*/Attention*.Forward*", "*Norm*.*Double*", "*/CrossEntropy*", "*/Trial*", "*/Adam*"),
    "runtime_test": ("*.UpdatesOffloaded*", "*.TrainsAsTheCpu*", "*Offload*", "*.TrainsInSixteenBits*", "*.TrainsAModelThatIsCut*"),
}


class NoGpu(Exception):
    """There is nothing to run on."""


@dataclass(frozen=True)
class Case:
    """One entry of a call. `seconds` are reserved for it; it may take up to `most` if earlier cases left time, and needs `least`."""

    name: str
    run: Callable
    expect: str
    seconds: float = 20
    most: float = 0
    least: float = 2


def ended(status):
    return "hung" if status is None else f"killed by signal {-status}" if status < 0 else f"exit code {status}"


def result_of(status):
    return "passed" if status == 0 else "hung" if status is None else "failed"


def last_lines(text, count=3):
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])[-400:]


def json_lines(text):
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [x for x in found if isinstance(x, dict)]


# ---- training ----


def ds_config(micro, accumulation, zero=None, cleave=None, **more):
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "zero_optimization": zero or {"stage": 0}, "cleave": cleave or {}, **more}  # fmt: skip


def tokens(check, vocabulary):
    """Random token ids in the format of llm.c."""
    name = os.path.join(check.work, f"tokens_{vocabulary}.bin")
    if not os.path.exists(name):
        magic, version, code = (20240520, 1, "H") if vocabulary <= 65536 else (20240801, 7, "I")
        count, repeats = 200_000, 22
        with open(name, "wb") as f:
            f.write(struct.pack("<3i", magic, version, count * repeats) + b"\0" * (1024 - 12))
            f.write(array.array(code, random.Random(1).choices(range(vocabulary), k=count)).tobytes() * repeats)
    return name


def train_command(check, name, model, config, options=(), vocabulary=50257, seq=1024):
    """The command of one `cleave train`, with its metrics in LOGS/name.jsonl."""
    ds = check.write(f"{name}.ds.json", config)
    return [check.program("cleave"), "train", "--device", "cuda", "--deepspeed_config", ds, "--model", model, "--data", tokens(check, vocabulary),
            "--seq_len", seq, "--metrics", check.path(f"{name}.jsonl"), *options]  # fmt: skip


def train(check, name, limit, model, config, steps, options=(), launcher=(), env=None, **data):
    """Trains, and returns a summary of the run and its metrics."""
    command = train_command(check, name, model, config, ["--steps", steps, *options], **data)
    if launcher:
        command = [command[0], *launcher, *command]
    seen, begun = [], time.monotonic()
    with check.memory_watched(seen):
        status = check.run(name, limit, *command, env=env)
    wall = time.monotonic() - begun
    lines = json_lines(check.read(f"{name}.jsonl"))
    done = [x for x in lines if "loss" in x and "event" not in x]
    start = next((x for x in lines if x.get("event") == "start"), {})
    ranks = int(launcher[2]) if launcher else 1
    planned = ranks * sum(start.get("memory_planned", {}).get("device", {}).values()) / 2**20
    training = sorted(m for m in seen if planned and m >= planned)
    out = {"result": result_of(status), "status": status, "steps": len(done), "start_s": round(wall - sum(x["step_ms"] for x in done) / 1e3, 1),
           "losses": [x["loss"] for x in done], "norms": [x["grad_norm"] for x in done], "planned_mib": round(planned),
           "beside_mib": round((training[-1] - planned) / ranks) if training else None, "peak_flops": start.get("matmul_flops_per_s")}  # fmt: skip
    rates = [x["tokens_per_s"] for x in done]
    out["rates"], out["mfu"] = rates, [x["mfu"] for x in done if x.get("mfu")]
    memory = f", {out['beside_mib']} MiB per rank in addition to its plan of {out['planned_mib'] // ranks}" if out["beside_mib"] is not None else ""
    out["note"] = f"{len(done)} steps, start {out['start_s']} s{memory}"
    if status != 0:
        out["note"] = f"{ended(status)} after {len(done)} steps: {last_lines(check.log(name))}"
    elif len(done) != steps:
        out |= {"result": "failed", "note": f"{len(done)} of {steps} steps in the metrics: {last_lines(check.log(name))}"}
    return out


def small(check):
    return check.write("small.json", SMALL)


def compared(check, out, with_case, tolerance):
    """Compares losses and norms with those of another case: to the bit, or to a relative tolerance."""
    other = check.results.get(with_case, {})
    if out["result"] != "passed" or not other.get("losses"):
        return out
    pairs = [*zip(out["losses"], other["losses"]), *zip(out["norms"], other["norms"])]
    worst = max(abs(a - b) / max(abs(b), 1e-30) for a, b in pairs)
    word = "the same bits as" if worst == 0 else f"within {worst:.1e} of"
    out["note"] += f"; {word} {with_case}"
    if worst > tolerance or len(out["losses"]) != len(other["losses"]):
        out |= {"result": "failed", "note": f"{out['note']} (expected {'the same bits' if tolerance == 0 else f'{tolerance:.0e}'})"}
    return out


def one_rank(zero=None, loading=None, like=None, tolerance=0.0):
    """A training of the small model on one rank."""

    def run(check, name, limit):
        env = {"CUDA_MODULE_LOADING": loading} if loading else {}
        out = train(check, name, limit, small(check), ds_config(1, 2, zero, {"tune_products": False}), 10, env=env, seq=64)
        return compared(check, out, like, tolerance) if like else out

    return run


def two_ranks(way, beside, like=None, tolerance=0.0):
    """A training of the small model on two ranks that share the GPU. NCCL takes them for two hosts."""

    def run(check, name, limit):
        # Ranks that measure products may choose differently. A hang reports itself before the limit.
        own = {"tune_products": False, "comm_timeout_s": max(1, int(limit * 0.6))}
        launcher = ("launch", "-n", 2, "--", "bash", "-c", 'NCCL_HOSTID=$RANK exec "$0" "$@"')
        env = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
        out = train(check, name, limit, small(check), ds_config(1, 2, cleave=own, **beside), 10, ["--share_gpu", "--gpu_transport", way], launcher, env, seq=64)
        if way == "nccl" and out["status"] == 2:
            out |= {"result": "skipped", "note": f"not possible here: {last_lines(check.log(name))}"}
        return compared(check, out, like, tolerance) if like else out

    return run


# ---- suites ----


def of_suite(done):
    """A case's result from a suite's."""
    counts = collections.Counter(c["result"] for c in done["cases"].values())
    bad = counts["failed"] + counts["hung"] + len(done["problems"])
    result = "failed" if bad else next((r for r in ("not reached", "passed") if counts[r]), "skipped")
    return {**done, "result": result, "note": "; ".join([", ".join(f"{n} {r}" for r, n in sorted(counts.items())), *done["problems"]])}


def run_suite(check, name, limit):
    seconds = 45 if name == "kernels_test" else 20  # attention in double precision on the CPU takes half a minute
    return of_suite(check.suite(name, limit, [check.program(name)], filter="*/*cuda", first=FIRST.get(name, ("*",)), sanitizer=sanitizer(), case_seconds=seconds))


def python_suite(check, name, limit):
    """PyTorch scripts in the machine's own Python."""
    root = os.path.join(check.programs, "..", "python")
    if not os.path.isdir(root):
        root = os.path.join(HERE, "python") + os.pathsep + os.path.join(HERE, "python", "deepspeed_name")
    env = {"PYTHONPATH": root + os.pathsep + os.environ.get("PYTHONPATH", ""), "GPU_CHECK_CLEAVE": check.program("cleave"),
           "CLEAVE_LIBRARY": os.path.join(check.programs, "..", "lib", "libcleave_c.so"), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false",
           "HF_HUB_OFFLINE": "1", "NCCL_SOCKET_IFNAME": "lo"}  # fmt: skip
    command = [os.environ.get("GPU_CHECK_PYTHON", sys.executable), os.path.join(HERE, "scripts", "gpu_python.py")]
    pattern = {"python_speed": "PythonSpeed.*", "python_devices": "PythonDevices.*"}.get(name, "Python.*")
    return of_suite(check.suite(name, limit, command, filter=pattern, env=env, start_seconds=30, case_seconds=45))


def suites_and_python(check, name, limit):
    """Runs kernels_test, runtime_test and the Python cases at the same time; more processes would slow each other down."""
    lanes = {"kernels_test": run_suite, "runtime_test": run_suite, "python": python_suite}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        futures = {suite: pool.submit(run, check, suite, limit) for suite, run in lanes.items()}
    done = {suite: of_suite({"cases": {}, "problems": [repr(f.exception())]}) if f.exception() else f.result() for suite, f in futures.items()}
    order = ("failed", "not reached", "passed", "skipped")
    return {"result": min((r["result"] for r in done.values()), key=order.index), "suites": done,
            "note": "; ".join(f"{suite}: {r['note']}" for suite, r in done.items())}  # fmt: skip


def sanitizer():
    found = [shutil.which("compute-sanitizer"), *sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))]
    found += sorted(glob.glob("/opt/nvidia/**/compute-sanitizer", recursive=True))
    return next((f for f in found if f and os.access(f, os.X_OK)), None)


def memcheck(check, name, limit):
    if not sanitizer():
        return {"result": "skipped", "note": "compute-sanitizer is not installed"}
    command = train_command(check, "memcheck", small(check), ds_config(1, 1, cleave={"tune_products": False}), ["--steps", 2], seq=64)
    status = check.run("memcheck", limit, sanitizer(), "--tool", "memcheck", "--error-exitcode", "9", *command)
    summary = re.findall(r"^=+ (ERROR SUMMARY: .*)", check.log("memcheck"), re.M)
    return {"result": result_of(status), "note": f"{ended(status)}; {summary[-1] if summary else last_lines(check.log('memcheck'))}"}


def report(check, name, limit):
    status = check.run("report_json", limit, check.program("cleave"), "report", "--json")
    if status is None:
        raise NoGpu(f"cleave report did not end within {limit:.0f} s: the driver hangs")
    try:
        found = json.loads(check.log("report_json"))
        gpus = found["cuda"]["gpus"]
    except (ValueError, KeyError) as error:
        raise NoGpu(f"cleave report ended with {status}: {last_lines(check.log('report_json'))}") from error
    if not gpus:
        raise NoGpu(next((m["what"] for m in found["missing"] if m["for"] == "training on a GPU"), "none is visible"))
    libraries = found["cuda"].get("libraries", {})
    if problem := libraries.get("cuBLASLt", {}).get("problem"):
        raise NoGpu(problem)
    check.run("report", limit, check.program("cleave"), "report")
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    where = f"kernel {os.uname().release}, {os.cpu_count()} cores, /dev/shm {shm.f_bavail * shm.f_frsize >> 20 if shm else 0} MiB free"
    versions = ", ".join(f"{name} {library['version']}" for name, library in libraries.items())
    return {"result": "passed", "gpus": gpus, "free_mib": min(g["memory_free_bytes"] for g in gpus) >> 20,
            "note": f"{gpus[0]['name']}, driver for CUDA {found['cuda'].get('driver')}, {versions}; {where}"}  # fmt: skip


# ---- how fast ----


def free_mib(check):
    return check.results.get("report", {}).get("free_mib", 80_000)


def vocabulary_of(model):
    return 50257 if model.startswith("gpt2") else 128256  # of the data; a model's may be larger


def choices_of(check, model):
    """Returns the metrics of a run of the same model; its measured product choices are replayed."""
    name = f"{model}.jsonl"
    return {"product_choices": check.path(name)} if any(x.get("event") == "choices" for x in json_lines(check.read(name))) else {}


def row(model, sequences, micro, steps, fp8=None, zero=None):
    """A training row: tokens per second of the median step after the warm-up, and MFU. The case named as its model measures products."""

    def run(check, name, limit):
        own = {"fp8": {"scaling": fp8}} if fp8 else {}
        if name != model:
            own |= choices_of(check, model)
        out = train(check, name, limit, model, ds_config(micro, sequences // micro, zero, own), WARMUP + steps,
                    ["--device_memory", f"{free_mib(check) - 1500}MiB"], vocabulary=vocabulary_of(model))  # fmt: skip
        measured = out["rates"][WARMUP:] or out["rates"][1:]
        if measured:
            rate, mfu = statistics.median(measured), statistics.median(out["mfu"][-len(measured) :] or [0])
            out |= {"model": model, "tokens_per_s": rate, "spread": [min(measured), max(measured)], "step_tokens": sequences * 1024, "micro": micro}
            out["mfu_measured"], out["mfu_datasheet"] = mfu, mfu * (out["peak_flops"] or 0) / DENSE_BF16
            out["note"] = (f"{rate:,.0f} tokens/s ({min(measured):,.0f} to {max(measured):,.0f}), MFU {100 * mfu:.1f} % of the measured product, "
                           f"{100 * out['mfu_datasheet']:.1f} % of 989.4 TFLOP/s; {out['note']}")  # fmt: skip
        return out

    return run


def bench(check, name, limit):
    rows = "(cross_entropy|layer_norm|rms_norm|.*swiglu|to_fp8|fp8|attention/|add/).*bf16"
    status = check.run("bench", limit, check.program("kernels_bench"), "--gpu_only", f"--limits={check.path('ceilings')}", "--benchmark_min_time=0.03",
                       f"--benchmark_out={check.path('bench.json')}", "--benchmark_out_format=json", f"--benchmark_filter=^cuda/{rows}")  # fmt: skip
    found = re.search(r"^cuda:0; limits: .*", check.log("bench"), re.M)
    kernels = []
    for b in json_lines("\n".join(re.sub(r"\s+", " ", row) for row in re.findall(r"\{[^{}]*\}", check.read("bench.json")))):
        if "run_name" in b:
            unit = "TFLOP/s" if "TFLOP/s" in b else "TB/s"
            kernels.append({"name": b["name"].removeprefix("cuda/").removesuffix("/real_time"), "value": b.get(unit, 0), "unit": unit,
                            "percent": b.get("%limit", 0), "error": b.get("error_message", "")})  # fmt: skip
    broken = [k["name"] for k in kernels if k["error"]]
    return {"result": "failed" if broken else result_of(status), "kernels": kernels,
            "note": f"{len(kernels)} rows; {found[0] if found else ended(status)}{'; failed: ' + ', '.join(broken) if broken else ''}"}  # fmt: skip


def profile(model, micro, fp8=None):
    """Kernel times of one step by Nsight Compute."""

    def run(check, name, limit):
        if not shutil.which("ncu"):
            return {"result": "skipped", "note": "ncu is not installed"}
        own = {"cuda_graphs": "off", **choices_of(check, model), **({"fp8": {"scaling": fp8}} if fp8 else {})}
        config = ds_config(micro, 1, cleave=own)
        command = train_command(check, name, model, config, ["--steps", 2, "--device_memory", f"{free_mib(check) - 1500}MiB"], vocabulary_of(model))
        status = check.run(name, limit, "ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "--metrics", "gpu__time_duration.sum", *command)
        return {"result": result_of(status), "model": model, "step_tokens": micro * 1024, "note": f"{ended(status)}; kernels in {name}.log"}

    return run


def peer(check, name, limit):
    """GPT-2 124M by PyTorch with torch.compile, on the same batches."""
    command = [sys.executable, os.path.join(HERE, "benchmarks", "torch_peer.py"), "--model", "gpt2", "--micro", 64, "--accumulation", 1, "--warmup", 3, "--steps", 8]
    status = check.run("peer", limit, *command)
    found = next((x for x in json_lines(check.log("peer")) if "tokens_per_s" in x), None)
    return {"result": result_of(status), "tokens_per_s": found["tokens_per_s"] if found else 0,
            "note": f"{found['tokens_per_s']:,.0f} tokens/s, {found['memory_gib']:.1f} GiB" if found else f"{ended(status)}: {last_lines(check.log('peer'))}"}  # fmt: skip


STAGE_3 = {"zero_optimization": {"stage": 3}}
OFFLOAD = {"zero_optimization": {"stage": 2, "offload_optimizer": HOST}}
ALL_ON_HOST = {"stage": 3, "offload_optimizer": HOST, "offload_param": HOST}
CALLS = {
    "first": [
        Case("report", report, "the GPU by name, versions of cuBLASLt, cuDNN and NCCL", 15),
        Case("lazy_loading", one_rank(loading="LAZY"), "10 steps; the default of one rank", 20),
        Case("eager_loading", one_rank(loading="EAGER", like="lazy_loading"), "the same bits; 220 MiB and 2 s more than lazy_loading", 20),
        Case("device_test", run_suite, "10 cases pass", 25),
        Case("optimizer_offload", one_rank(OFFLOAD["zero_optimization"], like="lazy_loading", tolerance=1e-3), "the same bits as lazy_loading", 15, 20),
        Case("parameter_offload", one_rank(ALL_ON_HOST, like="lazy_loading", tolerance=1e-3), "the same bits as lazy_loading", 15, 20),
        Case("host_offload", two_ranks("host", OFFLOAD), "10 steps", 20),
        Case("host_stage_3", two_ranks("host", STAGE_3, "host_offload", 1e-3), "the same bits as host_offload", 20),
        Case("ipc_stage_3", two_ranks("ipc", STAGE_3, "host_stage_3"), "the same bits as host_stage_3", 20),
        Case("suites_and_python", suites_and_python, "kernels_test (103 of 104), runtime_test (14) and the Python cases (19) pass", 105, 150),
        Case("nccl_stage_3", two_ranks("nccl", STAGE_3, "host_stage_3", 1e-3), "within 1e-3 of host_stage_3, 1,330 MiB per rank in addition to the plan", 20),
        Case("nccl_pipeline", two_ranks("nccl", {"pipeline": {"stages": 2}}), "10 steps, 1,420 MiB per rank in addition to the plan", 20),
        Case("nccl_tensor", two_ranks("nccl", {"tensor_parallel": {"autotp_size": 2}}), "10 steps, 1,330 MiB per rank in addition to the plan", 20),
        Case("memcheck", memcheck, "0 errors", 25),
        Case("python_devices", python_suite, "10 pass, or 9 without bitsandbytes", 0, 90, least=20),
    ],
    "second": [
        Case("report", report, "as in the first call", 6),
        Case("gpt2", row("gpt2", 512, 64, 4), "597,000 tokens/s on an H200, 561,000 on an H100", 13, 30),
        Case("gpt2_again", row("gpt2", 512, 64, 4), "within 1 % of gpt2, with its choices of products", 10, 20),
        Case("gpt2_third", row("gpt2", 512, 64, 4), "within 1 % of gpt2", 10, 20),
        Case("qwen2.5-1.5b", row("qwen2.5-1.5b", 256, 16, 3), "61,100 tokens/s on an H200", 33, 45),
        Case("python_speed", python_suite, "native 524,000 tokens/s, engine above eager torch", 70, 100),
        Case("qwen_fp8_delayed", row("qwen2.5-1.5b", 64, 16, 4, fp8="delayed"), "73,100 tokens/s on an H200", 13, 25),
        Case("qwen_fp8_row", row("qwen2.5-1.5b", 64, 16, 4, fp8="row"), "67,400 tokens/s on an H200", 13, 25),
        Case("bench", bench, "rates of the newest page in benchmarks/results", 18, 25),
        Case("gpt2-medium", row("gpt2-medium", 128, 32, 3), "215,000 tokens/s on an H200", 9, 25),
        Case("peer", peer, "526,000 tokens/s on an H200 (PyTorch 2.11)", 27, 45),
        Case("gpt2-xl", row("gpt2-xl", 64, 16, 3), "53,300 tokens/s on an H200", 12, 25),
        Case("profile_gpt2", profile("gpt2", 32), "54.7 ms in kernels on an H200", 20, 30),
        Case("qwen2.5-3b", row("qwen2.5-3b", 64, 8, 2), "31,000 tokens/s on an H200", 19, 30),
        Case("qwen2.5-7b", row("qwen2.5-7b", 16, 4, 0, zero=ALL_ON_HOST), "two steps with all state in host memory", 0, 90, least=45),
        Case("profile_qwen", profile("qwen2.5-1.5b", 16), "242 ms in kernels on an H200", 0, 40, least=20),
        Case("profile_fp8", profile("qwen2.5-1.5b", 16, "delayed"), "214 ms in kernels on an H200", 0, 40, least=20),
    ],
}  # fmt: skip
