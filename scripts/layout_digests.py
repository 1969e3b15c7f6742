#!/usr/bin/env python3
"""Trains small models in many layouts and prints three digests of each: losses and norms, checkpoint values, and the plan (the bytes of
rank by kind of memory and category).

A change that must not alter numbers shows the same table before and after:

    scripts/layout_digests.py build/release/bin/cleave                      prints the table
    scripts/layout_digests.py build/release/bin/cleave --against OLD        compares two binaries; exits with 1 if they differ
    scripts/layout_digests.py build/release/bin/cleave --only 'llama.*zb'   layouts with matching names

Digests depend on the processor's instruction set and on the version of oneDNN, so compare tables of one machine.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

BATCH = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}}
BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 12}}
DROPOUT = {"model_type": "gpt2", "n_embd": 96, "n_head": 3, "n_layer": 4, "n_positions": 64, "vocab_size": 256,
           "activation_function": "gelu_new", "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.0}


def zero(stage, **keys):
    return {"zero_optimization": {"stage": stage, **keys}}


def pipe(stages, schedule="1f1b", **keys):
    return {"pipeline": {"stages": stages, "schedule": schedule, **keys}}


def tensor(ranks, rows_cut=True):
    return {"tensor_parallel": {"autotp_size": ranks, "sequence_parallel": rows_cut}}


# (name, model, ranks, sections of the ds_config); {disk} is a folder.
LAYOUTS = [
    ("gpt fp32 1 rank", "tiny", 1, [zero(0)]),
    ("gpt dropout fp32 1 rank", "dropout", 1, [zero(0)]),
    ("gpt dropout bf16 stage 2", "dropout", 2, [zero(2), BF16]),
    ("gpt dropout bf16 lean", "dropout", 2, [zero(1), BF16, {"activation_checkpointing": {"policy": "selective"}}]),
    ("gpt dropout bf16 recomputed", "dropout", 2, [zero(3), BF16, {"activation_checkpointing": {"interval": 2}}]),
    ("gpt fp16 stage 1", "tiny", 4, [zero(1), FP16]),
    ("gpt bf16 stage 3", "tiny", 4, [zero(3, stage3_param_persistence_threshold=1000), BF16]),
    ("gpt bf16 stage 3 near", "tiny", 4, [zero(3, mics_shard_size=2), BF16]),
    ("gpt bf16 stage 3 nested", "tiny", 4, [zero(3, zero_hpz_partition_size=2), BF16]),
    ("gpt fp32 stage 3 host", "tiny", 2, [zero(3, offload_param={"device": "cpu"}, offload_optimizer={"device": "cpu"})]),
    ("gpt bf16 stage 3 disk", "tiny", 2, [zero(3, offload_param={"device": "nvme", "nvme_path": "{disk}"},
                                             offload_optimizer={"device": "nvme", "nvme_path": "{disk}"}), BF16]),
    ("gpt fp32 exact sums", "tiny", 4, [zero(2), {"cleave": {"exact_sums": True}}]),
    ("gpt fp32 exact sums host", "tiny", 1, [zero(2, offload_optimizer={"device": "cpu"}), {"cleave": {"exact_sums": True}}]),
    ("gpt bf16 1f1b", "tiny", 4, [zero(1), BF16, pipe(2)]),
    ("gpt bf16 gpipe", "tiny", 2, [zero(0), BF16, pipe(2, "gpipe")]),
    ("gpt bf16 interleaved", "tiny", 2, [zero(2), BF16, pipe(2, "interleaved", virtual_stages=2)]),
    ("gpt dropout fp32 zb-h1", "dropout", 4, [zero(1), pipe(4, "zb-h1")]),
    ("gpt dropout bf16 zb-h1 lean", "dropout", 2, [zero(1), BF16, pipe(2, "zb-h1"),
                                                 {"activation_checkpointing": {"policy": "selective"}}]),
    ("gpt bf16 tensor", "tiny", 2, [zero(1), BF16, tensor(2)]),
    ("gpt fp32 tensor whole rows", "tiny", 4, [zero(2), tensor(2, False)]),
    ("gpt dropout bf16 3d", "dropout3d", 8, [zero(2), BF16, pipe(2), tensor(2)]),
    ("gpt bf16 sequence", "tiny", 4, [zero(2), BF16, {"sequence_parallel_size": 2}]),
    ("llama fp32 1 rank", "llama-tiny", 1, [zero(0)]),
    ("llama bf16 stage 2", "llama-tiny", 2, [zero(2), BF16]),
    ("llama bf16 stage 3 lean", "llama-tiny", 2, [zero(3), BF16, {"activation_checkpointing": {"policy": "selective"}}]),
    ("llama fp16 1f1b", "llama-tiny", 4, [zero(1), FP16, pipe(2)]),
    ("llama bf16 zb-h1", "llama-tiny", 2, [zero(1), BF16, pipe(2, "zb-h1")]),
    ("llama bf16 tensor", "llama-tiny", 2, [zero(1), BF16, tensor(2)]),
    ("llama fp32 tensor shares heads", "llama-tiny", 4, [zero(1), tensor(4)]),
    ("llama bf16 3d stage 3", "llama-tiny", 8, [zero(3), BF16, pipe(2), tensor(2)]),
    ("llama bf16 sequence", "llama-tiny", 2, [zero(3), BF16, {"sequence_parallel_size": 2}]),
    ("qwen2 fp32 1 rank", "qwen2-tiny", 1, [zero(0)]),
    ("qwen2 bf16 stage 3 host", "qwen2-tiny", 2, [zero(3, offload_param={"device": "cpu"}), BF16]),
    ("qwen2 bf16 1f1b", "qwen2-tiny", 2, [zero(1), BF16, pipe(2)]),
    ("qwen2 fp32 tensor shares heads", "qwen2-tiny", 4, [zero(2), tensor(4)]),
    ("lamb fp32 stage 2", "tiny", 4, [zero(2), {"optimizer": {"type": "Lamb", "params": {"lr": 1e-2}}}]),
    ("lion bf16 stage 1", "llama-tiny", 2, [zero(1), BF16, {"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}]),
]


def write_inputs(folder):
    words = ["light", "water", "earth", "heaven", "and", "the", "was", "upon", "face", "deep"]
    rng = random.Random(5)
    (folder / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(4000)) + "\n")
    for name, heads in (("dropout", 3), ("dropout3d", 4)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**DROPOUT, "n_head": heads}))


FAILED = "FAILED"


def run_in(folder, words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)


def digest(cleave, folder, layout):
    """Returns the digests of losses and norms, checkpoint values and plan, or the error of the run."""
    _, model, ranks, sections = layout
    with tempfile.TemporaryDirectory(dir=folder) as name:
        here = pathlib.Path(name)
        config = dict(BATCH)
        for section in sections:
            config.update(section)
        (here / "config.json").write_text(json.dumps(config).replace("{disk}", str(here)))
        model = folder / model if (folder / model).is_dir() else model
        job = ["--deepspeed_config", here / "config.json", "--model", model, "--seq_len", 32]
        command = [cleave, *(["launch", "-n", ranks, "--"] if ranks > 1 else []), "train", *job, "--init", "random", "--data", folder / "text.txt",
                   "--steps", 4, "--output", here / "out", "--metrics", here / "m.jsonl", "--quiet"]
        runs = [run_in(here, words) for words in (command, [cleave, "plan", *job, "--world_size", ranks, "--json"])]
        for run in runs:
            if run.returncode != 0:
                return [FAILED, *(run.stderr.strip().splitlines()[:1] or [f"exit code {run.returncode}"])]
        lines = [json.loads(line) for line in (here / "m.jsonl").read_text().splitlines()]
        steps = [(line["loss"], line["grad_norm"], line["loss_scale"]) for line in lines if "grad_norm" in line]
        manifest = json.loads((here / "out" / "global_step4" / "manifest.json").read_text())
        records = sorted(json.dumps([r[key] for key in ("kind", "tensor", "range", "xxh3")] + [r.get("stride")])
                         for r in manifest["records"])
        plan = sorted((rank, sorted((kind, sorted(table.items())) for kind, table in r["memory"].items()))
                      for r in json.loads(runs[1].stdout)["ranks"] for rank in r["ranks"])
        return [hashlib.sha256(repr(part).encode()).hexdigest()[:12] for part in (steps, records, plan)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path, help="another binary")
    parser.add_argument("--only", default="", help="a regular expression")
    args = parser.parse_args()
    binaries = [path.resolve() for path in (args.cleave, args.against) if path]
    differ = 0
    with tempfile.TemporaryDirectory(prefix="digests") as name, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = pathlib.Path(name)
        write_inputs(folder)
        layouts = [layout for layout in LAYOUTS if re.search(args.only, layout[0])]
        runs = [(layout, [pool.submit(digest, binary, folder, layout) for binary in binaries]) for layout in layouts]
        for layout, found in runs:
            found = [run.result() for run in found]
            same = all(one == found[0] for one in found) and found[0][0] != FAILED
            differ += not same
            print(f"{layout[0]:34} {layout[2]} ranks  {'  '.join(found[0])}"
                  + ("" if same else f"   DIFFERS: {'  '.join(found[-1])}"), flush=True)
    if args.against:
        print(f"{len(layouts) - differ} of {len(layouts)} layouts have the same digests")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
