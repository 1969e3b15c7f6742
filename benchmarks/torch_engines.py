#!/usr/bin/env python3
"""The same PyTorch training of GPT-2 under Cleave, DeepSpeed and torch's DistributedDataParallel, alternately.

    benchmarks/torch_engines.py --deepspeed_python peers/bin/python [--stages 0 1 2 3 2+offload] [--repeats 5] [--json FILE]

Every engine runs the same module (transformers' GPT2LMHeadModel, drawn with one seed) on the same tokens with the same threads, started
by torchrun. A stage is measured --repeats times, the engines taking turns; a table has the median time of a step, its spread, the
ratio to Cleave's and the largest resident set of a rank. At stage 0 the peer is DistributedDataParallel with fused AdamW, too.
--deepspeed_python is the Python of an environment with deepspeed, torch and transformers; without it DeepSpeed is left out.
Cleave is what this Python imports, from python/ of this tree with build/release unless it is installed.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {"tiny": (128, 4, 4), "gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16)}


def config_of(args):
    stage, _, place = args.stage.partition("+")
    zero = {"stage": int(stage)}
    if place:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": args.dtype == "bf16"},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": zero}


def model_of(args):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    width, layers, heads = SIZES[args.model]
    shape = GPT2Config(vocab_size=50257, n_positions=max(1024, args.seq_len), n_embd=width, n_layer=layers, n_head=heads,
                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    return GPT2LMHeadModel._from_config(shape, attn_implementation="sdpa").train()


def step_of_ddp(args, model, tokens):
    import torch
    model = model.to(torch.bfloat16) if args.dtype == "bf16" else model
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss
    return step


def step_of_engine(args, module, model, tokens):
    begin = time.perf_counter()
    engine, *_ = module.initialize(model=model, model_parameters=model.parameters(), config=config_of(args))
    args.initialize_s = time.perf_counter() - begin

    def step():
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss
    return step


def work(args):
    """One rank of one engine; rank 0 prints a line of JSON."""
    args.initialize_s = None
    if args.worker == "cleave":
        import cleave as module
    elif args.worker == "deepspeed":
        import deepspeed as module
    import torch
    if args.worker == "ddp":
        torch.distributed.init_process_group("gloo")
    else:
        module.init_distributed(dist_backend="gloo")
    model = model_of(args)
    tokens = torch.randint(0, 50257, (1, args.seq_len))
    step = step_of_ddp(args, model, tokens) if args.worker == "ddp" else step_of_engine(args, module, model, tokens)
    times = []
    for i in range(args.warmup + args.steps):
        torch.distributed.barrier()
        begin = time.perf_counter()
        loss = step()
        torch.distributed.barrier()
        if i >= args.warmup:
            times.append(time.perf_counter() - begin)
    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss], dtype=torch.float64)
    torch.distributed.all_reduce(peak, op=torch.distributed.ReduceOp.MAX)
    if torch.distributed.get_rank() == 0:
        print("RESULT " + json.dumps({"step_s": statistics.median(times), "peak_mib": peak.item() / 1024, "loss": loss.item(),
                                      "initialize_s": args.initialize_s}), flush=True)
    torch.distributed.barrier()


def run(args, engine, stage):
    python = args.deepspeed_python if engine == "deepspeed" else sys.executable
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    if engine == "cleave":
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([python, "-m", "torch.distributed.run", "--nproc_per_node", str(args.ranks), "--master_port", "29571", __file__,
                           "--worker", engine, "--stage", stage, "--model", args.model, "--seq_len", str(args.seq_len), "--dtype", args.dtype,
                           "--steps", str(args.steps), "--warmup", str(args.warmup)], capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"{engine} at stage {stage} brought no result:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(lines[-1][len("RESULT "):])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepspeed_python")
    parser.add_argument("--stages", nargs="+", default=["0", "1", "2", "3", "2+offload"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", choices=SIZES, default="gpt2")
    parser.add_argument("--seq_len", type=int, default=1024)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--steps", type=int, default=4, help="that are timed")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--worker", choices=["cleave", "deepspeed", "ddp"], help=argparse.SUPPRESS)
    parser.add_argument("--stage", default="2", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    rows = []
    print("| stage | engine | s a step | spread | against Cleave | MiB a rank | initialize, s |\n|---|---|---|---|---|---|---|", flush=True)
    for stage in args.stages:
        engines = ["cleave", *(["deepspeed"] if args.deepspeed_python else []), *(["ddp"] if stage == "0" else [])]
        found = {engine: [] for engine in engines}
        for _ in range(args.repeats):
            for engine in engines:
                found[engine].append(run(args, engine, stage))
        for engine, results in found.items():
            times = sorted(r["step_s"] for r in results)
            ratios = [b["step_s"] / c["step_s"] for b, c in zip(results, found["cleave"])]
            starts = [r["initialize_s"] for r in results if r["initialize_s"] is not None]
            rows.append({"stage": stage, "engine": engine, "results": results, "ratio": statistics.median(ratios)})
            print(f"| {stage} | {engine} | {statistics.median(times):.3f} | {times[0]:.3f} to {times[-1]:.3f} | {statistics.median(ratios):.2f} "
                  f"| {max(r['peak_mib'] for r in results):.0f} | {f'{statistics.median(starts):.2f}' if starts else ''} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"options": {k: v for k, v in vars(args).items() if k != "json"}, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
