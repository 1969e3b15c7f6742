"""Cases of compiled_test.py for ranks; each returns JSON."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import plain
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, WORDS = 16, 11
RATE = 0.1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.projections = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in self.projections(self.norm(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        if self.fails:
            raise ValueError("a block failed")
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A decoder that reads a parameter of its first block outside of the block's call."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Block() for _ in range(3)])
        self.head, self.recomputes = nn.Linear(WIDTH, WORDS), recomputes

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.recomputes else block(h)
        first: Any = self.blocks[0]
        return self.head(h * getattr(first, "_orig_mod", first).norm.weight)  # type: ignore[no-any-return]


def made(recomputes: bool = False) -> Decoder:
    torch.manual_seed(0)
    return Decoder(recomputes)


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (2, 7), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(module(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def engine_of(module: nn.Module, stage: int, **zero: Any) -> Any:
    zero = {"stage": stage, **({"stage3_param_persistence_threshold": 0} if stage == 3 else {}), **zero}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": zero,
    }
    return deepspeed.initialize(model=module, config=config)[0]


def blocks_before(module: Any, **how: Any) -> Any:
    for i, block in enumerate(module.blocks):
        module.blocks[i] = torch.compile(block, **how)
    return module


def blocks_after(module: Any, **how: Any) -> None:
    for block in module.blocks:
        block.compile(**how)


BEFORE: dict[str, Callable[..., Any]] = {"torch.compile(block)": blocks_before, "torch.compile(module)": torch.compile}
AFTER: dict[str, Callable[..., Any]] = {
    "block.compile": lambda engine, **how: blocks_after(engine.module, **how),
    "module.compile": lambda engine, **how: engine.module.compile(**how),
    "engine.compile": lambda engine, **how: engine.compile(how.pop("backend"), how),
}


def counted() -> list[int]:
    """Returns the number of graph breaks, of graphs and of operations in them."""
    counters = torch._dynamo.utils.counters
    return [sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]]


def clear() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def in_torch(blocks: bool, recomputes: bool, ranks: int, steps: int, **how: Any) -> tuple[nn.Module, list[int]]:
    """Trains a decoder in torch alone, with compiled blocks or compiled as a whole."""
    module = made(recomputes)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    clear()
    blocks_after(module, **how) if blocks else module.compile(**how)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(ranks):
            (loss_of(module, batch(step, rank)) / ranks).backward()
        optimizer.step()
    return module, counted()


def trained(engine: Any, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        engine.backward(loss_of(engine, batch(step, engine.global_rank)))
        engine.step()


def apart(engine: Any, other: nn.Module) -> float:
    """Returns the largest difference of a weight. A wrapper of torch.compile adds a level to names."""
    names = [name for name, _ in engine.module.named_parameters()]
    return max((engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in zip(names, other.parameters(), strict=True))


def graphs(recomputes: bool, backend: str, ways: list[tuple[str, int]]) -> dict[str, Any]:
    """Returns by way and stage the counts of an engine and of torch alone, and the difference of their weights after 3 steps."""
    how: dict[str, Any] = {"backend": backend, "fullgraph": True}
    torch_alone: dict[bool, tuple[nn.Module, list[int]]] = {}
    out: dict[str, Any] = {}
    for way, stage in ways:
        clear()
        module: Any = made(recomputes)
        engine = engine_of(BEFORE[way](module, **how) if way in BEFORE else module, stage)
        if way in AFTER:
            AFTER[way](engine, **how)
        trained(engine, 3)
        seen, blocks = counted(), stage == 3 or "block" in way
        if blocks not in torch_alone:
            torch_alone[blocks] = in_torch(blocks, recomputes, engine.world_size, 3, **how)
        other, want = torch_alone[blocks]
        out[f"{way}, stage {stage}"] = {"seen": seen, "want": want, "far": apart(engine, other)}
        engine.destroy()
    return out


def frozen() -> dict[str, Any]:
    """Trains with frozen parameters in recomputed blocks, compiled and not. `held`: units which a backward held before it computed a
    compiled block again, summed."""
    engines, held = [], list[int]()
    for compiled in (True, False):
        module = made(True)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_("mlp.1" in name or "head" in name)
        engine = engine_of(module, 3)
        if compiled:
            engine.compile("aot_eager")
        for block in module.blocks if compiled else ():
            block._compiled_call_impl = _counting(block._compiled_call_impl, engine._residency, held)
        trained(engine, 3)
        engines.append(engine)
    far = apart(engines[0], _whole(engines[1]))
    return {"far": far, "again": len(held), "held": sum(held), "in use": sum(engines[0]._residency._users)}


def _counting(call: Any, residency: Any, held: list[int]) -> Callable[..., Any]:
    def counts(*args: Any) -> Any:
        if residency.in_backward:
            held.append(sum(residency._held))
        return call(*args)

    return counts


def _whole(engine: Any) -> nn.Module:
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return copy.deepcopy(engine.module)


def called_by_others() -> dict[str, Any]:
    """Calls compiled blocks from a function that is compiled also, alone, and through a copy, without gradients."""
    engine, tokens = engine_of(made(), 3), batch(0, 0)
    x = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1))
    alone = made()
    out: dict[str, Any] = {}
    with torch.no_grad():
        out["before"] = (engine(tokens) - alone(tokens)).abs().max().item()
        engine.compile("eager")
        out["compiled"] = (engine(tokens) - alone(tokens)).abs().max().item()
        out["by another"] = (torch.compile(engine.module, backend="eager")(tokens) - alone(tokens)).abs().max().item()
        first, other_first = engine.module.blocks[0], alone.blocks[0]
        out["alone"] = (first(x) - other_first(x)).abs().max().item()
        copied = _whole(engine)
        out["copy"] = (copied(tokens) - alone(tokens)).abs().max().item()
    out["hooks of the copy"] = "cleave" in repr([(m._forward_pre_hooks, m._forward_hooks) for m in copied.modules()])
    out["hidden"] = all(p.isnan().all().item() for p in engine.module.parameters())
    engine.destroy()
    out["restored"] = torch.nn.Module.compile.__module__ == "torch.nn.modules.module"
    return out


def failing() -> dict[str, Any]:
    """Continues after an exception in a compiled block, and compares with torch alone."""
    module = made()
    engine = engine_of(module, 3)
    engine.compile("aot_eager")
    trained(engine, 1)
    block: Any = module.blocks[1]
    block.fails = True
    said = plain.said_of(lambda: engine(batch(1, engine.global_rank)))
    block.fails = False
    in_use = sum(engine._residency._users)
    trained(engine, 2, first=1)
    other, _ = in_torch(True, False, engine.world_size, 3, backend="aot_eager")
    return {"said": said, "in use": in_use, "far": apart(engine, other)}


def addresses(live: int) -> list[int]:
    """Returns for each parameter the number of addresses that its values have in forwards and backwards, from the second step on."""
    engine = engine_of(made(), 3, **({"stage3_max_live_parameters": live} if live else {}))
    engine.compile("aot_eager")
    trained(engine, 1)
    seen: dict[int, set[int]] = {}
    acquire = engine._native.acquire

    def watched(unit: int) -> Any:
        pointers = acquire(unit)
        seen.setdefault(unit, set()).add(pointers[0])
        return pointers

    engine._native.acquire = watched
    for step in range(3):
        trained(engine, 1, first=step)
        with deepspeed.zero.GatheredParameters([engine.module.head.weight]):
            pass
        with torch.no_grad():
            engine(batch(step, 0))
    return sorted({len(each) for each in seen.values()})
