#!/usr/bin/env python3
"""Checks the machine code of the CPU kernels: the loops in which their time goes may not pass vectors through the stack, and have
as many instructions as a committed table says.

A compiler that cannot keep a value of two registers in registers copies it through the stack, and nothing but the speed
shows it. This takes the innermost loops of every function that read or write a tensor's vectors of 256 or 512 bits. In them
  - nothing is called,
  - no vector is stored to the stack, and nothing of 128 bits read from it; constants for which no register was left may be
    read from there whole.
A loop that treats the last, partial vector of a row calls memcpy; it runs once a row and is left out. SPILLS has the bodies
that need more values at a time than there are registers.

usage: check_stack.py [--instructions FILE | --write FILE] OBJECT...      (the objects of one instruction set)

--instructions FILE compares, for each body, the instructions of all its vector loops with the table, which --write makes: a body
that grew by more than 3 % is a fault, and one that shrank by more asks for the table to be written anew. Counts depend on the
compiler, whose name is the table's first line; with another one nothing is compared.
"""
import pathlib
import re
import subprocess
import sys

# Source: its hot bodies, by the name of a function around the loop. Each must be found, so that the list stays true.
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
# Body: vectors that a round of its loop may store to the stack, and why.
SPILLS = {
    "gated": (4, "constants of the gate's function and two halves of gate and up are more than sixteen registers"),
    "gated_grad": (7, "as gated, with slopes"),
    "soft_cap": (2, "constants of both branches of tanh fill all sixteen registers"),
    "cap_scores": (2, "as soft_cap"),
    "forward_heads": (10, "a row of 64 scores is kept while its exponentials are summed"),
    "backward_heads": (1, "of AVX2's sixteen registers none is left for the factor of the scores"),
    "run_chunk": (24, "packing writes strips of six or twelve columns, which are a part of a vector"),
    "cross_entropy_part": (1, "the zeros behind an ignored row end in a partial vector"),
    "random_fill": (9, "four words of sixteen lanes and the constants of ten rounds are more than sixteen registers"),
}
MODEL = "Model"  # what tests run in place of an instruction
# Functions that have loops of their own: whoever calls them is not the innermost one.
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

    def stores(self):  # the last operand is where the result goes
        return self.operands.endswith(")")

    def is_half(self):  # 128 bits at a time: pieces of something that was copied
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
    """The straight pieces of a function: their instructions, and the numbers of those that may follow."""
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
    """For each block those that every way to it passes; for padding, to which there is none, all of them."""
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
    loops = {}  # by head: all blocks of the loop
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
    """What is wrong with a loop, as instructions or calls."""
    if any("memcpy" in (i.calls or "") for i in loop):
        return []
    outer = [i for i in loop if i.calls and any(name in i.calls for name in OUTER)]
    calls = [f"calls {i.calls}" for i in loop if i.calls and i not in outer]
    if outer:  # not the innermost loop: what it keeps over the call is not passed in every round of that
        return calls
    on_stack = [i for i in loop if (i.is_wide() or i.is_half()) and i.touches_stack(frame)]
    stored = [str(i) for i in on_stack if i.stores()]
    halves = [str(i) for i in on_stack if i.is_half() and not i.stores()]
    return calls + (stored + halves if len(stored) > spills or halves and not spills else [])


def check(path, counts):
    """Prints what is wrong with an object and says how much it was; adds the instructions of each body's loops to `counts`."""
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
                continue  # it reads and writes no vectors of a tensor
            missing -= around
            for hot in around:
                counts[f"{source} {hot}"] = counts.get(f"{source} {hot}", 0) + len(loop)
            if found := faults(loop, frame, spills):
                bad += 1
                print(f"{path}: {name}: a loop of {len(loop)} instructions passes vectors through the stack: "
                      f"{len(found)} times, such as {'; '.join(found[:3])}")
    for hot in sorted(missing):
        print(f"{path}: no vector loop of {hot} was found; mend HOT in {pathlib.Path(__file__).name}")
    return bad + len(missing)


def compiler_of(path):
    text = subprocess.run(["readelf", "-p", ".comment", path], check=True, capture_output=True, text=True).stdout
    return re.search(r"GCC: .*|clang .*|$", text)[0]


def compare(counts, table, compiler):
    """How many bodies have other counts than the table, each with a line."""
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
                  f"{'make them fewer, or say why and ' if got > want else ''}write the table anew (--write)")
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
