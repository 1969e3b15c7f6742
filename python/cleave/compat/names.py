"""Table of DeepSpeed names: module, name, and the object here. "!" marks an unsupported name; the text says what to use instead."""


def _of(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_ZERO = _of("zero", "Init GatheredParameters register_external_parameter unregister_external_parameter TiledLinear TiledLinearReturnBias")
_PIPE = _of("layers", "PipelineModule LayerSpec TiedLayerSpec ProcessTopology")
_ACCELERATOR = _of("compat.accelerator", "get_accelerator")


def _not(why: str, names: str) -> dict[str, str]:
    return {name: f"!{name} is not supported; {why}" for name in names.split()}


_MOE = "a mixture of experts trains as any other module, with whole experts"
_ULYSSES = "use cleave train with sequence_parallel_size"
_KERNELS = "the kernels of the engine are compiled with it"
_INFERENCE = "use cleave generate"
_COMPRESSION = "DeepSpeed 0.19.8 removed it also; use torch.ao.pruning or torch.nn.utils.prune"
_LTD = "leave random layer dropping out"
_EFFICIENCY = "prepare the samples with cleave data, or sort the Dataset"
_COMPILE = "use engine.compile()"
_FILES = "engine.save_checkpoint writes files in parallel"
_SPARSE = "use torch.nn.attention.flex_attention"
_LAYER = "use torch.nn.TransformerEncoderLayer"

MODULES: dict[str, dict[str, str]] = {
    "": {
        **(
            _of("api", "initialize init_distributed add_config_arguments tp_model_init")
            | _of("planning", "plan")
            | _of("engine", "DeepSpeedEngine")
        ),
        **(_of("pipeline", "PipelineEngine") | _of("layers", "PipelineModule")),
        **_of("errors", "CleaveError UsageError OutOfMemory CheckpointError TrainingError RankLost NotBuilt StepOrderError"),
        **(_ACCELERATOR | _of("utils.logging", "logger log_dist") | _of("compat.config", "DeepSpeedConfig")),
        **_of("zero", "OnDevice"),
        "DeepSpeedConfigError": "errors:UsageError",
        "init_inference": "!inference engines are not supported; use cleave generate, or initialize() without an optimizer",
        "Accelerator": "!Accelerator is not supported; use accelerate.Accelerator(deepspeed_plugin=...), or initialize()",
        **_not(_LAYER, "DeepSpeedTransformerLayer DeepSpeedTransformerConfig replace_transformer_layer revert_transformer_layer"),
        **_not(_INFERENCE, "InferenceEngine DeepSpeedInferenceConfig"),
        "DeepSpeedHybridEngine": "!DeepSpeedHybridEngine is not supported; generate with engine.module in eval mode",
        "ADAM_OPTIMIZER": "compat.helpers:ADAM_OPTIMIZER",
        "LAMB_OPTIMIZER": "compat.helpers:LAMB_OPTIMIZER",
    },
    "moe": {},
    "moe.layer": _not(_MOE, "MoE"),
    "moe.experts": _not(_MOE, "Experts"),
    "moe.sharded_moe": _not(_MOE, "MOELayer TopKGate top1gating top2gating topkgating"),
    "moe.utils": {
        **_of("compat.helpers", "split_params_into_different_moe_groups_for_optimizer has_moe_layers is_moe_param"),
        **_not(_MOE, "split_params_into_shared_and_expert_params split_params_grads_into_shared_and_expert_params"),
    },
    "comm": _not("call the functions of cleave.comm", "TorchBackend"),
    "compression": {},
    "compression.helper": {
        **_of("compat.helpers", "recursive_getattr recursive_setattr"),
        **_not(_COMPRESSION, "convert_conv1d_to_linear module_replacement"),
    },
    "compression.compress": _not(_COMPRESSION, "init_compression redundancy_clean"),
    "constants": _of("compat.helpers", "TORCH_DISTRIBUTED_DEFAULT_PORT LOCAL_RANK CROSS_RANK CROSS_SIZE"),
    "compile": {},
    "compile.passes": {},
    "compile.passes.offload_adam_states": _not(_COMPILE, "move_opt_states move_opt_states_sync offload_adam_states_for_init"),
    "compile.passes.prefetch": _not(_COMPILE, "schedule_prefetch"),
    "compile.passes.selective_gather": _not(_COMPILE, "selective_gather"),
    "compile.passes.sp_compile": _not(_ULYSSES, "prepare_autosp_inputs"),
    "compile.passes.zero3_compile": _not(_COMPILE, "add_z3_gather_release"),
    "inference": _not(_INFERENCE, "RaggedInferenceEngineConfig DeepSpeedTPConfig InferenceEngineV2 build_hf_engine"),
    "inference.v2": {},
    "inference.v2.ragged": _not(_INFERENCE, "DSStateManagerConfig"),
    "io": _not(_FILES, "FastFileWriter FastFileWriterConfig MockFileWriter PyFileWriter"),
    "model_implementations": _not(_INFERENCE, "DeepSpeedTransformerInference"),
    "module_inject": _not(_LAYER, "replace_transformer_layer revert_transformer_layer replace_policy"),
    "module_inject.layers": {
        **_of("compat.helpers", "GatherReplacedLayerParams"),
        **_not("set tensor_parallel in the ds_config, which splits the layers of a module", "LinearLayer LinearAllreduce"),
    },
    "module_inject.replace_policy": _not(_INFERENCE, "HFGPT2LayerPolicy HFBertLayerPolicy DSPolicy"),
    "monitor": {},
    "monitor.monitor": _of("reports", "MonitorMaster"),
    "nebula": {},
    "ops.op_builder": _not(
        _KERNELS, "AsyncIOBuilder GDSBuilder CPUAdamBuilder CPULionBuilder CPUAdagradBuilder FusedAdamBuilder FusedLambBuilder UtilsBuilder"
    ),
    "ops.lamb": _not('set {"optimizer": {"type": "Lamb"}} in the ds_config', "FusedLamb"),
    "ops.sparse_attention": {
        **_not(_SPARSE, "BSLongformerSparsityConfig BertSparseSelfAttention BigBirdSparsityConfig DenseSparsityConfig"),
        **_not(_SPARSE, "FixedSparsityConfig SparseAttentionUtils SparseSelfAttention VariableSparsityConfig SparsityConfig"),
    },
    "ops.transformer": _not(_LAYER, "DeepSpeedTransformerLayer DeepSpeedTransformerConfig"),
    "profiling": {},
    "profiling.flops_profiler": _not("use torch.utils.flop_counter.FlopCounterMode", "get_model_profile FlopsProfiler"),
    "runtime.bf16_optimizer": {"BF16_Optimizer": "optimizers:EngineOptimizer"},
    "runtime.config": {
        **_of("compat.config", "DeepSpeedConfig"),
        **_of("compat.helpers", "ADAGRAD_OPTIMIZER ADAM_OPTIMIZER ADAMW_OPTIMIZER LAMB_OPTIMIZER LION_OPTIMIZER MUADAM_OPTIMIZER"),
        **_of("compat.helpers", "MUADAMW_OPTIMIZER MUSGD_OPTIMIZER MUON_OPTIMIZER ONEBIT_ADAM_OPTIMIZER ZERO_ONE_ADAM_OPTIMIZER"),
        **_of("compat.helpers", "ONEBIT_LAMB_OPTIMIZER DEEPSPEED_OPTIMIZERS"),
    },
    "runtime.data_pipeline": {},
    "runtime.data_pipeline.data_routing": {},
    "runtime.data_pipeline.data_routing.helper": _not(_LTD, "convert_to_random_ltd save_without_random_ltd remove_random_ltd_state_dict"),
    "runtime.data_pipeline.data_sampling": {},
    "runtime.data_pipeline.data_sampling.data_analyzer": _not(_EFFICIENCY, "DataAnalyzer DistributedDataAnalyzer"),
    "runtime.data_pipeline.data_sampling.data_sampler": _not(_EFFICIENCY, "DeepSpeedDataSampler"),
    "runtime.data_pipeline.data_sampling.indexed_dataset": _not(_EFFICIENCY, "MMapIndexedDataset MMapIndexedDatasetBuilder"),
    "runtime.data_pipeline.data_sampling.variable_batch_size_and_lr": _not(
        _EFFICIENCY, "get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed"
    ),
    "runtime.domino": {},
    "runtime.domino.transformer": _not("use cleave train with tensor parallelism, which overlaps its sums", "DominoTransformer"),
    "runtime.fp16": {},
    "runtime.fp16.fused_optimizer": {"FP16_Optimizer": "optimizers:EngineOptimizer"},
    "runtime.fp16.unfused_optimizer": {"FP16_UnfusedOptimizer": "optimizers:EngineOptimizer"},
    "runtime.hybrid_engine": _not("generate with engine.module in eval mode", "DeepSpeedHybridEngine"),
    "runtime.sequence_parallel": {},
    "runtime.sequence_parallel.ulysses_sp": _not(
        _ULYSSES,
        "UlyssesSPAttentionHF UlyssesSPDataLoaderAdapter SequenceTiledCompute TiledMLP TiledFusedLogitsLoss sequence_tiled_compute",
    ),
    "sequence": {},
    "sequence.layer": _not(_ULYSSES, "DistributedAttention"),
    **{key: {} for key in ("launcher", "checkpoint", "runtime", "runtime.activation_checkpointing")},
    "launcher.runner": _of("programs", "DEEPSPEED_ENVIRONMENT_NAME"),
    "checkpoint.utils": _of("utils.states", "clone_tensors_for_torch_save"),
    "accelerator": _ACCELERATOR,
    "pipe": _PIPE,
    "runtime.activation_checkpointing.checkpointing": _of(
        "checkpointing", "checkpoint configure get_cuda_rng_tracker is_configured non_reentrant_checkpoint reset"
    ),
    "runtime.base_optimizer": dict.fromkeys(("DeepSpeedOptimizer", "ZeROOptimizer"), "optimizers:EngineOptimizer"),
    "runtime.dataloader": _of("utils.loading", "DeepSpeedDataLoader RepeatingLoader"),
    "runtime.engine": _of("engine", "DeepSpeedEngine"),
    "runtime.lr_schedules": _of("schedules", "VALID_LR_SCHEDULES LRRangeTest OneCycle WarmupLR WarmupDecayLR WarmupCosineLR"),
    "runtime.pipe": _PIPE,
    "runtime.pipe.engine": _of("pipeline", "PipelineEngine"),
    "runtime.pipe.module": {**_PIPE, "PipelineError": "errors:StepOrderError"},
    "runtime.pipe.topology": _of("layers", "ProcessTopology PipeDataParallelTopology PipeModelDataParallelTopology PipelineParallelGrid"),
    "runtime.utils": {
        **_of("utils.loading", "move_to_device see_memory_usage"),
        **_of("compat.helpers", "set_random_seed is_model_parallel_parameter"),
    },
    "runtime.zero": _ZERO,
    "runtime.zero.partition_parameters": {
        **(_ZERO | _ACCELERATOR | _of("units", "ZeroParamStatus")),
        **_of("sharded", "_orig_torch_arange zero_wrapper_for_fp_tensor_constructor"),
    },
    "runtime.zero.config": _of("compat.helpers", "OffloadDeviceEnum OffloadStateTypeEnum"),
    "runtime.zero.offload_config": _of("compat.helpers", "OffloadDeviceEnum OffloadStateTypeEnum"),
    "runtime.zero.tiling": _of("tiling", "TiledLinear TiledLinearReturnBias"),
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
        **(_of("zero", "OnDevice") | _of("comm", "is_initialized")),
    },
}

MODULES["utils.groups"] = _not(_ULYSSES, "_get_sequence_parallel_group get_sequence_parallel_group")
MODULES["utils.zero_to_fp32"] = _not(
    "it reads files of DeepSpeed; get_fp32_state_dict_from_zero_checkpoint reads checkpoints of both",
    "get_model_state_file get_optim_files",
)

# Submodules of a package that are files, or rows of the table.
SUBMODULES = {
    "": ["accelerator", "checkpointing", "comm", "ops", "pipe", "runtime", "utils", "zero"],
    "utils": ["groups", "leaves", "loading", "logging", "states", "zero_to_fp32"],
}
