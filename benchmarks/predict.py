#!/usr/bin/env python3
"""Predicts the training rows of scripts/gpu_check.sh on one GPU from counted FLOPs and bytes and the rates below; docs/performance.md
explains the formula. usage: predict.py [--gpu h200] [--cudnn] [--fp32_logits] [--logits_rows N]"""
import argparse

# FLOP/s of a large bf16 product of random values; TB/s of kernels that only move data.
GPUS = {"h100": (770e12, 3.0), "h200": (780e12, 3.6)}
T = 1024
OWN = {64: (210, 200), 128: (310, 255)}  # TFLOP/s of Cleave's wgmma kernels at this T by head width; on mma.sync 180 and 130

# name: layers, width, heads, key/value heads, MLP width, vocabulary, tied head, tokens per step, goal
MODELS = {
    "gpt2": (12, 768, 12, 12, 3072, 50257, True, 65536, 500e3),
    "gpt2-medium": (24, 1024, 16, 16, 4096, 50257, True, 65536, 200e3),
    "gpt2-xl": (48, 1600, 25, 25, 6400, 50257, True, 32768, 52e3),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 8960, 151936, True, 32768, 58.8e3),
    "qwen2.5-3b": (36, 2048, 16, 2, 11008, 151936, True, 16384, 30.9e3),
    "qwen2.5-7b": (28, 3584, 28, 4, 18944, 152064, False, 16384, 13.85e3)}
KINDS = ("products", "attention", "moves", "update")
TILE, MULTIPROCESSORS = (128, 256), 132  # tile of a bf16 product; H100 and H200
# Per multiprocessor and clock: bf16 multiply-adds, instruction lanes and powers of two. The loss in bf16 takes LOSS_INSTRUCTIONS
# instructions per logit (cuobjdump, sm_90) and two powers.
PRODUCTS_A_CLOCK, LANES_A_CLOCK, POWERS_A_CLOCK, LOSS_INSTRUCTIONS = 2048, 128, 16, 15


def rows_of_logits(all_rows, width, bytes_each_row, most=None):
    """Returns the number of rows of logits in memory at a time (LogitsChunk::rows_of): `most`, or the default of a GPU."""
    most = most or min(max(4096, (16 << 20) // width), (2 << 30) // bytes_each_row)
    return -(-all_rows // -(-all_rows // most))


def idle_share(rows, columns):
    """Returns the idle share of the multiprocessors, which the last round of a product's tiles causes."""
    tiles = -(-rows // TILE[0]) * -(-columns // TILE[1])
    return 1 - tiles / (-(-tiles // MULTIPROCESSORS) * MULTIPROCESSORS)


def seconds_a_token(name, cudnn=False, step=None, logits=(2, None), gpu="h200"):
    """Returns the seconds of each kind of work per token in a step of `step` tokens, and the operations of its products. `logits` has the
    bytes per logit and the largest number of rows at a time."""
    ceiling, terabytes = GPUS[gpu]
    layers, d, heads, kv, mlp, vocab, tied, usual, _ = MODELS[name]
    gpt = name.startswith("gpt2")
    g = kv / heads
    matrices = layers * d * ((4 if gpt else 2 + 2 * g) * d + (2 if gpt else 3) * mlp)
    params = matrices + vocab * d * (1 if tied else 2)
    padded = -(-vocab // 128) * 128  # columns of the head's product
    products = 6 * (matrices + padded * d)
    forward, backward = (x * T * d * layers for x in (2, 5))  # half of the square, and the backward's five products
    # Rows of `d` elements that kernels between the products read and write, in a layer.
    # GELU and its gradient, which are epilogues of products, still write and read what GELU was applied to.
    rows = 2 + 4 + 3 + 4 + 2 + 4 + (4 + 4 if gpt else 4 * (1 + g) + 8 * mlp / d)
    # The loss reads the logits, the second time from shared memory or the cache, and writes their gradient.
    size, most_rows = logits
    rows_at_a_time = rows_of_logits(step or usual, d, (size + 2 * (size > 2)) * padded, most_rows)
    moved = 2 * layers * d * rows / (terabytes * 1e12)
    clocks = padded * max(LOSS_INSTRUCTIONS / LANES_A_CLOCK, 2 / POWERS_A_CLOCK) / MULTIPROCESSORS
    loss = max((size + 2) * padded / (terabytes * 1e12), clocks / (ceiling / (2 * PRODUCTS_A_CLOCK * MULTIPROCESSORS)))
    share = 0.80 * min(1, (0.7 + 0.3 * d / 1600))  # short inner dimensions fill the tensor cores less
    # The head's three products of a chunk read its weights twice, read and write their gradient, write the logits and read their
    # gradient twice. If this takes longer than the arithmetic, they wait for it.
    waits = max(0, (8 * padded * d / rows_at_a_time + (size + 2 + 2) * padded) / (terabytes * 1e12) - 6 * padded * d / (ceiling * share))
    # The gradient of its input is [rows, d], with by far the fewest tiles of all products.
    idle = idle_share(rows_at_a_time, d)
    waits += 2 * padded * d / (ceiling * share) * idle / (1 - idle)
    rates = OWN[d // heads]
    scores = forward / (rates[0] * 1e12) + backward / (rates[1] * 1e12)
    if cudnn:  # its deterministic backward writes and reads T x T elements of 2 bytes per head
        scores = forward / 484e12 + backward / 370e12 + layers * heads * T * 4 / (terabytes * 1e12)
    return dict(zip(KINDS, (products / (ceiling * share) + waits, scores, moved + loss, 30 * params / ((step or usual) * terabytes * 1e12)))), products


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", choices=GPUS, default="h200")
    parser.add_argument("--cudnn", action="store_true", help="attention at cuDNN's 484 and 370 TFLOP/s, with the gradient of the scores through memory")
    parser.add_argument("--fp32_logits", action="store_true", help="fp32 logits and a separate gradient (cleave.logits_dtype)")
    parser.add_argument("--logits_rows", type=int, help="rows of logits at a time (cleave.logits_rows); default: as a GPU selects")
    args = parser.parse_args()
    print(f"{'model':14}{'products':>10}{'attention':>10}{'moves':>8}{'update':>8}{'us a token':>12}{'tokens/s':>10}{'goal':>9}{'of goal':>9}{'if all products':>17}")
    for name in MODELS:
        times, products = seconds_a_token(name, args.cudnn, logits=(4 if args.fp32_logits else 2, args.logits_rows), gpu=args.gpu)
        total, goal = sum(times.values()), MODELS[name][-1]
        print(f"{name:14}" + "".join(f"{times[k] * 1e6:{w}.2f}" for k, w in zip(KINDS, (10, 10, 8, 8))) +
              f"{total * 1e6:12.2f}{1 / total:10,.0f}{goal:9,.0f}{1 / total / goal:9.2f}{GPUS[args.gpu][0] / products:17,.0f}")


if __name__ == "__main__":
    main()
