#!/usr/bin/env python3
"""Epochs, and the options of the Hugging Face Trainer. Usage: trainer_test.py CLEAVE"""
import json
import unittest

from app_test import AppTest

# Fields of transformers.TrainingArguments in versions 4.40 to 5.24.
TRAINING_ARGUMENTS = """
accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1 adam_beta2 adam_epsilon
auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed dataloader_drop_last
dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_in_order dataloader_multiprocessing_context
dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug
deepspeed disable_tqdm do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay eval_do_concat_batches
eval_on_start eval_steps eval_strategy eval_use_gather_object evaluation_strategy fp16 fp16_backend fp16_full_eval fp16_opt_level fsdp
fsdp_config fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap full_determinism gradient_accumulation_steps gradient_checkpointing
gradient_checkpointing_kwargs greater_is_better group_by_length half_precision_backend hub_always_push hub_model_id hub_private_repo
hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics include_inputs_for_metrics include_num_input_tokens_seen
include_tokens_per_second jit_mode_eval label_names label_smoothing_factor learning_rate length_column_name liger_kernel_config
load_best_model_at_end local_rank log_level log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter
logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps metric_for_best_model mp_parameters
neftune_noise_alpha no_cuda num_train_epochs optim optim_args optim_target_modules output_dir overwrite_output_dir parallelism_config
past_index per_device_eval_batch_size per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size prediction_loss_only
project push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope remove_unused_columns report_to
restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node save_only_model save_safetensors save_steps
save_strategy save_total_limit seed skip_memory_metrics split_batches tf32 torch_compile torch_compile_backend torch_compile_mode
torch_empty_cache_steps torchdynamo tpu_metrics_debug tpu_num_cores trackio_bucket_id trackio_space_id trackio_static_space_id
train_sampling_strategy use_cache use_cpu use_ipex use_legacy_prediction_loop use_liger_kernel use_mps_device warmup_ratio warmup_steps
weight_decay
""".split()


