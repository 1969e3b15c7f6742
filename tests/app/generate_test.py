#!/usr/bin/env python3
"""Sample generation: equal with and without a KV cache, in every layout, with other prompts and past the sequence length."""
import json
import os
import shutil
import struct
import subprocess
import unittest

from app_test import CLEAVE, AppTest, ROOT

FIXTURES = ROOT / "tests/fixtures"
SEQ = 32
PROMPTS = ["the light and", "w", "upon the face of the", "heaven", "earth was", "deep and the water", "a", "light"]


class Generate(AppTest):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "out"
        self.train("--output", self.out, ranks=1, steps=40)
        self.prompts = self.dir / "prompts.txt"
        self.prompts.write_text("".join(p + "\n" for p in PROMPTS))

    def generate(self, *args, ranks=1, folder=None, **changes):
        layout = ["--deepspeed_config", self.config("layout.json", **changes)] if changes else []
        launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
        out = self.run_cleave(*launch, "generate", folder or self.out, "--quiet", *layout, *args).stdout
        return "".join(line.removeprefix("[0] ") for line in out.splitlines(keepends=True))

    def test_a_terminal_gets_no_control_characters_and_a_pipe_gets_the_text(self):
        raw, escaped = b"up\x1b[2J\xc2\x9b\ton", b"up\\x1b[2J\\xc2\\x9b\ton"
        command = ["generate", self.out, "--quiet", "--tokens", "2", "--prompt", os.fsdecode(raw)]
        self.assertTrue(subprocess.run([CLEAVE, *command], capture_output=True, check=True).stdout.startswith(raw))
        shown, _ = self.on_terminal("stdout", *command)
        self.assertTrue(shown.startswith(escaped), shown)

    def test_texts_are_those_of_whole_windows_in_every_layout(self):
        args = ["--prompts", self.prompts, "--tokens", 12]
        sampled = ["--temperature", 0.9, "--seed", 11]
        greedy = self.generate(*args, "--temperature", 0, "--no_kv_cache")
        self.assertEqual(len(greedy), sum(len(p) + 13 for p in PROMPTS))
        drawn = self.generate(*args, *sampled, "--no_kv_cache")
        self.assertNotEqual(drawn, greedy)
        for ranks, changes in (
            (1, {}), (2, {}), (2, {"pipeline": {"stages": 2}}), (2, {"tensor_parallel": {"autotp_size": 2}}),
            (3, {"zero_optimization": {"stage": 3}}), (2, {"sequence_parallel_size": 2}),
            (4, {"pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2, "sequence_parallel": False}}),
        ):
            with self.subTest(ranks=ranks, **changes):
                self.assertEqual(self.generate(*args, "--temperature", 0, ranks=ranks, **changes), greedy)
                self.assertEqual(self.generate(*args, *sampled, ranks=ranks, **changes), drawn)

    def test_a_prompt_among_many_has_the_text_of_a_single_one(self):
        # With --batch 1, each prompt is alone. The draws of a prompt depend on its number in the file.
        args = ["--tokens", 14, "--stop", "a"]
        texts = {batch: self.generate("--prompts", self.prompts, "--batch", batch, *args) for batch in (1, 3, 8, 20)}
        self.assertEqual(len(set(texts.values())), 1, texts)
        self.assertTrue(texts[1].startswith(self.generate("--prompt", PROMPTS[0], *args)))
        greedy = [*args, "--temperature", 0]
        alone = "".join(self.generate("--prompt", p, *greedy) for p in PROMPTS)
        for ranks in (1, 2, 3):
            self.assertEqual(self.generate("--prompts", self.prompts, "--batch", 2, *greedy, ranks=ranks), alone)
        lengths = {len(line) - len(p) for line, p in zip(alone.splitlines(), PROMPTS)}
        self.assertGreater(len(lengths), 1, "they end on their own")

    def test_a_text_longer_than_the_sequence_restarts_with_its_newest_half(self):
        greedy = ["--temperature", 0]
        text = self.generate("--prompt", "the light", "--tokens", 60, *greedy)[:-1]
        self.assertEqual(len(text), 69)
        half, begin = SEQ // 2, SEQ + 1 - SEQ // 2
        while begin + half <= len(text):
            newest = text[begin:begin + half]
            grows = min(half + 1, len(text) - begin - half)
            self.assertEqual(self.generate("--prompt", newest, "--tokens", grows, *greedy)[:-1], text[begin:begin + half + grows])
            begin += SEQ + 1 - half
        long = "the light was upon the face of the deep and the water"
        self.assertEqual(self.generate("--prompt", long, "--tokens", 1, *greedy),
                         self.generate("--prompt", long, "--tokens", 1, *greedy, "--no_kv_cache"), "the newest 32 tokens")
        shorter = self.generate("--prompt", "the light", "--tokens", 60, "--seq_len", 20, *greedy)
        self.assertEqual(shorter[:20], text[:20])
        self.run_cleave("generate", self.out, "--seq_len", 100000, code=2)

    def test_a_published_model_is_read_in_place(self):
        published = self.dir / "published"
        tokenizer = FIXTURES / "tokenizer_llama3.json"
        model = self.dir / "model"
        model.mkdir()
        config = json.loads((FIXTURES / "llama_tiny.config.json").read_text()) | {"vocab_size": 902, "max_position_embeddings": 64}
        (model / "config.json").write_text(json.dumps(config))
        shutil.copy(tokenizer, model / "tokenizer.json")
        run = self.dir / "run"
        self.train("--init", "random", "--output", run, model=model, ranks=1, steps=10)
        self.run_cleave("export", run, published)
        args = ["--prompt", "heaven and earth", "--tokens", 9, "--temperature", 0]
        self.assertEqual((published / "tokenizer.json").read_bytes(), (model / "tokenizer.json").read_bytes())
        (published / "tokenizer.json").unlink()
        r = self.run_cleave("generate", published, *args, code=2)
        self.assertIn("contains no tokenizer; pass --tokenizer FILE", r.stderr)
        shutil.copy(tokenizer, published / "tokenizer.json")
        want = self.generate(*args, folder=run)
        self.assertEqual(self.generate(*args, folder=published, ranks=2, pipeline={"stages": 2}), want)
        self.assertEqual(self.generate(*args, folder=published, ranks=2, zero_optimization={"stage": 3}), want)
        losses = [self.run_cleave("eval", folder, "--data", self.text, "--seq_len", 32, "--quiet").stdout for folder in (run, published)]
        self.assertEqual(losses[0], losses[1])
        (published / "model.safetensors").unlink()
        self.assertIn("latest", self.run_cleave("generate", published, code=4).stderr)

    def test_a_text_ends_at_every_token_that_the_model_names(self):
        model, published, run = self.dir / "model", self.dir / "published", self.dir / "run"
        model.mkdir()
        config = json.loads((FIXTURES / "llama_tiny.config.json").read_text()) | {"vocab_size": 902, "max_position_embeddings": 64}
        (model / "config.json").write_text(json.dumps(config))
        shutil.copy(FIXTURES / "tokenizer_llama3.json", model / "tokenizer.json")
        self.train("--init", "random", "--output", self.dir / "first", model=model, ranks=1, steps=10)
        self.run_cleave("export", self.dir / "first", published)
        args = ["--prompt", "heaven and earth", "--tokens", 9, "--temperature", 0]
        every, prompt = list(range(902)), "heaven and earth\n"

        def named(generation, config):
            for name, ids in (("generation_config.json", generation), ("config.json", config)):
                path = published / name
                said = json.loads(path.read_text()) if path.exists() else {}
                said.pop("eos_token_id", None)
                path.write_text(json.dumps(said | ({} if ids is None else {"eos_token_id": ids})))
            return self.generate(*args, folder=published)

        whole = named(None, None)
        self.assertGreater(len(whole), len(prompt))
        self.assertEqual(named(every, None), prompt)
        self.assertEqual(named(None, every), prompt)
        self.assertEqual(named([901], every), whole, "generation_config.json comes first")
        self.assertEqual(named(901, None), whole)
        self.assertEqual(named(every, 901), prompt)
        self.train("--output", run, model=published, ranks=1, steps=1)
        self.assertEqual(self.generate(*args, folder=run), prompt, "a checkpoint keeps them")
        said = self.run_cleave("generate", published, *args, code=0).stdout
        self.assertEqual(said, prompt)
        (published / "generation_config.json").write_text('{"eos_token_id": "end"}')
        self.assertIn("eos_token_id is malformed", self.run_cleave("generate", published, *args, code=4).stderr)

    def test_digests_of_published_models_are_those_of_their_import(self):
        for name in ("gpt2", "gpt2_base", "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3", "llama_torch"):
            folder, imported = FIXTURES / "published" / name, self.dir / name
            self.run_cleave("import", folder, imported)
            for args in ([], ["--dtype", "bf16", "--threads", 3]):
                direct = self.run_cleave("digest", folder, *args).stdout
                self.assertRegex(direct, r"^[0-9a-f]{32}  weights\n$")
                self.assertEqual(direct, self.run_cleave("digest", imported, *args).stdout, name)
        data = self.dir / "tokens.bin"
        data.write_bytes(struct.pack("<49H", *(i * 7 % 61 for i in range(49))))
        for name in ("gpt2", "phi3", "gemma2", "gemma3", "llama_torch"):
            args = ["--data", data, "--seq_len", 12, "--quiet"]
            losses = [self.run_cleave("eval", folder, *args).stdout for folder in (FIXTURES / "published" / name, self.dir / name)]
            self.assertEqual(losses[0], losses[1], name)
            self.assertIn("nats per token, perplexity", losses[0])


if __name__ == "__main__":
    unittest.main()
