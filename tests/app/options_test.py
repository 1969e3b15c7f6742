#!/usr/bin/env python3
"""Command-line messages for typos and values out of range, and the lines at the start of a run."""
import json
import os
import re
import shutil
import signal
import subprocess
import unittest

from app_test import AppTest, CLEAVE, ROOT


class Options(AppTest):
    def refusal(self, *args):
        return self.run_cleave(*args, code=2).stderr

    def test_unknown_commands_options_and_words_get_the_nearest_in_the_order_typed(self):
        self.assertIn("trian: unknown command; did you mean train? (expected ", self.refusal("trian"))
        self.assertEqual(self.refusal("train", "--stepz", 3, "--zzz", "x", "--deepspeed-confg", "y"),
                         "error: unknown option --stepz; did you mean --steps?\n  unknown option --zzz\n"
                         "  unknown option --deepspeed_confg; did you mean --deepspeed_config?\n"
                         "  cleave train --help lists the options\n")
        self.assertIn("unexpected argument splt; did you mean split?", self.refusal("data", "splt"))
        for option in ("--output", "--export", "--metrics", "--eval_data"):  # as from an unset shell variable
            self.assertIn(f"error: {option}: empty value; give one, or leave the option out",
                          self.refusal("train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, option, ""))
        self.assertIn("unknown option --trian; did you mean --train?", self.refusal("data", "split", "x", "--trian", "y"))
        self.assertIn("unknown option --strickt; did you mean --strict?", self.refusal("check", "--strickt", self.config()))
        self.assertIn("expected one of linear, cosine, constant, constant_with_warmup, got linaer; did you mean linear?",
                      self.refusal("train", "--lr_scheduler_type", "linaer"))

    def test_options_of_other_programs_get_the_equivalent(self):
        for args, says in [(["--train_iters", 5], "use --steps"), (["--num-processes=2"], "start N ranks with cleave launch -n N -- train"),
                           (["--nproc_per_node", 2], "start N ranks with cleave launch -n N -- train"), (["--data-path", "x"], "use --data"),
                           (["--tensor-model-parallel-size", 2], "set tensor_parallel.autotp_size in the ds_config"),
                           (["--lr", 1], "use --learning_rate"), (["--zero-stage", 3], "set zero_optimization.stage in the ds_config")]:
            name = args[0].partition("=")[0].replace("-", "_").replace("__", "--", 1)
            self.assertRegex(self.refusal("train", *args), f"unknown option {name}[^;]*; {says}")
        self.assertIn("--nproc_per_node; use --nproc\n", self.refusal("launch", "--nproc_per_node", 2, "--", "train"))
        self.assertIn("--num_processes; use --world_size\n", self.refusal("plan", "--deepspeed_config", self.config(), "--num_processes", 2))
        self.assertNotIn(";", self.refusal("verify", "--tensor_model_parallel_size", 2).splitlines()[0])  # it reads no ds_config

    def test_the_equivalents_exist(self):
        """Every row of the table suggests existing options and keys, and no option of this program or of the Trainer has a row."""
        rows = re.findall(r'^    \{"(\w+)", "([-\w ]*)"', (ROOT / "app/other_options.cpp").read_text(), re.M)
        self.assertGreater(len(rows), 100)
        self.assertEqual(len(rows), len(dict(rows)), "a name has two rows")
        trainer = set(re.findall(r'^    \{"(\w+)"', (ROOT / "app/commands/trainer_names.cpp").read_text(), re.M))
        options = {name: set(re.findall(r"--\w+", self.run_cleave(name, "--help").stdout)) for name in ("train", "plan", "launch")}
        said = self.refusal("train", *(f"--{name}" for name, _ in rows)).splitlines()
        keys = self.run_cleave("explain", "--keys").stdout
        for (name, uses), line in zip(rows, said):
            self.assertTrue(set(uses.split()) <= set().union(*options.values()), name)
            self.assertRegex(line, f"unknown option --{name}; (?!did you mean)")
            self.assertEqual(set(re.findall(r"--\w+", line)) - {f"--{name}"} - options["train"] - {"--world_size"}, set(), line)
            for key in re.findall(r"\b[a-z0-9_]+\.[a-z_]+\b(?!\.json)", line.replace("config.json", "").replace("tokenizer.json", "")):
                self.assertIn(key, keys, line)
        self.assertEqual({name for name, _ in rows} & (trainer | {option[2:] for option in options["train"]}), set())

    def test_launch_reports_missing_dashes(self):
        said = "launch: -- is missing before train; write: cleave launch -n 2 -- train --steps 3"
        self.assertIn(said, self.refusal("launch", "-n", 2, "train", "--steps", 3))
        self.assertIn("launch: -- is missing before ./a.out", self.refusal("launch", "-n", 2, "--no_bind", "./a.out", "-x"))

    def test_usage_lines_begin_with_the_program(self):
        for command in ("train", "launch", "check", "explain", "plan", "eval", "generate", "data", "report"):
            self.assertIn(f"\nUsage: cleave {command} ", self.run_cleave(command, "--help").stdout)
        for command in ("split", "tokenize", "inspect", "ngrams"):
            text = self.run_cleave("data", command, "--help").stdout
            self.assertIn(f"Usage: cleave data {command} ", text)
            self.assertIn(f"Example: cleave data {command} ", text)
            self.assertNotRegex(text, r"(?m)^  \S.* REQUIRED *$", "an option without a description")

    def test_values_out_of_range_are_errors_with_a_readable_range(self):
        for command, option, value, wanted in [
            ("train", "--steps", "-1", "an integer of at least 0"), ("train", "--seq_len", "0", "an integer from 1 to 1073741824"),
            ("train", "--steps", "1e20", "an integer of at least 0"), ("train", "--keep", "x", "an integer of at least 0"),
            ("train", "--seed", "99999999999999999999", "an integer from 0 to 18446744073709551615"),
            ("generate", "--seed", "18446744073709551616", "an integer from 0 to 18446744073709551615"),
            ("train", "--steps", "9223372036854775808", "an integer from 0 to 9223372036854775807"), ("train", "--seed", "-1", "an integer of at least 0"),
            ("train", "--learning_rate", "-1", "a number of at least 0"), ("train", "--learning_rate", "nan", "a number of at least 0"),
            ("train", "--adam_beta1", "1.5", "a number from 0 to 1"), ("train", "--warmup_ratio", "2", "a number from 0 to 1"),
            ("train", "--per_device_train_batch_size", "0", "an integer of at least 1"),
            ("launch", "--nproc", "0", "an integer of at least 1"), ("launch", "--master_port", "70000", "an integer from 0 to 65535"),
            ("plan", "--world_size", "0", "an integer from 1 to 1048576"), ("generate", "--temperature", "nan", "a number of at least 0"),
            ("generate", "--top_k", "-3", "an integer of at least 0"), ("check", "--world_size", "-2", "an integer of at least 1"),
            ("eval", "--micro_batch", "0", "an integer of at least 1"),
        ]:
            self.assertEqual(self.refusal(command, option, value),
                             f"error: {option}: expected {wanted}, got {value}; cleave {command} --help lists the options\n")
        self.assertIn("--steps: expected a value, got none", self.refusal("train", "--steps"))
        self.assertIn("--bf16: invalid value maybe", self.refusal("train", "--bf16", "maybe"))
        self.assertIn("error: --model: given 2 times; give it once; ", self.refusal("train", "--model", "tiny", "--model", "gpt2"))
        self.assertIn("--format: expected one of llmc, megatron, got 1", self.refusal("data", "tokenize", "a", "b", "--format", "1"))

    def test_a_named_checkpoint_is_never_replaced_by_random_weights(self):
        for name in ("required", "global_step9"):
            self.assertEqual(self.refusal("train", "--deepspeed_config", self.config(), "--data", self.text, "--resume", name),
                             f"error: --resume {name}: needs --output, the folder to resume from\n")

    def test_an_evaluation_without_data_is_an_error(self):
        for option in (["--eval_interval", 2], ["--ngrams"]):
            self.assertEqual(self.refusal("train", "--deepspeed_config", self.config(), "--data", self.text, *option),
                             f"error: {option[0]}: needs --eval_data\n")

    def test_a_result_that_cannot_be_written_is_an_error_and_a_log_a_warning(self):
        command = ["--deepspeed_config", str(self.config()), "--model", "tiny", "--seq_len", "32"]
        for args, code, word in ((["plan", "--json", *command], 2, "error"), (["check", str(self.config())], 2, "error"),
                                 (["train", *command, "--data", str(self.text), "--steps", "1"], 0, "warning")):
            with open("/dev/full", "w") as full:
                r = subprocess.run([CLEAVE, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(r.returncode, code, r.stderr)
            self.assertIn(f"{word}: standard output: cannot be written", r.stderr)

    def test_a_reader_that_ends_early_is_no_error(self):
        read, write = os.pipe()
        os.close(read)
        with open(write, "w") as pipe:  # Python ignores SIGPIPE, and the command inherits that
            r = subprocess.run([CLEAVE, "check", str(self.config())], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60,
                               restore_signals=False)
        self.assertEqual((r.returncode, r.stderr), (128 + signal.SIGPIPE, ""))

    def test_a_path_of_any_bytes_is_saved_and_resumed(self):
        odd = os.fsdecode(b"\xff\xfe \\xff")
        folder, model = self.dir / odd, self.dir / f"{odd} model"
        folder.mkdir(), model.mkdir()
        data, lines, tokenizer = folder / f"{odd}.txt", folder / f"{odd}.jsonl", folder / "tokenizer.json"
        shutil.copy(self.text, data)
        lines.write_text(json.dumps({"text": self.text.read_text()}) + "\n")
        shutil.copy(ROOT / "tests/fixtures/tokenizer_llama3.json", tokenizer)
        config = json.loads((ROOT / "tests/fixtures/llama_tiny.config.json").read_text()) | {"vocab_size": 902, "max_position_embeddings": 64}
        (model / "config.json").write_text(json.dumps(config))
        for number, args in enumerate((["--data", data], ["--data", lines], ["--tokenizer", tokenizer], ["--model", model, "--init", "random"],
                                       ["--metrics", folder / "m.jsonl", "--trace", folder / "t.json"],
                                       ["--data", lines, "--tokenizer", tokenizer, "--model", model, "--init", "random"])):
            out = folder / f"{odd} {number}"
            for steps in (1, 2):
                said = self.train(*args, "--output", out, "--export", folder / f"exported {number} {steps}", ranks=1 + number % 2, steps=steps).stdout
            self.assertIn("the same as in the checkpoint", said)
            self.run_cleave("verify", out), self.run_cleave("inspect", out), self.run_cleave("inspect", out, "--json")
            self.run_cleave("generate", out, "--prompt", "the", "--tokens", 3)
            self.run_cleave("eval", out, "--data", data)
        self.run_cleave("import", folder / "exported 5 2", folder / "imported")
        self.run_cleave("plan", "--deepspeed_config", self.config(), "--model", model, "--seq_len", 16, "--world_size", 1, "--json")
        self.run_cleave("data", "inspect", data)

    def test_a_run_starts_with_seventeen_lines_all_keys_or_two(self):
        config = self.config(gradient_accumulation_steps=2, bf16={"enabled": True}, gradient_clipping=0.5, pipeline={"stages": 2},
                             zero_optimization={"stage": 2, "reduce_bucket_size": 1000, "contiguous_gradients": True})
        def start(*args):
            lines = self.train(*args, config=config).stdout.splitlines()
            return [line.split("] ", 1)[-1] for line in lines][:next(i for i, line in enumerate(lines) if "step 1/" in line)]
        lines = start()
        self.assertLessEqual(len(lines), 17, lines)
        self.assertIn("config:     gradient_clipping = 0.5, bf16.enabled = true, zero_optimization.stage = 2, "
                      "zero_optimization.reduce_bucket_size = 1000, pipeline.stages = 2", lines)
        self.assertTrue(any(line.startswith("optimizer:  AdamW (file), lr 0.001 (file)") for line in lines), lines)
        every = start("--verbose")
        self.assertGreater(len(every), 60)
        self.assertTrue(any("zero_optimization.contiguous_gradients = true (user)" in line for line in every))
        self.assertTrue(any(line.strip().startswith("optimizer_state") for line in every))
        self.assertEqual(len(start("--quiet")), 2)
        self.assertIn("excludes", self.refusal("train", "--verbose", "--quiet", "--data", self.text))

    def named(self, text):
        """Returns the aligned lines of a run before its first and after its last step: [(name, value), ...] twice."""
        begin, end = re.split(r"(?m)^(?:\[0\] )?step \d+/.*\n(?:.*\n)*(?:\[0\] )?step \d+/.*\n", text)
        return [re.findall(r"(?m)^(?:\[0\] )?(?=.{12}\S)([a-z]+): +(.*)$", part) for part in (begin, end)]

    def test_a_run_starts_with_its_facts_and_ends_with_results_and_next_commands(self):
        out, config = self.dir / "a run", self.config(pipeline={"stages": 2}, bf16={"enabled": True}, train_batch_size=2,
                                                      zero_optimization={"stage": 1, "offload_optimizer": {"device": "cpu"}})
        begin, end = self.named(self.train("--output", out, "--save_interval", 2, "--eval_data", self.text, config=config).stdout)
        self.assertEqual([name for name, _ in begin], ["model", "weights", "ranks", "layout", "precision", "batch", "optimizer", "schedule", "data",
                                                       "config", "memory", "output", "pipeline"])
        facts = dict(begin)
        self.assertEqual(facts["model"], "tiny, 957 K parameters")
        self.assertRegex(facts["ranks"], r"^2 on cpu; 1 thread .* per rank; shared memory, 2 ranks on ")
        self.assertEqual(facts["layout"], "ZeRO stage 1, 2 pipeline stages, optimizer state on cpu")
        self.assertEqual(facts["precision"], "bf16, fp32 master weights")
        self.assertRegex(facts["batch"], r"^2 = \d samples? x \d micro-batch(es)? x 1 data-parallel rank$")
        self.assertEqual(facts["output"], f"{out}, checkpoints every 2 steps, and at the end; run the same command again to resume")
        self.assertEqual([name for name, _ in end], ["loss", "best", "time", "throughput", "output", "next", "next", "next"])
        results = dict(end[:5])
        self.assertRegex(results["loss"], r"^\d\.\d+ after step 3$")
        self.assertRegex(results["best"], r"^validation loss \d\.\d+ after step 3$")
        self.assertRegex(results["time"], r"^\d+:\d\d for 3 steps$")
        self.assertRegex(results["throughput"], r"^\S+( k)? tokens/s$")
        self.assertEqual([value for name, value in end if name == "next"],
                         [f"cleave generate '{out}'", f"cleave export '{out}' OUT", "run the same command with more --steps to continue"])
        self.run_cleave("generate", out, "--tokens", 1), self.run_cleave("export", out, self.dir / "OUT")
        again = self.train("--output", out, "--eval_data", self.text, config=config).stdout
        self.assertIn("already at step 3 of 3: nothing to train", again)
        self.assertNotIn("throughput:", again)
        self.assertIn("output:     none, no checkpoints; add --output DIR to save them", self.train(ranks=1).stdout)

    def test_names_are_bold_on_a_terminal_unless_no_color_is_set(self):
        command = ["train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", "32", "--steps", "1"]
        self.assertIn(b"\x1b[1mmodel:\x1b[0m      tiny", self.on_terminal("stdout", *map(str, command), env={"NO_COLOR": ""})[0])
        plain = self.on_terminal("stdout", *map(str, command), env={"NO_COLOR": "1"})[0]
        self.assertIn(b"model:      tiny", plain)
        self.assertNotIn(b"\x1b[1m", plain)

    def test_states_in_16_bits_stay_in_fp32_with_a_warning_and_the_same_bits(self):
        keys = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        stage = {"zero_optimization": {"stage": 1}}
        want, got = (self.losses(config=self.config(f"{len(more)}.json", bf16={"enabled": True, **more}, **stage)) for more in ({}, keys))
        self.assertEqual(got, want)
        r = self.train(config=self.config(bf16={"enabled": True, **keys}, **stage))
        for key, what in zip(keys, ("masters", "optimizer states")):
            self.assertEqual(r.stderr.count(f"bf16.{key}: is not supported: {what} stay in fp32, which takes 2 bytes more"), 1, r.stderr)

    def test_check_prints_decisions_and_notes_on_one_page_and_all_keys_when_asked(self):
        config = self.config(train_batch_size="auto", zero_optimization={"stage": 2, "contiguous_gradients": True, "reduce_bucket_size": "auto"})
        text = self.run_cleave("check", config, "--world_size", 2).stdout
        self.assertLessEqual(len(text.splitlines()), 15, text)
        self.assertTrue(text.startswith(f"{config}: accepted\nbatch:      "), text)
        self.assertIn("\nconfig:     zero_optimization.stage = 2\n", text)
        self.assertIn("zero_optimization.reduce_bucket_size = 500000000 (auto)", text)
        self.assertIn("\nzero_optimization.contiguous_gradients = true: no effect here: ", text)
        self.assertNotIn("gradient_clipping", text)
        every = self.run_cleave("check", config, "--world_size", 2, "--all").stdout
        self.assertGreater(len(every.splitlines()), 100)
        self.assertEqual(every.split("\n", 1)[1], self.run_cleave("explain", config, "--world_size", 2).stdout)
        many = {key: True for key in ("contiguous_gradients", "round_robin_gradients", "reduce_scatter", "allgather_partitions", "memory_efficient_linear")}
        crowd = self.config(zero_optimization={"stage": 2, **many}, dump_state=False, zero_allow_untested_optimizer=True,
                            zero_force_ds_cpu_optimizer=False, disable_allgather=False, checkpoint={"tag_validation": "Warn", "use_node_local_storage": False})
        self.assertLessEqual(len(self.run_cleave("check", crowd).stdout.splitlines()), 15)

    def test_eval_shows_progress_and_prints_nothing_when_quiet(self):
        out = self.dir / "out"
        self.train("--output", out, ranks=1)
        self.assertIn(" parameters in fp32 on 1 rank", self.run_cleave("eval", out, "--data", self.text).stderr)
        self.assertIn("optimizer", self.run_cleave("eval", out, "--data", self.text, "--verbose", "--deepspeed_config",
                                                   self.config()).stderr)
        quiet = self.run_cleave("eval", out, "--data", self.text, "--quiet")
        self.assertEqual((quiet.stderr, len(quiet.stdout.splitlines())), ("", 3), "losses a token, a byte and a word")
        long = self.dir / "long.txt"
        long.write_text(self.text.read_text() * 12)
        shown, printed = self.on_terminal("stderr", "eval", out, "--data", long)
        self.assertTrue(printed.startswith(b"loss "))
        self.assertRegex(shown.decode(), r"\r\x1b\[Kevaluated \d+ of \d+ batches, \S+ left")

    def test_a_bar_never_reaches_a_pipe(self):
        out = self.dir / "out"
        for ranks in 1, 2:
            command = ["train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 3,
                       "--output", out]
            if ranks > 1:
                command = ["launch", "-n", ranks, "--", *command]
            for command in (command, ["eval", out, "--data", self.text], ["generate", out, "--tokens", 3]):
                # text=False, because Python would treat a lone carriage return as a line end
                r = subprocess.run([CLEAVE, *map(str, command)], capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertNotIn(b"\r", r.stdout + r.stderr)
                self.assertNotIn(b"\x1b", r.stdout + r.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
