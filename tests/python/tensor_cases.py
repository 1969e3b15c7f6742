"""Cases of tensor_test.py for ranks: modules with split layers, compared with whole ones in torch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import plain
import torch
import transformers
from cleave.utils import groups, zero_to_fp32
from torch import nn
from torch.nn import functional as F

VOCAB, LENGTH, WIDTH, STEPS = 60, 10, 32, 3
DECODER = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER |= {"max_position_embeddings": 16, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
GROUPED: dict[str, Any] = {**DECODER, "num_key_value_heads": 2}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class Blocks(nn.Module):
    """Blocks with a fused layer of three unequal parts, a norm of single heads, and an output head."""

    WIDE, NARROW = 32, 16

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, self.WIDE + 2 * self.NARROW) for _ in range(2)])
        self.out = nn.ModuleList([nn.Linear(self.WIDE + self.NARROW, WIDTH) for _ in range(2)])
        self.scale = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(input_ids)
        for qkv, out, scale in zip(self.qkv, self.out, self.scale, strict=True):
            fused = qkv(h)
            wide, narrow = fused.shape[-1] // 2, fused.shape[-1] // 4
            q, k, v = fused.split([wide, narrow, narrow], -1)
            q = (q.unflatten(-1, (-1, 8)) * scale).flatten(-2)
            h = h + out(torch.cat([q, k * torch.sigmoid(v)], -1))
        return self.head(self.norm(h))


SPECS = {
    "layer_specs": [
        {"patterns": [r"qkv\.\d\.weight"], "shape": [[32, 16, 16], -1]},
        {"patterns": [r"out\.\d\.weight"], "partition_type": "row", "shape": [-1, [32, 16]]},
        {"patterns": [r"scale\.\d"], "partition_type": "skip", "grad_allreduce": True},
        {"patterns": [r"head\.weight"], "gather_output": True},
    ]
}


def gpt2(**more: Any) -> nn.Module:
    config = {"vocab_size": VOCAB, "n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, **NO_DROPOUT, **more}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def _family(name: str, **config: Any) -> Callable[[], nn.Module]:
    kind = getattr(transformers, f"{name}ForMaskedLM" if name == "Bert" else f"{name}ForCausalLM")
    return lambda: kind(getattr(transformers, f"{name}Config")(**config))


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "llama": _family("Llama", **GROUPED, tie_word_embeddings=False),
    "qwen2": _family("Qwen2", **GROUPED, tie_word_embeddings=True),
    "blocks": Blocks,
    "qwen3": _family("Qwen3", **GROUPED, head_dim=8),
    "mistral": _family("Mistral", **GROUPED),
    "gemma": _family("Gemma", **GROUPED, head_dim=8),
    "phi3": _family("Phi3", **GROUPED),
    "phi": _family("Phi", **GROUPED, qk_layernorm=True),
    "gpt_neox": _family("GPTNeoX", **DECODER),
    "opt": _family("OPT", **{**DECODER, "ffn_dim": 48, "dropout": 0.0, "word_embed_proj_dim": WIDTH}),
    "bert": _family("Bert", **DECODER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
}


def seeded(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    module = FAMILIES[name]()
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))  # biases and norms begin with equal values
    return module


def batch(step: int, micro: int, place: int) -> plain.Batch:
    draw = torch.Generator().manual_seed(1000 * step + 10 * micro + place)
    return (torch.randint(1, VOCAB, (2, LENGTH), generator=draw),)


def loss(module: Any, sample: plain.Batch) -> torch.Tensor:
    [ids] = sample
    output = module(input_ids=ids)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return F.cross_entropy(logits.float().flatten(0, 1), ids.roll(-1, 1).flatten())


ADAMW = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-2}


def config(stage: int, name: str = "", ranks: int = 2, **more: Any) -> dict[str, Any]:
    tensor = {"autotp_size": ranks, **({"partition_config": SPECS} if name == "blocks" else {})}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
        "optimizer": {"type": "AdamW", "params": ADAMW},
        "tensor_parallel": tensor,
        **more,
    }


def steps(engine: Any, count: int = STEPS, first: int = 0) -> list[tuple[float, float]]:
    out = []
    for step in range(first, first + count):
        for micro in range(engine.gradient_accumulation_steps()):
            engine.backward(loss(engine, batch(step, micro, groups.get_data_parallel_rank())))
            engine.step()
        out.append((engine.last_result.loss, engine.get_global_grad_norm()))
    return out


def in_torch(module: nn.Module, places: int, count: int = STEPS, micros: int = 2) -> list[tuple[float, float]]:
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW)
    return plain.train(module, optimizer, batch, loss, steps=count, micros=micros, ranks=places, clipping=0.5)


def _far(got: list[Any], want: list[Any]) -> float:
    return max(abs(a - b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))


def against_torch(names: list[str], stages: list[int], size: int = 2) -> dict[str, list[float]]:
    """Returns, by module and stage, the largest differences of losses and norms, and of weights, from a loop over whole modules.

    The ranks begin with different weights; those of the first rank count.
    """
    out = {}
    for name in names:
        other = seeded(name)
        want: list[tuple[float, float]] = []
        for stage in stages:
            engine = deepspeed.initialize(model=seeded(name, int(os.environ["RANK"])), config=config(stage, name, size))[0]
            want = want or in_torch(other, engine.dp_world_size)
            got = steps(engine)
            out[f"{name} stage {stage}"] = [_far(got, want), plain.apart(engine, other)]
            engine.destroy()
    return out
