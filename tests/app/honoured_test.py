#!/usr/bin/env python3
"""Every honoured key has a visible effect: jobs that differ only in two values of the key must differ in the output that the key affects. A
new key needs a row here.
"""
import concurrent.futures
import json
import os
import re
import socket
import subprocess
import unittest

from app_test import AppTest, CLEAVE, ROOT

BASE = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
MODEL = {"model_type": "gpt2", "vocab_size": 2304, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4, "attn_pdrop": 0.0,
         "activation_function": "gelu_new"}

FP16 = {"fp16": {"enabled": True, "initial_scale_power": 40}}  # the first steps overflow
BF16_OVERFLOW = {"bf16": {"enabled": True}, "gradient_predivide_factor": 1e-39}
NVME = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "$DIR"}}}
HOST = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}
TENSOR = {"tensor_parallel": {"autotp_size": 2}}
PIPE = {"pipeline": {"stages": 2}}
GATHERED = {"stage": 3, "stage3_param_persistence_threshold": 0}  # every unit
PARAM = {"zero_optimization": {**GATHERED, "offload_param": {"device": "nvme", "nvme_path": "$DIR", "max_in_cpu": 0}}}
LORA = {"cleave": {"lora": {"targets": ["c_attn"]}}}
OVERLAP = {"tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": True, "overlap_rows": 64}, "train_micro_batch_size_per_gpu": 16,
           "gradient_accumulation_steps": 1}


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
    "bf16.check_grad_overflow": ("code", False, True, BF16_OVERFLOW, 1),
    "data_types.grad_accum_dtype": ("memory", "bf16", "fp32", {"bf16": {"enabled": True}}, 1),
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
    "activation_checkpointing.cpu_checkpointing": ("memory", False, True, {"activation_checkpointing": {"interval": 1}}, 1),
    "activation_checkpointing.partition_activations": (
        "memory", False, True, {"activation_checkpointing": {"interval": 1},
                                "tensor_parallel": {"autotp_size": 2, "sequence_parallel": False}}, 2),
    "activation_checkpointing.contiguous_memory_optimization": ("memory", False, True, {}, 1),
    "activation_checkpointing.synchronize_checkpoint_boundary": ("memory", False, True, {}, 1),
}
# A short job cannot show the effect of these keys; a test of the part does.
ELSEWHERE = {"cleave.loss_average": ("tests/runtime", "LossAverage::micro_batches"),  # data with a loss mask
             "cleave.native": ("tests/python", '"native": True'),  # a script's model
             "cleave.save_on_stop": ("tests/python", "save_on_stop"),
             "cleave.visible_gradients": ("tests/python", "visible_gradients"),
             "cleave.sequence_length": ("tests/python/capi", "sequence_length"),
             "aio.intra_op_parallelism": ("tests/offload", "Engine::threads"),  # if the kernel has no io_uring
             "fp16.consecutive_hysteresis": ("tests/optim", "consecutive_hysteresis")}

PLANNED = {"memory", "bytes", "calls"}


