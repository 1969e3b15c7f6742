#!/usr/bin/env python3
"""Draws the predictions of `cleave plan --device h100` for models on 8 to 16,384 H100s, with published results: docs/scaling.md.

    benchmarks/scaling.py [--cleave build/release/bin/cleave] [--folder docs/images]

Weak scaling keeps the number of sequences per GPU, strong scaling the number per step. Tensor and pipeline axes of a model stay, and the
data-parallel size grows until a rank has one sequence. Prints a table and writes scaling_weak.svg and scaling_strong.svg into the folder.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = [8, 64, 512, 2048, 8192, 16384]


def llama(width, mlp, layers, heads):
    return {"model_type": "llama", "vocab_size": 128256, "hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "tie_word_embeddings": False}


# Name, model, tokens per sequence, tensor and pipeline ranks, recomputation, sequences per micro-batch, micro-batches per rank in weak
# scaling, sequences per step in strong scaling, fewest GPUs, color.
MODELS = [
    ("GPT-2 1.5B", "gpt2-xl", 1024, 1, 1, False, 16, 2, 16384, 8, "#1f77b4"),
    ("Llama 3 8B", llama(4096, 14336, 32, 32), 8192, 1, 1, True, 2, 1, 2048, 8, "#2ca02c"),
    ("Llama 3 70B", llama(8192, 28672, 80, 64), 8192, 4, 4, True, 1, 16, 2048, 64, "#ff7f0e"),
    ("Llama 3 405B", llama(16384, 53248, 126, 128), 8192, 8, 16, True, 1, 64, 2048, 512, "#d62728"),
]
# Model TFLOP/s per GPU as published, on H100s in bf16: name, GPUs, TFLOP/s, color of the most similar model.
PUBLISHED = [
    ("torchtitan 8B", 8, 386, "#2ca02c"), ("torchtitan 8B", 128, 377, "#2ca02c"), ("Megatron-Core 70B", 512, 420, "#ff7f0e"),
    ("Megatron-Core 177B", 4608, 415, "#7f7f7f"), ("Megatron-Core 462B", 6144, 460, "#d62728"),
    ("Llama 3 405B", 8192, 430, "#d62728"), ("Llama 3 405B", 16384, 400, "#d62728"),
]


def predicted(cleave, folder, model, gpus, batch):
    """Returns seconds per step, model TFLOP/s per GPU, and the layout; None if the model does not fit or a rank has less than one
    sequence."""
    _, shape, seq, tensor, pipe, recomputes, micro, *_ = model
    data = gpus // (tensor * pipe)
    micro = min(micro, batch // data)
    if micro == 0:
        return None
    (folder / "ds.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": batch // (data * micro), "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1, "overlap_comm": True}, "pipeline": {"stages": pipe},
        "tensor_parallel": {"autotp_size": tensor}, "activation_checkpointing": {"number_checkpoints": 1000 if recomputes else 0}}))
    name = shape
    if isinstance(shape, dict):
        name = folder / "model.json"
        name.write_text(json.dumps(shape))
    done = subprocess.run([cleave, "plan", "--deepspeed_config", folder / "ds.json", "--model", name, "--seq_len", str(seq), "--world_size",
                           str(gpus), "--device", "h100", "--json"], capture_output=True, text=True)
    if done.returncode == 3:
        return None
    if done.returncode != 0:
        sys.exit(f"cleave plan of {model[0]} on {gpus} GPUs ended with {done.returncode}:\n{done.stderr[-3000:]}")
    plan = json.loads(done.stdout)
    time = plan["predicted"]["step_s"]
    axes = [f"{axis} {size}" for axis, size in (("data", data), ("tensor", tensor), ("pipe", pipe)) if size > 1]
    return time, plan["flops_per_step"] / gpus / time / 1e12, ", ".join(axes)


def draw(path, title, lines):
    """Draws TFLOP/s per GPU over the number of GPUs as a self-contained SVG."""
    width, height, left, right, top, bottom, most = 900, 520, 70, 190, 50, 60, 550

    def x(gpus):
        return left + (math.log2(gpus) - 3) / 11 * (width - left - right)

    def y(tflops):
        return height - bottom - tflops / most * (height - top - bottom)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="white"/>', f'<text x="{left}" y="28" font-size="17">{title}</text>']
    for power in range(3, 15):
        at = x(2**power)
        out.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{height - bottom}" stroke="#eee"/>'
                   f'<text x="{at:.1f}" y="{height - bottom + 20}" text-anchor="middle">{2**power:,}</text>')
    for tflops in range(0, most + 1, 100):
        out.append(f'<line x1="{left}" y1="{y(tflops):.1f}" x2="{width - right}" y2="{y(tflops):.1f}" stroke="#eee"/>'
                   f'<text x="{left - 8}" y="{y(tflops) + 4:.1f}" text-anchor="end">{tflops}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 16}" text-anchor="middle">GPUs</text>'
               f'<text x="18" y="{height / 2}" transform="rotate(-90 18 {height / 2})" text-anchor="middle">model TFLOP/s of a GPU</text>')
    for name, color, points in lines:
        way = " ".join(f"{x(gpus):.1f},{y(tflops):.1f}" for gpus, tflops in points)
        out.append(f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="2.5"/>')
    named = top - 20
    for name, color, points in sorted(lines, key=lambda line: -line[2][-1][1]):
        gpus, tflops = points[-1]
        named = max(named + 16, y(tflops) + 4)  # not on top of the previous name
        out.append(f'<text x="{x(gpus) + 8:.1f}" y="{named:.1f}" fill="{color}">{name}</text>')
    for name, gpus, tflops, color in PUBLISHED:
        out.append(f'<circle cx="{x(gpus):.1f}" cy="{y(tflops):.1f}" r="5" fill="white" stroke="{color}" stroke-width="2"/>'
                   f'<text x="{x(gpus):.1f}" y="{y(tflops) + 19:.1f}" text-anchor="middle" font-size="11" fill="#555">{name}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleave", type=pathlib.Path, default=ROOT / "build/release/bin/cleave")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs/images")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    titles = ["scaling", "model", "GPUs", "sequences a step", "layout", "s a step", "tokens/s a GPU", "TFLOP/s a GPU"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("weak", "strong"):
            lines = []
            for model in MODELS:
                name, seq, (tensor, pipe), (micro, micros, together, fewest, color) = model[0], model[2], model[3:5], model[6:]
                points = []
                for gpus in (size for size in SIZES if size >= fewest):
                    batch = micro * micros * gpus // (tensor * pipe) if kind == "weak" else together
                    found = predicted(args.cleave, pathlib.Path(scratch), model, gpus, batch)
                    if found is None:
                        continue
                    time, tflops, layout = found
                    points.append((gpus, tflops))
                    print(f"| {kind} | {name} | {gpus:,} | {batch:,} | {layout} | {time:.3g} | {batch * seq / time / gpus:,.0f} | "
                          f"{tflops:.0f} |", flush=True)
                lines.append((name, color, points))
            draw(args.folder / f"scaling_{kind}.svg", f"{kind.capitalize()} scaling, predicted on H100s (circles: published)", lines)


if __name__ == "__main__":
    main()
