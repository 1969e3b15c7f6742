"""Pipelines in a comparison.

Each rank of the reference holds the layers of all stages. It computes the micro-batches of its data-parallel rank through all of them, with
the random numbers that the ranks of the stages have, and reports its own stage. The ranks of the first stage compute gradients.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ..layers import PipelineModule
from ..pipeline import PipelineEngine
from .follower import Follower
from .observer import Observer, Recorder
from .plain import PlainEngine

TIED = "tied_modules."  # begin of the names of modules that several layers share


def build_every_stage(self: PipelineModule, pieces: list[list[Any]], tied: dict[str, Any]) -> list[list[Callable[[Any], Any]]]:
    """Replaces `PipelineModule._build`: builds all layers, with the random numbers that this rank's layers take in the engine."""
    chunks, own_keys = [], set[str]()
    first: dict[str, int] = {}  # stage that has a shared module first
    for p, layers in enumerate(pieces):
        stage, chunk = p % self.num_stages, list[Any]()
        own = stage == self.stage_id
        with torch.random.fork_rng(devices=[], enabled=not own):
            for index, layer in enumerate(layers, self.parts[p]):
                key = getattr(layer, "key", None)
                is_built = key is not None and tied[key] is not None
                chunk.append(self._built(index, layer, tied))
                if key is not None:
                    first.setdefault(key, stage)
                    if own and is_built and key not in own_keys:  # another stage built it; this rank builds its own in the engine
                        self._seed(index)
                        layer.build()
                    own_keys.update([key] if own else [])
        chunks.append(chunk)
    self.first_stages = first  # type: ignore[assignment]
    return chunks


def _stage_of(module: Any, name: str) -> int:
    """Returns the first stage that has a parameter or a submodule."""
    head, _, rest = name.partition(".")
    if name.startswith(TIED):
        return int(module.first_stages[rest.partition(".")[0]])
    pieces = [p for p, begin in enumerate(module.parts[:-1]) if head.isdigit() and begin <= int(head)]
    return max(pieces, default=0) % int(module.num_stages)


def _as_received(value: Any) -> Any:
    """Returns activations as the next stage receives them."""
    several = tuple(t.clone(memory_format=torch.contiguous_format) for t in (value if isinstance(value, tuple) else (value,)))
    return several if isinstance(value, tuple) else several[0]


class PlainPipeline(PlainEngine, PipelineEngine):
    """The reference engine of a PipelineModule."""

    def __init__(self, config: Any, model: PipelineModule, *others: Any) -> None:
        super().__init__(config, model, *others)
        self.num_stages, self.stage_id, self.batch_fn, self.quiet = model.num_stages, model.stage_id, None, False
        self.grid = self.mpu = model.grid
        self._shows = False

    def _replicas(self, module: Any) -> tuple[int, int]:
        return self.world_size // int(module.num_stages), int(module.grid.data_parallel_id)

    def _root_of(self, name: str) -> int:
        return self.module.topology().get_rank(pipe=_stage_of(self.module, name), data=0)

    def _walk(self, micros: int, data: Any, loss_fn: Any, trains: bool) -> Any:
        self.module.train(trains)
        values = [self._pass(data, loss_fn, trains) for _ in range(micros)]
        last = values if self.is_last_stage() else []
        return SimpleNamespace(losses=[v for v, _ in values], values=[v for v, _ in last], logits=last[-1][1] if last else None)

    def _pass(self, data: Any, loss_fn: Any, trains: bool) -> tuple[Any, Any]:
        """Computes a micro-batch through all stages. Returns the loss, or the output without loss_fn, and the output."""
        read = self.next_batch(data) if self.is_first_stage() or self.is_last_stage() else (None, None)
        every: list[Any] = [None] * self.num_stages
        dist.all_gather_object(every, (torch.get_rng_state(), read), group=self.grid.get_pipe_parallel_group())
        value, labels, own = every[0][1][0], every[-1][1][1], every[self.stage_id][0]
        loss: Any = None
        for stage, (state, _) in enumerate(every):
            self.quiet = stage != self.stage_id
            torch.set_rng_state(state)
            with torch.set_grad_enabled(trains):
                value = PlainEngine.forward(self, _as_received(value) if stage else value, stage)
                if stage == self.num_stages - 1:
                    loss = loss_fn(value, labels) if loss_fn else value
            own = own if self.quiet else torch.get_rng_state()
        torch.set_rng_state(own)
        if not trains:
            return loss, value
        if self.is_first_stage():
            PlainEngine.backward(self, loss)
        return loss.detach(), None

    def train_batch(self, data_iter: Any = None) -> torch.Tensor:
        self._require_training("train_batch")
        losses = self._walk(self.micro_batches, data_iter, self.module.loss_fn, trains=True).losses
        self._update({})
        mean = float(sum(map(float, losses))) / len(losses) / self.world_size
        return torch.tensor(self._job.sum([mean])[0], device=self.device)

    def _update(self, lr_kwargs: Mapping[str, Any]) -> None:
        self.micro_steps += self.micro_batches - 1
        PlainEngine.step(self, lr_kwargs)


class _Trained(Observer):
    """Observes `train_batch`."""

    def _attach(self) -> None:
        engine, loss_fn = self.engine, self.engine.module.loss_fn
        self._of_engine, engine._update = engine._update, self._on_update
        engine.module.register_forward_hook(self._on_forward)
        if loss_fn is not None:
            engine.module.loss_fn = partial(self._on_loss, loss_fn)

    def _counts(self) -> bool:
        return torch.is_grad_enabled() and not self.is_quiet()

    def _on_forward(self, *args: Any) -> None:
        self.micro += self._counts()

    def _on_loss(self, loss_fn: Any, *args: Any) -> Any:
        loss = loss_fn(*args)
        if self._counts():
            self.events.add("loss", self.step, micro=self.micro - 1, value=float(loss.detach()))
        return loss

    def _on_update(self, *args: Any) -> None:
        self._begin_update()
        self._of_engine(*args)
        self._end_update()


class PipelineRecorder(_Trained, Recorder):
    """The subject of a pipeline: its ranks have the parameters of their stages, and the first one records all."""

    def begin(self) -> None:
        self._order = list(dict.fromkeys(name for names in self._of_all(list(super(Recorder, self).names())) for name in names))
        super().begin()

    def _of_all(self, value: Any) -> list[Any]:
        every: list[Any] = [None] * self.engine.world_size
        dist.all_gather_object(every, value)
        return every

    def names(self) -> dict[str, Any]:
        own, shapes = super().names(), self.engine._shapes
        return {name: own[name] if name in own else torch.empty(shapes[name], device="meta") for name in self._order}

    def _all(self, kind: str, names: list[str]) -> Any:
        for name in names:
            yield name, self.engine.parameters_of(name, "gradient" if kind == "gradient" else "master")

    def trained(self) -> list[str]:
        every = {name for names in self._of_all(super().trained()) for name in names}
        return [name for name in self._order if name in every]

    def groups_now(self) -> list[dict[str, Any]]:
        return [group for groups in self._of_all(super().groups_now()) for group in groups]


class PipelineFollower(_Trained, Follower):
    """The reference of a pipeline."""

    def alignments(self) -> dict[str, int]:
        module = self.engine.module
        ranks = [module.topology().get_rank(pipe=stage, data=self.engine._data_rank) for stage in range(module.num_stages)]
        return {name: at for rank in (*reversed(ranks), self.rank) for name, at in self.alignments_of(rank).items()}
