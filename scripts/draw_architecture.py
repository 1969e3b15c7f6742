#!/usr/bin/env python3
"""Draws docs/layers.svg (the folders and their purpose, lowest at the bottom), docs/step.svg (the work of one rank in a step) and
docs/unit.svg (a unit of parameters in a step).

  draw_architecture.py FOLDER     writes layers.svg, step.svg and unit.svg there
"""
import pathlib
import sys
from xml.sax.saxutils import escape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_layers import ALLOWED  # noqa: E402

PURPOSE = {
    "core": "errors, units, names", "device": "memory and streams", "kernels": "arithmetic, CPU and GPU",
    "comm": "collectives, rendezvous", "data": "texts, tokens, batches", "pipeline": "schedules as values", "offload": "host memory, disk files",
    "config_schema": "every key of a ds_config", "optim": "updates, schedules", "tensor_parallel": "heads, columns, positions",
    "zero": "units, sharding, homes", "model": "layers, families", "checkpoint": "records, manifests",
    "monitor": "metrics, profiles", "runtime": "the engine", "plan": "memory, traffic, time", "launcher": "job, ranks, exit codes",
    "app": "the command line", "python": "the engine for scripts",
}
STROKE, COLORS = "#57606a", {"compute": "#ddf4ff", "move": "#fff8c5", "update": "#dafbe1", "wait": "#ffebe9"}


def text(x, y, words, **attributes):
    rest = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in attributes.items())
    return f'<text x="{x:g}" y="{y:g}"{rest}>{escape(words)}</text>'


def box(x, y, width, height, fill):
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{STROKE}" stroke-width="0.7"/>'


def page(width, height, body):
    arrow = (f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
             f'<path d="M0 0L8 4L0 8z" fill="{STROKE}"/></marker></defs>')
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" '
            f'fill="#1f2328">{arrow}<rect width="{width}" height="{height}" fill="white"/>')
    return "\n".join([head, *body, "</svg>"]) + "\n"


def level(folder):
    below = ALLOWED[folder] if folder == "core" else ["core", *ALLOWED[folder]]
    return 1 + max((level(other) for other in below), default=-1)


def layers():
    rows = {}
    for folder in ALLOWED:
        rows.setdefault(level(folder), []).append(folder)
    width, high, gap = 960, 40, 12
    wide = (width - 32 - 5 * gap) / 6  # the widest row has six
    body, y = [], 16
    for number in sorted(rows, reverse=True):
        names = rows[number]
        x = (width - len(names) * wide - (len(names) - 1) * gap) / 2
        for name in names:
            body += [box(x, y, wide, high, COLORS["compute"]),
                     text(x + wide / 2, y + 17, name + "/", text_anchor="middle", font_weight="bold"),
                     text(x + wide / 2, y + 32, PURPOSE[name], text_anchor="middle", font_size=11)]
            x += wide + gap
        y += high + gap
    body.append(text(width / 2, y + 8, "A folder includes only folders of rows below its own. Links of CMake say the same, and a test compares both.",
                     text_anchor="middle"))
    return page(width, y + 22, body)


# (lane, begin, end, words, kind) in units of one layer's forward, for three layers and a head, stage 3 with overlap_comm.
LANES = ["computation", "communication"]
SPANS = [
    ("communication", 0, 1, "gather 1", "move"), ("communication", 1, 2, "gather 2", "move"), ("communication", 2, 3, "gather 3", "move"),
    ("communication", 3, 4, "gather head", "move"),
    ("computation", 1, 2, "forward 1", "compute"), ("computation", 2, 3, "forward 2", "compute"), ("computation", 3, 4, "forward 3", "compute"),
    ("computation", 4, 6, "head: loss", "compute"), ("computation", 6, 8, "backward 3", "compute"),
    ("computation", 8, 10, "backward 2", "compute"), ("computation", 10, 12, "backward 1", "compute"),
    ("communication", 6, 7, "reduce head", "move"), ("communication", 7, 8, "gather 2", "move"), ("communication", 8, 9, "reduce 3", "move"),
    ("communication", 9, 10, "gather 1", "move"), ("communication", 10, 11, "reduce 2", "move"), ("communication", 12, 13, "reduce 1", "move"),
    ("computation", 13, 14, "norm", "wait"), ("computation", 14, 16, "update", "update"),
]
NOTES = [(1, 4, "a unit is gathered one layer ahead"), (6, 11, "gradients are reduced one layer later"),
         (12.6, 16, "the host waits once, for the norm")]


