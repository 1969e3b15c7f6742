"""A typed script that uses the package; mypy checks it, and it does not run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_type

import cleave as deepspeed
import torch


def train(module: torch.nn.Module, batches: Iterable[torch.Tensor]) -> None:
    engine, *_ = deepspeed.initialize(model=module, config={"train_batch_size": 1})
    assert_type(engine, deepspeed.DeepSpeedEngine)
    for batch in batches:
        assert_type(engine.backward(engine(batch)), torch.Tensor)
        for parameter in module.parameters():
            assert_type(deepspeed.utils.safe_get_full_grad(parameter), torch.Tensor | None)
            assert_type(deepspeed.utils.safe_get_local_grad(parameter), torch.Tensor | None)
        engine.step()
    assert_type(engine.get_lr(), list[float])
    with deepspeed.zero.GatheredParameters(list(module.parameters()), modifier_rank=0):
        pass
    assert_type(engine.save_checkpoint("runs", client_state={"epoch": 1}), bool)
    assert_type(engine.load_checkpoint("runs"), tuple[str | None, dict[str, Any] | None])
    assert_type(deepspeed.comm.is_initialized(), bool)


def built() -> torch.nn.Module:
    with deepspeed.zero.Init(config_dict_or_path={"zero_optimization": {"stage": 3}}):
        model = torch.nn.Linear(2, 2)
    optimizer = deepspeed.ops.adam.FusedAdam(model.parameters(), lr=1e-3)
    try:
        deepspeed.initialize(model=model, optimizer=optimizer, config="ds_config.json")
    except deepspeed.UsageError as error:
        assert_type(error.exit_code, int)
    return deepspeed.utils.zero_to_fp32.load_state_dict_from_zero_checkpoint(model, "runs")
