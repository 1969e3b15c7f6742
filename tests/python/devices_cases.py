"""Cases of devices_test.py for ranks: modules on the meta device, and packed parameters of libraries; each returns JSON."""

from __future__ import annotations

from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from torch import nn
from torch.nn import functional as F
from trained_cases import adamw, config

WIDTH = models.WIDTH
STORAGE = {"uint8": torch.uint8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class State:
    """Scales of packed numbers, which a library keeps outside of the module's parameters and buffers."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.absmax, self.moved_to = scale, ""

    def to(self, device: Any) -> None:
        self.absmax, self.moved_to = self.absmax.to(device), str(device)


class Packed(nn.Parameter):
    """Two 4-bit numbers per byte, in memory of any type, with the class and the attributes of bitsandbytes' 4-bit parameter."""

    quant_state: State | None
    bnb_quantized: bool

    def __new__(cls, data: torch.Tensor, quant_state: State | None = None) -> Packed:
        made = torch.Tensor._make_subclass(cls, data, False)
        made.quant_state, made.bnb_quantized = quant_state, quant_state is not None
        return made


class Int8(nn.Parameter):
    """Bytes with a second reference to them and a scale per row, as in bitsandbytes' 8-bit parameter."""

    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Int8:
        made = torch.Tensor._make_subclass(cls, data, False)
        made.CB, made.SCB, made.has_fp16_weights = data, scale, False  # type: ignore[attr-defined]
        return made  # type: ignore[return-value]


def unpacked(bits: torch.Tensor, state: State) -> torch.Tensor:
    """Returns the weight of packed numbers."""
    two = bits.reshape(-1).view(torch.uint8).to(torch.int16)
    return (torch.stack([two // 16, two % 16], 1).float().view(WIDTH, WIDTH) - 8) * state.absmax


class Product(torch.autograd.Function):
    """Keeps a view of the packed numbers in an attribute, and no weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bits: torch.Tensor, state: State) -> torch.Tensor:
        ctx.kept = bits.t(), state
        return x @ unpacked(bits, state)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient @ unpacked(ctx.kept[0].t(), ctx.kept[1]).t(), None, None


class Linear4Bit(nn.Linear):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(WIDTH, WIDTH)
        self.bias.requires_grad_(False)
        bits = torch.randint(0, 256, (WIDTH * WIDTH // 2, 1), dtype=torch.uint8)
        bits[:8, 0] = torch.tensor([0x01, 0x00, 0x80, 0x7F, 0x81, 0x7F, 0x01, 0x7D])  # signaling NaNs in fp32, bf16 and fp16
        self.weight = Packed(bits.reshape(-1).view(dtype).reshape(-1, 1), State(torch.rand(WIDTH) / 20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.weight, Packed) and self.weight.quant_state is not None
        return Product.apply(x, self.weight, self.weight.quant_state) + self.bias  # type: ignore[no-any-return]


class Linear8Bit(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.bias.requires_grad_(False)
        self.weight = Int8(torch.randint(-127, 128, (WIDTH, WIDTH), dtype=torch.int8), torch.rand(WIDTH, 1) / 500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.float() * self.weight.SCB, self.bias)  # type: ignore[operator]


class Adapted(nn.Module):
    """Frozen packed layers with a trained adapter each."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        made = [Linear8Bit() if kind == "int8" else Linear4Bit(STORAGE[kind]) for _ in range(3)]
        self.frozen = nn.ModuleList(made)
        self.adapters = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in made)
        self.head = nn.Linear(WIDTH, models.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.pad(x[:, :8], (0, WIDTH - 8))
        for frozen, adapter in zip(self.frozen, self.adapters, strict=True):
            h = torch.tanh(frozen(h) + adapter(h))
        return self.head(h)  # type: ignore[no-any-return]


def _loss(module: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(module(batch[0]), batch[1])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).clone()


def quantized(kind: str, stage: int) -> dict[str, Any]:
    """Trains adapters of packed layers. Returns differences from torch, and whether the packed bytes are equal and sharded."""
    ours, alone = (models.seeded(lambda: Adapted(kind)) for _ in range(2))
    train = [[p for p in module.parameters() if p.requires_grad] for module in (ours, alone)]
    before = {name: _bytes(p) for name, p in alone.named_parameters() if not p.requires_grad}
    zero = {"stage": stage, **({"stage3_param_persistence_threshold": 0} if stage == 3 else {})}  # the packed layers are small
    engine, *_ = deepspeed.initialize(model=ours, optimizer=adamw(train[0]), config=config(stage, zero_optimization=zero))
    optimizer = adamw(train[1])
    losses = 0.0
    for step in range(3):
        batches = [models.batch(step, 0, rank) for rank in range(engine.world_size)]
        loss = _loss(engine, batches[engine.global_rank])
        engine.backward(loss)
        engine.step()
        optimizer.zero_grad()
        theirs = [_loss(alone, batch) for batch in batches]
        (sum(theirs) / len(theirs)).backward()  # type: ignore[union-attr]
        optimizer.step()
        losses = max(losses, abs(loss.item() - theirs[engine.global_rank].item()))
    far = max((engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in alone.named_parameters() if p.requires_grad)
    with deepspeed.zero.GatheredParameters(list(ours.parameters())):
        same = all(torch.equal(_bytes(dict(ours.named_parameters())[name]), value) for name, value in before.items())
        kept = all(isinstance(p, type(q)) and p.dtype == q.dtype for p, q in zip(ours.parameters(), alone.parameters(), strict=True))
    state = getattr(ours.frozen[0].weight, "quant_state", None)
    nans = any(bool(p.isnan().any()) for p in alone.frozen.parameters() if p.is_floating_point())
    out = {"losses": losses, "far": far, "same": same, "kept": kept, "hidden": ours.frozen[0].weight.numel() == 0, "nans": nans}
    out["moved"] = state is None or state.moved_to == str(engine.device)
    engine.destroy()
    return out


def not_quantized() -> str:
    """The error of a 4-bit layer that its library has not quantized yet."""
    module = Adapted("uint8")
    module.frozen[1].weight = Packed(torch.randn(WIDTH, WIDTH))
    return plain.said_of(lambda: deepspeed.initialize(model=module, config=config(0)))


class Tied(nn.Module):
    """A module with buffers and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(8, WIDTH, bias=False), nn.BatchNorm1d(WIDTH)
        self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.norm(self.embed(x[:, :8]))))  # type: ignore[no-any-return]


class Drawn(nn.Module):
    """A module with an initialization that leaves a tensor out."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.ones(3))
        if buffer:
            self.register_buffer("positions", torch.arange(3))
        else:
            self.left_out = nn.Parameter(torch.ones(3))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.used)


def on_meta(stage: int, folder: str) -> dict[str, Any]:
    """Trains a module that was created on the meta device, with an optimizer made there, and resumes it."""
    made = []
    for _ in range(2):
        with deepspeed.OnDevice(dtype=torch.float32, device="meta"):
            module = Tied()
        engine, *_ = deepspeed.initialize(model=module, optimizer=adamw(module.parameters()), config=config(stage))
        made.append((engine, module))
    (engine, module), (other, _) = made
    values = {name: engine.parameters_of(name) for name, _ in module.named_parameters()}
    for step in range(2):
        engine.backward(engine(models.batch(step, 0, engine.global_rank)[0]).square().mean())
        engine.step()
    engine.save_checkpoint(folder)
    other.load_checkpoint(folder)
    bound = 1 / 8**0.5  # of nn.Linear's first values
    out = {
        "drawn": bool((values["embed.weight"].abs() <= bound).all() and values["embed.weight"].std() > bound / 3),
        "ones": bool((values["norm.weight"] == 1).all()),
        "buffers": bool((module.norm.running_var > 0).all()) and int(module.norm.num_batches_tracked) == 2,
        "tied": module.head.weight is module.embed.weight,
        "trains": max((engine.parameters_of(name) - value).abs().max().item() for name, value in values.items()) > 0,
        "resumes": all(torch.equal(engine.parameters_of(name), other.parameters_of(name)) for name in values),
        "sum": sum(float(v.sum()) for v in values.values()),
    }
    engine.destroy()
    other.destroy()
    return out


def without_initialization() -> list[str]:
    """The errors of modules on the meta device that define no first values."""
    said = []
    for make in (models.Gpt, Drawn, lambda: Drawn(buffer=True)):
        with torch.device("meta"):
            module = nn.Sequential(make())
        said.append(plain.said_of(lambda module=module: deepspeed.initialize(model=module, config=config(0))))  # type: ignore[misc]
    return said


def transformers_on_meta() -> dict[str, bool]:
    """Creates a model of transformers on the meta device and compares its initialization with its config."""
    import transformers

    size = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = transformers.LlamaConfig(**size, num_key_value_heads=2, initializer_range=0.02)
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(made)
    engine, *_ = deepspeed.initialize(model=module, optimizer=adamw(module.parameters()), config=config(3))
    weight = engine.parameters_of("model.layers.0.mlp.up_proj.weight")
    want = transformers.LlamaForCausalLM(made).model.rotary_emb.inv_freq
    out = {
        "spread": 0.015 < weight.std().item() < 0.025,
        "norm": bool((engine.parameters_of("model.norm.weight") == 1).all()),
        "rotary": torch.equal(module.model.rotary_emb.inv_freq.cpu(), want),
    }
    ids = torch.randint(0, 64, (2, 16))
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    out["loss"] = 3.5 < loss.item() < 5  # log(64) = 4.16
    engine.destroy()
    return out