class Trainer(AppTest):
    def lines(self, *args, steps=None, config=None, code=0, ranks=1):
        metrics = self.dir / "m.jsonl"
        command = ["train", "--deepspeed_config", config or self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32,
                   "--metrics", metrics, *args]
        r = self.run_cleave(*(["launch", "-n", ranks, "--"] if ranks > 1 else []), *command, code=code)
        return r, [json.loads(line) for line in metrics.read_text().splitlines()] if code == 0 else []

    def test_epochs_are_steps_over_all_samples(self):
        samples = (len(self.text.read_text()) - 1) // 32
        config = self.config(train_micro_batch_size_per_gpu=64)
        for ranks, batch in (1, 64), (2, 128):
            steps = -(-samples // batch)  # the last step of an epoch is completed from its beginning
            r, lines = self.lines("--epochs", 1.5, config=config, ranks=ranks)
            wanted = -(-3 * steps // 2)
            self.assertIn(f"data:       {samples} samples of 32 tokens, {steps} steps per epoch; {wanted} steps are", r.stdout)
            self.assertEqual((lines[0]["steps"], lines[0]["steps_per_epoch"], lines[0]["samples_per_epoch"]), (wanted, steps, samples))
            self.assertEqual([line["step"] for line in lines[1:-1]], list(range(1, wanted + 1)))
            for line in lines[1:-1]:
                self.assertAlmostEqual(line["epoch"], line["step"] / steps, places=8)
            self.assertIn(f"  epoch {wanted / steps:.2f}  ", r.stdout)
        _, lines = self.lines("--epochs", 1, config=self.config(train_micro_batch_size_per_gpu=64, dataloader_drop_last=True))
        self.assertEqual(lines[-1]["step"], samples // 64)

    def test_a_blends_epoch_is_as_long_as_its_sources_together(self):
        other = self.dir / "other.txt"
        other.write_text(self.text.read_text()[:9000])
        samples = (len(self.text.read_text()) - 1) // 32 + 8999 // 32
        (self.dir / "mix.txt").write_text(f"0.5 {self.text}\n0.5 {other}\n")
        self.text = f"@{self.dir / 'mix.txt'}"
        _, lines = self.lines("--epochs", 0.25, config=self.config(train_micro_batch_size_per_gpu=32))
        self.assertEqual((lines[0]["samples_per_epoch"], lines[0]["steps_per_epoch"]), (samples, -(-samples // 32)))

    def test_a_schedule_ends_with_the_epochs_and_a_resumed_run_continues_counting(self):
        config = self.config(train_micro_batch_size_per_gpu=64, scheduler={"type": "WarmupDecayLR", "params": {
            "warmup_num_steps": 2, "total_num_steps": "auto", "warmup_max_lr": 0.01}})
        _, whole = self.lines("--epochs", 1, config=config)
        _, by_steps = self.lines("--steps", whole[0]["steps_per_epoch"], config=config)
        self.assertEqual([line["lr"] for line in whole[1:-1]], [line["lr"] for line in by_steps[1:-1]])
        out = self.dir / "out"
        self.lines("--epochs", 0.5, "--output", out, "--resume_check", "off", config=config)
        _, rest = self.lines("--epochs", 1, "--output", out, "--resume_check", "off", config=config)
        rest = [line for line in rest if "loss" in line][-3:]
        self.assertEqual([line["epoch"] for line in rest], [line["epoch"] for line in whole[-4:-1]])
        r, _ = self.lines("--epochs", 1, "--steps", 3, code=2)
        self.assertIn("--epochs: conflicts with --steps; give one of them", r.stderr)

    def test_the_start_of_the_metrics_has_the_ranks_and_their_grid(self):
        _, lines = self.lines("--steps", 1, config=self.config(pipeline={"stages": 2}), ranks=2)
        self.assertEqual(lines[0]["world_size"], 2)
        self.assertEqual(lines[0]["mesh"], {"pipe": 2, "data": 1, "sequence": 1, "tensor": 1})

    def test_trainer_names_work_like_native_ones(self):
        config = self.config(train_micro_batch_size_per_gpu=64)
        ours = ["--epochs", 0.3, "--output", self.dir / "a", "--keep", 1, "--save_interval", 3, "--eval_interval", 2, "--eval_data", self.text]
        names = ["--num_train_epochs", 0.3, "--output_dir", self.dir / "b", "--save-total-limit=1", "--save_steps", 3, "--eval_steps", 2,
                 "--validation_file", self.text, "--max_steps", -1, "--seed", 42, "--logging_steps", 5, "--report_to", "none",
                 "--eval_strategy", "steps", "--gradient_checkpointing", "false"]
        (_, one), (r, two) = self.lines(*ours, config=config), self.lines(*names, config=config)
        drop = lambda lines: [{k: line[k] for k in ("step", "loss", "validation_loss") if k in line} for line in lines]
        self.assertEqual(drop(one), drop(two))
        self.assertEqual(sorted(p.name for p in (self.dir / "a").glob("global_step*")), sorted(p.name for p in (self.dir / "b").glob("global_step*")))
        self.assertIn("note: --logging_steps has no effect: ", r.stderr)
        _, lines = self.lines("--max_steps", 2, "--num_train_epochs", 3)
        self.assertEqual(lines[-1]["step"], 2)

    def test_a_refused_secret_is_not_printed(self):
        for option in (["--hub_token", "hidden"], ["--hub_token=hidden"], ["--api_key=hidden"]):
            r = self.run_cleave("train", "--deepspeed_config", self.config(), "--data", self.text, *option, code=2)
            self.assertIn(option[0].partition("=")[0], r.stderr)
            self.assertNotIn("hidden", r.stderr)

    def test_a_warm_up_below_one_is_a_share_of_the_steps(self):
        _, share = self.lines("--steps", 10, "--warmup_steps", 0.35, "--learning_rate", 1e-3)
        _, counted = self.lines("--steps", 10, "--warmup_steps", 4, "--learning_rate", 1e-3)
        rates = [line["lr"] for line in share if "lr" in line]
        self.assertEqual(rates, [line["lr"] for line in counted if "lr" in line])
        self.assertEqual(rates.index(max(rates)), 4 if rates[0] == 0 else 3)

    def test_unsupported_options_name_the_equivalent(self):
        for args, says in [(["--gradient_checkpointing"], 'set "activation_checkpointing": {"interval": 1} in the ds_config'),
                           (["--gradient-checkpointing", "True"], "activation_checkpointing"),
                           (["--activation_checkpointing"], 'set "activation_checkpointing": {"interval": 1} in the ds_config'),
                           (["--load_best_model_at_end"], "--keep_best"), (["--optim", "adafactor"], "optimizer.type"),
                           (["--lr_scheduler_type", "polynomial"], "use linear"), (["--fsdp", "full_shard"], "zero_optimization.stage 3"),
                           (["--report_to=wandb"], "tensorboard or csv_monitor"), (["--eval_strategy", "epoch"], "--eval_interval")]:
            r, _ = self.lines(*args, "--steps", 1, code=2)
            self.assertIn(says, r.stderr)
            self.assertNotIn("unknown option", r.stderr)

    def test_every_trainer_option_is_recognized(self):
        known = set(self.run_cleave("train", "--help").stdout.replace(" ", "\n").splitlines())
        for name in TRAINING_ARGUMENTS:
            if f"--{name}" in known or name == "split_batches":
                continue
            # An unknown option follows: the error names only this one.
            err = self.run_cleave("train", f"--{name}", "false", "--nobody_has_this", code=2).stderr
            self.assertNotIn(f"unknown option --{name}", err)
            self.assertIn("--nobody_has_this", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
