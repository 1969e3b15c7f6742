#!/usr/bin/env python3
"""Trains GPT-2 with Cleave, PyTorch and DeepSpeed in turns, and compares the time of a step, its spread, and the memory of a rank.

    scripts/compare_peers.sh [OPTIONS]                                     installs the peers first, then runs this script
    benchmarks/compare_peers.py --peers PEERS/bin/python --layouts 1 2@2 2@3 --engines train compile deepspeed

A layout is RANKS@STAGE, with +offload for optimizer state in host memory; 1 is one process with all cores, otherwise each rank has one
core. Engines take turns, --repeats times each; a run is the median of --steps after --warmup. The table has the median run, the spread of
the runs, the ratio to the first engine in the same turn with its spread, and the peak resident memory of a process. --json FILE stores
every run.

| engine | content |
|---|---|
| train | `cleave train`, the program |
| native | a script that imports cleave; the engine computes the model (`"cleave": {"native": true}`) | | script | the same script with
forward and backward in torch | | deepspeed | the same script with deepspeed | | ddp | torch's DistributedDataParallel with fused AdamW;
stage 0 only | | compile, eager | torch alone with fused AdamW, bf16 by autocast; one process only |

Every engine trains the transformers GPT-2 of the same size without dropout, on random tokens. Python of --peers has torch, transformers and
deepspeed; without --peers only train runs. Engines are left out of layouts that they do not support.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {"tiny": (128, 4, 4), "gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16)}
ENGINES = ["train", "native", "script", "deepspeed", "ddp", "compile", "eager"]
VOCABULARY = 50257
TITLES = ["layout", "engine", "s a step", "spread", "tokens/s", "time against the first", "spread", "MiB", "initialize, s"]


class Layout:
    def __init__(self, text):
        found = re.fullmatch(r"(\d+)(?:@([0-3])(\+offload)?)?", text)
        if not found:
            raise argparse.ArgumentTypeError(f"a layout is RANKS@STAGE or RANKS@STAGE+offload, not {text!r}")
        self.text, self.ranks, self.stage, self.offload = text, int(found[1]), int(found[2] or 0), bool(found[3])

    def has(self, engine):
        if engine in ("compile", "eager"):
            return self.ranks == 1
        return engine != "ddp" or (self.stage == 0 and self.ranks > 1)

    def ds_config(self, args, native):
        zero = {"stage": self.stage}
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        config = {"train_micro_batch_size_per_gpu": args.micro, "gradient_accumulation_steps": 1, "zero_optimization": zero,
                  "bf16": {"enabled": args.dtype == "bf16"}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
        return {**config, "cleave": {"native": True}} if native else config


def gpt2_config(args):
    width, layers, heads = SIZES[args.model]
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": args.seq_len,
            "n_ctx": args.seq_len, "n_embd": width, "n_layer": layers, "n_head": heads,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}


def torch_step(args, model, tokens):
    """Runs one step in torch alone; DistributedDataParallel casts the model to bf16, as DeepSpeed does."""
    import torch
    if args.worker == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model.to(torch.bfloat16) if args.dtype == "bf16" else model)
    elif args.worker == "compile":
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    autocast = args.dtype == "bf16" and args.worker != "ddp"

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss
    return step


def engine_step(args, module, model, tokens):
    engine, *_ = module.initialize(model=model, model_parameters=model.parameters(),
                                   config=args.layout.ds_config(args, args.worker == "native"))

    def step():
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss
    return step


def work(args):
    """Runs one rank of one engine; rank 0 prints a line of JSON."""
    if args.worker in ("native", "script"):
        import cleave as module
    elif args.worker == "deepspeed":
        import deepspeed as module
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    many = args.layout.ranks > 1
    torch.set_num_threads(1 if many else os.cpu_count())
    if args.worker in ("native", "script", "deepspeed"):
        module.init_distributed(dist_backend="gloo")
    elif many:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = GPT2LMHeadModel._from_config(GPT2Config.from_dict(gpt2_config(args)), attn_implementation="sdpa").train()
    tokens = torch.randint(0, VOCABULARY, (args.micro, args.seq_len))
    begin = time.perf_counter()
    if args.worker in ("native", "script", "deepspeed"):
        step = engine_step(args, module, model, tokens)
    else:
        step = torch_step(args, model, tokens)
    initialize_s = time.perf_counter() - begin
    times = []
    for _ in range(args.warmup + args.steps):
        if many:
            torch.distributed.barrier()
        begin = time.perf_counter()
        loss = step()
        if many:
            torch.distributed.barrier()
        times.append(time.perf_counter() - begin)
    if not many or torch.distributed.get_rank() == 0:
        print("RESULT " + json.dumps({"steps_s": times[args.warmup:], "loss": loss.item(), "initialize_s": initialize_s}), flush=True)
    if many:
        torch.distributed.barrier()


def peak_of(command, environment, log):
    """Runs a command and returns the peak resident memory of a process in MiB, including waited-for children. Exits if it fails."""
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{pathlib.Path(log).read_text()[-4000:]}")
    return usage.ru_maxrss / 1024


def run_train(args, layout, folder):
    """Runs `cleave train` on the same sizes; its metrics have a line for each step."""
    config, model, tokens, metrics = (folder / name for name in ("ds.json", "config.json", "tokens.bin", "metrics.jsonl"))
    config.write_text(json.dumps(layout.ds_config(args, False)))
    model.write_text(json.dumps(gpt2_config(args)))
    if not tokens.exists():
        subprocess.run([sys.executable, ROOT / "benchmarks" / "random_tokens.py", tokens], check=True)
    metrics.unlink(missing_ok=True)
    launch = ["launch", "-n", str(layout.ranks), "--"] if layout.ranks > 1 else []
    peak = peak_of([ROOT / "build/release/bin/cleave", *launch, "train", "--deepspeed_config", config, "--model", model, "--data", tokens,
                    "--seq_len", str(args.seq_len), "--steps", str(args.warmup + args.steps), "--metrics", metrics],
                   os.environ, folder / "log")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line["step_ms"] / 1e3 for line in lines if "step_ms" in line][args.warmup:]
    return {"steps_s": steps, "loss": lines[-1].get("loss"), "initialize_s": None, "peak_mib": peak}


def run_torch(args, engine, layout, folder):
    threads = 1 if layout.ranks > 1 else os.cpu_count()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = os.pathsep.join([str(args.peers.parent), environment["PATH"]])  # deepspeed finds ninja there
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), environment.get("PYTHONPATH")]))
    start = ["-m", "torch.distributed.run", "--nproc_per_node", str(layout.ranks), "--master_port", "29571"]
    names = ("model", "micro", "seq_len", "dtype", "steps", "warmup")
    options = [word for name in names for word in (f"--{name}", str(getattr(args, name)))]
    peak = peak_of([args.peers, *start, __file__, "--worker", engine, "--layouts", layout.text, *options], environment, folder / "log")
    output = (folder / "log").read_text()
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"{engine} in layout {layout.text} brought no result:\n{output[-4000:]}")
    return {**json.loads(lines[-1][len("RESULT "):]), "peak_mib": peak}


def machine(args):
    cpu = next(line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return f"{cpu}, {os.cpu_count()} cores, commit {commit}; GPT-2 {args.model}, {args.micro} x {args.seq_len} tokens a rank, {args.dtype}"


def spread(values, digits):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def cells(args, layout, row):
    """Returns the cells of a table row, in the order of TITLES."""
    times = [run["step_s"] for run in row["runs"]]
    starts = [run["initialize_s"] for run in row["runs"] if run["initialize_s"] is not None]
    median = statistics.median(times)
    return [layout.text, row["engine"], f"{median:.3f}", spread(times, 3), f"{args.micro * args.seq_len * layout.ranks / median:.0f}",
            f"{statistics.median(row['ratios']):.2f}", spread(row["ratios"], 2), f"{max(run['peak_mib'] for run in row['runs']):.0f}",
            f"{statistics.median(starts):.2f}" if starts else ""]


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted 1 or more, not {text}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path, help="Python with torch, transformers and deepspeed")
    parser.add_argument("--layouts", nargs="+", type=Layout, default=[Layout(text) for text in ("1", "2@2", "2@3", "2@2+offload")])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["train", "compile", "deepspeed"])
    parser.add_argument("--repeats", type=at_least_one, default=5, help="runs of each engine, in turn")
    parser.add_argument("--model", choices=SIZES, default="gpt2")
    parser.add_argument("--micro", type=int, default=1, help="sequences of a rank in a step")
    parser.add_argument("--seq_len", type=int, default=1024)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--steps", type=at_least_one, default=4, help="that are timed in a run")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        args.layout = args.layouts[0]
        work(args)
        return
    engines = [engine for engine in args.engines if engine == "train" or args.peers]
    print(f"{machine(args)}, {args.repeats} runs in turn\n\n| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for layout in args.layouts:
            found = {engine: [] for engine in engines if layout.has(engine)}
            for repeat in range(args.repeats):
                for engine, runs in found.items():
                    print(f"{layout.text}: run {repeat + 1} of {args.repeats}, {engine}", file=sys.stderr, flush=True)
                    run = run_train(args, layout, folder) if engine == "train" else run_torch(args, engine, layout, folder)
                    runs.append({**run, "step_s": statistics.median(run["steps_s"])})
            first = next(iter(found.values()))
            for engine, runs in found.items():
                rows.append({"layout": layout.text, "engine": engine, "runs": runs,
                             "ratios": [run["step_s"] / base["step_s"] for run, base in zip(runs, first)]})
                print(f"| {' | '.join(cells(args, layout, rows[-1]))} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(args), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
