#!/usr/bin/env python3
"""Checks the machine code of the CPU kernels: hot loops may not pass vectors through the stack, and their instruction counts must match a
committed table.

A compiler that cannot keep a value of two registers in registers copies it through the stack, and only the speed shows it. This script
takes the innermost loops of every function that read or write a tensor's vectors of 256 or 512 bits. In these loops
  - nothing is called,
  - no vector is stored to the stack, and no 128-bit value is read from it; whole vectors may be read, as constants without a register.
A loop for the last, partial vector of a row calls memcpy; it runs once per row and is skipped. SPILLS lists the bodies that need more
values at a time than there are registers.

usage: check_stack.py [--instructions FILE | --write FILE] OBJECT...      (the objects of one instruction set)

--instructions FILE compares, for each body, the number of instructions of all its vector loops with the table, which --write creates. A
body that grew or shrank by more than 3 % is an error. Counts depend on the compiler, named in the first line of the table; with another
compiler nothing is compared.
"""
import pathlib
import re
import subprocess
import sys

# Hot bodies of each source, by the name of a function around the loop. Each must exist, so that the list stays correct.
HOT = {
    "activation": ["forward", "backward", "gated", "gated_grad", "soft_cap", "add", "dropout"],
    "attention": ["forward_heads", "run_product", "cap_scores"],
    "attention_dots": ["forward_heads", "backward_heads", "run_product"],
    "attention_tiles": ["forward_heads", "backward_heads"],
    "attention_grad": ["backward_heads", "weigh_more", "run_product", "cap_scores", "cap_slopes"],
    "bias": ["bias_grad", "round_rows"],
    "elementwise": ["cast", "axpy", "random_fill", "total"],
    "embedding": ["embedding", "token_grad", "position_grad"],
    "gemm": ["run_chunk", "thin"],
    "gemm_dots": ["run_chunk"],
    "gemm_tiles": ["run_chunk"],
    "kv_cache": ["kv_cache_attention", "cap_scores"],
    "lamb": ["moments_as", "step_as"],
    "loss": ["cross_entropy", "softmax_part", "cross_entropy_part"],
    "norm": ["layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad"],
    "rotary": ["rotary"],
    "update": ["adam_as", "sgd_as", "lion_as", "adagrad_as"],
}
# Number of vectors that one iteration of a body's loop may store to the stack, and the reason.
SPILLS = {
    "gated": (4, "constants of the gate's function and two halves of gate and up are more than sixteen registers"),
    "gated_grad": (7, "as gated, with slopes"),
    "soft_cap": (2, "constants of both branches of tanh fill all sixteen registers"),
    "cap_scores": (2, "as soft_cap"),
    "forward_heads": (10, "a row of 64 scores is kept while its exponentials are summed"),
    "backward_heads": (1, "of AVX2's sixteen registers none is left for the factor of the scores"),
    "run_chunk": (24, "packing writes strips of six or twelve columns, which are a part of a vector"),
    "cross_entropy_part": (1, "the zeros after an ignored row end in a partial vector"),
    "random_fill": (9, "four words of sixteen lanes and the constants of ten rounds are more than sixteen registers"),
}
MODEL = "Model"  # tests run this model instead of an instruction
# Functions with inner loops: a loop that calls them is not an innermost loop.
OUTER = ["share_of", "run_shares", "sum_columns", "dropout_factors", "row_of_words", "weigh_more", "cap_scores", "cap_slopes"]

INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)(?:\s+#.*)?$")
RELOCATION = re.compile(r"^\s+[0-9a-f]+: R_\S+\s+(\S+)")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
JUMP = re.compile(r"^([0-9a-f]+)\b")


class Instruction:
    def __init__(self, address, name, operands):
        self.address, self.name, self.operands = address, name, operands
        target = JUMP.match(operands) if name.startswith("j") else None
        self.target = int(target.group(1), 16) if target else None
        self.calls = operands if name.startswith("call") else None

    def __str__(self):
        return f"{self.name} {self.operands}"

    def ends_block(self):
        return self.name.startswith(("j", "ret", "notrack")) or self.name == "ud2"

    def falls_through(self):
        return not self.name.startswith(("jmp", "ret", "notrack")) and self.name != "ud2"

    def is_wide(self):
        return bool(re.search(r"%[yz]mm", self.operands))

    def touches_stack(self, frame):
        return bool(re.search(r"\(%rsp" + (r"|\(%rbp" if frame else ""), self.operands))

    def stores(self):  # the last operand is the destination
        return self.operands.endswith(")")

    def is_half(self):  # 128 bits: parts of a copied vector
        return self.name.startswith(("vmovdq", "vmovup", "vmovap")) and not self.is_wide()


def functions(path):
    listing = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", path], check=True, capture_output=True,
                             text=True).stdout
    name, body = None, []
    for line in listing.splitlines():
        if start := FUNCTION.match(line):
            if body:
                yield name, body
            name, body = start.group(1), []
        elif found := RELOCATION.match(line):
            if body and body[-1].calls:
                body[-1].calls = found.group(1)
        elif found := INSTRUCTION.match(line):
            body.append(Instruction(int(found.group(1), 16), found.group(2), found.group(3)))
    if body:
        yield name, body


