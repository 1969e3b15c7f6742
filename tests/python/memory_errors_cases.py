"""Cases of memory_errors_test.py."""

import cleave
import torch


class Full(torch.nn.Module):
    """A layer that finds no memory in one of two passes."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.inner = where, torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "forward":
            self.fail()
        output = self.inner(x)
        output.register_hook(self.fail)
        return output.square().mean()

    def fail(self, *_: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory in a layer")


CONFIG = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}


def starts() -> None:
    """Makes an engine."""
    cleave.initialize(model=torch.nn.Linear(8, 8), config=CONFIG)
    print("started")


def fails() -> list[str]:
    """Returns the errors of a forward and of a backward."""
    said = []
    for where in ("forward", "backward"):
        engine = cleave.initialize(model=Full(where), config=CONFIG)[0]
        try:
            engine.backward(engine(torch.ones(2, 64)))
        except torch.OutOfMemoryError as error:
            said.append(str(error))
        engine.destroy()
    return said
