"""How each honoured key of a ds_config is tested. honoured_test.py runs the rows, and the page of keys in the documentation shows them."""
import json

FP16 = {"fp16": {"enabled": True, "initial_scale_power": 40}}  # the first steps overflow
BF16_OVERFLOW = {"bf16": {"enabled": True}, "gradient_predivide_factor": 1e-39}
NVME = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "$DIR"}}}
HOST = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}
TENSOR = {"tensor_parallel": {"autotp_size": 2}}
PIPE = {"pipeline": {"stages": 2}}
GATHERED = {"stage": 3, "stage3_param_persistence_threshold": 0}  # every unit
PARAM = {"zero_optimization": {**GATHERED, "offload_param": {"device": "nvme", "nvme_path": "$DIR", "max_in_cpu": 0}}}
LORA = {"cleave": {"lora": {"targets": ["c_attn"]}}}
RECORD = {"cleave": {"record_steps": {"interval": 2}}}
OVERLAP = {"tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": True, "overlap_rows": 64}, "train_micro_batch_size_per_gpu": 16,
           "gradient_accumulation_steps": 1}


def with_value(config, path, value):
    """Returns a copy of a configuration with a value at a path; "absent" removes the key."""
    config = json.loads(json.dumps(config))
    *sections, name = path.split(".")
    at = config
    for section in sections:
        at = at.setdefault(section, {})
    if value == "absent":
        at.pop(name, None)
    else:
        at[name] = value
    return config

