"""70 kinds of modules for zoo_test.py: layers of torch, architectures of the literature, and the habits of scripts.

Each module maps x of shape [4, 16] to its output; the loss is the mean square of all tensors in it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import models
import torch
from chains import Forces, Saved, engine_of
from cleave.outputs import tensors_in
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

N, WIDTH, RATE, STEPS = 4, 16, 0.05, 3


class Of(nn.Module):
    """Submodules and a function of them."""

    def __init__(self, use: Callable[[Any, torch.Tensor], Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(self, x)


def linear(inputs: int = WIDTH, outputs: int = WIDTH, **more: Any) -> nn.Linear:
    return nn.Linear(inputs, outputs, **more)


def values(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / 4)


def after(layer: nn.Module, shape: tuple[int, ...] = (WIDTH,), outputs: int | None = None) -> Of:
    """Returns a linear layer followed by a layer that takes inputs of this shape."""
    return Of(lambda m, x: m.layer(m.first(x).view(N, *shape)), first=linear(), layer=layer)


def tokens(x: torch.Tensor, words: int = 11) -> torch.Tensor:
    """Returns token ids of the signs and sizes of x."""
    return (x.abs() * 10).long() % words


def sequence(x: torch.Tensor) -> torch.Tensor:
    """Returns x as sequences [4, 4, 4]."""
    return x.view(N, 4, 4)


class Repeated(nn.Module):
    """Calls one layer several times, as recurrent and equilibrium models do."""

    def __init__(self, times: int, without_gradient: bool = False) -> None:
        super().__init__()
        self.layer, self.times, self.without_gradient = linear(), times, without_gradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.without_gradient):
            for _ in range(self.times):
                y = torch.tanh(self.layer(y) + x)
        return torch.tanh(self.layer(y) + x)


class Block(nn.Module):
    """A block of a transformer, with rotary positions and a causal mask."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.norm, self.qkv, self.out = heads, nn.RMSNorm(width), linear(width, 3 * width), linear(width, width)
        self.up, self.down, self.second = linear(width, 4 * width), linear(2 * width, width), nn.RMSNorm(width)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[2])[:, None] / 10.0 ** torch.arange(x.shape[3] // 2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """A mixture of experts with one expert per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = linear(WIDTH, 3), nn.ModuleList([linear() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out


class Quantized(torch.autograd.Function):
    """Rounds, and passes gradients straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0]


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    hidden: Any = None


class Returns(nn.Module):
    """Returns containers of tensors, and takes keywords."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, linear(), linear()

    def forward(self, x: torch.Tensor, scale: float = 0.5) -> Any:
        a, b = self.first(x) * scale, self.second(x)
        return {"dict": {"a": a, "rest": [b, None]}, "dataclass": Output(a, (b, None)), "tuple": (a, None, b)}[self.kind]


class Hooked(nn.Module):
    """Has hooks of the script that change inputs, outputs and gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = linear(), linear(), linear()
        self.a.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.b.register_forward_hook(lambda module, args, output: output + args[0])
        self.c.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Averaged(nn.Module):
    """Keeps a moving average of its activations in a buffer."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        with torch.no_grad():
            self.mean.lerp_(y.mean(0), 0.1)
        return y - self.mean


class Flow(nn.Module):
    """An affine coupling with the logarithm of its determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([linear(8, 16) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> Any:
        a, b = x.chunk(2, 1)
        size = torch.zeros(len(x))
        for net in self.nets:
            shift, scale = net(a).chunk(2, 1)
            scale = torch.tanh(scale)
            a, b, size = b * scale.exp() + shift, a, size + scale.sum(1)
        return a, b, size


class Attending(nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **more)
        self.other = linear(4, more.get("kdim", 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = self.other(sequence(x))
        return self.attention(sequence(x), other, other)[0]  # type: ignore[no-any-return]


class Translating(nn.Module):
    """A sequence-to-sequence model of LSTMs with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder, self.decoder = nn.Embedding(11, 8), nn.LSTM(8, 8, batch_first=True), nn.LSTM(8, 8, batch_first=True)
        self.head = linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = tokens(x)
        _, state = self.encoder(self.words(ids[:, :8]))
        out, _ = self.decoder(self.words(ids[:, 8:]), state)
        return F.cross_entropy(self.head(out).flatten(0, 1), ids[:, 8:].flatten())


class Hyper(nn.Module):
    """A network that makes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.make = values(4), linear(4, WIDTH * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.make(self.code).view(4, WIDTH))


class Adapter(nn.Module):
    """A frozen layer with a trained product of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = linear(), values(2, WIDTH), values(WIDTH, 2)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Skipping(nn.Module):
    """Ends early for some samples, and skips a layer at random."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if float(torch.rand(())) < 0.3:
                continue
            x = torch.tanh(layer(x))
            if x.abs().mean() > 0.4:
                break
        return x


class Called(nn.Module):
    """Calls a submodule with other tensors in place of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.change = linear(), values(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = {"weight": self.layer.weight + self.change, "bias": self.layer.bias}
        return torch.func.functional_call(self.layer, weights, (x,))  # type: ignore[no-any-return]


class Standardized(nn.Conv1d):
    """A convolution with standardized weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = (self.weight - self.weight.mean((1, 2), True)) / (self.weight.std((1, 2), keepdim=True) + 1e-3)
        return F.conv1d(x, weight, self.bias, padding=1)


def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(linear())  # type: ignore[no-any-return, no-untyped-call]


def tied() -> nn.Module:
    words, head = nn.Embedding(11, 8), linear(8, 11, bias=False)
    head.weight = words.weight
    return Of(
        lambda m, x: F.cross_entropy(m.head(m.words(tokens(x))).flatten(0, 1), tokens(x).roll(1, 1).flatten()), words=words, head=head
    )


def contrastive(m: Any, x: torch.Tensor) -> torch.Tensor:
    a, b = F.normalize(m.a(x), dim=-1), F.normalize(m.b(x), dim=-1)
    return F.cross_entropy(a @ b.t() * m.scale.exp(), torch.arange(len(x)))


def variational(m: Any, x: torch.Tensor) -> Any:
    mean, logs = m.encoder(x).chunk(2, 1)
    z = mean + logs.mul(0.5).exp() * torch.randn_like(mean)
    return m.decoder(z) - x, 0.1 * (mean.pow(2) + logs.exp() - logs - 1)


def ctc(m: Any, x: torch.Tensor) -> torch.Tensor:
    scores = m.head(x.view(N, 8, 2)).log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(scores, torch.arange(8).view(N, 2) % 4 + 1, torch.full((N,), 8), torch.full((N,), 2))


def mixture_density(m: Any, x: torch.Tensor) -> torch.Tensor:
    weight, mean, logs = m.head(torch.tanh(m.first(x))).chunk(3, 1)
    return -torch.logsumexp(weight.log_softmax(1) - logs - 0.5 * ((x[:, :1] - mean) / logs.exp()) ** 2, 1)


def unet(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.view(N, 1, 4, 4)
    a = F.relu(m.down(x))
    b = F.relu(m.bottom(F.max_pool2d(a, 2)))
    return m.up(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))  # type: ignore[no-any-return]


def patches(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.embed(x.view(N, 1, 4, 4)).flatten(2).transpose(1, 2)
    y = torch.cat([m.cls.expand(N, 1, 8), y], 1) + m.positions
    return m.head(m.block(y)[:, 0])  # type: ignore[no-any-return]


def graph(m: Any, x: torch.Tensor) -> torch.Tensor:
    source, target = torch.tensor([0, 1, 2, 3, 0, 2]), torch.tensor([1, 2, 3, 0, 2, 1])
    messages = m.message(torch.cat([x[source], x[target]], 1))
    return m.update(torch.cat([x, torch.zeros_like(x).index_add(0, target, messages)], 1))  # type: ignore[no-any-return]


def spectrum(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(m.filter), n=WIDTH)


def two_types(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.second(F.linear(x.bfloat16(), m.first.weight.bfloat16(), m.first.bias.bfloat16()).float())  # type: ignore[no-any-return]


def family(name: str, **config: Any) -> Callable[[], nn.Module]:
    """Returns a small model of transformers; its loss is that of next tokens."""

    def made() -> nn.Module:
        import transformers

        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, vocab_size=11, **config))
        return Of(lambda m, x: m.model(input_ids=tokens(x), labels=tokens(x)).loss, model=model)

    return made


HF: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_key_value_heads": 1,
}
ENCODER: dict[str, Any] = {"d_model": 4, "nhead": 2, "dim_feedforward": 8, "dropout": 0.1, "batch_first": True}

KINDS: dict[str, Callable[[], nn.Module]] = {
    # layers of torch
    "Linear": lambda: after(linear()),
    "Bilinear": lambda: Of(lambda m, x: m.a(x, x.flip(1)), a=nn.Bilinear(WIDTH, WIDTH, 4)),
    "Embedding": lambda: Of(lambda m, x: m.a(tokens(x)), a=nn.Embedding(11, 4, padding_idx=0)),
    "Embedding, sparse": lambda: Of(lambda m, x: m.a(tokens(x)), a=nn.Embedding(11, 4, sparse=True)),
    "EmbeddingBag": lambda: Of(lambda m, x: m.a(tokens(x)), a=nn.EmbeddingBag(11, 4, mode="max")),
    "Conv1d": lambda: after(nn.Conv1d(4, 6, 3, padding=1), (4, 4)),
    "Conv2d": lambda: after(nn.Conv2d(1, 6, 3, padding=1), (1, 4, 4)),
    "Conv3d": lambda: after(nn.Conv3d(1, 4, 2), (1, 4, 2, 2)),
    "Conv2d, depthwise": lambda: after(nn.Sequential(nn.Conv2d(4, 4, 2, groups=4), nn.Conv2d(4, 8, 1)), (4, 2, 2)),
    "Conv1d, dilated": lambda: after(nn.Sequential(nn.Conv1d(2, 4, 2, dilation=2), nn.ReLU(), nn.Conv1d(4, 4, 2, dilation=4)), (2, 8)),
    "ConvTranspose1d": lambda: after(nn.ConvTranspose1d(4, 3, 2, stride=2), (4, 4)),
    "ConvTranspose2d": lambda: after(nn.ConvTranspose2d(4, 3, 2), (4, 2, 2)),
    "LSTM": lambda: Of(lambda m, x: m.a(sequence(x))[0], a=nn.LSTM(4, 6, 2, batch_first=True)),
    "LSTM, bidirectional with projections": lambda: Of(lambda m, x: m.a(sequence(x))[0], a=nn.LSTM(4, 6, bidirectional=True, proj_size=3)),
    "GRU": lambda: Of(lambda m, x: m.a(sequence(x))[0], a=nn.GRU(4, 6, 2, dropout=0.2)),
    "RNN": lambda: Of(lambda m, x: m.a(sequence(x))[0], a=nn.RNN(4, 6)),
    "LSTMCell": lambda: Of(lambda m, x: m.a(x, m.a(x.flip(0)))[0], a=nn.LSTMCell(WIDTH, 6)),
    "GRUCell": lambda: Of(lambda m, x: m.a(x, m.a(x.flip(0))), a=nn.GRUCell(WIDTH, 6)),
    "MultiheadAttention": Attending,
    "TransformerEncoderLayer": lambda: Of(lambda m, x: m.a(sequence(x)), a=nn.TransformerEncoderLayer(**ENCODER)),
    "TransformerEncoder": lambda: Of(
        lambda m, x: m.a(sequence(x)),
        a=nn.TransformerEncoder(nn.TransformerEncoderLayer(**ENCODER, norm_first=True), 2, enable_nested_tensor=False),
    ),
    "TransformerDecoderLayer": lambda: Of(lambda m, x: m.a(sequence(x), sequence(x).flip(1)), a=nn.TransformerDecoderLayer(**ENCODER)),
    "LayerNorm": lambda: after(nn.LayerNorm(WIDTH)),
    "RMSNorm": lambda: after(nn.RMSNorm(WIDTH)),
    "GroupNorm": lambda: after(nn.GroupNorm(2, 4), (4, 4)),
    "InstanceNorm1d": lambda: after(nn.InstanceNorm1d(4, affine=True), (4, 4)),
    "BatchNorm1d": lambda: after(nn.BatchNorm1d(WIDTH)),
    "BatchNorm2d": lambda: after(nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4)), (1, 4, 4)),
    "PReLU": lambda: after(nn.PReLU(WIDTH)),
    "Dropout": lambda: after(nn.Sequential(nn.Dropout(0.3), linear())),
    "AdaptiveLogSoftmaxWithLoss": lambda: Of(lambda m, x: m.a(x, tokens(x)[:, 0]).loss, a=nn.AdaptiveLogSoftmaxWithLoss(WIDTH, 11, [3, 7])),
    # parametrizations
    "weight_norm": lambda: after(parametrizations.weight_norm(linear())),
    "weight_norm of torch 1": lambda: after(old_weight_norm()),
    "spectral_norm": lambda: after(parametrizations.spectral_norm(linear())),
    "orthogonal": lambda: after(parametrizations.orthogonal(linear(WIDTH, 8))),
    # architectures
    "residual block": lambda: after(
        Of(lambda m, x: x + m.b(F.relu(m.a(x))), a=nn.Conv1d(4, 4, 3, padding=1), b=nn.Conv1d(4, 4, 1)), (4, 4)
    ),
    "weight standardization": lambda: after(Standardized(4, 4, 3), (4, 4)),
    "U-Net": lambda: Of(unet, down=nn.Conv2d(1, 3, 3, padding=1), bottom=nn.Conv2d(3, 4, 1), up=nn.Conv2d(7, 1, 1)),
    "vision transformer": lambda: Of(
        patches, embed=nn.Conv2d(1, 8, 2, 2), cls=values(1, 1, 8), positions=values(1, 5, 8), block=Block(), head=linear(8, 3)
    ),
    "decoder block": lambda: Of(lambda m, x: m.block(m.up(sequence(x))), up=linear(4, 8), block=Block()),
    "tied embeddings": tied,
    "sequence to sequence": Translating,
    "mixture of experts": Experts,
    "variational autoencoder": lambda: Of(variational, encoder=linear(WIDTH, 8), decoder=linear(4, WIDTH)),
    "vector quantization": lambda: Of(lambda m, x: m.b(Quantized.apply(m.a(x))), a=linear(), b=linear()),
    "normalizing flow": Flow,
    "mixture density": lambda: Of(mixture_density, first=linear(), head=linear(WIDTH, 9)),
    "contrastive": lambda: Of(contrastive, a=linear(), b=linear(), scale=nn.Parameter(torch.tensor(0.5))),
    "CTC": lambda: Of(ctc, head=linear(2, 5)),
    "graph network": lambda: Of(graph, message=linear(2 * WIDTH, WIDTH), update=linear(2 * WIDTH, WIDTH)),
    "spectral filter": lambda: Of(spectrum, filter=values(9, 2)),
    "hypernetwork": Hyper,
    "deep equilibrium": lambda: Repeated(4, True),
    "neural differential equation": lambda: Repeated(5),
    "forces of an energy": lambda: Of(lambda m, x: m.a(x.view(8, 8)), a=Forces()),
    "low-rank adapters": lambda: nn.Sequential(Adapter(), nn.Tanh(), Adapter()),
    # habits of scripts
    "frozen backbone": lambda: nn.Sequential(linear().requires_grad_(False), nn.Tanh(), linear()),
    "shared layer": lambda: Of(lambda m, x: m.a(torch.tanh(m.a(x))) + m.b(x), a=(layer := linear()), b=layer),
    "dictionary output": lambda: Returns("dict"),
    "dataclass output": lambda: Returns("dataclass"),
    "hooks": Hooked,
    "buffer with an average": Averaged,
    "random depth": Skipping,
    "checkpointed blocks": lambda: Of(
        lambda m, x: checkpoint_sequential(m.a, 2, checkpoint(m.first, x, use_reentrant=False), use_reentrant=False),
        first=linear(),
        a=nn.Sequential(linear(), nn.Dropout(0.2), nn.Tanh(), linear()),
    ),
    "autograd function": lambda: Of(lambda m, x: Saved.apply(torch.tanh(m.a(x)), m.b), a=linear(), b=values(8, WIDTH)),
    "functional_call": Called,
    "casts by hand": lambda: Of(two_types, first=linear(), second=linear()),
    "parameters in lists and dictionaries": lambda: Of(
        lambda m, x: sum(x * w for w in m.a) + m.b["x"] * x.sum(),
        a=nn.ParameterList([values(WIDTH), values(1)]),
        b=nn.ParameterDict({"x": values()}),
    ),
    # models of transformers
    "GPT-2": family("gpt2", n_embd=16, n_layer=2, n_head=2),
    "Llama": family("llama", **HF),
}


def loss_of(output: Any) -> torch.Tensor:
    return sum((t.float().pow(2).mean() for t in tensors_in(output) if t.is_floating_point()), torch.zeros(()))


def apart(kind: str, stage: int) -> float:
    """Returns the largest difference of losses, norms and weights of 3 steps from torch alone, relative above 1."""
    made = KINDS[kind]
    engine = engine_of(models.seeded(made), stage)
    alone = [models.seeded(made) for _ in range(engine.world_size)]  # one per rank, for buffers
    optimizers = [torch.optim.SGD([p for p in module.parameters() if p.requires_grad], RATE) for module in alone]
    far = [0.0]

    def compare(got: float, want: float) -> None:
        far.append(abs(got - want) / max(1.0, abs(want)) if math.isfinite(got) else math.inf)

    for step in range(STEPS):
        losses = []
        for rank, module in enumerate(alone):
            torch.manual_seed(100 * step + rank)
            losses.append(loss_of(module(torch.randn(N, WIDTH))))
            losses[-1].backward()
        torch.manual_seed(100 * step + engine.global_rank)
        loss = loss_of(engine(torch.randn(N, WIDTH)))
        engine.backward(loss)
        engine.step()
        compare(loss.item(), losses[engine.global_rank].item())
        for same in zip(*(module.parameters() for module in alone), strict=True):
            given = [p.grad.to_dense() if p.grad is not None else torch.zeros_like(p) for p in same]
            for p in same if same[0].requires_grad else ():
                p.grad = sum(given) / len(alone)  # type: ignore[assignment]
        parameters = [p for p in alone[0].parameters() if p.requires_grad]
        compare(engine.get_global_grad_norm(), torch.nn.utils.get_total_norm([p.grad for p in parameters]).item())  # type: ignore[misc]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for name, parameter in alone[engine.global_rank].named_parameters():
        difference = (engine.parameters_of(name) - parameter.detach()).abs() / parameter.detach().abs().clamp(min=1)
        compare(difference.max().item(), 0.0)
    for mine, its in zip(engine.module.buffers(), alone[engine.global_rank].buffers(), strict=True):
        if mine.is_floating_point():
            compare((mine - its).abs().max().item(), 0.0)
    engine.destroy()
    return max(far)


def at_stages(stages: list[int], only: str = "") -> dict[str, list[Any]]:
    """Returns, by kind, the differences at each stage, or the error."""
    out: dict[str, list[Any]] = {}
    for kind in KINDS:
        for stage in stages if only in kind else []:
            try:
                far: Any = apart(kind, stage)
            except deepspeed.CleaveError as error:
                far = f"{type(error).__name__}: {error}"
            out.setdefault(kind, []).append(far)
    return out
