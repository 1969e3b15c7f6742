"""Cases of modules_test.py for ranks: modules and losses of any kind; each returns JSON."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, RATE = 8, 0.05
Loss = Callable[
    [Any, nn.Module, torch.Tensor, bool], torch.Tensor
]  # called with an engine or a module, the module, x, and True for an engine


class Chain(nn.Module):
    """Linear layers; `again` computes each with activation checkpointing."""

    def __init__(self, layers: int = 4, again: bool = False) -> None:
        super().__init__()
        self.layers, self.head, self.again = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(layers)]), nn.Linear(WIDTH, 1), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=False) if self.again else layer(x))
        return self.head(x)


class Forces(Chain):
    """Returns the gradient of an energy by the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.requires_grad_(True)
            return torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)[0]


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


class Kept(torch.autograd.Function):
    """Keeps the weight as an attribute of its context."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weights = [weight]
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        [x] = ctx.saved_tensors
        return gradient @ ctx.weights[0], gradient.t() @ x


class KeptView(Kept):
    """Keeps a view of the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weights = [weight[:]]
        return x @ weight.t()


class Saved(torch.autograd.Function):
    """Gathers the saved weight again unless it is available."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        status = getattr(weight, "ds_status", None)
        with deepspeed.zero.GatheredParameters([weight] if status is not None and status.name != "AVAILABLE" else []):
            return gradient @ weight, gradient.t() @ x


class SavedParameter(Saved):
    """Needs the parameter itself."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        assert isinstance(ctx.saved_tensors[1], nn.Parameter)
        return Saved.backward(ctx, gradient)


class Custom(Chain):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(self.function.apply(x, layer.weight) + layer.bias)  # type: ignore[no-untyped-call]
        return self.head(x)