UNIT_LANES = ["its events", "whole weights", "gradient bucket", "gradients' slice", "weights' shard"]
UNIT_SPANS = [
    ("its events", 0, 1.5, "fetch", "move"), ("its events", 1.5, 3.5, "use: forward", "compute"),
    ("its events", 3.5, 5, "release", "compute"),
    ("its events", 5.5, 7, "fetch", "move"), ("its events", 7, 9.5, "use: backward", "compute"),
    ("its events", 9.5, 10.5, "give, release", "compute"), ("its events", 10.5, 12, "reduce", "move"),
    ("its events", 12.5, 14, "update", "update"), ("its events", 14, 15.5, "publish", "move"),
    ("whole weights", 0, 5, "from fetch to release", "compute"), ("whole weights", 5.5, 10.5, "from fetch to release", "compute"),
    ("gradient bucket", 7, 12, "this rank's contributions", "compute"), ("gradients' slice", 10.5, 14, "their sum", "compute"),
    ("weights' shard", 0, 14, "published by the last step", "compute"), ("weights' shard", 14, 15.5, "the next", "update"),
]
UNIT_NOTES = [(0, 5, "every forward"), (5.5, 12, "every backward"), (12.5, 15.5, "once a step")]


def timeline(title, lanes, spans, notes, foot):
    """Draws the spans of each lane; spans and notes are in units of 50 points, 16 in total."""
    left, unit, high = 120, 50, 34
    width = left + 16 * unit + 20
    body = [text(16, 24, title, font_size=14, font_weight="bold")]
    top = {name: 44 + i * (high + 18 if len(lanes) < 3 else high + 6) for i, name in enumerate(lanes)}
    for name, y in top.items():
        body += [text(left - 10, y + 21, name, text_anchor="end"),
                 f'<line x1="{left}" x2="{left + 16 * unit}" y1="{y + high}" y2="{y + high}" stroke="#d0d7de"/>']
    for lane, begin, end, words, kind in spans:
        x, y, w = left + begin * unit + 1, top[lane], (end - begin) * unit - 2
        first, _, rest = words.partition(" ") if w < 60 else (words, "", "")
        body.append(box(x, y, w, high - 4, COLORS[kind]))
        if rest:
            body += [text(x + w / 2, y + 13, first, text_anchor="middle", font_size=10), text(x + w / 2, y + 25, rest, text_anchor="middle", font_size=10)]
        else:
            body.append(text(x + w / 2, y + 19, first, text_anchor="middle", font_size=11))
    y = max(top.values()) + high + 26
    for begin, end, words in notes:
        a, b = left + begin * unit, left + end * unit
        body += [f'<path d="M{a} {y}v6H{b}v-6" fill="none" stroke="{STROKE}"/>', text((a + b) / 2, y + 22, words, text_anchor="middle", font_size=11)]
    body.append(text(16, y + 50, foot))
    return page(width, y + 62, body)


def step():
    return timeline("One step of a rank: three layers and a head, ZeRO stage 3, one micro-batch", LANES, SPANS, NOTES,
                    "Events alone order the two streams. Other stages, offload and axes change the lists that fill this picture, not the code that "
                    "runs them.")


def unit():
    return timeline("A unit in one step, ZeRO stage 3: the events of a store, and how long memory is taken", UNIT_LANES, UNIT_SPANS, UNIT_NOTES,
                    "A movement over a group of one is free: at stage 0 nothing is fetched, and at stages 1 and 2 publish brings the whole.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    (out / "layers.svg").write_text(layers())
    (out / "step.svg").write_text(step())
    (out / "unit.svg").write_text(unit())
