#!/usr/bin/env python3
"""Draws loss curves of metrics files as an SVG with one panel per title: plot_losses.py OUT.svg "TITLE:NAME=FILE.jsonl" ...

  plot_losses.py out.svg "GPT-2:8 ranks=gpt2.8.jsonl" "GPT-2:1 rank=gpt2.1.jsonl" "Llama:8 ranks=llama.8.jsonl"
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 340, 52, 16, 46, 44
STYLES = [("#1f6feb", 5, ""), ("#d1242f", 1.6, ""), ("#2da44e", 1.6, "6 4"), ("#111111", 1.6, "2 3")]


def losses(path):
    with open(path) as lines:
        return [(s["step"], s["loss"]) for s in map(json.loads, lines) if "loss" in s]


def round_ticks(low, high, most=6):
    """Returns at most `most` multiples of 1, 2 or 5 times a power of ten between the two values."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(s * power for s in (1, 2, 5, 10, 20) if math.floor(high / (s * power)) - math.ceil(low / (s * power)) < most)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def panel(title, curves, left):
    steps = max(s for _, c in curves for s, _ in c)
    top = max(l for _, c in curves for _, l in c) * 1.02
    bottom = min(l for _, c in curves for _, l in c) * 0.96
    begin, end = left + LEFT, left + WIDTH - RIGHT
    x = lambda step: begin + (end - begin) * (step - 1) / max(1, steps - 1)
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (top - loss) / (top - bottom)
    svg = [f'<text x="{begin}" y="18" font-size="14" font-weight="bold">{title}</text>',
           f'<text x="{begin}" y="36">loss, nats per token</text>',
           f'<text x="{(begin + end) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>']
    for loss in round_ticks(bottom, top):
        svg.append(f'<line x1="{begin}" x2="{end}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>'
                   f'<text x="{begin - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.6g}</text>')
    for step in round_ticks(1, max(2, steps)):
        svg.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step:.6g}</text>')
    for i, (name, curve) in enumerate(curves):
        color, width, dash = STYLES[i % len(STYLES)]
        stroke = f'stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"'
        points = " ".join(f"{x(s):.1f},{y(l):.1f}" for s, l in curve)
        key = TOP + 16 + 18 * i
        svg.append(f'<polyline points="{points}" fill="none" stroke-opacity="0.75" {stroke}/>'
                   f'<line x1="{end - 250}" x2="{end - 222}" y1="{key}" y2="{key}" {stroke}/>'
                   f'<text x="{end - 214}" y="{key + 4}">{name}</text>')
    return svg


def main(out, *curves):
    panels = {}
    for curve in curves:
        (title, rest) = curve.split(":", 1)
        name, path = rest.split("=", 1)
        panels.setdefault(title, []).append((name, losses(path)))
    width = WIDTH * len(panels)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{HEIGHT}" fill="white"/>']
    for i, (title, named) in enumerate(panels.items()):
        svg += panel(title, named, i * WIDTH)
    with open(out, "w") as file:
        file.write("\n".join(svg + ["</svg>"]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
