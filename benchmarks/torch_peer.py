#!/usr/bin/env python3
"""Trains with PyTorch on one GPU, as a reference for `cleave train` in the same call: the same models and batches, bf16 weights with fp32
masters (autocast), fused AdamW, torch.compile of the block that all layers share and of the head with its loss. Prints one line of JSON.
usage: torch_peer.py --model gpt2|...|qwen2.5-7b [--micro N] [--accumulation N], or --attention
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

GPT2 = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-xl": (1600, 48, 25)}
# width, layers, heads, key/value heads, MLP width, vocabulary, tied head
QWEN = {"qwen2.5-1.5b": (1536, 28, 12, 2, 8960, 151936, True), "qwen2.5-3b": (2048, 36, 16, 2, 11008, 151936, True),
        "qwen2.5-7b": (3584, 28, 28, 4, 18944, 152064, False)}


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, _):
        b, t, w = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class QwenBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, mlp):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.dim)
        self.proj = nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * mlp, bias=False), nn.Linear(mlp, width, bias=False)

    def forward(self, x, turn):
        b, t, w = x.shape
        cos, sin = turn
        q, k, v = self.qkv(self.norm_1(x)).split([self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim], -1)
        q, k, v = (z.view(b, t, -1, self.dim).transpose(1, 2) for z in (q, k, v))

        def rotary(z):
            a, c = z.float().chunk(2, -1)
            return torch.cat((a * cos - c * sin, c * cos + a * sin), -1).to(v.dtype)

        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True, enable_gqa=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, w))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, name, seq):
        super().__init__()
        if name in GPT2:
            width, layers, heads = GPT2[name]
            vocab, tied = 50257, True
            self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
            self.positions, self.norm, self.turn = nn.Embedding(seq, width), nn.LayerNorm(width), None
        else:
            width, layers, heads, kv_heads, mlp, vocab, tied = QWEN[name]
            self.blocks = nn.ModuleList(QwenBlock(width, heads, kv_heads, mlp) for _ in range(layers))
            self.positions, self.norm = None, nn.RMSNorm(width, eps=1e-6)
            angle = torch.outer(torch.arange(seq).float(), 1e6 ** (-torch.arange(0, width // heads, 2).float() / (width // heads)))
            self.turn = (angle.cos().cuda(), angle.sin().cuda())
        self.tokens, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.vocab = vocab
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        for block in self.blocks:
            block.compile()
        self.loss = torch.compile(self.loss)

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())

    def forward(self, tokens, targets):
        x = self.tokens(tokens).to(torch.bfloat16)
        if self.positions is not None:
            x = x + self.positions.weight.to(x.dtype)
        for block in self.blocks:
            x = block(x, self.turn)
        return self.loss(x, targets)


def train(args):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(args.model, args.seq)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = (args.accumulation, args.micro, args.seq)
    tokens, targets = (torch.randint(0, model.vocab, batch, device="cuda") for _ in range(2))
    times = []
    for step in range(args.warmup + args.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for micro in range(args.accumulation):
                loss = model(tokens[micro], targets[micro]) / args.accumulation
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = loss.item()
        torch.cuda.synchronize()
        if step >= args.warmup:
            times.append(time.perf_counter() - begin)
    median = statistics.median(times)
    print(json.dumps({"peer": "pytorch " + torch.__version__, "model": args.model, "micro": args.micro, "accumulation": args.accumulation,
                      "tokens_per_s": args.micro * args.accumulation * args.seq / median, "step_s": median,
                      "memory_gib": torch.cuda.max_memory_allocated() / 2**30, "loss": last * args.accumulation}), flush=True)


def attention():
    """Measures causal attention of cuDNN, if this PyTorch has it, with halved (causal) FLOPs as for Cleave's kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for seq, heads, dim, batch in ((1024, 12, 64, 32), (4096, 16, 128, 4)):
        q, k, v = (torch.randn(batch, heads, seq, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    forward = median_seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    dy = torch.randn_like(y)
                    backward = median_seconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
            except RuntimeError as error:
                print(f"{name}: {error}", flush=True)
                continue
            flops = 2.0 * batch * heads * seq * seq * dim
            for kind, work, seconds in (("forward", flops, forward), ("backward", 2.5 * flops, backward)):
                print(json.dumps({"attention": f"{name} {kind}/T{seq}/dim{dim}", "tflops": work / seconds * 1e-12}), flush=True)


def median_seconds(body, times=30):
    begin, end = ([torch.cuda.Event(enable_timing=True) for _ in range(times)] for _ in range(2))
    for _ in range(5):
        body()
    for i in range(times):
        begin[i].record()
        body()
        end[i].record()
    torch.cuda.synchronize()
    return statistics.median(b.elapsed_time(e) for b, e in zip(begin, end)) * 1e-3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*GPT2, *QWEN], default="gpt2")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--micro", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--attention", action="store_true", help="cuDNN's and FlashAttention-2's speed instead")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch_peer: PyTorch sees no GPU")
    if options.attention:
        attention()
    else:
        while True:  # halves a micro-batch that does not fit, as gpu_check.sh does for Cleave
            try:
                train(options)
                break
            except torch.OutOfMemoryError:
                if options.micro == 1:
                    raise SystemExit("torch_peer: out of GPU memory with a micro-batch of 1")
            torch.cuda.empty_cache()
            torch._dynamo.reset()
            options.micro, options.accumulation = options.micro // 2, options.accumulation * 2