def schedule(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


def optimizer(kind, **params):
    return {"optimizer": {"type": kind, "params": {"lr": 1e-2, **params}}}


WARM = schedule("WarmupLR", warmup_num_steps=5)
DECAY = schedule("WarmupDecayLR", warmup_num_steps=3, total_num_steps=8)
COSINE = schedule("WarmupCosineLR", warmup_num_steps=3, total_num_steps=8)
CYCLE = schedule("OneCycle", cycle_min_lr=1e-4, cycle_max_lr=1e-2, cycle_first_step_size=4)
RANGE = schedule("LRRangeTest", lr_range_test_min_lr=1e-3, lr_range_test_step_size=3)
AFTER = schedule("OneCycle", cycle_min_lr=1e-4, cycle_max_lr=1e-2, cycle_first_step_size=2, decay_step_size=1, decay_lr_rate=0.5,
                 decay_mom_rate=0.5)
ELASTIC = {"elasticity": {"enabled": True, "max_train_batch_size": 16, "micro_batch_sizes": [1, 2], "version": 0.1,
                          "ignore_non_elastic_batch_info": True}}
PROFILE = {"flops_profiler": {"enabled": True, "profile_step": 1}}

# key: (output that must differ, a value, another value, the rest of the configuration, ranks)
# memory, bytes, calls: of the plan (calls: number and sizes of the collectives in a rank's step).
# loss, lr, scale, skipped: of the steps. lines: printed lines without numbers; profile, disk: printed lines about these. files, saved:
# written files, without and with a folder of checkpoints. code: exit code. alone: how long a rank waits for another. "absent" leaves the
# key out.
ROWS = {
    "train_batch_size": ("loss", 8, 16, {"gradient_accumulation_steps": "absent"}, 2),
    "train_micro_batch_size_per_gpu": ("memory", 1, 2, {}, 1),
    "gradient_accumulation_steps": ("loss", 1, 2, {}, 1),
    "elasticity.enabled": ("loss", False, True, with_value(ELASTIC, "elasticity.enabled", "absent"), 1),
    "elasticity.max_train_batch_size": ("loss", 8, 16, ELASTIC, 1),
    "elasticity.micro_batch_sizes": ("memory", [1], [2], ELASTIC, 1),
    "elasticity.min_gpus": ("code", 1, 5, ELASTIC, 1),
    "elasticity.max_gpus": ("code", 2, 1, ELASTIC, 2),
    "elasticity.num_gpus_per_node": ("loss", 1, 4, with_value(ELASTIC, "elasticity.version", 0.2), 2),
    "elasticity.model_parallel_size": ("code", 1, 2, {**with_value(with_value(ELASTIC, "elasticity.version", 0.2),
                                                                   "elasticity.num_gpus_per_node", 2), **TENSOR}, 2),
    "elasticity.prefer_larger_batch": ("loss", True, False, with_value(ELASTIC, "elasticity.max_train_batch_size", 8), 1),
    "elasticity.ignore_non_elastic_batch_info": ("code", True, False, ELASTIC, 1),
    "elasticity.version": ("loss", 0.1, 0.2, with_value(ELASTIC, "elasticity.num_gpus_per_node", 4), 2),
    "sequence_parallel_size": ("bytes", 1, 2, {}, 2),
    "steps_per_print": ("lines", 0, 2, {}, 1),
    "dataloader_drop_last": ("loss", False, True, {"train_micro_batch_size_per_gpu": 3}, 1),
    "gradient_clipping": ("loss", 0.0, 1e-3, optimizer("SGD"), 1),
    "prescale_gradients": ("skipped", False, True, BF16_OVERFLOW, 2),
    "gradient_predivide_factor": ("skipped", 1.0, 1e-39, {"bf16": {"enabled": True}}, 1),
    "gradient_allreduce_op": ("norm", "mean", "sum", {}, 2),
    "communication_data_type": ("bytes", None, "bf16", {}, 2),
    "fp16.enabled": ("memory", False, True, {}, 1),
    "fp16.loss_scale": ("scale", 0, 128, FP16, 1),
    "fp16.initial_scale_power": ("scale", 4, 8, FP16, 1),
    "fp16.loss_scale_window": ("scale", 1, 100, {"fp16": {"enabled": True, "initial_scale_power": 4}}, 1),
    "fp16.hysteresis": ("scale", 1, 3, FP16, 1),
    "cleave.deepspeed_stage0_loss_scale": ("scale", False, True, FP16, 1),
    "fp16.min_loss_scale": ("code", 1, 2**40, {**FP16, "zero_optimization": {"stage": 1}}, 1),
    "bf16.enabled": ("memory", False, True, {}, 1),
    "bf16.check_grad_overflow": ("skipped", False, True, BF16_OVERFLOW, 1),
    "data_types.grad_accum_dtype": ("memory", "bf16", "fp32", {"bf16": {"enabled": True}}, 1),
    "cleave.non_finite": ("code", "stop", "skip", optimizer("SGD", lr=1e30), 1),
    "cleave.non_finite_limit": ("code", 1, 100, {**optimizer("SGD", lr=1e30), "cleave": {"non_finite": "skip"}}, 1),
    "cleave.loss_spike": ("code", 0, 1.001, {**optimizer("AdamW", lr=1.0), "cleave": {"loss_spike_steps": 1}}, 1),
    "cleave.loss_spike_steps": ("code", 1, 100, {**optimizer("AdamW", lr=1.0), "cleave": {"loss_spike": 1.001}}, 1),
    "cleave.record_steps.interval": ("saved", 0, 2, {}, 1),
    "cleave.record_steps.ranks": ("saved", "0", "1", RECORD, 2),
    "cleave.record_steps.keep": ("saved", 1, 2, RECORD, 1),
    "cleave.http": ("code", "0", "no address", {}, 1),
    "tensorboard.enabled": ("files", False, True, {"tensorboard": {"output_path": "$DIR"}}, 1),
    "tensorboard.output_path": ("files", "$DIR/a", "$DIR/b", {"tensorboard": {"enabled": True}}, 1),
    "tensorboard.job_name": ("files", "a", "b", {"tensorboard": {"enabled": True, "output_path": "$DIR"}}, 1),
    "csv_monitor.enabled": ("files", False, True, {"csv_monitor": {"output_path": "$DIR"}}, 1),
    "csv_monitor.output_path": ("files", "$DIR/a", "$DIR/b", {"csv_monitor": {"enabled": True}}, 1),
    "csv_monitor.job_name": ("files", "a", "b", {"csv_monitor": {"enabled": True, "output_path": "$DIR"}}, 1),
    "wall_clock_breakdown": ("lines", False, True, {}, 1),
    "memory_breakdown": ("lines", False, True, {}, 1),
    "dump_state": ("lines", False, True, {}, 1),
    "flops_profiler.enabled": ("lines", False, True, PROFILE, 1),
    "flops_profiler.profile_step": ("profile", 1, 2, PROFILE, 1),
    "flops_profiler.module_depth": ("lines", -1, 0, PROFILE, 1),
    "flops_profiler.top_modules": ("lines", 0, 2, PROFILE, 1),
    "flops_profiler.detailed": ("lines", False, True, PROFILE, 1),
    "flops_profiler.output_file": ("files", "", "$DIR/profile.txt", PROFILE, 1),
    "comms_logger.enabled": ("lines", False, True, {}, 2),
    "comms_logger.prof_all": ("lines", False, True, {"comms_logger": {"prof_ops": ["barrier"]}}, 2),
    "comms_logger.prof_ops": ("lines", ["all_reduce"], ["barrier"], {"comms_logger": {"prof_all": False}}, 2),
    "comms_logger.verbose": ("lines", False, True, {}, 2),
    "comms_logger.debug": ("lines", False, True, {"comms_logger": {"enabled": True}}, 2),
    "checkpoint.async": ("memory", False, True, {}, 1),
    "checkpoint.writer.decoupled": ("memory", False, True, {}, 1),
    "nebula.enabled": ("memory", False, True, {}, 1),
    "nebula.num_of_version_in_retention": ("saved", 1, 3, {"nebula": {"enabled": True}}, 1),
    "cleave.comm_timeout_s": ("alone", 1, 2, {}, 2),
    "cleave.weight_decay_on": ("loss", "matrices", "all", optimizer("AdamW", weight_decay=0.5), 1),
    "cleave.freeze": ("memory", "absent", "*.mlp.*", {}, 1),
    "cleave.lora.targets": ("memory", "c_attn", "all-linear", {}, 1),
    "cleave.lora.rank": ("memory", 4, 8, LORA, 1),
    "cleave.lora.alpha": ("loss", 8, 32, LORA, 1),
    "cleave.lora.use_rslora": ("loss", False, True, LORA, 1),
    "cleave.fp8.scaling": ("memory", "off", "delayed", {"bf16": {"enabled": True}}, 1),
    "cleave.fp8.history": ("memory", 4, 16, {"bf16": {"enabled": True}, "cleave": {"fp8": {"scaling": "delayed"}}}, 1),
    "cleave.exact_sums": ("memory", False, True, {}, 1),
    "cleave.exact_sums_grid": ("loss", 20, 54, {"cleave": {"exact_sums": True}}, 1),
    "cleave.cuda_graphs": ("lines", "off", "on", {}, 1),
    "cleave.tf32": ("lines", False, True, {}, 1),
    "cleave.logits_dtype": ("memory", "fp32", "model", {"bf16": {"enabled": True}}, 1),
    "cleave.logits_rows": ("memory", 3, 0, {}, 1),
    "cleave.tune_products": ("lines", False, True, {}, 1),
    "cleave.product_choices": ("code", "", "$DIR/none.jsonl", {}, 1),
    "cleave.deterministic": ("lines", False, True, {"bf16": {"enabled": True}}, 1),
    "cleave.offload_update": ("memory", "host", "device", HOST, 1),
    "cleave.mlflow.enabled": ("files", False, True, {"cleave": {"mlflow": {"tracking_uri": "$DIR/runs"}}}, 1),
    "cleave.mlflow.tracking_uri": ("files", "$DIR/a", "$DIR/b", {"cleave": {"mlflow": {"enabled": True}}}, 1),
    "cleave.mlflow.experiment_name": ("files", "", "other", {"cleave": {"mlflow": {"enabled": True, "tracking_uri": "$DIR/runs"}}}, 1),
    "optimizer.type": ("memory", "AdamW", "SGD", {}, 1),
    "optimizer.params.lr": ("loss", 1e-2, 1e-3, {}, 1),
    "optimizer.params.weight_decay": ("loss", 0.0, 0.5, {}, 1),
    "optimizer.params.betas": ("loss", [0.9, 0.999], [0.5, 0.9], {}, 1),
    "optimizer.params.eps": ("loss", 1e-8, 1e-2, {}, 1),
    "optimizer.params.bias_correction": ("loss", False, True, {}, 1),
    "optimizer.params.adam_w_mode": ("loss", False, True, optimizer("Adam", weight_decay=0.5), 1),
    "optimizer.params.torch_adam": ("loss", False, True, optimizer("Adam"), 1),
    "optimizer.params.max_coeff": ("loss", 0.02, 10.0, optimizer("Lamb"), 1),
    "optimizer.params.min_coeff": ("loss", 0.01, 9.0, optimizer("Lamb"), 1),
    "optimizer.params.momentum": ("loss", 0.0, 0.9, optimizer("SGD"), 1),
    "optimizer.params.dampening": ("loss", 0.0, 0.5, optimizer("SGD", momentum=0.9), 1),
    "optimizer.params.nesterov": ("loss", False, True, optimizer("SGD", momentum=0.9), 1),
    "optimizer.params.lr_decay": ("loss", 0.0, 0.5, optimizer("Adagrad"), 1),
    "scheduler.type": ("lr", None, "WarmupLR", {}, 1),
    "scheduler.params.warmup_min_lr": ("lr", 0.0, 1e-3, WARM, 1),
    "scheduler.params.warmup_max_lr": ("lr", 1e-3, 1e-2, WARM, 1),
    "scheduler.params.warmup_num_steps": ("lr", 3, 5, WARM, 1),
    "scheduler.params.warmup_type": ("lr", "log", "linear", WARM, 1),
    "scheduler.params.total_num_steps": ("lr", 6, 9, DECAY, 1),
    "scheduler.params.warmup_min_ratio": ("lr", 0.0, 0.5, COSINE, 1),
    "scheduler.params.cos_min_ratio": ("lr", 0.0, 0.5, COSINE, 1),
    "scheduler.params.cycle_min_lr": ("lr", 1e-4, 1e-3, CYCLE, 1),
    "scheduler.params.cycle_max_lr": ("lr", 1e-2, 2e-2, CYCLE, 1),
    "scheduler.params.cycle_first_step_size": ("lr", 2, 5, CYCLE, 1),
    "scheduler.params.cycle_second_step_size": ("lr", 2, 5, CYCLE, 1),
    "scheduler.params.cycle_first_stair_count": ("lr", 0, 2, CYCLE, 1),
    "scheduler.params.cycle_second_stair_count": ("lr", 0, 2, CYCLE, 1),
    "scheduler.params.decay_step_size": ("lr", 0, 2, AFTER, 1),
    "scheduler.params.decay_lr_rate": ("lr", 0.0, 0.5, AFTER, 1),
    "scheduler.params.cycle_momentum": ("loss", False, True, CYCLE, 1),
    "scheduler.params.cycle_min_mom": ("loss", 0.8, 0.5, CYCLE, 1),
    "scheduler.params.cycle_max_mom": ("loss", 0.9, 0.95, CYCLE, 1),
    "scheduler.params.decay_mom_rate": ("loss", 0.0, 0.5, AFTER, 1),
    "scheduler.params.lr_range_test_min_lr": ("lr", 1e-3, 2e-3, RANGE, 1),
    "scheduler.params.lr_range_test_step_rate": ("lr", 1.0, 2.0, RANGE, 1),
    "scheduler.params.lr_range_test_step_size": ("lr", 2, 4, RANGE, 1),
    "scheduler.params.lr_range_test_staircase": ("lr", False, True, RANGE, 1),
    "zero_optimization.stage": ("memory", 0, 1, {}, 2),
    "zero_optimization.overlap_comm": ("memory", False, True, {"zero_optimization": GATHERED}, 2),
    "zero_optimization.reduce_bucket_size": ("calls", 1000, 5 * 10**8, {"zero_optimization": {"stage": 1}}, 2),
    "zero_optimization.allgather_bucket_size": ("calls", 1000, 5 * 10**8, {"zero_optimization": {"stage": 1}}, 2),
    "zero_optimization.cpu_offload": ("memory", False, True, {"zero_optimization": {"stage": 2}}, 2),
    "zero_optimization.cpu_offload_param": ("memory", False, True, {"zero_optimization": GATHERED}, 2),
    "zero_optimization.sub_group_size": ("memory", 65536, 10**9, NVME, 1),
    "zero_optimization.stage3_prefetch_bucket_size": ("memory", 0, 5 * 10**7, {"zero_optimization": GATHERED}, 2),
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": ("saved", False, True, {}, 1),
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": ("saved", False, True, {}, 1),
    "zero_optimization.stage3_param_persistence_threshold": ("memory", 0, 10**5, {"zero_optimization": {"stage": 3}}, 2),
    "zero_optimization.stage3_max_live_parameters": ("memory", 1, 10**9, {"zero_optimization": GATHERED}, 2),
    "zero_optimization.mics_shard_size": ("memory", -1, 2, {"zero_optimization": GATHERED}, 4),
    "zero_optimization.zero_hpz_partition_size": ("memory", 1, 2, {"zero_optimization": GATHERED}, 4),
    "zero_optimization.zero_quantized_weights": ("bytes", False, True, {"zero_optimization": GATHERED}, 2),
    "zero_optimization.offload_optimizer.device": ("memory", "none", "cpu", {"zero_optimization": {"stage": 1}}, 1),
    "zero_optimization.offload_optimizer.pin_memory": ("memory", False, True, HOST, 1),
    "zero_optimization.offload_optimizer.nvme_path": ("code", "$DIR", "/proc/no/such/folder", NVME, 1),
    "zero_optimization.offload_optimizer.buffer_count": ("memory", 2, 4, NVME, 1),
    "zero_optimization.offload_optimizer.ratio": ("memory", 0.5, 1.0, HOST, 1),
    "zero_optimization.offload_param.device": ("memory", "none", "cpu", {"zero_optimization": GATHERED}, 1),
    "zero_optimization.offload_param.pin_memory": ("memory", False, True,
                                                   {"zero_optimization": {**GATHERED, "offload_param": {"device": "cpu"}}}, 1),
    "zero_optimization.offload_param.nvme_path": ("code", "$DIR", "/proc/no/such/folder", PARAM, 1),
    "zero_optimization.offload_param.buffer_count": ("memory", 2, 5, PARAM, 1),
    "zero_optimization.offload_param.max_in_cpu": ("memory", 0, 10**9, PARAM, 1),
    "aio.block_size": ("disk", 4096, 1 << 20, NVME, 1),
    "aio.queue_depth": ("disk", 1, 32, NVME, 1),
    "pipeline.stages": ("memory", 1, 2, {}, 2),
    "pipeline.partition_method": ("memory", "uniform", "1,5", PIPE, 2),
    "pipeline.schedule": ("memory", "1f1b", "zb-h1", PIPE, 2),
    "pipeline.virtual_stages": ("memory", 1, 2, {"pipeline": {"stages": 2, "schedule": "interleaved"}}, 2),
    "pipeline.activation_checkpoint_interval": ("memory", 0, 1, PIPE, 2),
    "tensor_parallel.autotp_size": ("memory", 1, 2, {}, 2),
    "tensor_parallel.sequence_parallel": ("memory", False, True, TENSOR, 2),
    "tensor_parallel.tp_overlap_comm": ("calls", False, True, OVERLAP, 2),
    "tensor_parallel.overlap_rows": ("calls", 64, 4096, OVERLAP, 2),
    "tensor_parallel.tp.tp_size": ("memory", 1, 2, {}, 2),
    "activation_checkpointing.interval": ("memory", 0, 1, {}, 1),
    "activation_checkpointing.number_checkpoints": ("memory", None, 2, {}, 1),
    "activation_checkpointing.policy": ("memory", "full", "selective", {}, 1),
    "activation_checkpointing.full_layers": ("memory", "", "2", {}, 1),
    "activation_checkpointing.selective_layers": ("memory", "", "2", {}, 1),
    "activation_checkpointing.cpu_checkpointing": ("memory", False, True, {"activation_checkpointing": {"interval": 1}}, 1),
    "activation_checkpointing.partition_activations": (
        "memory", False, True, {"activation_checkpointing": {"interval": 1},
                                "tensor_parallel": {"autotp_size": 2, "sequence_parallel": False}}, 2),
    "activation_checkpointing.contiguous_memory_optimization": ("memory", False, True, {}, 1),
    "cleave.copies_in_memory": ("memory", False, True, {}, 2),
    "activation_checkpointing.synchronize_checkpoint_boundary": ("memory", False, True, {}, 1),
}
# A short job cannot show the effect of these keys; a test of the part does.
ELSEWHERE = {"cleave.mlflow.run_name": ("tests/app", 'run_name="first"'),  # in the contents of files
             "cleave.loss_average": ("tests/runtime", "LossAverage::micro_batches"),  # data with a loss mask
             "cleave.native": ("tests/python", '"native": True'),  # a script's model
             **{f"wandb.{key}": ("tests/python", "FAKE_WANDB") for key in ("enabled", "project", "group", "team")},
             "cleave.straggler_share": ("tests/runtime", "AreNotRanksWithinTheShare"),
             "cleave.straggler_steps": ("tests/python", "straggler_steps"),
             "cleave.replica_check_steps": ("tests/runtime", "FindsADifferenceWithinTheGivenSteps"),
             "cleave.replica_policy": ("tests/runtime", "RepairsMastersStatesAndWeights"),
             "cleave.save_on_stop": ("tests/python", "save_on_stop"),
             "cleave.visible_gradients": ("tests/python", "visible_gradients"),
             "checkpoint.tag_validation": ("tests/python", "tag_validation"),
             "tensor_parallel.preset_model": ("tests/python", "preset_model"),
             "cleave.sequence_length": ("tests/python/capi", "sequence_length"),
             "aio.intra_op_parallelism": ("tests/offload", "Engine::threads"),  # if the kernel has no io_uring
             "fp16.consecutive_hysteresis": ("tests/optim", "consecutive_hysteresis")}

OUTPUTS = {"memory": "planned memory", "bytes": "planned bytes sent", "calls": "collectives of a step", "loss": "losses", "lr": "rates",
           "scale": "loss scales", "skipped": "skipped steps", "norm": "gradient norms", "lines": "printed lines",
           "profile": "printed profile", "disk": "printed lines about the disk", "files": "written files", "saved": "saved files",
           "code": "exit code", "alone": "time that a rank waits"}


def how_tested(key):
    """Returns the output that differs and the two values of the key, or the folder of its test; an empty string for other keys."""
    if key in ROWS:
        output, *values = ROWS[key][:3]
        one, other = ("no value" if value == "absent" else f"`{json.dumps(value)}`" for value in values)
        return f"{OUTPUTS[output]}: {one} against {other}"
    return f"`{ELSEWHERE[key][0]}`" if key in ELSEWHERE else ""
