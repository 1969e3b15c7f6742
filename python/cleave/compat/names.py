"""Table of DeepSpeed names: module, name, and the object here. "!" marks an unsupported name; the text says what to use instead."""


def _of(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_ZERO = _of("zero", "Init GatheredParameters register_external_parameter unregister_external_parameter")
_PIPE = _of("layers", "PipelineModule LayerSpec TiedLayerSpec ProcessTopology")
_ACCELERATOR = _of("compat.accelerator", "get_accelerator")

MODULES: dict[str, dict[str, str]] = {
    "": {
        **(_of("api", "initialize init_distributed add_config_arguments") | _of("planning", "plan") | _of("engine", "DeepSpeedEngine")),
        **(_of("pipeline", "PipelineEngine") | _of("layers", "PipelineModule")),
        **_of("errors", "CleaveError UsageError OutOfMemory CheckpointError TrainingError RankLost NotBuilt StepOrderError"),
        "init_inference": "!inference engines are not supported; use cleave generate, or initialize() without an optimizer",
        "tp_model_init": "!tensor parallelism of PyTorch modules is not supported; use cleave train with one of its models",
        "Accelerator": "!Accelerator is not supported; use accelerate.Accelerator(deepspeed_plugin=...), or initialize()",
        "OnDevice": "!OnDevice is not supported; use torch.device(...) as a context",
        "DeepSpeedTransformerLayer": "!DeepSpeedTransformerLayer is not supported; use torch.nn.TransformerEncoderLayer",
        "moe": "!expert parallelism is not supported; a mixture of experts trains as any other module, with whole experts",
    },
    **{key: {} for key in ("launcher", "checkpoint", "runtime", "runtime.activation_checkpointing")},
    "launcher.runner": _of("programs", "DEEPSPEED_ENVIRONMENT_NAME"),
    "checkpoint.utils": _of("utils.states", "clone_tensors_for_torch_save"),
    "accelerator": _ACCELERATOR,
    "pipe": _PIPE,
    "runtime.activation_checkpointing.checkpointing": _of("checkpointing", "checkpoint configure is_configured reset"),
    "runtime.base_optimizer": dict.fromkeys(("DeepSpeedOptimizer", "ZeROOptimizer"), "optimizers:EngineOptimizer"),
    "runtime.dataloader": _of("utils.loading", "DeepSpeedDataLoader RepeatingLoader"),
    "runtime.engine": _of("engine", "DeepSpeedEngine"),
    "runtime.lr_schedules": _of("schedules", "VALID_LR_SCHEDULES LRRangeTest OneCycle WarmupLR WarmupDecayLR WarmupCosineLR"),
    "runtime.pipe": _PIPE,
    "runtime.pipe.engine": _of("pipeline", "PipelineEngine"),
    "runtime.pipe.module": {**_PIPE, "PipelineError": "errors:StepOrderError"},
    "runtime.pipe.topology": _of("layers", "ProcessTopology PipeDataParallelTopology PipeModelDataParallelTopology PipelineParallelGrid"),
    "runtime.utils": _of("utils.loading", "move_to_device see_memory_usage"),
    "runtime.zero": _ZERO,
    "runtime.zero.partition_parameters": {
        **(_ZERO | _ACCELERATOR | _of("units", "ZeroParamStatus")),
        **_of("sharded", "_orig_torch_arange zero_wrapper_for_fp_tensor_constructor"),
    },
    "runtime.zero.stage3": {"DeepSpeedZeroOptimizer_Stage3": "optimizers:EngineOptimizer"},
    "runtime.zero.stage_1_and_2": {"DeepSpeedZeroOptimizer": "optimizers:EngineOptimizer"},
    "utils": {
        **_of("utils.states", "safe_get_full_fp32_param safe_get_full_optimizer_state safe_get_full_grad safe_set_full_fp32_param"),
        **_of("utils.states", "safe_set_full_optimizer_state safe_set_full_grad safe_update_full_grad_vectorized"),
        **_of("utils.states", "safe_get_local_fp32_param safe_get_local_optimizer_state safe_get_local_grad"),
        **_of("utils.states", "safe_set_local_fp32_param safe_set_local_optimizer_state safe_set_local_grad"),
        **_of("utils.leaves", "get_z3_leaf_modules set_z3_leaf_module set_z3_leaf_modules unset_z3_leaf_modules"),
        **_of("utils.leaves", "z3_leaf_module z3_leaf_parameter"),
        **(_of("utils.logging", "logger log_dist") | _of("utils.loading", "RepeatingLoader")),
    },
}

# Submodules of a package that are files, or rows of the table.
SUBMODULES = {
    "": ["accelerator", "checkpointing", "comm", "ops", "pipe", "runtime", "utils", "zero"],
    "utils": ["groups", "leaves", "loading", "logging", "states", "zero_to_fp32"],
}
