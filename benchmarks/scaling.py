#!/usr/bin/env python3
"""Draws the predictions of `cleave plan --suggest` for models on 8 to 16,384 H100s, with published results: docs/scaling.md.

    benchmarks/scaling.py [--cleave build/release/bin/cleave] [--folder docs/images] [--only NAME] [--layouts FILE]

Weak scaling keeps the number of sequences per GPU, strong scaling the number per step. A model has the best layout that --suggest finds for
one number of GPUs of weak scaling (half an hour on two cores for the largest models); other points keep its axes and schedule, and the
data-parallel size changes. Prints a table and writes scaling_weak.svg and scaling_strong.svg into the folder.
"""

import argparse
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = [8, 64, 512, 2048, 8192, 16384]
Box = tuple[float, float, float, float]


class Model(typing.NamedTuple):
    """A model and its batches."""

    name: str
    shape: str | dict[str, object]
    seq: int
    per_gpu: float  # sequences per GPU of weak scaling
    together: int  # sequences per step of strong scaling
    fewest: int  # GPUs
    searched: int  # number of GPUs for --suggest
    color: str


class Point(typing.NamedTuple):
    """A prediction."""

    gpus: int
    seconds: float
    tflops: float
    layout: str


def llama(width: int, mlp: int, layers: int, heads: int) -> dict[str, object]:
    """Returns the config.json of a Llama 3 model."""
    return {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    }


MODELS = [
    Model("GPT-2 1.5B", "gpt2-xl", 1024, 32, 16384, 8, 8, "#1f77b4"),
    Model("Llama 3 8B", llama(4096, 14336, 32, 32), 8192, 2, 2048, 8, 8, "#2ca02c"),
    Model("Llama 3 70B", llama(8192, 28672, 80, 64), 8192, 1, 2048, 64, 512, "#ff7f0e"),
    Model("Llama 3 405B", llama(16384, 53248, 126, 128), 8192, 0.5, 2048, 512, 8192, "#d62728"),
]
# Model TFLOP/s per GPU as published, on H100s in bf16: name, GPUs, TFLOP/s, color of the most similar model.
PUBLISHED = [
    ("torchtitan 8B", 8, 386, "#2ca02c"),
    ("torchtitan 8B", 128, 377, "#2ca02c"),
    ("Megatron-Core 70B", 512, 420, "#ff7f0e"),
    ("Megatron-Core 177B", 4608, 415, "#7f7f7f"),
    ("Megatron-Core 462B", 6144, 460, "#d62728"),
    ("Llama 3 405B", 8192, 430, "#d62728"),
    ("Llama 3 405B", 16384, 400, "#d62728"),
]


def words_of(config: dict[str, typing.Any], plan: dict[str, typing.Any]) -> str:
    """Returns the layout: sizes of the axes, ZeRO stage, schedule, micro-batch, and layers that recompute."""
    pipeline = config.get("pipeline", {})
    pipe, tensor = pipeline.get("stages", 1), config.get("tensor_parallel", {}).get("autotp_size", 1)
    words = [f"tensor {tensor}" if tensor > 1 else "", f"pipe {pipe} {pipeline.get('schedule', '1f1b')}" if pipe > 1 else ""]
    words[1] += f" x {pipeline['virtual_stages']}" if pipe > 1 and pipeline.get("virtual_stages", 1) > 1 else ""
    words += [f"ZeRO-{config['zero_optimization']['stage']}", f"micro-batch {config['train_micro_batch_size_per_gpu']}"]
    totals = [sum(map(int, part.split()[1].split(","))) for part in plan["recomputed"].split(", ") if part]
    if sum(totals) > 0:
        words.append(f"{totals[0]} layers full, {totals[1]} selective")
    return ", ".join(word for word in words if word)