class Wrapper(nn.Module):
    """A trained copy of a module that replaces the original, and forwards attributes to it, as adapters do."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original, self.copies = original, nn.ModuleDict({"default": copy.deepcopy(original)})
        original.requires_grad_(False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["copies"]["default"], name)  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.copies["default"](x)


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


def _mean(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    return call(x).pow(2).mean()


def _penalty(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """The gradient penalty of a critic, before its loss."""
    given = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(call(given).sum(), given, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).pow(2).mean() + call(x * 2).mean()


def _kept_graph(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """A penalty of an output that the loss uses also."""
    given = x.clone().requires_grad_(True)
    y = call(given)
    (gradient,) = torch.autograd.grad(y.sum(), given, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).pow(2).mean() + y.mean()


def _inside(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """A forward inside GatheredParameters; another one before the backward overwrites gathered memory."""
    head = next(module.children())
    with deepspeed.zero.GatheredParameters(list(head.parameters())) if gathers else contextlib.nullcontext():
        loss = call(x).pow(2).mean()
    return loss + call(x * 2).pow(2).mean()


def _twice(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """Plain gradients of an output, in addition to its loss."""
    given = x.clone().requires_grad_(True)
    y = call(given)
    (gradient,) = torch.autograd.grad(y.sum(), given, retain_graph=True)
    return y.mean() * gradient.norm()


SMALL, MIDDLE, LARGE = 330, 1000, 2000  # elements of gathered memory
KINDS: dict[str, tuple[Callable[[], nn.Module], Loss, int]] = {
    "gradient penalty": (Chain, _penalty, SMALL),
    "gradient penalty and loss of one output": (Chain, _kept_graph, SMALL),
    "gradient penalty of checkpointed layers": (lambda: Chain(again=True), _penalty, MIDDLE),
    "gradients of the input": (Chain, _twice, SMALL),
    "forces": (Forces, _mean, SMALL),
    "forces of checkpointed layers": (lambda: Forces(again=True), _mean, SMALL),
    "forward inside GatheredParameters": (Chain, _inside, SMALL),
    "caught exception of a layer": (Catching, _mean, SMALL),
    "weight as attribute of a function": (lambda: Custom(Kept), _mean, MIDDLE),
    "weight saved by a function": (lambda: Custom(SavedParameter), _mean, MIDDLE),
    "penalty through checkpointed blocks with frozen ones": (lambda: models.Blocks("non-reentrant"), _penalty, LARGE),
    "wrappers, empty parameters and unused outputs": (Wrapped, _mean, SMALL),
    "number of calls by sample": (Uneven, _mean, SMALL),
    "weight read between gradients": (ReadBetween, _mean, MIDDLE),
    "sparse matrix": (Graph, _mean, SMALL),
    "weight that the module returns": (lambda: Positions(True), lambda call, module, x, _: (x @ call(0)["table"].t()).mean(), SMALL),
    "weights that submodules return": (Returning, _mean, MIDDLE),
}


def _config(stage: int, **zero: Any) -> dict[str, Any]:
    if stage == 3:
        zero = {"stage3_param_persistence_threshold": 0, **zero}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage, **zero},
    }


def _made(module: nn.Module, stage: int = 3, **zero: Any) -> Any:
    return deepspeed.initialize(model=module, config=_config(stage, **zero))[0]


def _sample(step: int, rank: int) -> torch.Tensor:
    return models.batch(step, 0, rank)[0]


def _far(made: Callable[[], nn.Module], loss_of: Loss, stage: int, **zero: Any) -> float:
    """Returns the largest difference of weights and norms of 3 steps from a loop in torch alone, relative above 1."""
    module, alone = (models.seeded(made) for _ in range(2))
    engine = _made(module, stage, **zero)
    optimizer = torch.optim.SGD([p for p in alone.parameters() if p.requires_grad], RATE)
    far = 0.0
    for step in range(3):
        engine.backward(loss_of(engine, engine.module, _sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        for rank in range(engine.world_size):
            (loss_of(alone, alone, _sample(step, rank), False) / engine.world_size).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in alone.parameters() if p.grad is not None])
        optimizer.step()
        far = max(far, abs(engine.get_global_grad_norm() - norm.item()) / max(1.0, norm.item()))
    names = {name for name, p in alone.named_parameters() if p.numel()}
    far = max(far, *((engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in alone.named_parameters() if n in names))
    engine.destroy()
    return far


def against_torch() -> dict[str, float]:
    """Returns, by kind and placement, how far an engine is from torch."""
    out = {}
    for kind, (made, loss_of, pool) in KINDS.items():
        for zero in ({"stage": 0}, {"stage": 2}, {"stage": 3}, {"stage": 3, "stage3_max_live_parameters": pool}):
            out[f"{kind}, {zero}"] = _far(made, loss_of, **zero)
    return out


def replaced(stage: int) -> dict[str, Any]:
    """Replaces the data of a parameter inside GatheredParameters on all ranks, as scripts write it, and later outside."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    engine, optimizer = _made(module, stage), torch.optim.SGD(alone.parameters(), RATE)
    far = 0.0
    for step in range(4):
        if step == 1:
            weight = module.layers[0].weight
            with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
                weight.data = weight.data * 2
            alone.layers[0].weight.data = alone.layers[0].weight.data * 2
        engine.backward(_mean(engine, module, _sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        sum(_mean(alone, alone, _sample(step, rank), False) / engine.world_size for rank in range(engine.world_size)).backward()
        optimizer.step()
        far = max(far, plain.apart(engine, alone))
    with deepspeed.zero.GatheredParameters([module.layers[0].weight]):
        far = max(far, (module.layers[0].weight - alone.layers[0].weight).abs().max().item())
    module.layers[0].weight.data = torch.zeros(WIDTH, WIDTH)
    engine.backward(_mean(engine, module, _sample(0, 0), True))
    return {"far": far, "later": plain.said_of(engine.step)}


def evaluated_first() -> list[float]:
    """Evaluates in inference mode before and between training steps; returns outputs and losses."""
    engine = _made(models.seeded(Chain))
    out = []
    for step in range(3):
        with torch.inference_mode():
            out.append(engine(_sample(step, 0)).mean().item())
            with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
                out.append(engine.module.head.weight.sum().item())
        loss = _mean(engine, engine.module, _sample(step, 0), True)
        engine.backward(loss)
        engine.step()
        out.append(loss.item())
    return out


def evaluated_first_in_torch() -> list[float]:
    module = models.seeded(Chain)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    out = []
    for step in range(3):
        loss = _mean(module, module, _sample(step, 0), False)
        out += [module(_sample(step, 0)).mean().item(), module.head.weight.sum().item(), loss.item()]
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
    engine = _made(models.seeded(Watched))
    gc.disable()
    for _ in range(3):
        engine(_sample(0, 0))
    left = [len(engine.module.alive)]
    loss = _mean(engine, engine.module, _sample(0, 0), True)
    engine.backward(loss, retain_graph=True)
    del loss
    return [*left, len(engine.module.alive)]


def failed_forwards(direct: bool) -> dict[str, Any]:
    """An exception after the layers on all ranks, which the script catches, and training afterwards."""
    module, alone = (models.seeded(Failing) for _ in range(2))
    engine, optimizer = _made(module), torch.optim.SGD(alone.parameters(), RATE)
    said = []
    for step in range(3):
        module.fails = True
        said.append(plain.said_of(lambda: (module if direct else engine)(_sample(0, 0))))
        module.fails = False
        engine.backward(_mean(engine, module, _sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        sum(_mean(alone, alone, _sample(step, rank), False) / engine.world_size for rank in range(engine.world_size)).backward()
        optimizer.step()
    return {"said": said, "far": plain.apart(engine, alone)}


def without_hooks() -> dict[str, Any]:
    """Removes the hooks for generation and adds them again, as clients do."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    engine, optimizer = _made(module), torch.optim.SGD(alone.parameters(), RATE)
    offload, x = engine.optimizer.parameter_offload, _sample(0, 0)
    far = 0.0
    for step in range(2):
        for parameter in [*offload.module.parameters(), *(p for _, p in offload.module.ds_external_parameters())]:
            parameter.ds_active_sub_modules.clear()
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        with torch.no_grad(), deepspeed.zero.GatheredParameters(list(module.parameters())):
            far = max(far, (module(x) - alone(x)).abs().max().item())
        hidden = bool(torch.isnan(module(x)).all())
        offload._register_deepspeed_module(offload.module)
        engine.backward(_mean(engine, module, _sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        sum(_mean(alone, alone, _sample(step, rank), False) / engine.world_size for rank in range(engine.world_size)).backward()
        optimizer.step()
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())
    return {"far": max(far, plain.apart(engine, alone)), "hidden": hidden, "hooks": hooks == 2 * len(list(module.modules()))}


def copied(stage: int, folder: str) -> dict[str, Any]:
    """Copies of a module by deepcopy and torch.save, inside and outside GatheredParameters."""
    engine = _made(models.seeded(Chain), stage)
    said = {"copy": plain.said_of(lambda: copy.deepcopy(engine.module)), "engine": plain.said_of(lambda: copy.deepcopy(engine))}
    said["save"] = plain.said_of(lambda: torch.save(engine.module, io.BytesIO()))
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        other = copy.deepcopy(engine.module)
    file = Path(folder, f"{engine.global_rank}.pt")
    torch.save(other, file)
    loaded, x = torch.load(file, weights_only=False), _sample(0, 0)
    with torch.no_grad():
        want = engine(x)
        said["equal"] = torch.equal(other(x), want) and torch.equal(loaded(x), want)
    loss = _mean(other, other, x, False)
    loss.backward()  # the copy trains without the engine
    said["plain"] = all(p.grad is not None for p in other.parameters()) and "cleave" not in repr(other._forward_hooks)
    return said


def taken_over(stage: int) -> dict[str, Any]:
    """Trains a module that an engine for evaluation held before, and evaluates it with both engines afterwards."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    evaluates = {key: value for key, value in _config(stage).items() if key != "optimizer"}
    first = deepspeed.initialize(model=module, config=evaluates)[0]
    x = _sample(0, 0)
    with torch.no_grad():
        far = [(first(x) - alone(x)).abs().max().item()]
    engine = _made(module, stage)
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for step in range(3):
        engine.backward(_mean(engine, module, _sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        for rank in range(engine.world_size):
            (_mean(alone, alone, _sample(step, rank), False) / engine.world_size).backward()
        optimizer.step()
    with torch.no_grad():
        far += [plain.apart(engine, alone), *((made(x) - alone(x)).abs().max().item() for made in (first, engine))]
    part = plain.said_of(lambda: deepspeed.initialize(model=module.layers, config=evaluates))
    return {"far": max(far), "part": part}


def mixed(stage: int) -> float:
    """Returns the distance from torch after one rank moves the weights of an engine to those of another, as for a reference model."""
    model, reference, other = (models.seeded(Chain, seed) for seed in (0, 1, 1))
    engine = _made(models.seeded(Chain), stage)
    held = deepspeed.initialize(model=reference, config={k: v for k, v in _config(stage).items() if k != "optimizer"})[0]
    pairs = list(zip(reference.parameters(), engine.module.parameters(), strict=True))
    with deepspeed.zero.GatheredParameters([p for pair in pairs for p in pair], modifier_rank=0):
        for ours, trained in pairs if engine.global_rank == 0 else ():
            ours.data.mul_(0.25).add_(trained.data, alpha=0.75)
    for mine, trained in zip(other.parameters(), model.parameters(), strict=True):
        mine.data.mul_(0.25).add_(trained.data, alpha=0.75)
    return max(plain.apart(held, other), plain.apart(engine, model))


class GatheredTwice(SavedParameter):
    """Gathers the weight for its forward and, by the parameter itself, for its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with deepspeed.zero.GatheredParameters([weight]):
            y = x @ weight.t()
        ctx.save_for_backward(x, weight)
        return y


class Taught(Chain):
    """Multiplies its output by a weight of a teacher that another engine may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [models.seeded(Chain, 1)]  # no module of this one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * super().forward(x)
        return GatheredTwice.apply(y, self.teacher[0].layers[1].weight)  # type: ignore[no-any-return, no-untyped-call]


def taught(stage: int) -> float:
    """Returns the distance from torch of a module trained with the weight of another engine."""

    def made() -> Taught:
        module = Taught()
        if held:
            deepspeed.initialize(model=module.teacher[0], config={k: v for k, v in _config(stage).items() if k != "optimizer"})
        return module

    held = True
    engine = _made(models.seeded(made), stage)
    held = False
    alone = models.seeded(made)
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for step in range(2):
        engine.backward(_mean(engine, engine.module, _sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        for rank in range(engine.world_size):
            (_mean(alone, alone, _sample(step, rank), False) / engine.world_size).backward()
        optimizer.step()
    return plain.apart(engine, alone)


def gradients_left(stage: int) -> list[int]:
    """Returns the gradients left on parameters that the optimizer does not have, after a backward and after zero_grad."""
    module = models.seeded(Chain)
    engine = deepspeed.initialize(model=module, model_parameters=list(module.head.parameters()), config=_config(stage))[0]
    engine.backward(_mean(engine, module, _sample(0, 0), True))
    engine.step()
    left = [sum(p.grad is not None for p in module.parameters())]
    engine.zero_grad()
    return [*left, sum(p.grad is not None for p in module.parameters())]


def casts_left() -> int:
    """Returns the 16-bit copies of weights that autograd keeps under autocast at stage 3."""
    made = {**_config(3), "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    module = models.seeded(lambda: Chain(layers=3))
    engine = deepspeed.initialize(model=module, config=made)[0]
    loss = _mean(engine, module, _sample(0, 0), True)
    kept = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.dtype == torch.bfloat16 and t.shape == (WIDTH, WIDTH)]
    engine.backward(loss)
    engine.step()
    return len(kept)


def aliases(stage: int) -> dict[str, Any]:
    """Returns whether tensors that share memory with parameters keep their values after destroy() and after the engine is gone, and
    whether an engine is freed without destroy()."""
    kept = []
    for destroys in (True, False):
        module = models.seeded(Chain)
        engine = _made(module, stage)
        state, want = module.state_dict(), {name: value.clone() for name, value in module.state_dict().items()}
        if destroys:
            engine.destroy()
            x = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(200)]  # takes the memory that was freed
            del x
        gone = weakref.ref(engine._native)
        del engine, module
        gc.collect()
        x = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(200)]
        kept.append(all(torch.equal(value, want[name]) for name, value in state.items()))
        del x
    return {"kept": kept, "freed": gone() is None}


def several_backwards(backwards: int) -> Any:
    """Calls several backwards per micro-batch with exact sums; returns the distance from torch."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    engine = deepspeed.initialize(model=module, config={**_config(2), "cleave": {"exact_sums": True}})[0]
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for step in range(2):
        for k in range(backwards):
            engine.backward(_mean(engine, module, _sample(step, engine.global_rank) * k, True))
            for rank in range(engine.world_size):
                (_mean(alone, alone, _sample(step, rank) * k, False) / engine.world_size).backward()
        engine.step()
        optimizer.step()
        optimizer.zero_grad()
    return plain.apart(engine, alone)


def too_many_backwards() -> str:
    return plain.said_of(lambda: several_backwards(5))


class Jacobian(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.func.vmap(torch.func.jacrev(lambda v: v.pow(2).sum()))(x))


def functional(stage: int) -> str:
    """Returns the error of a module that calls torch.func."""
    engine = _made(models.seeded(Jacobian), stage)
    return plain.said_of(lambda: engine(_sample(0, 0)))


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of low rank, as LoRA adapters are."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        self.base.requires_grad_(False)
        self.merges = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["base"], name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.merges:
            return F.linear(x, self.weight + self.b.weight @ self.a.weight, self.bias)
        return self.base(x) + self.b(self.a(x))


class OfFunction(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]


class OfList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(WIDTH, WIDTH) / 3), nn.Parameter(torch.randn(0, WIDTH))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.weights[1]]) @ self.weights[0]


class Drawn(nn.Module):
    """A random graph of layers, adapters, wrappers and functions that are used in random ways."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        kinds: list[Callable[[], nn.Module]] = [
            lambda: nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7),
            lambda: nn.LayerNorm(WIDTH),
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
            lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH)),
            Adapted,
            lambda: Wrapper(nn.Linear(WIDTH, WIDTH)),
            lambda: OfFunction(Kept),
            lambda: OfFunction(Saved),
            OfList,
        ]
        self.layers = nn.ModuleList([draw.choice(kinds)() for _ in range(draw.randint(2, 6))])
        for layer in self.layers:
            if isinstance(layer, Adapted):
                layer.merges = draw.random() < 0.5
            elif draw.random() < 0.15:
                layer.requires_grad_(False)
        linear = [layer for layer in self.layers if type(layer) is nn.Linear]
        for layer in linear[1:]:
            if draw.random() < 0.3:
                layer.weight = linear[0].weight
        ways = ["call", "call", "call", "read", "again", "reentrant", "gated", "dummy", "caught", "forces"]
        self.order = [(draw.randrange(len(self.layers)), draw.choice(ways), draw.randrange(WIDTH)) for _ in range(draw.randint(2, 8))]
        self.twice = any(isinstance(layer, OfFunction) for layer in self.layers)  # such functions cannot be differentiated twice
        self.head = nn.Linear(WIDTH, 1)

    def _forces(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            given = x if x.requires_grad else x.detach().requires_grad_(True)
            return torch.autograd.grad(torch.tanh(layer(given)).sum(), given, create_graph=True)[0]

    def _used(self, layer: nn.Module, way: str, gate: int, x: torch.Tensor) -> torch.Tensor:
        if way == "read" and isinstance(layer, nn.Linear | Wrapper | Adapted):
            return F.linear(x, layer.weight, layer.bias)
        if way in ("again", "reentrant"):
            return checkpoint(layer, x, use_reentrant=way == "reentrant")  # type: ignore[no-any-return]
        if way == "gated" and x[0, gate] > 0:
            return x
        if way == "dummy":
            layer(x)
            return x
        if way == "caught":
            with contextlib.suppress(RuntimeError):
                return layer(x[:, :3]) @ x.t()  # type: ignore[no-any-return]
        if way == "forces" and not self.twice:
            return self._forces(layer, x)
        return layer(x)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, way, gate in self.order:
            x = 0.5 * x + torch.tanh(0.3 * self._used(self.layers[number], way, gate, x))
        return self.head(x)


def drawn(first: int, last: int) -> dict[str, float]:
    """Returns, by seed, loss and placement, how far an engine is from torch for random modules."""
    out = {}
    for seed in range(first, last):
        draw = random.Random(-seed)
        module = Drawn(seed)
        once = module.twice or any(way == "reentrant" for _, way, _ in module.order)
        loss_of = draw.choice([_mean, _inside] if once else [_mean, _inside, _twice, _penalty, _kept_graph])
        zero: dict[str, Any] = {"stage": draw.choice([0, 1, 2, 3, 3, 3, 3])}
        if zero["stage"] == 3:
            zero |= {
                "stage3_param_persistence_threshold": draw.choice([0, 0, 10]),
                "stage3_max_live_parameters": draw.choice([800, 1500, 10**9]),
            }
        out[f"seed {seed}, {loss_of.__name__}, {zero}"] = _far(lambda seed=seed: Drawn(seed), loss_of, **zero)
    return out


def view_in_context(stage: int) -> str:
    """Returns the error of the backward of a function that keeps a view of its weight."""
    engine = _made(models.seeded(lambda: Custom(KeptView)), stage)
    loss = _mean(engine, engine.module, _sample(0, 0), True)
    return plain.said_of(lambda: engine.backward(loss))


def backward_of_inputs() -> str:
    """Returns the error of a backward that names the parameters to accumulate into."""
    engine = _made(models.seeded(Chain))
    loss = _mean(engine, engine.module, _sample(0, 0), True)
    return plain.said_of(lambda: loss.backward(inputs=list(engine.module.head.parameters())))
