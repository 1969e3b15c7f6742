#!/usr/bin/env python3
"""Draws a step of a model whose whole state is in host memory, on one H100, and predicts its time: benchmarks/results/larger_than_gpu_202611.md.

    benchmarks/larger_than_gpu.py [--cleave build/release/bin/cleave] [--picture FILE.svg]

The memory is that of `cleave plan`. The time is a simulation of three lanes, compute and the two directions of the link, at the rates of
`cleave plan --device h100`: weights are fetched one layer ahead, gradients leave after their layer, and the optimizer's state streams through
the GPU, after the gradient norm or, without clipping, after each gradient. "one lane": both directions share a stream.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLOPS, LINK = 470e12, 55e9  # FLOP/s of bf16 products in a step, bytes/s of each direction
SEQ = 4096
STATE = 14  # bytes per parameter each way in an update: gradient or weight in bf16; master and two moments in fp32
# Name: layers, width, heads, key/value heads, MLP width; sequences per micro-batch.
MODELS = {"Qwen2.5 7B": (28, 3584, 28, 4, 18944, 4), "Qwen2.5 14B": (48, 5120, 40, 8, 13824, 4), "Qwen2.5 32B": (64, 5120, 40, 8, 27648, 4)}
VOCABULARY = 152064
COLORS = {"forward": "#7fb3d5", "backward": "#1f618d", "weights": "#82c98a", "gradients": "#e59866", "update": "#b07cc6"}


def config_of(layers, width, heads, kv, mlp):
    return {"model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0, "tie_word_embeddings": False}  # fmt: skip


def planned(cleave, shape, micro):
    """Returns the plan of one rank with all state in host memory."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "model.json").write_text(json.dumps(config_of(*shape)))
        home = {"device": "cpu", "pin_memory": True}
        (folder / "ds.json").write_text(json.dumps({
            "train_micro_batch_size_per_gpu": micro, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
            "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_param": home, "offload_optimizer": home},
            "activation_checkpointing": {"number_checkpoints": 1000}}))  # fmt: skip
        done = subprocess.run([cleave, "plan", "--deepspeed_config", folder / "ds.json", "--model", folder / "model.json", "--seq_len", str(SEQ),
                               "--device", "h100", "--json"], capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"cleave plan ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


class Lane:
    """Work in order; each piece begins after the piece before it and after `after`."""

    def __init__(self):
        self.end, self.spans = 0.0, []

    def run(self, kind, seconds, after):
        begin = max(self.end, after)
        self.end = begin + seconds
        self.spans.append((kind, begin, self.end))
        return self.end


def visits_of(shape, micro):
    """Returns parameters and seconds of compute of each visit: the embedding, the blocks and the head forward, the blocks and the embedding
    backward, with each block computed again."""
    layers, width, heads, kv, mlp = shape
    tokens = micro * SEQ
    block = width * (2 * width + 2 * kv * width // heads) + 3 * width * mlp
    forward = (2 * block * tokens + 4 * tokens * SEQ / 2 * width) / FLOPS
    head = VOCABULARY * width
    blocks = [(block, "forward", forward)] * layers
    return [(head, "forward", 0.0), *blocks, (head, "backward", 6 * head * tokens / FLOPS), *[(block, "backward", 3 * forward)] * layers,
            (head, "backward", 0.0)]  # fmt: skip


def step(visits, clips, apart):
    """Returns the lanes of a step. `apart`: fetches and gradients have a lane each, and not one for both."""
    compute, inward = Lane(), Lane()
    outward = Lane() if apart else inward
    ends, left = [0.0], [0.0, 0.0]  # of compute by visit; of gradients, whose buckets later visits use again

    def fetch(i):
        params, kind, _ = visits[i]
        return inward.run("weights", 2 * params / LINK, ends[max(0, len(ends) - 2)]) if params else ends[-1]

    ready = fetch(0)
    for i, (params, kind, seconds) in enumerate(visits):
        begin = max(ready, left[-2])
        ready = fetch(i + 1) if i + 1 < len(visits) else 0.0
        ends.append(compute.run(kind, seconds, begin))
        if kind == "backward":
            left.append(outward.run("gradients", 2 * params / LINK, ends[-1]))
            if not clips:
                state = inward.run("update", STATE * params / LINK, left[-1])
                outward.run("update", STATE * params / LINK, state - STATE * params / LINK * 0.9)
    if clips:
        after = max(compute.end, inward.end, outward.end)
        everything = sum(p for p, kind, _ in visits if kind == "backward") * STATE / LINK
        inward.run("update", everything, after)
        if apart:
            outward.run("update", everything, after)
    return {"compute": compute, "to the GPU": inward, **({"to the host": outward} if apart else {})}


def draw(path, title, steps):
    """Draws steps below each other: [(name, lanes)]."""
    left, width, row = 110, 900, 22
    longest = max(lane.end for _, lanes in steps for lane in lanes.values())
    out, y = [], 64
    for name, lanes in steps:
        end = max(lane.end for lane in lanes.values())
        out.append(f'<text x="{left}" y="{y}" font-weight="bold">{name}: {end:.2f} s</text>')
        for lane_name, lane in lanes.items():
            y += row
            out.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{lane_name}</text>')
            for kind, begin, finish in lane.spans:
                if finish > begin:
                    out.append(f'<rect x="{left + begin / longest * width:.1f}" y="{y - 13}" width="{max(0.4, (finish - begin) / longest * width - 0.3):.1f}"'
                               f' height="16" fill="{COLORS[kind]}"/>')  # fmt: skip
        y += 44
    keys = "".join(f'<rect x="{left + 130 * i}" y="{y - 22}" width="14" height="14" fill="{color}"/><text x="{left + 130 * i + 20}" y="{y - 10}">{kind}</text>'
                   for i, (kind, color) in enumerate(COLORS.items()))  # fmt: skip
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {y}" font-family="sans-serif" font-size="13">'
                    f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="28" font-size="17">{title}</text>{"".join(out)}{keys}</svg>\n')  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleave", type=pathlib.Path, default=ROOT / "build/release/bin/cleave")
    parser.add_argument("--picture", type=pathlib.Path)
    args = parser.parse_args()
    titles = ["model", "tokens a step", "GPU, GiB", "host, GiB", "one lane, s", "two lanes, s", "TFLOP/s", "without clipping, s", "TFLOP/s"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for name, (*shape, usual) in MODELS.items():
        for micro in (1, usual, 4 * usual):
            plan = planned(args.cleave, shape, micro)
            gib = {kind: sum(plan["ranks"][0]["memory"].get(kind, {}).values()) / 2**30 for kind in ("device", "pinned host")}
            visits = visits_of(shape, micro)
            seconds = [max(lane.end for lane in step(visits, *how).values()) for how in ((True, False), (True, True), (False, True))]
            rate = [plan["flops_per_step"] / s / 1e12 for s in seconds]
            print(f"| {name} | {micro * SEQ:,} | {gib['device']:.1f} | {gib['pinned host']:.1f} | {seconds[0]:.2f} | {seconds[1]:.2f} | {rate[1]:.0f} | "
                  f"{seconds[2]:.2f} | {rate[2]:.0f} |", flush=True)  # fmt: skip
    if args.picture:
        *shape, micro = MODELS["Qwen2.5 7B"]
        visits = visits_of(shape, micro)
        draw(args.picture, f"Qwen2.5 7B with all state in host memory, {micro * SEQ:,} tokens on one H100, simulated",
             [("weights and gradients on one stream, clipping", step(visits, True, False)), ("on two streams, clipping", step(visits, True, True)),
              ("on two streams, without clipping", step(visits, False, True))])  # fmt: skip


if __name__ == "__main__":
    main()
