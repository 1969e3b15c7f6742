#!/usr/bin/env python3
"""Draws a flame graph from samples of Linux perf: one box per function, as wide as its share of the samples, on top of the box of its
caller.

  perf record -e cpu-clock -F 99 --call-graph dwarf,65528 -o perf.data -- COMMAND
  perf script -i perf.data --no-inline --no-demangle | c++filt | scripts/flame_graph.py OUT.svg [--from REGEX] [--unknown WORDS]

--from: stacks start at the first function, from the start of the thread, with a name that matches; stacks without one do not count.
--unknown: label of code that belongs to no file, such as generated code; without it, such stacks do not count. The kernel is one box.
cpu-clock measures time on virtual machines that hide the processor's counters; perf script --time 50%-100% skips the start.
"""
import argparse
import collections
import html
import pathlib
import re
import sys
import zlib

WIDTH, ROW, TOP, LETTER = 1200, 18, 46, 6.3  # pixels
LEAST = 0.002  # of all samples; narrower boxes are not drawn


def without(text, begin, end):
    """Returns the text without these brackets and their contents."""
    out, depth = [], 0
    for letter in text:
        depth += letter == begin
        if not depth:
            out.append(letter)
        depth -= letter == end and depth > 0
    return "".join(out)


def short(symbol):
    """Returns the label of a function: a kernel by its op, others without the project's namespaces, arguments and types."""
    if op := re.match(r"cleave::kernels::cpu::run(?:_by)?\(.*cleave::kernels::(\w+) const&\)", symbol):
        return op[1]
    if symbol.startswith("_ZN"):  # longer than c++filt supports: take the leading names, each preceded by its length
        rest, names = symbol[3:], []
        while size := re.match(r"L?(\d+)", rest):
            names.append(rest[size.end() : size.end() + int(size[1])])
            rest = rest[size.end() + int(size[1]) :]
        return "::".join(names).removeprefix("cleave::")
    name = symbol.replace("(anonymous namespace)::", "").replace("operator()", "operator").split(" [clone")[0]
    return without(without(name, "<", ">"), "(", ")").replace("cleave::", "").removesuffix(" const").split(" ")[-1]


def stacks(lines, start, unknown):
    """Counts samples by stack, the thread's first function first."""
    found, stack = collections.Counter(), []
    for line in [*lines, ""]:
        if frame := re.match(r"\s+[0-9a-f]+ (.+?)(?:\+0x[0-9a-f]+)? \((\S+)\)$", line):
            if frame[2].startswith("[kernel"):
                stack = []  # of kernel frames, only the outermost stays
            stack.append(short(frame[1]))
        elif not line.strip() and stack:
            if set(stack) == {"[unknown]"} and unknown:
                found[(unknown,)] += 1
            stack = [name for name in stack if name != "[unknown]"]
            at = next((i for i, name in enumerate(reversed(stack)) if re.search(start, name)), None)
            if at is not None:
                found[tuple(reversed(stack))[at:]] += 1
            stack = []
    return found


def boxes(found, depth=0, left=0):
    """Returns (name, depth, first sample, samples) of each function on each path."""
    callees = collections.defaultdict(collections.Counter)
    for stack, count in found.items():
        if stack:
            callees[stack[0]][stack[1:]] += count
    for name, rest in sorted(callees.items()):
        yield name, depth, left, rest.total()
        yield from boxes(rest, depth + 1, left)
        left += rest.total()


def draw(found, title):
    total = found.total()
    wide = [box for box in boxes(found) if box[3] >= LEAST * total]
    height = TOP + ROW * (1 + max(depth for _, depth, _, _ in wide)) + 8
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           f'<text x="8" y="22" font-size="15" font-weight="bold">{html.escape(title)}</text>']
    for name, depth, first, count in wide:
        x, y, width = first / total * WIDTH, height - 8 - ROW * (depth + 1), count / total * WIDTH
        hue, label = zlib.crc32(name.encode()) % 60, f"{name} {100 * count / total:.1f} %"
        if len(label) * LETTER > width - 6:
            label = name[:int((width - 6) / LETTER)] if width > 30 else ""
        svg.append(f'<g><title>{html.escape(name)}: {100 * count / total:.1f} %</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
                   f'height="{ROW - 1}" fill="hsl({hue},80%,70%)" stroke="white" stroke-width="0.5"/>'
                   f'<text x="{x + 3:.1f}" y="{y + 13}">{html.escape(label)}</text></g>')
    return "\n".join([*svg, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--from", dest="start", default="", metavar="REGEX")
    parser.add_argument("--unknown", default="", metavar="WORDS")
    parser.add_argument("--title", default="where the time goes")
    args = parser.parse_args()
    found = stacks((line.rstrip("\n") for line in sys.stdin), args.start, args.unknown)
    if not found:
        sys.exit(f"standard input: no sample has a function with {args.start or 'a name'} (expected output of perf script)")
    args.out.write_text(draw(found, args.title))


if __name__ == "__main__":
    main()
