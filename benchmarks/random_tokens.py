#!/usr/bin/env python3
"""Writes random tokens of GPT-2's vocabulary, always the same, as an llm.c token file: random_tokens.py FILE.bin [COUNT]"""
import array
import random
import struct
import sys


def write(path, count=200000):
    rng = random.Random(1)
    with open(path, "wb") as f:
        f.write(struct.pack("<3i", 20240520, 1, count) + bytes(1024 - 12))
        f.write(array.array("H", (rng.randrange(50257) for _ in range(count))).tobytes())


if __name__ == "__main__":
    write(sys.argv[1], *map(int, sys.argv[2:]))