def with_value(config, path, value):
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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Honoured(AppTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        self.model = self.dir / "model.json"
        self.model.write_text(json.dumps(MODEL))
        # 23 samples of 16 tokens: no batch size divides them.
        self.data = self.dir / "data.txt"
        self.data.write_text(self.text.read_text()[:23 * 16 + 1])

    def honoured_keys(self):
        """Returns the honoured keys that `check` lists, over configurations that together contain every key."""
        found = set()
        kinds = ["AdamW", "Lamb", "Lion", "SGD", "Adagrad", "Adam"]
        for kind, rest in zip(kinds, [WARM, DECAY, COSINE, CYCLE, RANGE, {}]):
            out = self.run_cleave("check", "--all", self.config(**{**BASE, **rest, "optimizer": {"type": kind}})).stdout
            found |= {m[1] for m in re.finditer(r"^(?:\S+:\d+:\d+: )?(\S+) = .*\): honoured(?: by [a-z ]+)?: ", out, re.MULTILINE)}
        return found

    def test_every_honoured_key_has_a_row_and_every_row_a_key(self):
        keys = self.honoured_keys()
        self.assertGreater(len(keys), 120)
        self.assertEqual(keys - set(ROWS) - set(ELSEWHERE), set(), "honoured keys without a row")
        self.assertEqual((set(ROWS) | set(ELSEWHERE)) - keys, set(), "no such honoured key")
        for folder, name in ELSEWHERE.values():
            files = [path for kind in ("*.cpp", "*.py") for path in (ROOT / folder).rglob(kind)]
            self.assertTrue(any(name in path.read_text() for path in files), name)

    def job(self, path, value, rest, folder):
        folder.mkdir()
        config = with_value({**BASE, **rest}, path, value)
        config = {k: v for k, v in config.items() if v != "absent"}
        file = folder / "ds_config.json"
        file.write_text(json.dumps(config).replace("$DIR", str(folder)))
        return ["--deepspeed_config", file, "--model", self.model, "--seq_len", 16]

    def run_job(self, *args, env=None):
        return subprocess.run([CLEAVE, *map(str, args)], capture_output=True, text=True, timeout=120, cwd=self.dir,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})

    def plan(self, what, path, value, rest, ranks, folder):
        r = self.run_job("plan", *self.job(path, value, rest, folder), "--world_size", ranks, "--json")
        self.assertEqual(r.returncode, 0, f"{path} = {value}: {r.stderr}")
        plan = json.loads(r.stdout)["ranks"]
        return [rank["comm_bytes"] if what == "bytes" else rank["memory"] for rank in plan]

    def trained(self, what, path, value, rest, ranks, folder):
        metrics = folder / "metrics.jsonl"
        if what == "calls":
            rest = {**rest, "comms_logger": {}}
        options = ["train", *self.job(path, value, rest, folder), "--data", self.data, "--steps", 10, "--metrics", metrics]
        if what == "saved":
            options += ["--output", folder / "out", "--save_interval", 4]
        r = self.run_job(*(["launch", "-n", ranks, "--"] if ranks > 1 else []), *options)
        if what == "code":
            return r.returncode
        self.assertEqual(r.returncode, 0, f"{path} = {value}: {r.stderr}")
        if what in {"files", "saved"}:
            return sorted(re.sub(r"tfevents.*", "", str(p.relative_to(folder))) for p in folder.rglob("*"))
        if what == "lines":
            kept = [line for line in r.stdout.splitlines() if "config" not in line and not re.search(r"step +\d+/\d+", line)]
            return re.sub(r"[0-9.]+", "", "\n".join(kept))
        if what == "profile":
            return re.findall(r"after \d+ steps", r.stdout)
        if what == "disk":
            return re.findall(r"io_uring, [^,]* in flight|threads, [^,]* in flight", r.stdout)
        if what == "calls":
            rows = re.findall(r"(all_reduce|reduce_scatter|all_gather) +([\d.]+ \S+) +\d+ +(\d+)", r.stdout)
            self.assertTrue(rows)
            return rows
        field = {"loss": "loss", "lr": "lr", "scale": "loss_scale", "skipped": "skipped", "norm": "grad_norm"}[what]
        return [json.loads(line)[field] for line in metrics.read_text().splitlines()[1:-1]]

    # One of two ranks, which waits for the other until its deadline.
    def alone(self, path, value, rest, folder):
        r = self.run_job("train", *self.job(path, value, rest, folder), "--data", self.data,
                         env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
        self.assertEqual(r.returncode, 6, r.stderr)
        return re.findall(r"within (\S+) s", r.stderr)

    def differs(self, path):
        what, a, b, rest, ranks = ROWS[path]
        seen = []
        for i, value in enumerate([a, b]):
            folder = self.dir / f"{path} {i}"
            if what == "alone":
                seen.append(self.alone(path, value, rest, folder))
            else:
                seen.append((self.plan if what in {"memory", "bytes"} else self.trained)(what, path, value, rest, ranks, folder))
        return seen[0] != seen[1]

    def test_every_honoured_key_changes_its_output(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = dict(zip(ROWS, pool.map(self.outcome, ROWS)))
        self.assertEqual({key: answer for key, answer in answers.items() if answer is not True}, {})

    def outcome(self, path):
        try:
            return self.differs(path) or f"{ROWS[path][0]} is the same with {ROWS[path][1]} and {ROWS[path][2]}"
        except (AssertionError, subprocess.TimeoutExpired) as e:
            return str(e)[:600]


if __name__ == "__main__":
    unittest.main(verbosity=2)
