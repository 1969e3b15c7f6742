#!/usr/bin/env python3
"""Draws loss curves of metrics files as an SVG: plot_losses.py OUT.svg "8 ranks=3d.jsonl" "1 rank=one.jsonl" ..."""
import json
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 56, 16, 28, 44
STYLES = [("#1f6feb", 5, ""), ("#d1242f", 1.6, ""), ("#2da44e", 1.6, "6 4")]


def losses(path):
    with open(path) as lines:
        return [(s["step"], s["loss"]) for s in map(json.loads, lines) if "loss" in s]


def main(out, *named):
    curves = [(name, losses(path)) for name, path in (n.split("=", 1) for n in named)]
    steps = max(s for _, c in curves for s, _ in c)
    top = max(l for _, c in curves for _, l in c) * 1.02
    bottom = min(l for _, c in curves for _, l in c) * 0.96
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, steps - 1)
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (top - loss) / (top - bottom)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for i in range(5):
        loss = bottom + (top - bottom) * i / 4
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        step = 1 + round((steps - 1) * i / 4)
        svg.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>'
               f'<text x="{LEFT}" y="16">loss, nats a byte</text>')
    for i, (name, curve) in enumerate(curves):
        color, width, dash = STYLES[i % len(STYLES)]
        points = " ".join(f"{x(s):.1f},{y(l):.1f}" for s, l in curve)
        svg.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}" '
                   f'stroke-opacity="0.75"/><line x1="{WIDTH - 300}" x2="{WIDTH - 270}" y1="{TOP + 16 + 18 * i}" '
                   f'y2="{TOP + 16 + 18 * i}" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"/>'
                   f'<text x="{WIDTH - 262}" y="{TOP + 20 + 18 * i}">{name}</text>')
    with open(out, "w") as file:
        file.write("\n".join(svg + ["</svg>"]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
