#!/usr/bin/env python3
"""Draws docs/overview.svg: the memory of one rank for the same model in several layouts, by location, as planned by `cleave plan`.

  draw_overview.py CLEAVE OUT.svg
"""
import json
import pathlib
import subprocess
import sys
import tempfile

RANKS, MODEL, TOKENS = 8, "qwen2.5-1.5b", 1024
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
CUT = {"pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2}}
LAYOUTS = [("stage 0", {"zero_optimization": {"stage": 0}}), ("stage 1", {"zero_optimization": {"stage": 1}}),
           ("stage 2", {"zero_optimization": {"stage": 2}}), ("stage 3", {"zero_optimization": {"stage": 3}}),
           ("stage 3, offload", {"zero_optimization": {"stage": 3, **OFFLOAD}}),
           ("stage 1, pipe 2, tensor 2", {"zero_optimization": {"stage": 1}, **CUT})]
PARTS = [("weights", ["weights"], "#1f6feb"), ("gradients", ["gradients", "buckets"], "#2da44e"),
         ("optimizer state", ["master", "optimizer_state"], "#bf8700"), ("activations, gathered weights, buffers", None, "#8c959f")]
WIDTH, LEFT, BAR, TOP, SCALE = 900, 190, 30, 78, 20.0  # SCALE: pixels per GiB


def planned(cleave, changes):
    """Returns (part, bytes on the device, bytes in host memory) of the rank with the largest plan."""
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW"}, **changes}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        out = subprocess.check_output([cleave, "plan", "--deepspeed_config", file.name, "--model", MODEL, "--seq_len", str(TOKENS),
                                       "--world_size", str(RANKS), "--json"], text=True)
    tables = [rank["memory"] for rank in json.loads(out)["ranks"]]
    table = max(tables, key=lambda t: sum(t.get("device", {}).values()))
    rows = []
    named = {c for _, categories, _ in PARTS for c in categories or []}
    for name, categories, color in PARTS:
        def of(kinds):
            return sum(size for kind in kinds for c, size in table.get(kind, {}).items()
                       if (c in categories if categories else c not in named))
        rows.append((name, of(["device"]), of(["pinned host", "host"]), color))
    return rows


def text(x, y, words, **attributes):
    rest = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in attributes.items())
    return f'<text x="{x}" y="{y}"{rest}>{words}</text>'


def main(cleave, out):
    svg = [text(16, 26, "Memory of one rank for Qwen2.5-1.5B (1.54 billion parameters) in several layouts", font_size=16,
                font_weight="bold"),
           text(16, 46, f"{RANKS} ranks, bf16, {TOKENS} tokens per micro-batch; GiB of the rank with the largest plan. Training "
                        "measures the same bytes")]
    x = LEFT
    for name, _, color in PARTS:
        svg += [f'<rect x="{x}" y="56" width="12" height="12" fill="{color}"/>', text(x + 17, 66, name)]
        x += 36 + round(6.1 * len(name))
    svg += [f'<rect x="{x}" y="56" width="12" height="12" fill="url(#host)" stroke="#57606a"/>', text(x + 17, 66, "in host memory")]
    y = TOP
    for label, changes in LAYOUTS:
        at, total = LEFT, 0
        svg.append(text(LEFT - 10, y + 20, label, text_anchor="end"))
        for where in (0, 1):
            for _, device, host, color in planned(cleave, changes):
                size = (device, host)[where] / 2**30
                width = size * SCALE
                svg.append(f'<rect x="{at:.1f}" y="{y}" width="{width:.1f}" height="{BAR - 6}" fill="{color}"/>')
                if where and width > 0:
                    svg.append(f'<rect x="{at:.1f}" y="{y}" width="{width:.1f}" height="{BAR - 6}" fill="url(#host)"/>')
                at += width
                total += size if not where else 0
        svg.append(text(f"{at + 8:.1f}", y + 17, f"{total:.1f} GiB on the device"))
        y += BAR
    svg += [f'<line x1="{LEFT}" x2="{LEFT}" y1="{TOP - 4}" y2="{y}" stroke="#57606a"/>']
    svg.append(text(16, y + 26, "Weights after training have the same bits in every stage, and differ by less than one part in a "
                                "million where layers are cut;"))
    svg.append(text(16, y + 44, "a checkpoint of any of them continues in any other."))
    height = y + 60
    pattern = ('<defs><pattern id="host" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
               '<line x1="0" y1="0" x2="0" y2="6" stroke="white" stroke-width="2.5"/></pattern></defs>')
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" '
            f'fill="#1f2328">{pattern}<rect width="{WIDTH}" height="{height}" fill="white"/>')
    pathlib.Path(out).write_text("\n".join([head, *svg, "</svg>"]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
