"""Optimizers without an engine kernel: torch updates a rank's parts of parameters in the engine's memory.

The engine calls the update for one part of one parameter at a time, so the per-element state belongs to the engine: it is sharded,
offloaded, planned and saved like the state of the engine's optimizers. A test on a few numbers decides whether an optimizer allows this.
"""

import collections
import copy
from collections.abc import Callable
from typing import Any

import torch

from . import native
from .errors import CheckpointError, NotBuilt
from .units import Slot

State = dict[str, Any]
Cut = Callable[[list[torch.Tensor]], list[list[torch.Tensor]]]  # the tensors of each call of step


def _halves(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [[half] for t in tensors for half in t.flatten().split(t.numel() // 2)]


class OutsideOptimizer:
    """Updates parts of parameters with a torch optimizer and the current values of its groups."""

    def __init__(self, optimizer: torch.optim.Optimizer, stage: int) -> None:
        """Tests the optimizer.

        Raises:
            NotBuilt: the optimizer cannot update the parts that a rank has at this ZeRO stage.
        """
        self.optimizer, self.name = optimizer, f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        groups = [{**group, "lr": 0.01} for group in optimizer.param_groups]
        self.by_element = all(self._tried(group, stage) for group in groups)
        shape = (3,) if self.by_element else (4, 3)
        states = [self._clock(group, {}, shape) for group in groups]
        self._kinds = [[k for k, v in state.items() if getattr(v, "shape", None) == shape] for state in states]
        self.kinds = list(dict.fromkeys(kind for kinds in self._kinds for kind in kinds))  # per-element state
        # Other state after an update: by group (that of zero gradients), or by parameter.
        self.rest: dict[int | str, State] = {}
        self._group_of = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}

    def _step(self, group: dict[str, Any], values: list[torch.Tensor], gradients: list[torch.Tensor], states: list[State]) -> list[State]:
        """Runs one step and returns the new states."""
        parameters = [torch.nn.Parameter(value) for value in values]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        double: Any = object.__new__(type(self.optimizer))  # without other parameters and schedules
        double.__dict__.update({key: value for key, value in vars(self.optimizer).items() if key != "step"})
        double.param_groups = [{**group, "params": parameters}]
        double.state = collections.defaultdict(dict, {p: state for p, state in zip(parameters, states, strict=True) if state})
        double.step()
        return [double.state[p] for p in parameters]

    def _clock(self, group: dict[str, Any], state: State, shape: tuple[int, ...] = (3,)) -> State:
        return self._step(group, [torch.zeros(shape)], [torch.zeros(shape)], [state])[0]

    def _tried(self, group: dict[str, Any], stage: int) -> bool:
        """Returns True if halves of a parameter are updated like the whole. Otherwise, requires independent parameters and stage 0."""
        together, halves, apart = (self._three_steps(group, cut) for cut in (lambda ts: [ts], _halves, lambda ts: [[t] for t in ts]))
        if isinstance(together, Exception):
            raise NotBuilt(f"{self.name}: its step failed with {type(together).__name__}: {together}")
        by_element, alone = (isinstance(t, torch.Tensor) and torch.allclose(t, together, rtol=1e-5) for t in (halves, apart))
        if not by_element and not alone:
            raise NotBuilt(
                f"{self.name}: not supported, because the update of a parameter depends on other parameters; use another optimizer"
            )
        if not by_element and stage:
            raise NotBuilt(
                f"{self.name}: not supported at ZeRO stage {stage}, because it updates whole parameters, and a rank has parts of them; "
                "use stage 0, or another optimizer"
            )
        return by_element

    def _three_steps(self, group: dict[str, Any], cut: Cut) -> torch.Tensor | Exception:
        draw = torch.Generator().manual_seed(1)
        drawn = [cut([torch.randn(4, 3, generator=draw), torch.randn(2, 5, generator=draw)]) for _ in range(4)]
        states: list[list[State]] = [[{} for _ in call] for call in drawn[0]]
        clock: State = {}
        try:
            for gradients in drawn[1:]:
                for c, call in enumerate(drawn[0]):
                    numbers = {key: copy.deepcopy(value) for key, value in clock.items() if getattr(value, "shape", ()) == ()}
                    states[c] = self._step(group, call, gradients[c], [{**state, **numbers} for state in states[c]])
                clock = self._clock(group, clock) if cut is _halves else {}
        except Exception as error:
            return error
        return torch.cat([value.flatten() for call in drawn[0] for value in call])

    def update(self, part: native.Part, slot: Slot, engine: native.NativeEngine) -> None:
        """Updates a part of a parameter in the engine's memory."""
        group, numel = self._group_of[id(slot.parameter)], part.end - part.begin
        if not self.by_element and numel != slot.shape.numel():
            raise NotBuilt(f"{self.name}: updates whole parameters; leave out cleave.exact_sums, device nvme and offload_optimizer.ratio")

        def tensor(address: int, dtype: int = native.DTYPES["fp32"]) -> torch.Tensor:
            return torch.from_dlpack(engine.dlpack(address, dtype, (numel,) if self.by_element else slot.shape, bool(part.on_host)))

        gradient = tensor(part.gradient, part.gradient_dtype).float().mul_(part.gradient_scale)
        kept = {kind: tensor(address) for kind, address in zip(self.kinds, part.states, strict=False) if kind in self._kinds[group]}
        rest = self.rest.get(group if self.by_element else slot.name)
        before = {**copy.deepcopy(rest), **kept} if rest is not None else {}
        [after] = self._step(self.optimizer.param_groups[group], [tensor(part.value)], [gradient], [before])
        for kind, value in kept.items():
            value.copy_(after[kind])
        if not self.by_element:
            self.rest[slot.name] = {key: value for key, value in after.items() if key not in kept}

    def updated(self) -> None:
        """Advances the state of the groups after all parts of a step."""
        for g, group in enumerate(self.optimizer.param_groups if self.by_element else ()):
            self.rest[g] = self._clock(group, self.rest.get(g, {}))

    def load(self, saved: dict[str, Any] | None, begins_anew: bool) -> None:
        """Loads the state that a checkpoint has in addition to the per-element state.

        Raises:
            CheckpointError: the checkpoint has another optimizer.
        """
        if not begins_anew and (saved is None or saved["name"] != self.name):
            was = saved["name"] if saved else "an optimizer of the engine"
            raise CheckpointError(
                f"checkpoint: wrong optimizer (got {was}, expected {self.name}); use that optimizer, or load_optimizer_states=False"
            )
        self.rest = {} if begins_anew or saved is None else copy.deepcopy(saved["rest"])