def blocks_of(body):
    """Splits a function into basic blocks; returns their instructions and the numbers of their successors."""
    addresses = {i.address for i in body}
    heads = {body[0].address}
    for i, after in zip(body, body[1:] + [None]):
        if i.ends_block():
            heads |= {i.target} & addresses
            heads |= {after.address} if after else set()
    blocks = []
    for i in body:
        if i.address in heads:
            blocks.append([])
        blocks[-1].append(i)
    number = {block[0].address: n for n, block in enumerate(blocks)}
    follows = []
    for n, block in enumerate(blocks):
        last = block[-1]
        next_ones = {number[last.target]} if last.target in number else set()
        if last.falls_through() and n + 1 < len(blocks):
            next_ones.add(n + 1)
        follows.append(next_ones)
    return blocks, follows


def dominators(follows, before):
    """Returns the dominators of each block; unreachable padding has all blocks."""
    everything = set(range(len(follows)))
    found = [{0}] + [everything] * (len(follows) - 1)
    changed = True
    while changed:
        changed = False
        for n in range(1, len(follows)):
            ways = [found[b] for b in before[n]]
            now = {n} | (set.intersection(*ways) if ways else everything)
            if now != found[n]:
                found[n], changed = now, True
    return found


def innermost_loops(body):
    blocks, follows = blocks_of(body)
    before = [[] for _ in blocks]
    for n, next_ones in enumerate(follows):
        for other in next_ones:
            before[other].append(n)
    above = dominators(follows, before)
    loops = {}  # all blocks of each loop, by its head
    for n, next_ones in enumerate(follows):
        for head in next_ones & above[n]:
            inside, open_ones = loops.setdefault(head, {head}), [n]
            while open_ones:
                block = open_ones.pop()
                if block not in inside:
                    inside.add(block)
                    open_ones += before[block]
    for head, inside in loops.items():
        if not any(other != head and other in inside for other in loops):
            yield [i for n in sorted(inside) for i in blocks[n]]


def faults(loop, frame, spills):
    """Returns the faults of a loop: wide stores to the stack, narrow loads from it, and calls."""
    if any("memcpy" in (i.calls or "") for i in loop):
        return []
    outer = [i for i in loop if i.calls and any(name in i.calls for name in OUTER)]
    calls = [f"calls {i.calls}" for i in loop if i.calls and i not in outer]
    if outer:  # an outer loop: values that it keeps over the call are not passed in every iteration
        return calls
    on_stack = [i for i in loop if (i.is_wide() or i.is_half()) and i.touches_stack(frame)]
    stored = [str(i) for i in on_stack if i.stores()]
    halves = [str(i) for i in on_stack if i.is_half() and not i.stores()]
    return calls + (stored + halves if len(stored) > spills or halves and not spills else [])


def check(path, counts):
    """Prints the faults of an object and returns their number; adds the instructions of each body's loops to `counts`."""
    source = pathlib.Path(path).name.split(".")[0]
    missing = set(HOT.get(source, []))
    bad = 0
    for name, body in functions(path):
        if MODEL in name:
            continue
        around = {hot for hot in HOT.get(source, []) if f"{len(hot)}{hot}" in name}
        frame = any(i.name == "mov" and i.operands == "%rsp,%rbp" for i in body[:12])
        spills = max((SPILLS[hot][0] for hot in around & SPILLS.keys()), default=0)
        for loop in innermost_loops(body):
            if not any(i.is_wide() and "(" in i.operands and not i.touches_stack(frame) for i in loop):
                continue  # no vectors of a tensor
            missing -= around
            for hot in around:
                counts[f"{source} {hot}"] = counts.get(f"{source} {hot}", 0) + len(loop)
            if found := faults(loop, frame, spills):
                bad += 1
                print(f"{path}: {name}: a loop of {len(loop)} instructions passes vectors through the stack: "
                      f"{len(found)} times, such as {'; '.join(found[:3])}")
    for hot in sorted(missing):
        print(f"{path}: no vector loop of {hot} was found; fix HOT in {pathlib.Path(__file__).name}")
    return bad + len(missing)


def compiler_of(path):
    text = subprocess.run(["readelf", "-p", ".comment", path], check=True, capture_output=True, text=True).stdout
    return re.search(r"GCC: .*|clang .*|$", text)[0]


def compare(counts, table, compiler):
    """Prints the bodies with other counts than the table, and returns their number."""
    known, *lines = pathlib.Path(table).read_text().splitlines()
    if known != compiler:
        print(f"not compared: {table} is of {known}, and the objects are of {compiler}")
        return 0
    wanted = {name: int(count) for name, count in (line.rsplit(" ", 1) for line in lines)}
    bad = 0
    for name in sorted(wanted.keys() | counts.keys()):
        want, got = wanted.get(name, 0), counts.get(name, 0)
        if abs(got - want) > 0.03 * want:
            bad += 1
            print(f"{name}: its loops have {got} instructions, and {table} says {want}; "
                  f"{'make them fewer, or say why and ' if got > want else ''}write the table again (--write)")
    return bad


def main():
    words, table, writes = sys.argv[1:], None, False
    if words and words[0] in ("--instructions", "--write"):
        writes, table, words = words[0] == "--write", words[1], words[2:]
    if not words:
        sys.exit("check_stack.py: no objects given")
    counts = {}
    bad = sum(check(path, counts) for path in words)
    compiler = compiler_of(words[0])
    if writes:
        pathlib.Path(table).write_text("\n".join([compiler, *(f"{name} {counts[name]}" for name in sorted(counts))]) + "\n")
    elif table:
        bad += compare(counts, table, compiler)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
