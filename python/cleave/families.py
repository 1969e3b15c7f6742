"""Models of transformers that the engine computes in its own kernels ("cleave": {"native": true}).

A call in training is the forward and the backward, because the last layer makes the loss together with its gradient. So
engine.backward(loss) computes nothing: it says that the loss was used as it is.
"""

from typing import Any

import torch

from .engine import DeepSpeedEngine
from .errors import StepOrderError, UsageError

_USUAL = {"use_cache": False, "return_dict": True}  # of a call, beside what the engine reads


class FamilyEngine(DeepSpeedEngine):
    """A causal language model of transformers and its engine."""

    _waits = False  # a loss for its backward

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, labels: Any = None, **others: Any) -> Any:
        """With labels the loss; without, where nothing is trained, the logits. Collective."""
        from transformers.modeling_outputs import CausalLMOutput

        if unknown := [name for name, value in others.items() if value is not None and value != _USUAL.get(name)]:
            raise UsageError(f"cleave.native: {', '.join(unknown)} of a call is not built; wanted input_ids, attention_mask and labels")
        given = [None if t is None else t.detach().to("cpu", torch.int64).contiguous() for t in (input_ids, labels, attention_mask)]
        shapes = [list(t.shape) for t in given if t is not None]
        if any(len(shape) != 2 or shape != shapes[0] for shape in shapes):
            raise UsageError(f"cleave.native: input_ids, labels and attention_mask are {shapes}; wanted [samples, tokens] each")
        samples = (*(None if t is None else t.data_ptr() for t in given), *shapes[0])
        if self.training and torch.is_grad_enabled():
            return CausalLMOutput(loss=self._train(samples))
        if labels is not None:
            return CausalLMOutput(loss=torch.tensor(self._native.loss("loss", samples), device=self.device))
        logits = torch.empty(*shapes[0], self._native.facts()["vocabulary"])
        self._native.logits(samples, logits.data_ptr())
        return CausalLMOutput(logits=logits.to(self.device))

    def _train(self, samples: tuple[Any, ...]) -> Any:
        self._require_training("a call in training")
        if samples[1] is None:
            raise UsageError("cleave.native: a call in training without labels; give them, or call under torch.no_grad() for logits")
        if self._waits:
            raise StepOrderError("a call in training before engine.backward of the loss before; evaluate under torch.no_grad()")
        self._begin_step()
        loss = torch.tensor(self._native.loss("train_micro_batch", samples), device=self.device, requires_grad=True)
        loss.register_hook(self._used)
        self._waits = True
        return loss

    def _used(self, seed: torch.Tensor) -> None:
        times = float(seed) / self._native.scale()
        if not self._waits or abs(times - 1) > 1e-4:
            what = f"is used {times:.4g} times" if self._waits else "is used again"
            raise UsageError(f"cleave.native: gradients are of the loss as it was returned, which {what}; give engine.backward that alone")
        self._waits = False