class Planner:
    """Runs `cleave plan`, with its files in a folder."""

    def __init__(self, cleave: pathlib.Path, folder: pathlib.Path) -> None:
        self.cleave, self.folder = cleave, folder

    def plan(self, model: Model, gpus: int, config: dict[str, typing.Any], *options: str) -> str | None:
        """Returns the output of `cleave plan`; None if nothing fits."""
        (self.folder / "ds.json").write_text(json.dumps(config))
        name = model.shape
        if isinstance(name, dict):
            (self.folder / "model.json").write_text(json.dumps(name))
            name = str(self.folder / "model.json")
        command = [
            str(self.cleave),
            "plan",
            "--deepspeed_config",
            str(self.folder / "ds.json"),
            "--model",
            name,
            "--seq_len",
            str(model.seq),
            "--world_size",
            str(gpus),
            "--device",
            "h100",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 3):
            sys.exit(f"cleave plan of {model.name} on {gpus} GPUs ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout if done.returncode == 0 else None

    def suggested(self, model: Model) -> dict[str, typing.Any]:
        """Returns the layout that --suggest finds. The given one only has to be valid."""
        tensor = 8 if isinstance(model.shape, dict) else 1
        base = {
            "train_batch_size": int(model.per_gpu * model.searched),
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW"},
            "tensor_parallel": {"autotp_size": tensor},
        }
        text = self.plan(model, model.searched, base, "--suggest")
        if text is None:
            sys.exit(f"no layout of {model.name} on {model.searched} GPUs fits")
        found: dict[str, typing.Any] = json.loads(text)
        return found

    def predicted(self, model: Model, gpus: int, batch: int, layout: dict[str, typing.Any]) -> Point | None:
        """Returns the prediction; None if the layout does not fit or a rank has less than one sequence."""
        axes = layout.get("pipeline", {}).get("stages", 1) * layout.get("tensor_parallel", {}).get("autotp_size", 1)
        data = gpus // axes
        micro = min(layout["train_micro_batch_size_per_gpu"], batch // data) if data else 0
        if micro == 0:
            return None
        sizes = {
            "train_batch_size": batch,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": batch // (data * micro),
        }
        config = {**layout, **sizes}
        planned = self.plan(model, gpus, config, "--json")
        if planned is None:
            return None
        plan = json.loads(planned)
        seconds = plan["predicted"]["step_s"]
        return Point(gpus, seconds, plan["flops_per_step"] / gpus / seconds / 1e12, words_of(config, plan))


class Picture:
    """TFLOP/s per GPU over the number of GPUs, as a self-contained SVG. Labels take the nearest free place."""

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, MOST = 900, 520, 70, 150, 50, 60, 550

    def __init__(self, title: str) -> None:
        w, h = self.WIDTH, self.HEIGHT
        self.taken: list[Box] = []
        self.out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="13">',
            f'<rect width="{w}" height="{h}" fill="white"/>',
            f'<text x="{self.LEFT}" y="28" font-size="17">{title}</text>',
        ]
        for power in range(3, 15):
            at = self.x(2**power)
            self.out.append(
                f'<line x1="{at:.1f}" y1="{self.TOP}" x2="{at:.1f}" y2="{h - self.BOTTOM}" stroke="#eee"/>'
                f'<text x="{at:.1f}" y="{h - self.BOTTOM + 20}" text-anchor="middle">{2**power:,}</text>'
            )
        for tflops in range(0, self.MOST + 1, 100):
            at = self.y(tflops)
            self.out.append(
                f'<line x1="{self.LEFT}" y1="{at:.1f}" x2="{w - self.RIGHT}" y2="{at:.1f}" stroke="#eee"/>'
                f'<text x="{self.LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tflops}</text>'
            )
        self.out.append(
            f'<text x="{(self.LEFT + w - self.RIGHT) / 2}" y="{h - 16}" text-anchor="middle">GPUs</text>'
            f'<text x="18" y="{h / 2}" transform="rotate(-90 18 {h / 2})" text-anchor="middle">model TFLOP/s per GPU</text>'
        )

    def x(self, gpus: float) -> float:
        return self.LEFT + (math.log2(gpus) - 3) / 11 * (self.WIDTH - self.LEFT - self.RIGHT)

    def y(self, tflops: float) -> float:
        return self.HEIGHT - self.BOTTOM - tflops / self.MOST * (self.HEIGHT - self.TOP - self.BOTTOM)

    def free(self, box: Box) -> bool:
        return all(box[2] <= t[0] or t[2] <= box[0] or box[3] <= t[1] or t[3] <= box[1] for t in self.taken)

    def label(self, x: float, y: float, text: str, color: str, size: int, anchor: str) -> None:
        """Writes a text at (x, y) or at the nearest height at which it covers nothing."""
        width = 0.58 * size * len(text)
        left = x if anchor == "start" else x - width / 2
        for step in sorted(range(-60, 61), key=abs):
            box = (left, y + 4 * step - size, left + width, y + 4 * step + 3)
            if self.free(box):
                break
        self.taken.append(box)
        if abs(4 * step) > 24:
            self.out.append(f'<line x1="{x:.1f}" y1="{y - size / 2:.1f}" x2="{x:.1f}" y2="{y + 4 * step - size / 2:.1f}" stroke="#bbb"/>')
        self.out.append(f'<text x="{x:.1f}" y="{y + 4 * step:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{text}</text>')

    def lines(self, lines: list[tuple[Model, list[Point]]]) -> None:
        for model, points in lines:
            at = [(self.x(p.gpus), self.y(p.tflops)) for p in points]
            for (x0, y0), (x1, y1) in itertools.pairwise(at):  # labels keep off the lines
                for k in range(41):
                    x, y = x0 + (x1 - x0) * k / 40, y0 + (y1 - y0) * k / 40
                    self.taken.append((x - 2, y - 2, x + 2, y + 2))
            way = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
            self.out.append(f'<polyline points="{way}" fill="none" stroke="{model.color}" stroke-width="2.5"/>')
        circles = [(self.x(gpus), self.y(tflops)) for _, gpus, tflops, _ in PUBLISHED]
        self.taken += [(x - 6, y - 6, x + 6, y + 6) for x, y in circles]
        for model, points in lines:
            if points:
                self.label(self.x(points[-1].gpus) + 8, self.y(points[-1].tflops) + 4, model.name, model.color, 13, "start")
        for (x, y), (name, _, _, color) in zip(circles, PUBLISHED, strict=True):
            self.out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="white" stroke="{color}" stroke-width="2"/>')
            self.label(x, y + 19, name, "#555", 11, "middle")

    def write(self, path: pathlib.Path) -> None:
        path.write_text("\n".join([*self.out, "</svg>"]) + "\n")


def points_of(planner: Planner, model: Model, kind: str, layout: dict[str, typing.Any]) -> list[Point]:
    """Predicts and prints one line of a picture."""
    points = []
    for gpus in (size for size in SIZES if size >= model.fewest):
        batch = int(model.per_gpu * gpus) if kind == "weak" else model.together
        point = planner.predicted(model, gpus, batch, layout)
        if point is None:
            continue
        points.append(point)
        print(
            f"| {kind} | {model.name} | {gpus:,} | {batch:,} | {point.layout} | {point.seconds:.3g} | "
            f"{batch * model.seq / point.seconds / gpus:,.0f} | {point.tflops:.0f} |",
            flush=True,
        )
    return points


def main() -> None:
    """Prints the table and draws both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleave", type=pathlib.Path, default=ROOT / "build/release/bin/cleave")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs/images")
    parser.add_argument("--only", default="", help="print the rows of models with this in their name, and draw nothing")
    parser.add_argument("--layouts", type=pathlib.Path, help="JSON file with the layouts by model; written after a search")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    titles = ["scaling", "model", "GPUs", "sequences per step", "layout", "s per step", "tokens/s per GPU", "TFLOP/s per GPU"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        planner = Planner(args.cleave, pathlib.Path(scratch))
        models = [model for model in MODELS if args.only in model.name]
        layouts = json.loads(args.layouts.read_text()) if args.layouts and args.layouts.exists() else {}
        for model in models:
            if model.name not in layouts:
                layouts[model.name] = planner.suggested(model)
        if args.layouts:
            args.layouts.write_text(json.dumps(layouts, indent=1))
        for kind in ("weak", "strong"):
            lines = [(model, points_of(planner, model, kind, layouts[model.name])) for model in models]
            if args.only:
                continue
            picture = Picture(f"{kind.capitalize()} scaling, predicted on H100s (circles: published)")
            picture.lines(lines)
            picture.write(args.folder / f"scaling_{kind}.svg")


if __name__ == "__main__":
    main()
