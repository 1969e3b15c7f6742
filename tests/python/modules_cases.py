"""Cases of modules_test.py for ranks: modules and losses of any kind; each returns JSON."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from chains import (
    RATE,
    WIDTH,
    Chain,
    Custom,
    Forces,
    Kept,
    Loss,
    SavedParameter,
    Wrapper,
    apart_from_torch,
    config,
    engine_of,
    inside,
    kept_graph,
    mean,
    penalty,
    sample,
    twice,
)
from torch import nn
from torch.nn import functional as F


class Catching(Chain):
    """Catches the exception of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong = nn.Linear(3, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            return super().forward(self.wrong(x))
        return super().forward(x)


class Failing(Chain):
    """Raises an exception after its layers, on request."""

    fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if self.fails:
            raise ValueError("sample: too long")
        return y


class KeptView(Kept):
    """Keeps a view of the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weights = [weight[:]]
        return x @ weight.t()


class Wrapped(Chain):
    """Reads weights through wrappers and from a plain list, and calls modules in addition whose output no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1], self.head = Wrapper(self.layers[1]), Wrapper(self.head)
        self.empty, self.dummy = nn.Parameter(torch.zeros(0, WIDTH)), nn.Linear(WIDTH, WIDTH)
        self.layers[2]._parameters = dict(self.layers[2]._parameters)
        self.scale = nn.ParameterDict({"in": nn.Parameter(torch.ones(WIDTH)), "none": nn.Parameter(torch.zeros(0))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.dummy(x)
        x = torch.cat([x * self.scale["in"], self.empty])
        for layer in self.layers:
            x = torch.tanh(F.linear(x, layer.weight, layer.bias) if isinstance(layer, Wrapper) else layer(x))
        return self.head(x) + F.linear(x, self.head.weight)


class Uneven(Chain):
    """Calls a layer as often as the sample says, so ranks differ."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.abs().sum() * 10) % 4):
            x = torch.tanh(self.layers[0](x))
        return super().forward(x)


class Positions(nn.Module):
    """Returns a view of its parameter, as position embeddings do, or the parameter itself."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.table, self.whole = nn.Parameter(torch.randn(6, WIDTH)), whole

    def forward(self, count: int) -> torch.Tensor | dict[str, torch.Tensor]:
        return {"table": self.table} if self.whole else self.table[:count]


class Returning(Chain):
    """Uses weights that submodules return, after other modules ran."""

    def __init__(self) -> None:
        super().__init__()
        self.some, self.all = Positions(), Positions(True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        some, table = self.some(4), self.all(0)["table"]
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x * some) + (x @ table.t()).mean(1, keepdim=True)


class ReadBetween(Chain):
    """Reads a weight of a submodule after one gradient in the forward, and uses it after another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            first = torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)[0]
            weight = self.layers[0].weight
            second = torch.autograd.grad(self.layers[1](first).tanh().sum(), first, create_graph=True)[0]
        return self.head(second @ weight)


class Graph(Chain):
    """Multiplies with a sparse matrix."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        edges = torch.eye(len(x)).roll(1, 0).to_sparse()
        for layer in self.layers:
            x = torch.tanh(torch.sparse.mm(edges, layer(x)))
        return self.head(x)


SMALL, MIDDLE, LARGE = 330, 1000, 2000  # elements of gathered memory


KINDS: dict[str, tuple[Callable[[], nn.Module], Loss, int]] = {
    "gradient penalty": (Chain, penalty, SMALL),
    "gradient penalty and loss of one output": (Chain, kept_graph, SMALL),
    "gradient penalty of checkpointed layers": (lambda: Chain(again=True), penalty, MIDDLE),
    "gradients of the input": (Chain, twice, SMALL),
    "forces": (Forces, mean, SMALL),
    "forces of checkpointed layers": (lambda: Forces(again=True), mean, SMALL),
    "forward inside GatheredParameters": (Chain, inside, SMALL),
    "caught exception of a layer": (Catching, mean, SMALL),
    "weight as attribute of a function": (lambda: Custom(Kept), mean, MIDDLE),
    "weight saved by a function": (lambda: Custom(SavedParameter), mean, MIDDLE),
    "penalty through checkpointed blocks with frozen ones": (lambda: models.Blocks("non-reentrant"), penalty, LARGE),
    "wrappers, empty parameters and unused outputs": (Wrapped, mean, SMALL),
    "number of calls by sample": (Uneven, mean, SMALL),
    "weight read between gradients": (ReadBetween, mean, MIDDLE),
    "sparse matrix": (Graph, mean, SMALL),
    "weight that the module returns": (lambda: Positions(True), lambda call, module, x, _: (x @ call(0)["table"].t()).mean(), SMALL),
    "weights that submodules return": (Returning, mean, MIDDLE),
}


def against_torch() -> dict[str, float]:
    """Returns, by kind and placement, how far an engine is from torch."""
    out = {}
    for kind, (made, loss_of, pool) in KINDS.items():
        for zero in ({"stage": 0}, {"stage": 2}, {"stage": 3}, {"stage": 3, "stage3_max_live_parameters": pool}):
            out[f"{kind}, {zero}"] = apart_from_torch(made, loss_of, **zero)
    return out


def evaluated_first() -> list[float]:
    """Evaluates in inference mode before and between training steps; returns outputs and losses."""
    engine = engine_of(models.seeded(Chain))
    out = []
    for step in range(3):
        with torch.inference_mode():
            out.append(engine(sample(step, 0)).mean().item())
            with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
                out.append(engine.module.head.weight.sum().item())
        loss = mean(engine, engine.module, sample(step, 0), True)
        engine.backward(loss)
        engine.step()
        out.append(loss.item())
    return out


def evaluated_first_in_torch() -> list[float]:
    module = models.seeded(Chain)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    out = []
    for step in range(3):
        loss = mean(module, module, sample(step, 0), False)
        out += [module(sample(step, 0)).mean().item(), module.head.weight.sum().item(), loss.item()]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return out


class Watched(Chain):
    """Counts the activations that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            self.alive.add(x)
        return self.head(x)


def graphs_left() -> list[int]:
    """Returns the activations alive after forwards without a backward, and after a backward that keeps its graph."""
    engine = engine_of(models.seeded(Watched))
    gc.disable()
    for _ in range(3):
        engine(sample(0, 0))
    left = [len(engine.module.alive)]
    loss = mean(engine, engine.module, sample(0, 0), True)
    engine.backward(loss, retain_graph=True)
    del loss
    return [*left, len(engine.module.alive)]


def failed_forwards(direct: bool) -> dict[str, Any]:
    """An exception after the layers on all ranks, which the script catches, and training afterwards."""
    module, alone = (models.seeded(Failing) for _ in range(2))
    engine, optimizer = engine_of(module), torch.optim.SGD(alone.parameters(), RATE)
    said = []
    for step in range(3):
        module.fails = True
        said.append(plain.said_of(lambda: (module if direct else engine)(sample(0, 0))))
        module.fails = False
        engine.backward(mean(engine, module, sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        sum(mean(alone, alone, sample(step, rank), False) / engine.world_size for rank in range(engine.world_size)).backward()
        optimizer.step()
    return {"said": said, "far": plain.apart(engine, alone)}


def casts_left(frozen: bool) -> int:
    """Returns the 16-bit copies of weights that autograd keeps under autocast at stage 3. frozen: only the outer layers are trained."""
    made = {**config(3), "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    module = models.seeded(lambda: Chain(layers=4))
    for layer in module.layers[1:] if frozen else ():
        layer.requires_grad_(False)
    engine = deepspeed.initialize(model=module, config=made)[0]
    loss = mean(engine, module, sample(0, 0), True)
    kept = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.dtype == torch.bfloat16 and t.shape == (WIDTH, WIDTH)]
    engine.backward(loss)
    engine.step()
    return len(kept)


def several_backwards(backwards: int) -> Any:
    """Calls several backwards per micro-batch with exact sums; returns the distance from torch."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    engine = deepspeed.initialize(model=module, config={**config(2), "cleave": {"exact_sums": True}})[0]
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for step in range(2):
        for k in range(backwards):
            engine.backward(mean(engine, module, sample(step, engine.global_rank) * k, True))
            for rank in range(engine.world_size):
                (mean(alone, alone, sample(step, rank) * k, False) / engine.world_size).backward()
        engine.step()
        optimizer.step()
        optimizer.zero_grad()
    return plain.apart(engine, alone)


def too_many_backwards() -> str:
    return plain.said_of(lambda: several_backwards(5))


def view_in_context(stage: int) -> str:
    """Returns the error of the backward of a function that keeps a view of its weight."""
    engine = engine_of(models.seeded(lambda: Custom(KeptView)), stage)
    loss = mean(engine, engine.module, sample(0, 0), True)
    return plain.said_of(lambda: engine.backward(loss))


def backward_of_inputs() -> str:
    """Returns the error of a backward that names the parameters to accumulate into."""
    engine = engine_of(models.seeded(Chain))
    loss = mean(engine, engine.module, sample(0, 0), True)
    return plain.said_of(lambda: loss.backward(inputs=list(engine.module.head.parameters())))
