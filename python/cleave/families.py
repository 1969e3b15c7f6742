"""transformers models that the engine computes with its own kernels (`"cleave": {"native": true}`).

A call in training computes forward and backward, because the last layer computes the loss together with its gradient.
`engine.backward(loss)` then only passes the factor of the loss, which must be equal in all micro-batches of a step.
"""

from typing import Any

import torch

from . import native
from .engine import DeepSpeedEngine
from .errors import StepOrderError, UsageError

_USUAL = {"use_cache": False, "return_dict": True}  # arguments of a call that have no effect with these values


class FamilyEngine(DeepSpeedEngine):
    """The engine of a causal language model of transformers."""

    _waits = False  # for the backward of a loss
    _why_fixed = "with cleave.native"
    _recovers = False

    def _why_hidden(self) -> str:
        return "the engine computes the model (cleave.native)"

    def forward(
        self, input_ids: torch.Tensor, attention_mask: Any = None, labels: Any = None, num_items_in_batch: Any = None, **others: Any
    ) -> Any:
        """Computes the loss of a batch, and in training its gradients. Collective.

        Args:
            input_ids: token ids, [samples, tokens].
            attention_mask: 1 for tokens, 0 for padding, which must come last; same shape.
            labels: next-token targets in the transformers convention (-100: ignored); same shape. Required in training.
            num_items_in_batch: divides the sum of the losses by this number instead of the number of labels.

        Returns:
            A CausalLMOutput with `loss`, or with `logits` if nothing is trained and labels are missing.
        """
        from transformers.modeling_outputs import CausalLMOutput

        if unknown := [name for name, value in others.items() if value is not None and value != _USUAL.get(name)]:
            raise UsageError(
                f"cleave.native: unsupported arguments of a call (got {', '.join(unknown)}, expected input_ids, attention_mask and labels)"
            )
        given = [None if t is None else t.detach().to("cpu", torch.int64).contiguous() for t in (input_ids, labels, attention_mask)]
        shapes = [list(t.shape) for t in given if t is not None]
        if any(len(shape) != 2 or shape != shapes[0] for shape in shapes):
            raise UsageError(
                f"cleave.native: input_ids, labels and attention_mask have the wrong shapes (got {shapes}, expected [samples, tokens] each)"
            )
        items = 0.0 if num_items_in_batch is None else float(num_items_in_batch)
        samples = native.Samples(*(None if t is None else t.data_ptr() for t in given), *shapes[0], items)
        if self.training and torch.is_grad_enabled():
            return CausalLMOutput(loss=self._train(samples))
        if labels is not None:
            return CausalLMOutput(loss=torch.tensor(self._native.loss_by("loss", samples), device=self.device))
        logits = torch.empty(*shapes[0], self._native.facts()["vocabulary"])
        self._native.logits(samples, logits.data_ptr())
        return CausalLMOutput(logits=logits.to(self.device))

    def _train(self, samples: native.Samples) -> Any:
        self._require_training("a call in training")
        self._follow_growth()
        if samples.labels is None:
            raise UsageError("cleave.native: labels are missing in training; give them, or call under torch.no_grad() for logits")
        if self._waits:
            raise StepOrderError(
                "cleave.native: the last loss had no engine.backward yet; call it first, or evaluate under torch.no_grad()"
            )
        self._begin_step()
        loss = torch.tensor(self._native.loss_by("train_micro_batch", samples), device=self.device, requires_grad=True)
        loss.register_hook(self._used)
        self._waits = True
        return loss * 1  # a copy that scripts may change in place

    def _used(self, seed: torch.Tensor) -> None:
        if not self._waits:
            raise UsageError("cleave.native: the gradients of this loss were already used; call the engine again")
        self._waits = False
        self._native.use_loss(float(seed) / self._native.scale())
