#!/usr/bin/env python3
"""Hugging Face models in both directions: training from their weights, import, export, and errors for other folders.
tests/fixtures/make_published_fixtures.py makes the folders and the results of transformers.
"""
import filecmp
import json
import math
import os
import pickle
import shutil
import struct
import subprocess
import unittest
import zipfile

from app_test import CLEAVE, AppTest, ROOT

PUBLISHED, DEEPSPEED = ROOT / "tests/fixtures/published", ROOT / "tests/fixtures/deepspeed"
MODELS = ["gpt2", "gpt2_base", "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3", "qwen2_torch", "llama_torch"]
LENGTH, VOCAB = 12, 61


def read_safetensors(path):
    """Returns name: (type, shape, bytes)."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    return {name: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


class Trap:
    """Runs a command when Python unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


class Exchange(AppTest):
    def setUp(self):
        super().setUp()
        self.expected = {}
        for name in MODELS:
            tensors = read_safetensors(PUBLISHED / f"{name}.expected.safetensors")
            tokens = struct.unpack(f"<{2 * LENGTH}i", tensors["tokens"][2])
            logits = struct.unpack(f"<{2 * LENGTH * VOCAB}f", tensors["logits"][2])
            self.expected[name] = self.loss_of(tokens + (0,), logits)
        self.tokens = self.dir / "tokens.bin"  # two windows, in the format of nanoGPT
        self.tokens.write_bytes(struct.pack(f"<{2 * LENGTH + 1}H", *tokens, 0))

    @staticmethod
    def loss_of(tokens, logits):
        total = 0
        for i in range(2 * LENGTH):
            row = logits[i * VOCAB:(i + 1) * VOCAB]
            most = max(row)
            total += most + math.log(sum(math.exp(x - most) for x in row)) - row[tokens[i + 1]]
        return total / (2 * LENGTH)

    def begin(self, model, *args, ranks=1, steps=1, code=0, length=LENGTH, **config):
        """Trains on both windows at once; returns the losses and the output."""
        metrics = self.dir / "exchange.jsonl"
        file = self.config("exchange.json", **{"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
                                               "gradient_accumulation_steps": None, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
                                               **config})
        file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if v is not None}))
        command = ["train", "--deepspeed_config", file, "--model", model, "--data", self.tokens, "--seq_len", length,
                   "--steps", steps, "--metrics", metrics, *args]
        r = self.run_cleave(*(["launch", "-n", ranks, "--"] if ranks > 1 else []), *command, code=code)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if code == 0 else []
        return [line["loss"] for line in lines if "loss" in line], r

    def model(self, name, **changes):
        """Copies a model with changes in its config.json."""
        folder = self.dir / f"model {len(list(self.dir.iterdir()))}"
        shutil.copytree(PUBLISHED / name, folder)
        config = json.loads((folder / "config.json").read_text())
        config.update(changes)
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        return folder

    def assertSameFiles(self, a, b):
        names = sorted(p.name for p in a.iterdir())
        self.assertEqual(names, sorted(p.name for p in b.iterdir()))
        for name in names:
            self.assertTrue(filecmp.cmp(a / name, b / name, shallow=False), name)

    def test_the_first_loss_is_that_of_transformers_in_every_layout(self):
        nvme = {"device": "nvme", "nvme_path": str(self.dir)}
        for number, (ranks, config) in enumerate((
                (1, {}), (2, {"pipeline": {"stages": 2}}), (2, {"tensor_parallel": {"autotp_size": 2}}),
                (2, {"zero_optimization": {"stage": 3, "offload_optimizer": nvme, "offload_param": nvme}}))):
            for name in MODELS if number == 0 else [MODELS[number], MODELS[-number]]:
                losses, r = self.begin(PUBLISHED / name, ranks=ranks, **config)
                self.assertAlmostEqual(losses[0] / self.expected[name], 1, delta=1e-5, msg=f"{name} {config}")
                self.assertEqual(r.stdout.count(f"weights:    {PUBLISHED / name} ("), 1, r.stdout)
        losses, _ = self.begin(PUBLISHED / "qwen2", bf16={"enabled": True})
        self.assertAlmostEqual(losses[0] / self.expected["qwen2"], 1, delta=1e-2)

    def test_a_checkpoint_takes_precedence_over_published_weights(self):
        out = self.dir / "out"
        whole, _ = self.begin(PUBLISHED / "llama", steps=4)
        first, _ = self.begin(PUBLISHED / "llama", "--output", out, steps=2)
        both, r = self.begin(PUBLISHED / "llama", "--output", out, steps=4)
        self.assertEqual(both, whole)
        self.assertNotIn("weights:", r.stdout)
        self.assertIn(f"resumed from {out}/global_step2 at step 2", r.stdout)
        self.assertNotIn("warning", r.stderr)

    def test_a_config_json_alone_starts_with_random_weights(self):
        losses, r = self.begin(PUBLISHED / "llama/config.json")
        self.assertGreater(abs(losses[0] / self.expected["llama"] - 1), 1e-3)
        self.assertIn(f"weights:    random, seed 42 (the weights next to {PUBLISHED}/llama/config.json are not read; --model {PUBLISHED}/llama "
                      "starts from them)", r.stdout)

    def test_values_that_are_not_finite_are_named_when_they_are_read(self):
        for name, tensor, wrong in (("llama", "model.layers.1.mlp.down_proj.weight", (5, float("nan"))), ("gpt2", "h.1.mlp.c_fc.weight", (1, float("-inf"))),
                                    ("qwen2", "model.embed_tokens.weight", (2, float("inf")))):
            folder, count = self.model(name), 0
            for file in folder.glob("*.safetensors"):
                for stored, (kind, shape, values) in read_safetensors(file).items():
                    if not stored.endswith(tensor):
                        continue
                    of, count, width = math.prod(shape), wrong[0], {"F32": 4, "BF16": 2, "F16": 2}[kind]
                    bits = {"F32": struct.pack("<f", wrong[1]), "BF16": struct.pack("<f", wrong[1])[2:], "F16": struct.pack("<e", wrong[1])}[kind]
                    data = file.read_bytes()
                    at = data.index(values)
                    for i in range(count):  # at both ends and in between
                        place = at + i * (of - 1) // max(1, count - 1) * width
                        data = data[:place] + bits + data[place + width:]
                    file.write_bytes(data)
                    said = f"{count} of {of} values of {stored} are NaN or infinite in fp32; the training diverged, or the file is damaged; use another copy or an earlier checkpoint"
            self.assertGreater(count, 0)
            self.assertIn(said, self.begin(folder, code=4)[1].stderr)
            r = self.begin(folder, ranks=2, zero_optimization={"stage": 3}, code=4)[1]
            self.assertIn(said, r.stderr)
            for args in (["eval", folder, "--data", self.tokens], ["import", folder, self.dir / f"{name} import"], ["digest", folder]):
                self.assertIn(said, self.run_cleave(*args, code=4).stderr)

    def test_an_inconsistent_index_or_header_is_an_error(self):
        name = "model.norm.weight"
        def index(change):
            folder = self.model("llama")
            path = folder / "model.safetensors.index.json"
            path.write_text(change(path.read_text()))
            return folder, path
        place = json.loads((PUBLISHED / "llama/model.safetensors.index.json").read_text())["weight_map"]
        other = next(file for file in place.values() if file != place[name])
        def refused(folder, said):
            for r in (self.begin(folder, code=4)[1], self.run_cleave("eval", folder, "--data", self.tokens, code=4)):
                self.assertIn(said, r.stderr)
        folder, path = index(lambda text: text.replace(f'"{name}":', f'"{name}": "{place[name]}", "{name}":'))
        refused(folder, f"duplicate key '{name}' in one object")
        refused(folder, f"{path}:")
        folder, path = index(lambda text: json.dumps({"weight_map": {**place, name: other}}))
        refused(folder, f"{path}: lists '{name}' in {other}, which does not contain this tensor")
        folder, path = index(lambda text: json.dumps({"weight_map": {k: v for k, v in place.items() if k != name}}))
        refused(folder, f"{path}: does not list '{name}', which is in {place[name]}")
        folder = self.model("mistral")
        data = (folder / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = data[8:8 + length].rstrip()
        tensor = json.dumps(json.loads(header)[name])
        twice = header[:-1] + f',"{name}":{tensor}}}'.encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(twice)) + twice + data[8 + length:])
        refused(folder, f"duplicate key '{name}' in one object")
        refused(folder, "model.safetensors: is damaged or not a safetensors file: ")

    def test_a_missing_name_is_an_error(self):
        for args in (["eval", "nothing", "--data", self.tokens], ["generate", "nothing"], ["inspect", "nothing"], ["verify", "nothing"],
                     ["digest", "nothing"], ["export", "nothing", self.dir / "out"]):
            r = self.run_cleave(*args, code=4)
            self.assertIn("nothing: does not exist; give the --output folder", r.stderr)
            self.assertNotIn("'latest'", r.stderr)
        bare = self.model("mistral")
        (bare / "model.safetensors").unlink()
        self.assertIn(f"{bare}: contains a config.json, but neither weights", self.run_cleave("eval", bare, "--data", self.tokens, code=4).stderr)

    def test_the_first_line_names_the_origin_of_weights_and_random_ones_must_be_requested(self):
        bare = self.model("llama")
        for file in bare.glob("*.safetensors*"):
            file.unlink()
        r = self.begin(bare, code=2)[1]
        self.assertIn(f"--model {bare}: contains a config.json but no weights (model.safetensors, pytorch_model.bin)", r.stderr)
        self.assertIn("--init random", r.stderr)
        for model in (bare, PUBLISHED / "llama"):
            losses, r = self.begin(model, "--init", "random", "--seed", 7)
            self.assertTrue("\nweights:    random, seed 7\n" in r.stdout, r.stdout)
            self.assertEqual(losses, self.begin(bare / "config.json", "--seed", 7)[0])
        r = self.begin("tiny", "--quiet")[1]
        self.assertTrue("\nweights:    random, seed 42\n" in r.stdout, r.stdout)

    def test_a_name_of_a_preset_and_a_folder_is_ambiguous_in_every_command(self):
        shutil.copytree(PUBLISHED / "llama", self.dir / "gpt2")
        (self.dir / "tiny").mkdir()  # not a model
        shutil.copy(self.tokens, self.dir / "two.bin")
        config = self.config(train_micro_batch_size_per_gpu=2)

        def run(*args, code=0):
            r = subprocess.run([CLEAVE, *map(str, args)], cwd=self.dir, capture_output=True, text=True, timeout=120)
            self.assertEqual(r.returncode, code, f"{args}\n{r.stdout}\n{r.stderr}")
            return r
        train = ["train", "--deepspeed_config", config, "--data", "two.bin", "--seq_len", LENGTH, "--steps", 1, "--model"]
        plan = ["plan", "--deepspeed_config", config, "--seq_len", LENGTH, "--model"]
        for command in ([*train, "gpt2"], [*plan, "gpt2"], ["eval", "gpt2", "--data", "two.bin"], ["generate", "gpt2"], ["digest", "gpt2"],
                        ["import", "gpt2", "to"], ["import", "--from_deepspeed", DEEPSPEED / "zero1_bf16", "to", "--model", "gpt2"]):
            self.assertIn("gpt2: is both a preset and a model folder; write ./gpt2 for the folder, or preset:gpt2 for the preset",
                          run(*command, code=2).stderr, command)
        self.assertIn("weights:    ./gpt2 (", run(*train, "./gpt2").stdout)
        run("eval", "./gpt2", "--data", "two.bin")
        run(*plan, "preset:gpt2")
        self.assertIn("weights:    random, seed 42", run(*train, "tiny").stdout)
        self.assertIn("weights:    random, seed 42", run(*train, "preset:tiny").stdout)

    def test_an_import_evaluates_and_exports_the_same_bytes(self):
        for name in MODELS:
            folder, out = self.dir / f"{name} in", self.dir / f"{name} out"
            self.assertIn("global_step0: weights of", self.run_cleave("import", PUBLISHED / name, folder, "--seq_len", LENGTH).stdout)
            loss = float(self.run_cleave("eval", folder, "--data", self.tokens).stdout.split()[1])
            self.assertAlmostEqual(loss / self.expected[name], 1, delta=1e-5, msg=name)
            weights = {}
            for file in sorted((PUBLISHED / name.removesuffix("_torch")).glob("*.safetensors")):
                weights.update(read_safetensors(file))
            dtype = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}[weights.get("wte.weight", next(iter(weights.values())))[0]]
            self.run_cleave("export", folder, out, "--dtype", dtype, "--max_shard_size", "8KB")
            again = {}
            for file in sorted(out.glob("*.safetensors")):
                again.update(read_safetensors(file))
            self.assertEqual(set(json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]), set(again))
            if name == "gpt2_base":
                weights = {f"transformer.{k}": v for k, v in weights.items()
                           if not k.endswith((".attn.bias", ".masked_bias", "lm_head.weight"))}
            self.assertEqual(again, weights, name)

    def test_an_export_contains_the_model_files_and_imports_to_the_same_files(self):
        model = self.model("llama")
        for name, text in (("tokenizer.json", "{}"), ("tokenizer_config.json", "{}"), ("vocab.json", '{"a": 1}'),
                           ("merges.txt", "a b"), ("special_tokens_map.json", "{}"), ("added_tokens.json", "{}"), ("notes.txt", "no")):
            (model / name).write_text(text)
        shutil.copy(ROOT / "tests/fixtures/sentencepiece_bpe.model", model / "tokenizer.model")
        run, a, b = self.dir / "run", self.dir / "a", self.dir / "b"
        self.begin(model, "--output", run, "--export", self.dir / "at end", ranks=2, zero_optimization={"stage": 3})
        self.run_cleave("export", run, a)
        self.assertSameFiles(self.dir / "at end", a)
        names = {p.name for p in a.iterdir()}
        self.assertEqual(names, {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer.model",
                                 "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"})
        config, before = (json.loads((f / "config.json").read_text()) for f in (a, model))
        self.assertEqual(config.pop("torch_dtype"), "float32")
        before.pop("dtype")
        self.assertEqual(config, before)
        self.run_cleave("import", a, self.dir / "again")
        self.run_cleave("export", self.dir / "again", b)
        self.assertSameFiles(a, b)

    def test_links_out_of_a_model_folder_and_files_of_other_formats_are_not_copied(self):
        private = self.dir / "private.json"
        private.write_text('{"password": "x"}')
        link, other_form = "the link leaves the model's folder", "the content does not match the name"
        for name, text, said in (("tokenizer_config.json", None, link), ("chat_template.jinja", None, link), ("vocab.json", "v", other_form),
                                 ("tokenizer.model", "-----BEGIN PRIVATE KEY", "tokenizer.model: "), ("merges.txt", "a\0b", other_form)):
            model = self.model("llama")
            if text is None:
                (model / name).symlink_to(private)
            else:
                (model / name).write_text(text)
            r = self.run_cleave("import", model, self.dir / "never", code=4)
            self.assertIn(said, r.stderr, name)
            self.assertNotIn("password", r.stderr)
            self.assertFalse((self.dir / "never" / name).exists())
            shutil.rmtree(model)
            shutil.rmtree(self.dir / "never", ignore_errors=True)
        # A run folder that contains links.
        run = self.dir / "run"
        self.run_cleave("import", PUBLISHED / "llama", run)
        (run / "vocab.json").symlink_to(private)
        self.assertIn(link, self.run_cleave("export", run, self.dir / "out", code=4).stderr)
        self.assertEqual([p.name for p in self.dir.iterdir() if "out" in p.name], [])

    def test_a_snapshot_of_hugging_faces_cache_is_imported_through_its_links(self):
        model, repository = self.model("llama"), self.dir / "models--a--b"
        snapshot = repository / "snapshots" / "0123"
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir()
        (model / "vocab.json").write_text('{"a": 1}')
        for number, file in enumerate(sorted(model.iterdir())):
            file.rename(repository / "blobs" / f"hash{number}")
            (snapshot / file.name).symlink_to(f"../../blobs/hash{number}")
        (self.dir / "link").symlink_to(snapshot)
        for folder in (snapshot, self.dir / "link"):
            run, out = self.dir / f"run {folder.name}", self.dir / f"out {folder.name}"
            self.run_cleave("import", folder, run)
            self.run_cleave("export", run, out)
            self.assertEqual((out / "vocab.json").read_text(), '{"a": 1}')

    def test_an_export_leaves_files_of_others_in_its_temporary_folder(self):
        run, out, left = self.dir / "run", self.dir / "out", self.dir / ".tmp.out"
        self.run_cleave("import", PUBLISHED / "llama", run)
        left.mkdir()
        (left / "config.json").write_text("of an export that was killed")
        (left / "thesis.txt").write_text("mine")
        self.assertIn("thesis.txt", self.run_cleave("export", run, out, code=4).stderr)
        self.assertEqual(len(list(left.iterdir())), 2)
        (left / "thesis.txt").unlink()
        self.run_cleave("export", run, out)
        self.assertFalse(left.exists())

    def test_a_model_that_started_random_is_exported_with_its_own_config(self):
        run, out = self.dir / "run", self.dir / "out"
        self.train("--output", run, ranks=1)
        self.run_cleave("export", run, out, "--dtype", "bf16")
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["architectures"], config["torch_dtype"], config["vocab_size"]), (["GPT2LMHeadModel"], "bfloat16", 256))
        losses = self.losses("--resume", "never", ranks=1, steps=1, model=out)
        self.assertLess(losses[0][0], 5.5)

    def test_the_ds_config_asks_for_whole_weights_at_the_end(self):
        run = self.dir / "run"
        zero = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}
        for steps in (1, 2):  # the second replaces the first
            _, r = self.begin(PUBLISHED / "qwen2", "--output", run, "--strict", ranks=2, steps=steps, bf16={"enabled": True},
                              zero_optimization=zero)
            self.assertIn(f"global_step{steps} in bf16", r.stdout)
            out = run / "hugging_face"
            self.assertEqual({t[0] for t in read_safetensors(out / "model.safetensors").values()}, {"BF16"})
            if steps == 1:
                (out / "README.md").write_text("mine")
        self.assertEqual((out / "README.md").read_text(), "mine")
        _, r = self.begin(PUBLISHED / "qwen2", zero_optimization=zero)
        self.assertIn("stage3_gather_16bit_weights_on_model_save: nothing is written without --output", r.stdout)

    def test_a_training_of_an_import_starts_with_a_new_optimizer(self):
        folder = self.dir / "in"
        self.run_cleave("import", PUBLISHED / "mistral", folder)
        whole, _ = self.begin(PUBLISHED / "mistral", steps=3)
        losses, r = self.begin(PUBLISHED / "mistral", "--output", folder, "--strict", steps=3)
        self.assertEqual(losses, whole)
        self.assertIn("global_step0 at step 0; the optimizer starts from scratch", r.stdout)
        self.assertNotIn("warning", r.stderr)

    def test_a_deepspeed_training_resumes_with_its_moments(self):
        self.tokens.write_bytes(struct.pack("<25H", *(i * i % 31 for i in range(25))))
        def imported(name):
            out = self.dir / name
            self.assertIn("global_step3: weights and Adam's moments",
                          self.run_cleave("import", "--from_deepspeed", DEEPSPEED / name, out).stdout)
            return out
        folders = [imported(name) for name in ("zero2_bf16", "zero3_bf16", "zero2_fp32")]
        with open(folders[2] / "global_step3" / "manifest.json") as f:
            state = json.load(f)["state"]
        self.assertEqual((state["step"], state["applied_steps"], state["optimizer_begin"]), (3, 3, 0))
        for folder, ranks, config in zip(folders, (2, 1, 2), ({"zero_optimization": {"stage": 3}}, {}, {"pipeline": {"stages": 2}})):
            losses, r = self.begin(DEEPSPEED / "zero2_fp32", "--output", folder, "--strict", ranks=ranks, steps=5, **config)
            self.assertIn("global_step3 at step 3\n", r.stdout)
        # In fp32, DeepSpeed's own next losses; the second and third depend on the moments and their count.
        expected = read_safetensors(DEEPSPEED / "zero2_fp32.expected.safetensors")
        self.tokens.write_bytes(struct.pack("<12H", *struct.unpack("<12i", expected["tokens"][2])))
        for ranks, config in ((1, {}), (2, {"pipeline": {"stages": 2}})):
            folder = self.dir / f"fp32 {ranks}"
            self.run_cleave("import", "--from_deepspeed", DEEPSPEED / "zero2_fp32", folder)
            losses, r = self.begin(DEEPSPEED / "zero2_fp32", "--output", folder, "--strict", ranks=ranks, steps=6, length=11,
                                   train_batch_size=1, optimizer={"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
                                   **config)
            for ours, theirs in zip(losses[-3:], struct.unpack("<3f", expected["losses"][2])):
                self.assertAlmostEqual(ours / theirs, 1, delta=1e-5)
        # For a pipeline, the loss that transformers computes from its weights.
        expected = read_safetensors(DEEPSPEED / "pipe2_bf16.expected.safetensors")
        self.tokens.write_bytes(struct.pack("<12H", *struct.unpack("<12i", expected["tokens"][2])))
        folder = self.dir / "pipe"
        self.run_cleave("import", "--from_deepspeed", DEEPSPEED / "pipe2_bf16", folder, "--seq_len", 11)
        loss = float(self.run_cleave("eval", folder, "--data", self.tokens).stdout.split()[1])
        self.assertAlmostEqual(loss / struct.unpack("<f", expected["loss"][2])[0], 1, delta=1e-5)
        r = self.run_cleave("import", "--from_deepspeed", DEEPSPEED / "pipe2_bf16", self.dir / "no", "--model", DEEPSPEED / "zero1_bf16",
                            code=4)
        self.assertIn("3 of its layers look like blocks, but the model has 2", r.stderr)
        none = self.dir / "none"
        shutil.copytree(DEEPSPEED / "zero1_bf16", none)
        (none / "config.json").unlink()
        self.assertIn("contains no config.json; pass --model",
                      self.run_cleave("import", "--from_deepspeed", none, self.dir / "x", code=2).stderr)
        self.run_cleave("import", "--from_deepspeed", none, self.dir / "x", "--model", DEEPSPEED / "zero1_bf16/config.json",
                        "--tag", "global_step3")
        r = self.run_cleave("import", "--from_deepspeed", none, self.dir / "y", "--model", PUBLISHED / "qwen2", code=4)
        self.assertIn("model.embed_tokens.weight in global_step3 has the wrong shape (got [31, 8], expected [61, 16])", r.stderr)
        (none / "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
        r = self.run_cleave("import", "--from_deepspeed", none, self.dir / "y", "--model", DEEPSPEED / "zero1_bf16", code=4)
        self.assertIn(" ranks wrote it, but the file of rank 1", r.stderr)
        self.assertFalse((self.dir / "y").exists())

    def test_nothing_is_overwritten(self):
        run, taken = self.dir / "run", self.dir / "taken"
        self.run_cleave("import", PUBLISHED / "llama", run)
        self.assertIn("already contains checkpoints", self.run_cleave("import", PUBLISHED / "llama", run, code=2).stderr)
        taken.mkdir()
        (taken / "notes.txt").write_text("mine")
        for args in (["export", run, taken], ["export", run, taken / "notes.txt"]):
            self.assertIn("already exists; choose a new or empty folder", self.run_cleave(*args, code=2).stderr)
        _, r = self.begin(PUBLISHED / "llama", "--output", run, "--export", taken, code=2)
        self.assertIn("already exists; choose a new or empty folder", r.stderr)
        self.assertEqual((taken / "notes.txt").read_text(), "mine")
        (taken / "notes.txt").unlink()
        self.run_cleave("export", run, taken)  # an empty folder is accepted
        self.assertTrue((taken / "model.safetensors").exists())
        self.assertEqual([p.name for p in self.dir.iterdir() if p.name.startswith(".tmp")], [])

    def test_other_folders_are_one_error_before_anything_starts(self):
        def refused(folder, code, *parts, ranks=1):
            _, r = self.begin(folder, ranks=ranks, code=code)
            for part in (str(folder), *parts):
                self.assertIn(part, r.stderr)
            self.assertEqual(self.times_said(parts[-1], r.stderr), 1, "said once, not by every rank")
            r = self.run_cleave("import", folder, self.dir / "never", code=code)
            self.assertIn(parts[-1], r.stderr)
            self.assertFalse((self.dir / "never").exists())
        refused(self.model("llama", model_type="qwen3_moe"), 2, "'qwen3_moe' is not supported; supported are", "the nearest is qwen3", ranks=2)
        refused(self.model("llama", model_type="gpt_neox"), 2, "the nearest is gpt2")
        r = self.begin(self.model("llama", model_type=None), code=2)[1]
        self.assertIn("model_type: '' is not supported; supported are ", r.stderr)
        self.assertNotIn("nearest", r.stderr)
        refused(self.model("llama", quantization_config={"quant_method": "fp8"}), 2, "quantization_config", "a quantized model")
        refused(self.model("gpt2", quantization_config={"quant_method": "gptq"}), 2, "quantization_config", "a quantized model")
        refused(self.model("llama", rope_parameters=None, rope_scaling={"rope_type": "yarn", "factor": 2.0}), 2, "yarn is not supported")
        refused(self.model("llama", num_hidden_layers=3), 4, "model.layers.2.mlp.down_proj.weight is missing", ranks=2)
        refused(self.model("llama", num_hidden_layers=1), 4, "model.layers.1.mlp.down_proj.weight in model-",
                "self_attn.v_proj.weight in model-")
        refused(self.model("llama", intermediate_size=25), 4, "has the wrong shape (got [16, 24], expected [16, 25])\n  model.layers.1.mlp.gate")
        refused(self.model("llama", tie_word_embeddings=True), 4, "lm_head.weight and model.embed_tokens.weight differ")
        refused(self.model("qwen2", tie_word_embeddings=False), 4, "lm_head.weight is missing")
        gone = self.model("llama")
        (gone / "model-00003-of-00004.safetensors").unlink()
        refused(gone, 4, "needs model-00003-of-00004.safetensors, which is missing")
        cut = self.model("mistral")
        (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-4])
        refused(cut, 4, "is damaged or not a safetensors file")
        quantized = self.model("mistral")
        data = (quantized / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        header["model.norm.weight"].update(dtype="F8_E4M3", shape=[64])
        text = json.dumps(header).encode()
        (quantized / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
        refused(quantized, 4, "model.norm.weight in model.safetensors has an unsupported type (got F8_E4M3")
        trap = self.model("mistral")
        (trap / "model.safetensors").unlink()
        with zipfile.ZipFile(trap / "pytorch_model.bin", "w") as archive:
            archive.writestr("a/data.pkl", pickle.dumps(Trap(self.dir / "ran"), 2))
        refused(trap, 4, "it uses 'posix.system', which is neither a tensor nor a container; this is not supported, because a pickle can run any code. Save the model as safetensors")
        self.assertFalse((self.dir / "ran").exists())
        other = self.model("mistral")
        (other / "model.safetensors").rename(other / "model.gguf")
        refused(other, 4, "contains neither model.safetensors", "such as model.gguf, are not supported")

    def test_the_length_is_at_most_the_models_positions(self):
        self.tokens.write_bytes(self.tokens.read_bytes() * 4)
        _, r = self.begin(PUBLISHED / "llama", length=33, code=2)
        self.assertIn("--seq_len 33 is outside 1..32", r.stderr)


if __name__ == "__main__":
    unittest.main()
