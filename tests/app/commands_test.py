#!/usr/bin/env python3
"""Every command, its options and its errors for bad input."""
import base64
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import unittest
import unittest.mock

from app_test import AppTest, CLEAVE, ROOT


class Commands(AppTest):
    def test_every_command_has_help(self):
        self.assertIn("train", self.run_cleave("--help").stdout)
        for command in ["train", "launch", "check", "explain", "plan", "eval", "generate", "import", "export", "data", "bench", "report"]:
            self.assertIn("Example:", self.run_cleave(command, "--help").stdout)
        self.assertIn("unknown command", self.run_cleave("trian", code=2).stderr)

    def test_bench_measures_shares_of_limits_and_names_slower_rows(self):
        few = ("bench", "matmul", "comm", "--filter", "matmul/narrow/forward", "--seconds", "0", "--rounds", "3")
        said = self.run_cleave(*few, "--json")
        report = json.loads(said.stdout)
        rows = {row["name"]: row for row in report["rows"]}
        self.assertEqual({name.split("/")[0] for name in rows}, {"limit", "comm", "matmul"})
        self.assertEqual({"matmul/narrow/forward/fp32", "matmul/narrow/forward/fp32/oneDNN", "matmul/narrow/forward/bf16"} - set(rows), set())
        for name, row in rows.items():
            self.assertTrue(0 < row["low"] <= row["median"] <= row["high"], row)
            self.assertIn(name, said.stderr)
            if "limit" in row:
                self.assertAlmostEqual(row["share"], row["median"] / row["limit"])
        # On a CPU without AVX-512, oneDNN has no bf16 products; their rows are then left out.
        least = {"CLEAVE_ISA": "v3", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        with unittest.mock.patch.dict(os.environ, least):
            said = self.run_cleave("bench", "matmul", "--filter", "matmul/narrow/forward", "--seconds", "0", "--rounds", "1", "--json")
        names = {row["name"] for row in json.loads(said.stdout)["rows"]}
        self.assertLessEqual({"matmul/narrow/forward/fp32/oneDNN", "matmul/narrow/forward/bf16"}, names)
        self.assertEqual("matmul/narrow/forward/bf16/oneDNN" in names, "does not support bf16 products" not in said.stderr)
        product = rows["matmul/narrow/forward/fp32"]
        self.assertGreaterEqual(product["limit"], rows["matmul/narrow/forward/fp32/oneDNN"]["high"])
        for key in ("low", "median", "high"):
            product[key] *= 1000
        before = self.dir / "before.json"
        before.write_text(json.dumps(report))
        self.assertIn("slower: matmul/narrow/forward/fp32 ", self.run_cleave(*few, "--compare", before).stdout)
        self.assertEqual(rows["comm/all_reduce/64MiB"]["limit"], rows["limit/copy/64MiB"]["high"])
        for words, wrong in ((("bench", "everything"), "expected one of matmul, kernels, optimizer, comm, disk, step"),
                             (("bench", "--compare", ROOT / "README.md"), "not a report"),
                             (("bench", "--ranks", "1"), "an integer from 2 to 256"),
                             (("bench", "--rounds", "0"), "an integer from 1 to 1000"),
                             (("bench", "disk", "--folder", "/proc/none"), "--folder")):
            self.assertIn(wrong, self.run_cleave(*words, code=2).stderr)

    def test_bench_ends_when_a_rank_of_its_collectives_is_lost(self):
        job = subprocess.Popen([CLEAVE, "bench", "comm", "--rounds", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertIn("round ", job.stderr.readline())
        ranks = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        self.assertEqual(len(ranks), 2)
        os.kill(int(ranks[1]), signal.SIGKILL)
        said = job.communicate(timeout=200)[1]
        self.assertEqual(job.returncode, 6, said)
        self.assertIn("rank 0: ", said)
        self.assertIn("2 of 2 ranks of the measurement failed; see their output above", said)

    def test_auto_takes_the_trainers_defaults_and_its_options(self):
        config = self.dir / "auto.json"
        config.write_text(json.dumps({
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                              "warmup_num_steps": "auto", "total_num_steps": "auto"}},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                                  "stage3_param_persistence_threshold": "auto"}}))
        def values(*args):
            metrics = self.dir / "auto.jsonl"
            self.train("--metrics", metrics, *args, config=config, steps=2)
            return json.loads(metrics.read_text().splitlines()[0])["config"]
        start = values()
        self.assertEqual((start["train_batch_size"], start["gradient_clipping"], start["optimizer.params.lr"]), (16, 1, 5e-5))
        start = values("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "3", "--learning-rate", "0.01",
                       "--bf16", "true")
        self.assertEqual((start["train_batch_size"], start["optimizer.params.lr"], start["bf16.enabled"]), (12, 0.01, True))

    def test_the_trainers_options_train_a_file_without_an_optimizer_or_contradict_it(self):
        def start(config, *args, code=0):
            metrics = self.dir / "options.jsonl"
            r = self.train("--metrics", metrics, *args, config=config, code=code, ranks=1)
            return r, [json.loads(line) for line in metrics.read_text().splitlines()] if code == 0 else []
        bare = self.dir / "bare.json"
        bare.write_text('{"train_micro_batch_size_per_gpu": 2}')
        r, lines = start(bare)
        self.assertEqual([line["lr"] for line in lines[1:-1]], [1e-3] * 3)
        self.assertIn("optimizer:  AdamW, lr 0.001, ", r.stdout)
        r, lines = start(bare, "--learning_rate", 0.3)
        self.assertIn("lr 0.3 (--learning_rate)", r.stdout)
        for line, share in zip(lines[1:-1], (3, 2, 1)):  # linear to zero over three steps
            self.assertAlmostEqual(line["lr"], 0.1 * share, places=12)
        r, lines = start(bare, "--lr_scheduler_type", "constant", "--bf16")
        self.assertEqual([line["lr"] for line in lines[1:-1]], [5e-5] * 3)
        self.assertIn("schedule:   constant (--lr_scheduler_type)", r.stdout)
        r, _ = start(self.config(), "--learning_rate", 0.3, code=2)
        self.assertIn("optimizer.params.lr is 0.001, --learning_rate is 0.3", r.stderr)
        r, _ = start(bare, "--lr_scheduler_type", "polynomial", code=2)
        self.assertIn("polynomial", r.stderr)

    def test_the_configuration_may_be_base64_or_the_value_of_deepspeed(self):
        rest = ["--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 1]
        text = base64.urlsafe_b64encode(b'{"train_batch_size": 3, "zero_optimization": {"stage": 2}}').decode()
        self.assertIn("zero_optimization.stage = 2", self.run_cleave("train", "--deepspeed_config", text, *rest).stdout)
        path = self.config(zero_optimization={"stage": 1})
        self.assertIn("zero_optimization.stage = 1", self.run_cleave("train", "--deepspeed", path, *rest).stdout)
        self.run_cleave("train", "--deepspeed", "--deepspeed_config", path, *rest)
        self.run_cleave("train", *rest, "--deepspeed_config", path, "--deepspeed")
        self.assertIn("expected one file", self.run_cleave("train", "--deepspeed", path, "--deepspeed_config", "other.json", *rest,
                                                   code=2).stderr)
        self.assertIn("--deepspeed_config: missing; give the ds_config file", self.run_cleave("train", "--deepspeed", *rest, code=2).stderr)

    def test_a_configuration_in_hjson_trains_after_one_warning(self):
        path = self.dir / "loose.json"
        path.write_text("{\n  train_batch_size: 2 // all ranks\n  optimizer: {type: 'AdamW'}\n  fp16: {enabled: false}\n}\n")
        r = self.train(config=path, ranks=1)
        self.assertEqual(r.stderr.count("warning:"), 1, r.stderr)
        self.assertIn("loose.json:2:3: this is not JSON", r.stderr)
        self.train("--strict", config=path, ranks=1, code=2)
        self.assertIn("changes that make it fit", self.run_cleave(
            "plan", "--deepspeed_config", path, "--model", "tiny", "--seq_len", 32, "--device_memory", "9MiB", code=3).stderr)

    def test_unknown_numbers_of_steps_stay_undefined_in_check_and_plan(self):
        path = self.config(scheduler={"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}})
        for command in (["check", path], ["plan", "--deepspeed_config", path, "--seq_len", 32]):
            r = self.run_cleave(*command)
            self.assertIn("the number of training steps, set by --steps", r.stdout + r.stderr)
            r = self.run_cleave(*command, "--steps", 50)
            self.assertNotIn("set by --steps", r.stdout + r.stderr)

    def test_check_reports_every_error_with_its_position(self):
        path = self.dir / "bad.json"
        path.write_text('{\n "train_batch_size": "8",\n "gradient_clipp1ng": 1.0,\n "zero_optimization": {"stage": 7}\n}\n')
        err = self.run_cleave("check", path, code=2).stderr
        for part in ("bad.json:2:", "bad.json:3:", "bad.json:4:", "gradient_clipping", "train_batch_size", "stage"):
            self.assertIn(part, err)

    def test_report_lists_features_of_the_machine_and_missing_ones(self):
        report = json.loads(self.run_cleave("report", "--json").stdout)
        with open("/proc/cpuinfo") as f:
            self.assertIn(report["cpu"]["model"], f.read())
        self.assertEqual(report["cpu"]["cores_usable"], len(os.sched_getaffinity(0)))
        self.assertIn("avx2", report["cpu"]["instruction_sets"])
        self.assertGreater(report["cpu"]["memory_bytes"], 1 << 28)
        self.assertEqual(bool(report["cuda"]["gpus"]), not any("GPU" == m["for"].split()[-1] for m in report["missing"]))
        uring = report["io_uring"]
        self.assertEqual(bool(uring["problem"]), any("io_uring" in m["for"] for m in report["missing"]))
        self.assertIn("lo", report["network"]["interfaces"])
        text = self.run_cleave("report", env={"NCCL_SOCKET_IFNAME": "absent0"}).stdout
        self.assertIn("several hosts NCCL_SOCKET_IFNAME: matches no network interface (got absent0, expected some of ", text)
        self.assertIn("threads" if uring["problem"] else f"liburing {uring['liburing']}", text)
        self.assertIn(report["cpu"]["model"], text)
        for m in report["missing"]:
            self.assertIn(m["what"], text)

    def test_every_key_of_a_guide_s_configuration_is_explained(self):
        out = self.run_cleave("check", "--all", "--world_size", 2, ROOT / "examples/gpt2_large/ds_config.json").stdout
        for key in ("train_batch_size", "fp16.enabled", "fp16.loss_scale", "zero_optimization.stage", "overlap_comm",
                    "allgather_partitions", "contiguous_gradients", "reduce_bucket_size", "pin_memory"):
            self.assertIn(key, out)

    def test_explain_gives_each_key_its_value_origin_and_meaning(self):
        path = self.dir / "keys.json"
        path.write_text('{\n "train_micro_batch_size_per_gpu": 2,\n "bf16": {"enabled": "auto"},\n'
                        ' "zero_optimization": {"stage": 2, "contiguous_gradients": true}\n}\n')
        keys = {key["key"]: key for key in json.loads(self.run_cleave("explain", path, "--json", "--world_size", 4, "--bf16").stdout)}
        self.assertEqual((keys["train_batch_size"]["value"], keys["train_batch_size"]["origin"]), (8, "derived"))
        self.assertEqual((keys["zero_optimization.stage"]["value"], keys["zero_optimization.stage"]["origin"]), (2, "user"))
        self.assertTrue(keys["zero_optimization.stage"]["where"].endswith("keys.json:4:24"), keys["zero_optimization.stage"])
        self.assertIs(keys["bf16.enabled"]["value"], True)
        self.assertIn("--bf16", keys["bf16.enabled"]["origin"])
        self.assertIn("no effect", keys["zero_optimization.contiguous_gradients"]["status"])
        self.assertTrue(all(key["meaning"] for key in keys.values()), keys)
        text = self.run_cleave("explain", path, "--bf16").stdout
        self.assertTrue(all(key in text for key in ("zero_optimization.stage", "contiguous_gradients")), text)
        path.write_text('{"zero_optimization": {"stage": 7}}')
        self.assertIn("keys.json:1:", self.run_cleave("explain", path, "--json", code=2).stderr)

    def test_every_key_is_listed_and_compared_with_newer_sources(self):
        keys = {key["key"]: key for key in json.loads(self.run_cleave("explain", "--keys", "--json").stdout)}
        self.assertEqual((keys["zero_optimization.stage"]["default"], keys["zero_optimization.stage"]["status"]), (0, "honoured"))
        self.assertIn("\nzero_optimization.stage (an integer from 0 to 3, default 0): ", self.run_cleave("explain", "--keys").stdout)
        for name in ("overlap_comm", "zero_optimization.overlap_comm"):
            self.assertTrue(self.run_cleave("explain", name).stdout.startswith("zero_optimization.overlap_comm ("))
        self.assertIn("No such file", self.run_cleave("explain", "overlap_com", code=2).stderr)
        self.assertIn("give a ds_config file, a key, or --keys", self.run_cleave("explain", code=2).stderr)
        for file, text in {"deepspeed/runtime/precision_config.py": "class DeepSpeedFP16Config:\n    enabled: bool = False\n    brand_new: int = 1\n",
                           "deepspeed/runtime/constants.py": "NEWER = 'newer'\nNEWER_DEFAULT = 1\n",
                           "transformers/training_args.py": "class TrainingArguments:\n    learning_rate: float = 1\n    newest_option: int = 1\n"}.items():
            path = self.dir / "sources" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, ROOT / "scripts/check_new_keys.py", CLEAVE, self.dir / "sources"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertIn("deepspeed: 2 keys that this program does not know: fp16.brand_new, newer\n", said)
        self.assertIn("transformers: 1 options of the Trainer that this program does not know: newest_option\n", said)

    def test_check_asks_for_ranks_and_notes_keys_that_deepspeed_rejects(self):
        r = self.run_cleave("check", self.config(tensor_parallel={"autotp_size": 2}), code=2)
        self.assertIn("2 tensor ranks need more ranks than the assumed single rank; add --world_size N", r.stderr)
        r = self.run_cleave("check", "--strict", self.config(amp={"enabled": False}, zero_optimization={"stage": 3, "mics_shard_size": -1}))
        self.assertEqual(r.stderr.count("note: "), 2, r.stderr)
        self.assertIn(": amp: DeepSpeed rejects this key since 0.19.8, even if it is off\n", r.stderr)

    def test_bad_input_has_its_exit_code_and_says_what_to_do(self):
        empty = self.dir / "empty.txt"
        empty.write_text("")
        for args, code, part in [
            (["--deepspeed_config", self.dir / "none.json", "--data", self.text], 2, "none.json"),
            (["--deepspeed_config", self.config(), "--data", self.dir / "none.txt"], 7, "none.txt"),
            (["--deepspeed_config", self.config(), "--data", empty], 7, "empty.txt"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--seq_len", 2000], 2, "1024"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--model", "gpt5"], 2, "gpt2-medium"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--steps", "many"], 2, "steps"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--device", "gpu"], 2, "cuda:INDEX"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--gpu_transport", "mpi"], 2, "expected auto, nccl, ipc or host)"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--device", "cpu", "--gpu_transport", "nccl"], 2, "CPU"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--device", "cpu", "--gpu_transport", "ipc"], 2, "CPU"),
            (["--deepspeed_config", self.config("f.json", train_batch_size=7), "--data", self.text], 2, "a single rank, without launcher variables"),
            (["--deepspeed_config", self.config("g.json", train_micro_batch_size_per_gpu=100000), "--data", self.text], 7, "100000"),
            (["--deepspeed_config", self.config(), "--data", self.text, "--resume", "required", "--output", self.dir / "x"], 4, "contains no checkpoint"),
        ]:
            r = self.run_cleave("train", *args, code=code)
            self.assertIn(part, r.stderr)
            self.assertTrue(any(line.startswith(("error:", str(self.dir))) for line in r.stderr.splitlines()), r.stderr)
        self.assertFalse((self.dir / "x").exists())
        with unittest.mock.patch.dict(os.environ, {"CLEAVE_GPU_TRANSPORT": "ipc"}):
            r = self.run_cleave("train", "--deepspeed_config", self.config(), "--data", self.text, "--device", "cpu", code=2)
            self.assertIn("--gpu_transport ipc: has no effect, because this rank computes on the CPU", r.stderr)

    def test_a_missing_gpu_is_an_error_with_the_fix(self):
        if json.loads(self.run_cleave("report", "--json").stdout)["cuda"]["gpus"]:
            self.skipTest("there is a GPU")
        for wanted in "cuda", "cuda:0":
            r = self.train("--device", wanted, ranks=1, code=2)
            self.assertIn("--device cpu", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
            r = self.train("--device", wanted, ranks=3, code=2)
            self.assertEqual(self.times_said("--device cpu", r.stderr), 1, r.stderr)
            self.assertIn("rank 0 ended with exit code 2", r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 2, r.stderr)

    def test_a_port_in_use_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            r = self.run_cleave("launch", "-n", 2, "--master_port", port, "--", "train", "--deepspeed_config", self.config(),
                                "--data", self.text, code=2)
            self.assertIn(str(port), r.stderr)

    def test_eval_and_generate_read_a_checkpoint_of_any_precision(self):
        for section in ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}):
            out = self.dir / f"out{len(section)}{list(section)}"
            self.train("--output", out, config=self.config(zero_optimization={"stage": 3}, **section), steps=2)
            loss = float(self.run_cleave("eval", out, "--data", self.text).stdout.split()[1])
            self.assertTrue(3 < loss < 6, loss)
            a = self.run_cleave("generate", out, "--prompt", "the", "--tokens", 5, "--seed", 3)
            self.assertTrue(a.stdout.startswith("the"))

    def test_a_config_json_that_cannot_be_written_is_an_error_with_the_reason(self):
        path = self.dir / "config.json"
        for text, parts in (
            ("{}", ["config.json", "model_type"]),
            ('{"model_type": "llama", "hidden_act": "laplace", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}',
             ["hidden_act", "yarn", "vocab_size: missing", "num_hidden_layers: missing"]),
        ):
            path.write_text(text)
            r = self.train(model=path, code=2)
            for part in parts:
                self.assertIn(part, r.stderr)
            self.assertEqual(self.times_said(parts[-1], r.stderr), 1, "said once, not by every rank")

    def test_a_folder_without_weights_starts_with_random_ones_on_request(self):
        config = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "attn_pdrop": 0.0}
        bare = self.dir / "bare"
        bare.mkdir()
        (bare / "config.json").write_text(json.dumps(config))
        self.train(model=bare, ranks=1, code=2)
        self.train("--init", "random", model=bare, ranks=1)
        (bare / "model.safetensors").write_text("x")  # plan reads no weights
        self.run_cleave("plan", "--deepspeed_config", self.config(), "--model", bare, "--seq_len", 32)
        self.train(model=bare / "config.json", ranks=1)

    def test_chats_in_json_lines_are_errors_with_any_tokenizer(self):
        chats = self.dir / "chats.jsonl"
        line = json.dumps({"messages": [{"role": "user", "content": "light and water"}]})
        chats.write_text((line + "\n") * 200)
        for tokenizer in ([], ["--tokenizer", ROOT / "tests/fixtures/tokenizer_gpt2.json"]):
            r = self.run_cleave("train", "--deepspeed_config", self.config(), "--data", chats, "--seq_len", 32, "--steps", 1, *tokenizer, code=7)
            self.assertIn(f"{chats}:1: is a chat under the key 'messages' (expected a string under", r.stderr)
            self.assertIn("apply_chat_template", r.stderr)
        self.run_cleave("data", "tokenize", chats, self.dir / "out.bin", code=7)

    def test_lines_of_json_are_documents_also_without_a_tokenizer(self):
        lines, plain, data = self.dir / "lines.jsonl", self.dir / "plain.txt", self.text
        texts = [f"light {i} and water" for i in range(200)]
        lines.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
        plain.write_text("".join(texts))
        losses = {}
        for self.text in (lines, plain):
            losses[self.text] = self.losses("--output", self.dir / f"run {self.text.name}", ranks=1)
        self.assertEqual(losses[lines], losses[plain])
        run = self.dir / "run lines.jsonl"
        got = [self.run_cleave("eval", run, "--data", file).stdout.splitlines()[0] for file in (lines, plain)]
        self.assertEqual(*got)
        self.assertIn("light", self.run_cleave("generate", run, "--prompt", "light", "--tokens", 3).stdout)
        self.text = lines  # documents are known; a text next to them stays bytes
        self.train("--pack", "--document_mask", ranks=1)
        self.train("--eval_data", data, ranks=1)
        r = self.train("--jsonl_key", "body", ranks=1, code=7)
        self.assertIn(f"{lines}:1: no text under the key 'body'", r.stderr)
        lines.write_text('{"text": "short"}\n')
        for more in ([], ["--tokenizer", ROOT / "tests/fixtures/tokenizer_gpt2.json"]):
            r = self.train(*more, ranks=1, code=7)
            self.assertIn(f"error: {lines}: ", r.stderr)
            self.assertNotIn(".bin: ", r.stderr)
        table = self.dir / "table.csv"
        table.write_text("id,text\n" + "1,light\n" * 400)
        for args in (["train", "--deepspeed_config", self.config(), "--seq_len", 32, "--steps", 1, "--data", table],
                     ["train", "--deepspeed_config", self.config(), "--seq_len", 32, "--steps", 1, "--data", data, "--eval_data", table],
                     ["eval", run, "--data", table], ["data", "tokenize", table, self.dir / "out.bin"],
                     ["data", "split", table, "--train", self.dir / "a", "--validation", self.dir / "b"]):
            self.assertIn(f"{table}: is a table, not text; write its texts to a .jsonl", self.run_cleave(*args, code=7).stderr)

    def test_the_vocabulary_of_a_tokenized_text_is_its_tokenizers(self):
        tokens = self.dir / "text.bin"
        self.assertIn("vocabulary 256", self.run_cleave("data", "tokenize", self.text, tokens).stdout)
        self.assertIn("vocabulary 256", self.run_cleave("data", "inspect", tokens).stdout)
        text = self.losses(ranks=1)
        self.text = tokens
        self.assertEqual(self.losses(ranks=1), text)  # the same model with the same vocabulary

    def test_broken_json_is_an_error_of_this_program_with_its_place(self):
        bad, lines, folder = self.dir / "bad.json", self.dir / "bad.jsonl", self.dir / "published"
        bad.write_text('{"a":\n nope}')
        lines.write_text('{"text": "a"}\n{"text": b}\n')
        folder.mkdir()
        model = json.loads((ROOT / "tests/fixtures/published/llama/config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**model, "vocab_size": 256}))
        (folder / "model.safetensors.index.json").write_text('{"weight_map":\n nope}')
        pipeline = self.config("pipeline.json", pipeline={"stages": 2, "schedule": str(bad)})
        plan = ["plan", "--seq_len", 32, "--deepspeed_config"]
        train = ["train", "--deepspeed_config", self.config(), "--seq_len", 8, "--steps", 1, "--data"]
        tokenizer = ROOT / "tests/fixtures/tokenizer_gpt2.json"
        for code, where, args in [(2, f"{bad}:2:2", [*plan, self.config(), "--model", bad]),
                                  (2, f"{bad}:2:2", [*plan, self.config(), "--device", bad]),
                                  (2, f"{bad}:2:2", [*plan, pipeline, "--world_size", 2]),
                                  (7, f"{bad}:2:2", [*train, self.text, "--tokenizer", bad]),
                                  (7, f"{lines}:2:10", [*train, lines, "--tokenizer", tokenizer]),
                                  (4, "index.json:2:2", [*train, self.text, "--model", folder])]:
            err = self.run_cleave(*args, code=code).stderr
            self.assertIn(f"{where}: it is not JSON: invalid literal", err)
            self.assertNotIn("json.exception", err)

    def test_metrics_and_monitors_have_every_validation_loss_and_accuracy_that_is_printed(self):
        metrics = self.dir / "m.jsonl"
        out = self.train("--eval_data", self.text, "--eval_interval", 2, "--metrics", metrics, steps=5,
                         config=self.config(csv_monitor={"enabled": True, "output_path": str(self.dir / "csv"), "job_name": "j"})).stdout
        printed = re.findall(r"step (\d+): validation loss ([\d.]+), perplexity [\d.]+, token accuracy ([\d.]+)$", out, re.M)
        written = [json.loads(line) for line in metrics.read_text().splitlines() if '"evaluation"' in line]
        self.assertEqual([(str(e["step"]), f"{e['validation_loss']:.6g}", f"{e['accuracy']:.6g}") for e in written], printed)
        self.assertEqual([e["step"] for e in written], [2, 4, 5])
        for tag, key in ("eval_loss", "validation_loss"), ("eval_accuracy", "accuracy"):
            drawn = (self.dir / "csv" / "j" / f"Train_Samples_{tag}.csv").read_text().splitlines()[1:]
            for line, e in zip(drawn, written, strict=True):
                self.assertAlmostEqual(float(line.split(",")[1]), e[key], places=5)

    def test_monitors_are_written_where_the_config_says(self):
        self.train(config=self.config(tensorboard={"enabled": True, "output_path": str(self.dir / "tb"), "job_name": "j"},
                                      csv_monitor={"enabled": True, "output_path": str(self.dir / "csv"), "job_name": "j"}))
        self.assertEqual(len(list((self.dir / "tb" / "j").glob("events.out.tfevents.*"))), 1)
        lines = (self.dir / "csv" / "j" / "Train_Samples_lr.csv").read_text().splitlines()
        self.assertEqual(lines[0], "step,lr")
        self.assertEqual(len(lines), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
