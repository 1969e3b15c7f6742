"""The table: by module, by name, where it is here. A row that begins with "!" is not built, and says what to use."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import NotBuilt

_STATES = {
    name: f"utils.states:{name}"
    for name in (
        "safe_get_full_fp32_param",
        "safe_get_full_optimizer_state",
        "safe_get_full_grad",
        "safe_set_full_fp32_param",
        "safe_set_full_optimizer_state",
    )
}
_LEAVES = {
    name: f"utils.leaves:{name}"
    for name in (
        "get_z3_leaf_modules",
        "set_z3_leaf_module",
        "set_z3_leaf_modules",
        "unset_z3_leaf_modules",
        "z3_leaf_module",
        "z3_leaf_parameter",
    )
}
_ZERO = {"Init": "zero:Init", "GatheredParameters": "zero:GatheredParameters"}
_EXTERNAL = {
    "register_external_parameter": "zero:register_external_parameter",
    "unregister_external_parameter": "zero:unregister_external_parameter",
}
_PIPE = "!pipelines of torch modules are not built; cleave train has them for the models that it knows (pipeline.stages)"

MODULES: dict[str, dict[str, str]] = {
    "launcher": {},
    "launcher.runner": {"DEEPSPEED_ENVIRONMENT_NAME": "compat.values:DEEPSPEED_ENVIRONMENT_NAME"},
    "checkpoint": {},
    "checkpoint.utils": {"clone_tensors_for_torch_save": "utils.states:clone_tensors_for_torch_save"},
    "accelerator": {"get_accelerator": "compat.accelerator:get_accelerator"},
    "pipe": {"PipelineModule": _PIPE, "LayerSpec": _PIPE, "TiedLayerSpec": _PIPE},
    "runtime": {},
    "runtime.activation_checkpointing": {},
    "runtime.activation_checkpointing.checkpointing": {
        name: f"checkpointing:{name}" for name in ("checkpoint", "configure", "is_configured", "reset")
    },
    "runtime.base_optimizer": {"DeepSpeedOptimizer": "optimizers:EngineOptimizer", "ZeROOptimizer": "optimizers:EngineOptimizer"},
    "runtime.dataloader": {name: f"utils.loading:{name}" for name in ("DeepSpeedDataLoader", "RepeatingLoader")},
    "runtime.engine": {"DeepSpeedEngine": "engine:DeepSpeedEngine"},
    "runtime.lr_schedules": {
        "VALID_LR_SCHEDULES": "schedules:VALID_LR_SCHEDULES",
        **{name: f"schedules:{name}" for name in ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")},
    },
    "runtime.utils": {"move_to_device": "utils.loading:move_to_device", "see_memory_usage": "utils.loading:see_memory_usage"},
    "runtime.zero": {**_ZERO, **_EXTERNAL},
    "runtime.zero.partition_parameters": {
        **_ZERO,
        **_EXTERNAL,
        "ZeroParamStatus": "units:ZeroParamStatus",
        **{name: f"compat.values:{name}" for name in ("_orig_torch_arange", "zero_wrapper_for_fp_tensor_constructor")},
        "get_accelerator": "compat.accelerator:get_accelerator",
    },
    "runtime.zero.stage3": {"DeepSpeedZeroOptimizer_Stage3": "optimizers:EngineOptimizer"},
    "runtime.zero.stage_1_and_2": {"DeepSpeedZeroOptimizer": "optimizers:EngineOptimizer"},
    "utils": {
        **_STATES,
        **_LEAVES,
        "logger": "utils.logging:logger",
        "log_dist": "utils.logging:log_dist",
        "RepeatingLoader": "utils.loading:RepeatingLoader",
    },
}

# At the top of the package: what is not built.
NOT_BUILT = {
    "PipelineModule": _PIPE,
    "PipelineEngine": _PIPE,
    "init_inference": "!inference engines are not built; cleave generate, or initialize() without an optimizer, has their place",
    "tp_model_init": "!tensor parallelism of torch modules is not built; cleave train has it for the models that it knows",
    "OnDevice": "!OnDevice is not built; use torch.device(...) as a context",
    "DeepSpeedTransformerLayer": "!DeepSpeedTransformerLayer is not built; use torch.nn.TransformerEncoderLayer",
    "moe": "!experts over ranks are not built; a mixture of experts trains as any other module, each expert whole",
}


def found(row: str, name: str) -> Any:
    """What a row names. NotBuilt where it is not."""
    if row.startswith("!"):
        raise NotBuilt(f"{name}: {row[1:]}")
    module, _, attribute = row.partition(":")
    return getattr(importlib.import_module(f"cleave.{module}"), attribute)
