"""The reference: starts each step from the recorded weights, and compares gradients and updates with the recorded ones."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from .events import events_of
from .observer import Observer
from .optimizers import Update
from .records import TensorReader

_EPS = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}
_LEAST = {"fp32": 2.0**-126, "fp16": 2.0**-24, "bf16": 2.0**-126}  # smallest numbers; those of fp32 and bf16 without leading zeros


def compared(got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> dict[str, Any]:
    """Compares by element. `beyond` is the largest difference divided by the allowed one."""
    got, want, allowed = got.double().flatten(), want.flatten(), allowed.flatten()
    apart = (got - want).abs()
    share = torch.where(apart == 0, 0.0, apart / allowed.clamp_min(5e-324)).nan_to_num(math.inf, math.inf)
    at = int(share.argmax())
    size = float(want.square().sum())
    return {
        "beyond": float(share[at]),
        "at": at,
        "values": [float(got[at]), float(want[at])],
        "difference": float(apart.norm()),
        "allowed": float(allowed.norm()),
        "got": float(got.norm()),
        "want": math.sqrt(size),
        "factor": float(got @ want) / size if size else None,
        "far": float((got - want * (float(got @ want) / size if size else 0)).norm()),
    }


class Follower(Observer):
    """The reference run."""

    def __init__(self, engine: Any, folder: pathlib.Path, end: Callable[[], None] | None, steps: int, subject: pathlib.Path) -> None:
        """subject: folder with the records to follow."""
        super().__init__(engine, folder, end, steps)
        self.subject = subject
        self._results = {event["step"]: event for event in events_of(self.subject, 0, "step")}
        self._start = events_of(self.subject, 0, "start")[0]
        self._updates: dict[str, Update] = {}
        self.rule = engine.optimizer  # its class has the rule of the update
        self.scale = 1.0
        model, sums, messages = self._start["types"]
        self._types = {sums or model, messages or sums or model}
        if isinstance(getattr(engine, "_autocast", None), torch.autocast):
            engine._autocast = torch.autocast(engine.device.type, engine._autocast.fast_dtype, cache_enabled=self._start["cache"])

    def align(self) -> None:
        """Moves parameters on the host to addresses that are aligned as those of the engine: products of libraries depend on it."""
        found = self.alignments()
        for name, p in self.names().items():
            if name in found and p.device.type == "cpu":
                size = p.numel() * p.element_size()
                memory = torch.empty(size + 64, dtype=torch.uint8)
                at = (found[name] - memory.data_ptr()) % 64
                p.data = memory[at : at + size].view(p.dtype).view(p.shape).copy_(p.data)

    def alignments(self) -> dict[str, int]:
        """Returns addresses of parameters in the engine, modulo 64."""
        return self.alignments_of(self.rank)

    def alignments_of(self, rank: int) -> dict[str, int]:
        found = events_of(self.subject, rank, "alignment")
        return dict(found[0]["of"]) if found else {}

    def begin(self) -> None:
        self.align()
        weights = self.recorded("weight", 0)
        for name in self.names():
            held = self.held(name)
            if name in weights and not torch.equal(held, weights[name].to(held.dtype)) and self.rank == 0:
                self.events.add("initial", 0, name=name)
        self.force(0)

    def force(self, step: int) -> None:
        """Sets the weights and the loss scale of a step."""
        weights = self.recorded("weight", step)
        for name in self.names():
            if name in weights:
                self.set(name, weights[name])
        if step in self._results:
            self.follow_scale(self._results[step]["scale"])

    def follow_scale(self, scale: float) -> None:
        """Sets the loss scale of the next step."""
        self.scale = scale
        self.engine.scale_now = self.engine.optimizer.loss_scale = self.engine.optimizer.cur_scale = scale

    def set(self, name: str, value: torch.Tensor) -> None:
        """Overwrites a parameter. Collective."""
        self.engine.set_parameter(name, value)

    def held(self, name: str) -> torch.Tensor:
        """Returns the current value of a parameter. Collective."""
        return self.names()[name].detach().to("cpu")

    def held_before_update(self, name: str) -> torch.Tensor:
        """Returns the value of a parameter on the first rank."""
        return self.held(name)

    def sums(self, name: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Returns sum, sum of magnitudes and number of summands of a gradient. Collective."""
        return self.engine.gradient_sums(name)  # type: ignore[no-any-return]

    def expect(self, name: str, value: torch.Tensor, want: torch.Tensor, error: torch.Tensor) -> None:
        """Called with the value of a parameter, and its value after the update in double with the rounding error."""

    def before(self) -> None:
        if self.step not in self._results:  # the subject ended earlier
            self.end()
            return
        result = self._results[self.step]
        recorded = self.recorded("gradient", self.step)
        finite, fits, squares = True, True, 0.0
        for name in self.trained():
            total, sizes, count = self.sums(name)
            finite = finite and bool(total.isfinite().all())
            fits = fits and self.fits(sizes)
            if self.rank != 0:
                continue
            if name not in recorded:
                self.events.add("untrained", self.step, name=name)
                continue
            got = recorded[name].double()
            squares += float(got.square().sum())
            if result["skipped"]:
                continue
            self.events.add("gradient", self.step, name=name, count=count, **compared(got, total, self.allowed(sizes, count)))
        if self.rank == 0:
            norm = math.sqrt(squares)
            self.events.add("skipped", self.step, got=result["skipped"], want=not finite or (result["skipped"] and not fits))
            if not result["skipped"]:
                self.events.add("norm", self.step, got=result["norm"], want=norm, allowed=4 * _EPS["fp32"] * norm)
                self._update(recorded, norm)
        self.engine.outcome = result["norm"], result["skipped"]

    def recorded(self, kind: str, step: int) -> TensorReader:
        """Returns tensors of the subject."""
        return TensorReader(self.subject, kind, step)

    def is_updated(self) -> bool:
        """Returns True if the subject updated in this step."""
        return self.step in self._results and not self._results[self.step]["skipped"]

    def eps(self) -> float:
        """Returns the distance from 1 to the next number of the type in which gradients are added."""
        return max(_EPS[kind] for kind in self._types)

    def fits(self, sizes: torch.Tensor) -> bool:
        """Returns False if a sum in the engine's type can overflow although its summands do not."""
        most = float(sizes.max()) * self.scale * self.engine.dp_world_size
        return "fp16" not in self._types or most < torch.finfo(torch.float16).max

    def allowed(self, sizes: torch.Tensor, count: int) -> torch.Tensor:
        """Returns the allowed difference of each element of a gradient."""
        least = max(_LEAST[kind] for kind in self._types)
        allowed: torch.Tensor = (count + 2) * (self.eps() / 2 * sizes + least / self.scale)
        return allowed.add_(count * 2.0**-40 if self._start["exact_sums"] else 0.0)

    def _update(self, recorded: TensorReader, norm: float) -> None:
        """Compares the weights after the update with an update in double precision from the recorded gradients."""
        clipping = float(self.engine.gradient_clipping() or 0.0)
        factor = 1 / max(1.0, (norm + 1e-6) / clipping) if clipping > 0 else 1.0
        before, after = (self.recorded("weight", self.step + n) for n in (0, 1))
        trained, group_of = set(self.trained()), {name: group for group, names in self.groups() for name in names}
        for name in self.names():
            if name not in after:
                continue
            held = self.held_before_update(name)
            value = (before[name] if torch.equal(before[name].to(held.dtype), held) else held).double()  # a script may have changed it
            got, more = after[name].double(), dict[str, Any]()
            if name in trained and name in recorded:
                group, gradient = group_of[name], recorded[name].double() * factor
                update = self._updates.setdefault(name, Update())
                restore_to = update.before()
                want, error = update(self.rule, group, value, gradient)
                self.expect(name, value, want, error)
                found = compared(got - value, want - value, error)
                if found["beyond"] > 1:
                    more = {"like": self._like(update, restore_to, got, value, gradient, factor, group, error)}
            else:
                found = compared(got - value, torch.zeros_like(value), torch.zeros_like(value))
                more = {"frozen": True}
            if found["beyond"] > 0 or name in trained:
                self.events.add("update", self.step, name=name, **found, **more)

    def _like(self, update: Update, restore: Any, got: Any, value: Any, gradient: Any, factor: float, group: Any, error: Any) -> str:
        """Returns the mistake that gives the engine's weights, or an empty string."""
        now = update.before()
        decay = group.get("weight_decay", 0)
        tries: list[tuple[str, Any, Any]] = [("the gradient is not clipped", gradient / factor, group)] if factor != 1 else []
        if decay:
            tries.append(("weight decay is left out", gradient, {**group, "weight_decay": 0.0}))
        tries.append(("the gradient has the wrong sign", -gradient, group))
        tries.append(("the parameter is not updated", None, group))
        if group.get("betas"):
            tries.append(("the betas are swapped", gradient, {**group, "betas": tuple(reversed(group["betas"]))}))
        for other in self.engine.optimizer.param_groups:
            for key in ("lr", "weight_decay"):
                if other is not group and other.get(key) != group.get(key):
                    tries.append((f"{key} is that of another group", gradient, {**group, key: other[key]}))
        tries += [(f"the gradient is {times:g} times as large", gradient * times, group) for times in (2.0, 0.5)]
        found = ""
        for text, tried, values in tries:
            restore()
            want = value if tried is None else update.tried(self.rule, values, value, tried)
            if bool(((got - want).abs() <= error).all()):
                found = text
                break
        now()
        return found

    def after(self) -> None:
        self.force(self.step + 1)
        self.events.flush()
